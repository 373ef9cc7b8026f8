//! Messages about a process that has ended: limits reached, sandbox denials, and network use.

use exec_server_client::ProcessExit;
use exec_server_host::sandbox::PROTECTED_NAMES;
use exec_server_protocol::{Denial, EffectiveLimits, NetworkUse};

use crate::environment::limit_options;
use crate::terminal::printable;

/// The system calls that `--network` would allow.
const NETWORK_CALLS: [&str; 4] = ["socket", "connect", "bind", "sendto"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Report {
    /// Report the path, system call or host that the sandbox seems to have denied.
    pub(crate) denials: bool,
    /// Report the bytes and the refused hosts of a managed network.
    pub(crate) network_use: bool,
    /// Whether the start had host rules, or may have had them. Otherwise only the server has rules,
    /// and no flag can allow a host.
    pub(crate) names_hosts: bool,
}

impl Report {
    pub(super) fn lines(self, exit: &ProcessExit, limits: Option<&EffectiveLimits>) -> Vec<String> {
        let network = exit.details.as_ref().and_then(|details| details.network.as_ref());
        let network = network.filter(|_| self.network_use);
        let mut lines = limit_lines(exit, limits);
        lines.extend(network.map(|network| self.network_lines(network)).unwrap_or_default());
        if exit.sandbox_denied && self.denials {
            let denial = exit.denied.clone().unwrap_or_default();
            match &denial.host {
                // The list of refused hosts already includes it.
                Some(_) if network.is_some_and(|network| !network.refused.is_empty()) => {}
                Some(host) => lines.push(self.refused(host)),
                None => {
                    lines.push(format!("the sandbox seems to have denied {}", denied(denial)));
                }
            }
        }
        lines
    }

    fn network_lines(self, network: &NetworkUse) -> Vec<String> {
        let NetworkUse { bytes_up, bytes_down, refused, refused_more } = network;
        let mut lines = vec![format!("network: {bytes_up} bytes up, {bytes_down} bytes down")];
        lines.extend(refused.iter().map(|host| self.refused(&host.to_string())));
        if *refused_more {
            lines.push("network: further hosts were refused".to_owned());
        }
        lines
    }

    /// The program chose the name of the host, so it may hold control characters.
    fn refused(self, host: &str) -> String {
        let host = printable(host);
        match self.names_hosts {
            true => format!(
                "network: {host} is not allowed; allow it with --allow-host {host}, unless \
                 --deny-host or the server refuses it"
            ),
            false => format!("network: {host} is not allowed by the rules of the server"),
        }
    }
}

/// Reports the limits that were hit. Always shown, because the exit would be unexplained otherwise.
/// Only the client that started the process knows their values.
fn limit_lines(exit: &ProcessExit, limits: Option<&EffectiveLimits>) -> Vec<String> {
    let hit = exit.details.iter().flat_map(|details| &details.limits_hit);
    hit.map(|limit| {
        let values = limits.map(EffectiveLimits::values);
        let known = values.and_then(|values| limit_options::describe_one(&values, *limit));
        format!(
            "limit reached: {}",
            known.unwrap_or_else(|| limit_options::name(*limit).to_owned())
        )
    })
    .collect()
}

/// Formats a denial. Its text comes from the program, and must not move the cursor.
fn denied(denial: Denial) -> String {
    match (denial.path, denial.call) {
        (Some(path), _) => {
            let directory = printable(protected_part(&path).unwrap_or("DIR"));
            let advice = format!("use --sandbox workspace-write --writable {directory}");
            format!("{}; to allow writing, {advice}", printable(&path))
        }
        (None, Some(call)) if NETWORK_CALLS.contains(&&*call) => {
            format!("the network (system call {call}); to allow it, use --sandbox MODE --network")
        }
        (None, Some(call)) => format!("the system call {}", printable(&call)),
        (None, None) => "an operation".to_owned(),
    }
}

/// Returns the path up to its first protected name, if it has one: such a directory stays read-only
/// unless `--writable` names exactly it.
fn protected_part(path: &str) -> Option<&str> {
    let mut end = 0;
    path.split_inclusive('/').find_map(|name| {
        end += name.len();
        let part = path[..end].trim_end_matches('/');
        PROTECTED_NAMES.contains(&name.trim_end_matches('/')).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::{ExitDetails, LimitName, LimitValues, LimitsTier, RefusedHost};

    use super::*;

    const EVERYTHING: Report = Report { denials: true, network_use: true, names_hosts: true };

    fn exit(denied: Option<Denial>, network: Option<NetworkUse>) -> ProcessExit {
        let details = ExitDetails {
            signal: None,
            duration_ms: 0,
            cpu_ms: 0,
            max_rss_bytes: 0,
            timed_out: false,
            server_stopped: false,
            limits_hit: Vec::new(),
            peak_memory_bytes: None,
            tree_cpu_ms: None,
            network: network.map(Box::new),
        };
        let sandbox_denied = denied.is_some();
        ProcessExit { seq: 1, exit_code: 1, sandbox_denied, denied, details: Some(details) }
    }

    #[test]
    fn a_limit_is_shown_with_its_value_if_known() {
        let mut exit = exit(None, None);
        let hit = vec![LimitName::Memory, LimitName::WallTime];
        exit.details.as_mut().unwrap().limits_hit = hit;
        let memory_bytes = Some(512 << 20);
        let values = LimitValues { memory_bytes, wall_time_ms: Some(90_000), ..<_>::default() };
        let limits = EffectiveLimits::new(LimitsTier::Rlimit, values, Vec::new());
        assert_eq!(
            Report::default().lines(&exit, Some(&limits)),
            ["limit reached: memory 512M", "limit reached: wall-time 1m 30s"]
        );
        let unknown = Report::default().lines(&exit, None);
        assert_eq!(unknown, ["limit reached: memory", "limit reached: wall-time"]);
    }

    #[test]
    fn a_refused_host_is_reported_with_its_remedy() {
        let denial = Denial { host: Some("a\x1b.example:443".to_owned()), ..Denial::default() };
        let exit = exit(Some(denial), None);
        let host = "a\u{fffd}.example:443";
        assert_eq!(
            EVERYTHING.lines(&exit, None),
            [format!(
                "network: {host} is not allowed; allow it with --allow-host {host}, unless \
                 --deny-host or the server refuses it"
            )]
        );
        let plain = Report { names_hosts: false, ..EVERYTHING };
        assert_eq!(
            plain.lines(&exit, None),
            [format!("network: {host} is not allowed by the rules of the server")]
        );
        let silent = Report { denials: false, ..EVERYTHING };
        assert!(silent.lines(&exit, None).is_empty());
    }

    #[test]
    fn the_advice_for_a_denied_path_names_a_directory_that_allows_it() {
        for (path, directory) in [
            ("/opt/x", "DIR"),
            (".git/hooks/pre-commit", ".git"),
            ("/w/.codex", "/w/.codex"),
            ("/w/my.git/x", "DIR"),
        ] {
            let denial = Denial { path: Some(path.to_owned()), ..Denial::default() };
            let lines = EVERYTHING.lines(&exit(Some(denial), None), None);
            let advice = format!("use --sandbox workspace-write --writable {directory}");
            assert!(lines[0].ends_with(&advice), "{lines:?}");
        }
    }

    #[test]
    fn each_refused_host_is_listed_once() {
        let refused = |host: &str, port| RefusedHost { host: host.to_owned(), port };
        let network = NetworkUse {
            bytes_up: 3,
            bytes_down: 70_000,
            refused: vec![refused("::1", Some(22)), refused("b.example", None)],
            refused_more: true,
        };
        let denial = Denial { host: Some("[::1]:22".to_owned()), ..Denial::default() };
        let exit = exit(Some(denial), Some(network));
        assert_eq!(
            EVERYTHING.lines(&exit, None),
            [
                "network: 3 bytes up, 70000 bytes down",
                "network: [::1]:22 is not allowed; allow it with --allow-host [::1]:22, unless \
                 --deny-host or the server refuses it",
                "network: b.example is not allowed; allow it with --allow-host b.example, unless \
                 --deny-host or the server refuses it",
                "network: further hosts were refused",
            ]
        );
        let brief = Report { network_use: false, ..EVERYTHING };
        assert_eq!(brief.lines(&exit, None).len(), 1);
    }
}
