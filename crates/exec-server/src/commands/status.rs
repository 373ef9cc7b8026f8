//! `exec-server status`: the state of a running server, for its operator.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use exec_server_protocol::{Empty, LimitsTier, RecentRefusal, RefusedThing, ServerStatus};

use super::print_result;
use super::run::options;
use crate::cli::client::Status;
use crate::program::exit_code::ExitStatus;
use crate::target::Target;
use crate::terminal::{json_line, printable};

pub(super) async fn run(command: &Status) -> anyhow::Result<ExitStatus> {
    let target = Target::lasting(&command.server)?;
    let session = target.connect(options("exec-server status")).await?;
    let asked = session.client.server_status(Empty {}).await;
    session.close().await;
    let status = asked.context("cannot get the status of the server")?;
    let text = match command.json {
        true => json_line(&status),
        false => describe(&status),
    };
    print_result(text.as_bytes(), ExitStatus::SUCCESS)
}

fn describe(status: &ServerStatus) -> String {
    let ServerStatus { sessions, processes, limits, .. } = status;
    let uptime = Duration::from_secs(status.uptime_ms / 1000);
    let listeners: Vec<_> = status.listeners.iter().map(|url| printable(url)).collect();
    let mut lines = vec![
        row("version", &printable(&status.version)),
        row("uptime", &humantime::format_duration(uptime).to_string()),
        row("listeners", if listeners.is_empty() { "none" } else { &listeners[0] }),
    ];
    lines.extend(listeners.iter().skip(1).map(|url| row("", url)));
    // The count includes the session of this command.
    lines.push(row(
        "sessions",
        &format!("{} attached, {} detached", sessions.attached, sessions.detached),
    ));
    lines.push(row(
        "processes",
        &format!("{} running, {} finished", processes.running, processes.finished),
    ));
    let tier = match (limits.tier, &limits.obstacle) {
        (LimitsTier::Rlimit, Some(obstacle)) => format!("tier rlimit: {}", printable(obstacle)),
        (tier, _) => format!("tier {}", tier.name()),
    };
    lines.push(row("limits", &tier));
    if status.refusals.is_empty() {
        lines.push(row("refusals", "none"));
    } else {
        lines.push("recent refusals".to_owned());
        lines.extend(table(&status.refusals));
    }
    lines.join("\n") + "\n"
}

fn row(name: &str, value: &str) -> String {
    format!("{name:<11}{value}")
}

/// Newest last.
fn table(refusals: &[RecentRefusal]) -> Vec<String> {
    let rows: Vec<[String; 4]> = refusals.iter().map(cells).collect();
    let widest = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths = [0, 1, 2].map(|column| widest(column).unwrap_or(0));
    rows.iter()
        .map(|[time, what, reason, from]| {
            let [first, second, third] = widths;
            let line = format!("  {time:<first$}  {what:<second$}  {reason:<third$}  {from}");
            line.trim_end().to_owned()
        })
        .collect()
}

fn cells(refusal: &RecentRefusal) -> [String; 4] {
    let at = UNIX_EPOCH.checked_add(Duration::from_millis(refusal.at_ms));
    let what = match (refusal.what, &refusal.method) {
        (RefusedThing::Request, Some(method)) => printable(method),
        (what, _) => what.name().to_owned(),
    };
    let from = [&refusal.subject, &refusal.address];
    let mut from: Vec<_> = from.into_iter().flatten().map(|text| printable(text)).collect();
    if refusal.count > 1 {
        from.push(format!("({} times)", refusal.count));
    }
    [timestamp(at), what, printable(&refusal.reason), from.join(" ")]
}

/// A hostile server may send a year after 9999, which `humantime` cannot format.
fn timestamp(at: Option<SystemTime>) -> String {
    const LAST: Duration = Duration::from_secs(253_402_300_799);
    match at.filter(|at| at.duration_since(UNIX_EPOCH).is_ok_and(|since| since <= LAST)) {
        Some(at) => humantime::format_rfc3339_seconds(at).to_string(),
        None => "?".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::{LimitsStatus, ProcessCounts, SessionCounts};

    use super::*;

    fn status() -> ServerStatus {
        let refusal = RecentRefusal {
            at_ms: 1_000,
            count: 1,
            what: RefusedThing::Connection,
            reason: "credentials".into(),
            address: Some("10.0.0.1:5".into()),
            subject: None,
            method: None,
        };
        let request = RecentRefusal {
            count: 3,
            what: RefusedThing::Request,
            reason: "forbidden".into(),
            subject: Some("sub:a".into()),
            method: Some("fs/remove".into()),
            ..refusal.clone()
        };
        ServerStatus {
            version: "1.2.3".into(),
            uptime_ms: 61_500,
            listeners: vec!["ws://127.0.0.1:7777".into(), "unix:///s".into()],
            sessions: SessionCounts { attached: 2, detached: 1 },
            processes: ProcessCounts { running: 3, finished: 4 },
            limits: LimitsStatus { tier: LimitsTier::Cgroup, obstacle: None },
            refusals: vec![refusal, request],
        }
    }

    #[test]
    fn the_status_has_all_parts() {
        assert_eq!(
            describe(&status()),
            "version    1.2.3\n\
             uptime     1m 1s\n\
             listeners  ws://127.0.0.1:7777\n           \
                        unix:///s\n\
             sessions   2 attached, 1 detached\n\
             processes  3 running, 4 finished\n\
             limits     tier cgroup\n\
             recent refusals\n  \
               1970-01-01T00:00:01Z  connection  credentials  10.0.0.1:5\n  \
               1970-01-01T00:00:01Z  fs/remove   forbidden    sub:a 10.0.0.1:5 (3 times)\n"
        );
    }

    #[test]
    fn empty_parts_are_shown_as_none() {
        let obstacle = Some("no cgroup v2".to_owned());
        let limits = LimitsStatus { tier: LimitsTier::Rlimit, obstacle };
        let quiet =
            ServerStatus { listeners: Vec::new(), refusals: Vec::new(), limits, ..status() };
        let text = describe(&quiet);
        for line in ["listeners  none", "refusals   none", "limits     tier rlimit: no cgroup v2"] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
    }

    #[test]
    fn text_of_a_server_cannot_move_the_cursor() {
        let hostile = "\x1b[2J\r\n\u{202e}".to_owned();
        let mut status = status();
        status.version.clone_from(&hostile);
        status.listeners = vec![hostile.clone()];
        status.limits = LimitsStatus { tier: LimitsTier::Rlimit, obstacle: Some(hostile.clone()) };
        status.refusals[1] = RecentRefusal {
            at_ms: u64::MAX,
            reason: hostile.clone(),
            address: Some(hostile.clone()),
            subject: Some(hostile.clone()),
            method: Some(hostile),
            ..status.refusals[1].clone()
        };
        let text = describe(&status);
        assert_eq!(text.lines().count(), 9, "{text:?}");
        assert!(text.lines().all(|line| !line.contains(crate::terminal::is_harmful)), "{text:?}");
    }
}
