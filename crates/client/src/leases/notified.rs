//! From a notification to news of a lease.

use exec_server_protocol::{
    BodyDeltaNotification, ChangedNotification, Notification, SearchResultsNotification,
};
use serde::Deserialize;

use crate::Violation;
use crate::notified::read;

#[derive(Debug)]
pub(super) enum Notified {
    Changed(ChangedNotification),
    Results(SearchResultsNotification),
    BodyDelta(BodyDeltaNotification),
}

/// As much of a notification as is needed to say whose it is.
#[derive(Deserialize)]
struct Name {
    #[serde(alias = "watchId", alias = "searchId", alias = "requestId")]
    id: String,
}

/// Whose news they are, and what they are; `None` for other notifications.
pub(super) fn read_notified(
    notification: &Notification<'_>,
) -> Result<Option<(String, Notified)>, Violation> {
    Ok(Some(match &*notification.method {
        "fs/changed" => {
            let params: ChangedNotification = read(notification)?;
            (params.watch_id.clone(), Notified::Changed(params))
        }
        "fs/searchResults" => {
            let params: SearchResultsNotification = read(notification)?;
            (params.search_id.clone(), Notified::Results(params))
        }
        "http/request/bodyDelta" => {
            let params: BodyDeltaNotification = read(notification)?;
            (params.request_id.clone(), Notified::BodyDelta(params))
        }
        _ => return Ok(None),
    }))
}

/// Whose news they are, if as much can be read.
pub(super) fn read_id(notification: &Notification<'_>) -> Option<String> {
    read::<Name>(notification).ok().map(|name| name.id)
}
