//! The keeper of one tree: starts the program, adopts its orphans, reports to the server, and kills
//! the tree.
//!
//! It runs in a separate process, forked from the single-threaded spawner, so this is ordinary
//! code. It lives as long as any process of the tree, and relies on the server for only one thing:
//! that the server's end of the socket closes when the server dies.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::io::{self, Errno};
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::child::Failure;
use super::descendants;
use super::passing;
use super::reaping::{self, Pause};
use super::sandboxed::{self, Confines, Started};
use super::signals::ChildDeaths;
use super::watch::TreeWatch;
use super::wire::{self, ORDER_LEN, Order, Report, Request, Stage};
use crate::process::limits::{LimitsHit, oom_score};
use crate::sandbox::setup::network_namespace::NetworkNamespaceFds;
use crate::sandbox::setup::start_cancellation::StartCancellation;

/// Most requests are smaller and take a single read.
const FIRST_READ: usize = 16 << 10;

pub(super) fn keep(
    socket: OwnedFd,
    stdio: [OwnedFd; 3],
    deaths: &ChildDeaths,
    network: Option<&NetworkNamespaceFds>,
) {
    let adopted = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let Some(bytes) = read_request(&socket) else {
        return;
    };
    let request = Request::decode(&bytes);
    let kill_on_exit = request.as_ref().is_some_and(|request| request.kill_on_exit);
    let mut watch = None;
    let started = match (adopted, request) {
        (Err(errno), _) => Err(Failure { stage: Stage::Setup, errno: errno.raw_os_error() }),
        (_, None) => Err(Failure { stage: Stage::Setup, errno: libc::EPROTO }),
        (Ok(()), Some(request)) => {
            let cancellation = StartCancellation::at(socket.as_fd());
            prepare_watch(&request).and_then(|prepared| {
                watch = prepared;
                let cgroup = watch.as_ref().and_then(TreeWatch::leaf);
                sandboxed::start(&request, &stdio, network, cgroup, cancellation)
            })
        }
    };
    drop(stdio);
    match started {
        Ok(Started { pid, pidfd, confines, gate }) => {
            let report = Report::Started { pid: pid.as_raw_pid().cast_unsigned() }.encode();
            // The keeper's own pidfd as well: the program can stop the keeper, and the server must
            // then be able to continue it.
            let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty());
            let passed = [&pidfd].into_iter().chain(&gate).chain(&own);
            let passed: Vec<_> = passed.map(AsFd::as_fd).collect();
            let _ = passing::send(&socket, &report, &passed);
            drop((pidfd, gate, own, bytes));
            // After the report, so that this does not delay the start.
            if oom_score::is_left_to_keeper() {
                raise_oom_scores([pid].into_iter().chain(confines.wrapping()).collect());
            }
            let leader = Leader::Running { pid, since: Instant::now() };
            let socket = Some(socket);
            Keeper { socket, deaths, leader, confines, watch, kill_on_exit, kill: None }.run();
        }
        Err(Failure { stage, errno }) => {
            // Invariant: the cgroup is removed before the server learns of the failure.
            drop(watch);
            send(&socket, &Report::Failed { stage, errno }.encode());
        }
    }
}

/// Raises the score of each process before its children's, so that later children inherit it.
fn raise_oom_scores(mut unvisited: Vec<Pid>) {
    while let Some(pid) = unvisited.pop() {
        oom_score::raise(pid.as_raw_pid().cast_unsigned());
        unvisited.extend(descendants::children_of(pid).unwrap_or_default());
    }
}

fn prepare_watch(request: &Request<'_>) -> Result<Option<TreeWatch>, Failure> {
    let Some(limits) = request.limits else { return Ok(None) };
    let prepared = TreeWatch::prepare(limits, request.cgroup);
    prepared.map(Some).map_err(|error| Failure {
        stage: Stage::Limits,
        errno: error.raw_os_error().unwrap_or(libc::EIO),
    })
}

/// Returns `None` if the server is gone or sent something invalid.
fn read_request(socket: &OwnedFd) -> Option<Vec<u8>> {
    let mut bytes = vec![0; FIRST_READ];
    let mut received = 0;
    loop {
        match io::read(socket, bytes.get_mut(received..)?) {
            Ok(0) => return None,
            Ok(count) => received += count,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
        if received < size_of::<u32>() {
            continue;
        }
        let expected = wire::request_len(&bytes)?;
        if received >= expected {
            bytes.truncate(expected);
            return Some(bytes);
        }
        bytes.resize(expected.max(FIRST_READ), 0);
    }
}

struct Keeper<'a> {
    /// `None` once the server has closed its end or sent something invalid.
    socket: Option<OwnedFd>,
    deaths: &'a ChildDeaths,
    leader: Leader,
    confines: Confines,
    watch: Option<TreeWatch>,
    kill_on_exit: bool,
    /// The pause before the next round of killing; `None` unless the whole tree is being killed.
    kill: Option<Pause>,
}

enum Leader {
    Running { pid: Pid, since: Instant },
    Reaped,
}

