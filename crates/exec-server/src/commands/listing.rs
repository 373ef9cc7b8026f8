//! The processes of a server across all sessions, and how a user names one of them.

use std::time::Duration;

use exec_server_client::{ExecServerClient, ExecServerError};
use exec_server_protocol::{Empty, ErrorKind, ListParams, ProcessSummary, SessionInfo};
use thiserror::Error;

/// The length of a displayed session id: enough to distinguish sessions, and short enough to type.
const SHORT_ID: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) session: SessionInfo,
    pub(crate) process: ProcessSummary,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum NameError {
    #[error("no process is called {name:?}; see exec-server ps -a")]
    Unknown { name: String },
    #[error("several processes are called {name:?}; choose one: {}", .candidates.join(", "))]
    Ambiguous { name: String, candidates: Vec<String> },
}

impl Listed {
    pub(crate) fn name(&self) -> &str {
        &self.process.process_id
    }

    pub(crate) fn short_session(&self) -> &str {
        short(&self.session.session_id)
    }
}

/// Lists all processes, oldest first.
pub(crate) async fn list(client: &ExecServerClient) -> Result<Vec<Listed>, ExecServerError> {
    list_within(client, None).await
}

/// Like [`list`], but also asks for the sequence number of each process's first event in the last
/// `within`.
pub(crate) async fn list_within(
    client: &ExecServerClient,
    within: Option<Duration>,
) -> Result<Vec<Listed>, ExecServerError> {
    let within_ms = within.map(|within| u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
    let mut listed = Vec::new();
    for session in client.session_list(Empty {}).await?.sessions {
        if session.processes.is_empty() {
            continue;
        }
        let params = ListParams { session_id: Some(session.session_id.clone()), within_ms };
        match client.process_list(params).await {
            Ok(response) => listed.extend(
                response
                    .processes
                    .into_iter()
                    .map(|process| Listed { session: session.clone(), process }),
            ),
            // The session ended during the listing.
            Err(error) if error.kind() == Some(&ErrorKind::UnknownSession) => {}
            Err(error) => return Err(error),
        }
    }
    listed.sort_by_key(|listed| listed.process.started_at_ms);
    Ok(listed)
}

/// Finds the process named `NAME` or `SESSION/NAME`.
pub(crate) fn find<'a>(listed: &'a [Listed], name: &str) -> Result<&'a Listed, NameError> {
    let mut candidates: Vec<_> = listed.iter().filter(|listed| listed.name() == name).collect();
    if candidates.is_empty()
        && let Some((session, of_session)) = name.split_once('/')
    {
        candidates = listed
            .iter()
            .filter(|listed| listed.name() == of_session)
            .filter(|listed| listed.session.session_id.starts_with(session))
            .collect();
    }
    match candidates.as_slice() {
        [] => Err(NameError::Unknown { name: name.to_owned() }),
        [only] => Ok(only),
        several => {
            let candidate =
                |listed: &&Listed| format!("{}/{}", listed.short_session(), listed.name());
            let candidates = several.iter().map(candidate).collect();
            Err(NameError::Ambiguous { name: name.to_owned(), candidates })
        }
    }
}

fn short(id: &str) -> &str {
    id.char_indices().nth(SHORT_ID).map_or(id, |(end, _)| &id[..end])
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn listed(session: &str, name: &str) -> Listed {
        Listed {
            session: SessionInfo {
                session_id: session.to_owned(),
                client_name: "test".to_owned(),
                attached: false,
                processes: vec![name.to_owned()],
                subject: None,
            },
            process: ProcessSummary {
                process_id: name.to_owned(),
                argv: vec!["sleep".to_owned(), "1000".to_owned()],
                tty: false,
                running: true,
                exit_code: None,
                started_at_ms: 1_000,
                next_seq: 1,
                descendants: 0,
                timed_out: false,
                limits_hit: Vec::new(),
                first_seq_within: None,
            },
        }
    }

    #[test]
    fn a_unique_name_is_enough() {
        let all = [listed("0123456789", "a"), listed("0123499999", "b")];
        assert_eq!(find(&all, "b").unwrap(), &all[1]);
        let error = find(&all, "c").unwrap_err().to_string();
        assert_eq!(error, "no process is called \"c\"; see exec-server ps -a");
    }

    #[test]
    fn a_session_distinguishes_equal_names() {
        let all = [listed("0123456789", "a"), listed("9876543210", "a")];
        let error = find(&all, "a").unwrap_err().to_string();
        assert_eq!(error, "several processes are called \"a\"; choose one: 01234567/a, 98765432/a");
        assert_eq!(find(&all, "01234567/a").unwrap(), &all[0]);
        assert_eq!(find(&all, "9/a").unwrap(), &all[1]);
        assert!(matches!(find(&all, "/a"), Err(NameError::Ambiguous { .. })));
        assert!(matches!(find(&all, "5/a"), Err(NameError::Unknown { .. })));
    }

    #[test]
    fn a_name_may_contain_a_slash() {
        let all = [listed("0123456789", "a/b"), listed("0123499999", "b")];
        assert_eq!(find(&all, "a/b").unwrap(), &all[0]);
        assert_eq!(find(&all, "01234/a/b").unwrap(), &all[0]);
    }
}
