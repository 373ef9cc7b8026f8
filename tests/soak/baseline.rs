//! The footprint of a server and a rendezvous without clients.

use std::fmt::{self, Write as _};
use std::time::Instant;

use super::site::{Metrics, Site};
use crate::support::machine::{all_pids, descendants, descriptors, threads};
use crate::support::{HANG, eventually};

/// Memory that allocators may keep beyond the baseline.
const MEMORY_TOLERANCE: u64 = 32 << 20;

/// Figures of server, spawner and rendezvous at rest.
#[derive(Debug, Clone)]
pub(super) struct Baseline {
    processes: [Footprint; 3],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Footprint {
    /// `None` for an ordinary user, since the process is not dumpable.
    descriptors: Option<usize>,
    threads: usize,
    memory: u64,
}

impl Baseline {
    /// Waits until all connections, sessions and processes have ended, and takes the figures.
    pub(super) fn take(site: &Site) -> Self {
        let mut rest = String::new();
        let deadline = deadline();
        eventually("the server is at rest", || {
            rest = restlessness(site);
            assert!(Instant::now() < deadline, "the server does not come to rest: {rest}");
            rest.is_empty()
        });
        Self::read(&pids(site))
    }

    /// Waits until the figures at rest are no higher than the baseline, and returns them. Lower
    /// figures become the new baseline: idle threads take a while to end.
    pub(super) fn wait_until_reached(&mut self, site: &Site) -> Self {
        let mut now = Self::take(site);
        let (pids, deadline) = (pids(site), deadline());
        // Reads only /proc: a request would keep idle threads from ending.
        eventually("descriptors, threads and memory are as before", || {
            now = Self::read(&pids);
            assert!(Instant::now() < deadline, "more is used than before: {now}\nbefore: {self}");
            now.processes.iter().zip(&self.processes).all(|(now, before)| now.is_within(before))
        });
        for (before, now) in self.processes.iter_mut().zip(&now.processes) {
            before.lower_to(now);
        }
        now
    }

    fn read(pids: &[u32; 3]) -> Self {
        Self { processes: pids.map(Footprint::of) }
    }
}

/// Returns a deadline shortly before that of `eventually`, to fail with the figures.
fn deadline() -> Instant {
    Instant::now() + HANG * 9 / 10
}

impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, process) in ["server", "spawner", "rendezvous"].iter().zip(&self.processes) {
            let Footprint { descriptors, threads, memory } = process;
            let kibibytes = memory >> 10;
            write!(f, "{name}: {descriptors:?} descriptors, {threads} threads, {kibibytes} KiB; ")?;
        }
        Ok(())
    }
}

impl Footprint {
    fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let kibibytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = kibibytes.unwrap().trim().trim_end_matches(" kB").parse::<u64>().unwrap();
        Self { descriptors: descriptors(pid), threads: threads(pid), memory: kibibytes << 10 }
    }

    fn lower_to(&mut self, now: &Self) {
        self.descriptors = self.descriptors.min(now.descriptors);
        self.threads = self.threads.min(now.threads);
        self.memory = self.memory.min(now.memory);
    }

    fn is_within(&self, before: &Self) -> bool {
        self.descriptors <= before.descriptors
            && self.threads <= before.threads
            && self.memory <= before.memory + MEMORY_TOLERANCE
    }
}

/// Returns the pids of server, spawner and rendezvous.
fn pids(site: &Site) -> [u32; 3] {
    let server = site.server.pid();
    [server, descendants(server)[0], site.rendezvous_pid()]
}

/// Describes why server or rendezvous are not at rest. Empty at rest.
fn restlessness(site: &Site) -> String {
    let server = site.server_metrics();
    let rendezvous = site.rendezvous_metrics();
    let gone = [
        "exec_server_connections",
        "exec_server_sessions{state=\"attached\"}",
        "exec_server_sessions{state=\"detached\"}",
        "exec_server_processes{state=\"running\"}",
        "exec_server_processes{state=\"finished\"}",
        "exec_server_retained_bytes",
        "exec_server_spilled_bytes",
        "exec_server_buffered_bytes",
    ];
    let gone_of_rendezvous = ["exec_server_relay_harnesses", "exec_server_relay_streams"];
    let show = |metrics: &Metrics, names: &[&str]| -> String {
        let values = names.iter().map(|name| (name, metrics.of(name)));
        values.filter(|(_, value)| *value != 0.0).map(|it| format!("{it:?} ")).collect()
    };
    let mut rest = show(&server, &gone) + &show(&rendezvous, &gone_of_rendezvous);
    if rendezvous.of("exec_server_relay_environments") != 1.0 {
        rest.push_str("the server is not online ");
    }
    let below = descendants(site.server.pid());
    if below.len() != 1 {
        write!(rest, "processes {below:?} ").unwrap();
    }
    rest + &orphans(site)
}

/// Lists processes of the server's user that are not descendants of the server.
fn orphans(site: &Site) -> String {
    let Some(user) = site.place.user() else { return String::new() };
    let known = pids_of_server(site);
    let is_orphan = |pid: &u32| {
        // Reads the user from `status`: the files in /proc of a process that is not dumpable belong
        // to root.
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
        uids.split_whitespace().any(|uid| uid == user.to_string()) && !known.contains(pid)
    };
    all_pids().iter().filter(|pid| is_orphan(pid)).map(|pid| format!("orphan {pid} ")).collect()
}

fn pids_of_server(site: &Site) -> Vec<u32> {
    let server = site.server.pid();
    [vec![server], descendants(server)].concat()
}
