//! A reading position that outlives the reading program.

use exec_server_transport::DialUrl;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{ExecServerClient, ExecServerError, ExecServerProcess, RemoteExecServerConnectArgs};

const VERSION: u32 = 1;

/// The position at which another program can continue to read a process. Clients in other languages
/// use the same JSON.
///
/// It holds no credentials: the client that resumes authenticates again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedProcess {
    #[serde(deserialize_with = "known_version")]
    version: u32,
    /// The URL without its query, user name and password, which may be secrets.
    pub url: String,
    pub session_id: String,
    pub process_id: String,
    /// The last event that the reader has handled.
    pub after_seq: u64,
}

impl SavedProcess {
    #[must_use]
    pub fn new(url: &DialUrl, process: &ExecServerProcess, after_seq: u64) -> Self {
        Self {
            version: VERSION,
            url: url.to_string(),
            session_id: process.client().session_id().to_owned(),
            process_id: process.process_id().to_owned(),
            after_seq,
        }
    }

    /// Resumes the session, which its last client must have left, and continues after the saved
    /// event. The events begin with a [`Gap`](crate::ExecProcessEvent::Gap) if the server no longer
    /// has the next event.
    pub async fn resume(
        &self,
        mut args: RemoteExecServerConnectArgs,
    ) -> Result<(ExecServerClient, ExecServerProcess), ExecServerError> {
        args.options.resume_session_id = Some(self.session_id.clone());
        let client = ExecServerClient::connect_websocket(args).await?;
        let process = client.attach_after(&self.process_id, self.after_seq).await?;
        Ok((client, process))
    }
}

fn known_version<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    match u32::deserialize(deserializer)? {
        VERSION => Ok(VERSION),
        version => Err(serde::de::Error::custom(format_args!(
            "the saved process has version {version}; this client supports version {VERSION}"
        ))),
    }
}
