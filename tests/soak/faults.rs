//! Faults of the server, its links and its clients under load.

use std::thread;
use std::time::Duration;

use exec_server::{ExecServerClient, RemoteExecServerConnectArgs, ServerTrust, TlsOptions};
use exec_server_test_support::Cut;
use rustix::process::Signal;
use serde_json::json;
use tokio::task::JoinSet;

use super::load::Load;
use super::site::{DIRECT, Site};
use super::{disk, scarcity};
use crate::support::daemons::marker;
use crate::support::machine::marked;
use crate::support::tokens::Issuer;
use crate::support::{Choices, HANG, eventually, run_command, shell};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Connections over TLS are lost.
    CutDirect,
    /// Connections to the rendezvous are lost.
    CutRelay,
    /// `kill -9` and restart of the rendezvous.
    KillRendezvous,
    /// SIGSTOP and SIGCONT of the server.
    StopServer,
    /// Clients do not read the output of their processes.
    SlowClients,
    /// Clients do not read, and the disk for spill files is full.
    FullDisk,
    NoDescriptors,
    NoThreads,
    BadTokens,
    /// Processes that exceed their limits.
    Bombs,
    /// SIGHUP, with a new certificate and a rotated audit log.
    Hangup,
}

pub(super) const FAULTS: [Fault; 11] = [
    Fault::CutDirect,
    Fault::CutRelay,
    Fault::KillRendezvous,
    Fault::StopServer,
    Fault::SlowClients,
    Fault::FullDisk,
    Fault::NoDescriptors,
    Fault::NoThreads,
    Fault::BadTokens,
    Fault::Bombs,
    Fault::Hangup,
];

/// How many times a fault is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Severity {
    /// Once and briefly: other tests run at the same time.
    Once,
    Soak,
}

impl Severity {
    fn count(self) -> usize {
        match self {
            Self::Once => 1,
            Self::Soak => 5,
        }
    }
}

/// Causes a fault and waits until it is over.
pub(super) fn inflict(
    fault: Fault,
    severity: Severity,
    site: &mut Site,
    load: &Load,
    choices: &mut Choices,
) {
    match fault {
        Fault::CutDirect | Fault::CutRelay => {
            for _ in 0..severity.count() {
                let how = Cut::ALL[choices.below(4) as usize];
                let link = match fault {
                    Fault::CutDirect => &site.direct_link,
                    _ => &site.relay_link,
                };
                site.place.runtime().block_on(link.cut(how));
                load.wait_for_streams();
            }
        }
        Fault::KillRendezvous => site.restart_rendezvous(),
        Fault::StopServer => stop_server(severity, site, choices),
        Fault::SlowClients => disk::lag(site, load, severity.count()),
        Fault::FullDisk => disk::lag_without_room(site, load, severity.count()),
        Fault::NoDescriptors => scarcity::take_descriptors(site, load),
        Fault::NoThreads => scarcity::take_threads(site, load),
        Fault::BadTokens => try_bad_tokens(site, 20 * severity.count()),
        Fault::Bombs => set_off_bombs(site, load),
        Fault::Hangup => {
            site.renew_certificate();
            site.rotate_audit_log();
            load.wait_for_streams();
        }
    }
}

/// Stops the server for less than the timeouts of clients, and sometimes for longer than their
/// liveness interval.
fn stop_server(severity: Severity, site: &Site, choices: &mut Choices) {
    let seconds = match severity {
        Severity::Once => 1,
        Severity::Soak => 1 + choices.below(12),
    };
    site.server.signal(Signal::STOP);
    #[expect(clippy::disallowed_methods, reason = "there is no event to wait for")]
    thread::sleep(Duration::from_secs(seconds));
    site.server.signal(Signal::CONT);
}

/// Checks that bad tokens are refused and that observers may not start programs.
fn try_bad_tokens(site: &Site, count: usize) {
    let expired = site.issuer.token(&json!({ "sub": "soak", "exp": 1_000_000 }));
    let forged = Issuer::new().token(&json!({ "sub": "soak" }));
    let tokens = [expired, forged, "nonsense".to_owned()];
    let attempts = (0..count).map(|number| {
        let mut args = RemoteExecServerConnectArgs::new(&site.listener, "soak");
        args.bearer_token = Some(tokens[number % tokens.len()].clone());
        let trust = ServerTrust::Authorities(site.place.path("authority.pem"));
        args.tls = TlsOptions { trust, identity: None };
        // Refusals are delayed on purpose.
        args.connect_timeout = HANG;
        ExecServerClient::connect_websocket(args)
    });
    let mut refusals = JoinSet::new();
    let runtime = site.place.runtime();
    for attempt in attempts {
        refusals.spawn_on(attempt, runtime.handle());
    }
    for refusal in runtime.block_on(refusals.join_all()) {
        let error = refusal.expect_err("a bad token was accepted").to_string();
        assert!(error.contains("401"), "{error}");
    }
    let observer = site.token_file("observer");
    let run = ["run", "-n", "--on", DIRECT, "--token-file", observer.to_str().unwrap()];
    let outcome = run_command(site.command(&[&run[..], &["--", "true"]].concat()));
    assert_eq!(outcome.code, Some(125), "{outcome:?}");
    assert!(outcome.stderr.contains("observer"), "{outcome:?}");
}

/// Checks that each bomb ends at its limit and reports it, while other clients are served.
fn set_off_bombs(site: &Site, load: &Load) {
    let mut client = site.client();
    let bombs = [
        ("memory", "tail /dev/zero & wait", json!({ "memoryBytes": 64 << 20 })),
        ("pids", "while :; do setsid sleep 1000 & done", json!({ "pids": 40 })),
        ("cpuTime", "while :; do :; done", json!({ "cpuTimeMs": 300 })),
    ];
    let marker = marker("bomb");
    let waiting: Vec<_> = bombs
        .iter()
        .map(|(limit, script, limits)| {
            let bomb = shell(limit, script).with("limits", limits.clone());
            client.start(&bomb.variable("EXEC_SERVER_TEST", &marker));
            client.request("process/wait", json!({ "processId": limit }))
        })
        .collect();
    load.wait_for_streams();
    for (waiting, (limit, ..)) in waiting.into_iter().zip(&bombs) {
        let exit = client.answer(waiting).unwrap();
        assert_eq!(exit["limitsHit"], json!([limit]), "{exit}");
    }
    eventually("all processes of the bombs have ended", || marked(&marker).is_empty());
}