impl Keeper<'_> {
    fn run(mut self) {
        loop {
            let socket = self.socket.as_ref().map(AsFd::as_fd);
            let pause = match &mut self.kill {
                Some(pause) => Some(pause.take()),
                None => self.watch.as_ref().and_then(TreeWatch::due_in),
            };
            let woken = reaping::wait_for(self.deaths, socket, pause);
            if woken.by_death {
                self.deaths.clear();
                if self.reap() == Remaining::None {
                    return;
                }
                if self.kill.is_some() {
                    self.kill = Some(Pause::first());
                }
            }
            if woken.by_message {
                self.hear();
            }
            if self.kill.is_none() {
                self.check_limits();
            }
            if self.kill.is_some() {
                self.kill_round();
            }
        }
    }

    /// Checks the limits if a check is due. Kills a tree that exceeds a limit. Without a cgroup the
    /// tree is stopped first, so that it does not grow in the meantime.
    fn check_limits(&mut self) {
        let Some(watch) = self.watch.as_mut().filter(|watch| watch.is_due()) else { return };
        if watch.look(self.confines.init()) {
            let leader = match self.leader {
                Leader::Running { pid, .. } => Some(pid),
                Leader::Reaped => None,
            };
            watch.stop_tree(leader);
            self.kill = Some(Pause::first());
        }
    }

    /// Reaps every dead child, including the program's orphans, and reports the exit of the program
    /// and the end of the tree.
    fn reap(&mut self) -> Remaining {
        let mut reports = Vec::new();
        let remaining = loop {
            match reaping::reap() {
                Ok(Some(dead)) => {
                    if let Some(watch) = &mut self.watch {
                        watch.reaped(&dead);
                    }
                    let Leader::Running { pid, since } = self.leader else {
                        continue;
                    };
                    if dead.pid == pid {
                        self.leader = Leader::Reaped;
                        self.confines.program_is_gone();
                        let record = self.watch.as_mut().map(|watch| watch.record(&dead));
                        let exited = Report::Exited {
                            status: dead.status,
                            duration: since.elapsed(),
                            cpu: dead.cpu(),
                            max_rss_bytes: dead.max_rss_bytes(),
                            hit: record.map_or(LimitsHit::default(), |(hit, _)| hit),
                            tree: record.map(|(_, tree)| tree),
                        };
                        reports.extend_from_slice(&exited.encode());
                    }
                }
                Ok(None) => break Remaining::Some,
                Err(_) => break Remaining::None,
            }
        };
        if matches!(self.leader, Leader::Reaped) && self.kill_on_exit && self.kill.is_none() {
            self.kill = Some(Pause::first());
        }
        if remaining == Remaining::None {
            // Invariant: the sandbox is removed before the server learns that the tree is gone.
            self.confines.tear_down();
            self.watch = None;
            reports.extend_from_slice(&Report::Emptied.encode());
        }
        if let Some(socket) = &self.socket
            && !reports.is_empty()
        {
            send(socket, &reports);
        }
        remaining
    }

    fn hear(&mut self) {
        let Some(socket) = &self.socket else { return };
        let mut bytes = [0; ORDER_LEN];
        let order = match rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((_, ORDER_LEN)) => Order::decode(&bytes),
            Err(Errno::AGAIN | Errno::INTR) => return,
            Ok(_) | Err(_) => None,
        };
        match (order, &self.leader) {
            (Some(Order::Signal(signal)), Leader::Running { pid, .. }) => {
                // The leader is not reaped, so its pid still names its own group.
                let _ = rustix::process::kill_process_group(*pid, signal);
            }
            (Some(Order::Signal(_)), Leader::Reaped) => {}
            (Some(Order::KillAll), _) => self.kill = Some(Pause::first()),
            (Some(Order::Count { ticket }), leader) => {
                let leader = match leader {
                    Leader::Running { pid, .. } => Some(*pid),
                    Leader::Reaped => None,
                };
                let uncounted: Vec<Pid> =
                    leader.into_iter().chain(self.confines.overhead()).collect();
                let descendants = descendants::count_living(&uncounted);
                let descendants = descendants.try_into().unwrap_or(u32::MAX);
                send(socket, &Report::Counted { ticket, descendants }.encode());
            }
            (None, _) => {
                self.socket = None;
                self.kill = Some(Pause::first());
            }
        }
    }

    /// Kills the cgroup, the program's group and the direct children. The children of a killed
    /// process are reparented to the keeper, so repeated rounds reach every descendant, even one
    /// that keeps forking and exiting.
    fn kill_round(&self) {
        if let Some(watch) = &self.watch {
            watch.kill_leaf();
        }
        if let Leader::Running { pid, .. } = self.leader {
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
        descendants::kill_children(|_| true);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Remaining {
    Some,
    None,
}

/// Ignores errors: the closed socket shows that the server is gone.
fn send(socket: &OwnedFd, bytes: &[u8]) {
    let _ = rustix::net::send(socket, bytes, SendFlags::NOSIGNAL);
}
