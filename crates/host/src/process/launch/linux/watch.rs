//! The keeper's view of its tree's limits: how near they are, which were reached, and the resources
//! used.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::sched_getaffinity;

use super::measure;
use super::reaping::Dead;
use crate::process::limits::cgroup::Leaf;
use crate::process::limits::pace::{self, Use};
use crate::process::limits::{Limit, Limits, LimitsHit, TreeUse};

#[derive(Debug)]
pub(super) struct TreeWatch {
    limits: Limits,
    /// The cgroup, where the kernel enforces most limits.
    leaf: Option<Leaf>,
    peak_memory_bytes: u64,
    /// CPU time of the tree at the last check. It never decreases.
    cpu: Duration,
    /// CPU time of reaped processes, including the children that they had reaped.
    reaped_cpu: Duration,
    hit: LimitsHit,
    processors: u32,
    /// `None` if there is nothing to check, or a check found a limit exceeded.
    next_look: Option<Instant>,
}

impl TreeWatch {
    /// Creates the cgroup if the tree needs one.
    pub(super) fn prepare(limits: Limits, cgroup: Option<&Path>) -> std::io::Result<Self> {
        let leaf = match cgroup.filter(|_| limits.bound_tree()) {
            Some(base) => Some(Leaf::create(base, &limits)?),
            None => None,
        };
        // One system call. `available_parallelism` reads cgroup files, which takes as long as a
        // fork.
        let processors = sched_getaffinity(None).map_or(1, |processors| processors.count());
        let mut watch = Self {
            limits,
            leaf,
            peak_memory_bytes: 0,
            cpu: Duration::ZERO,
            reaped_cpu: Duration::ZERO,
            hit: LimitsHit::default(),
            processors,
            next_look: None,
        };
        let first = watch.pause(&Use::default(), Duration::ZERO).map(|_| pace::FIRST_LOOK);
        watch.next_look = first.map(|pause| Instant::now() + pause);
        Ok(watch)
    }

    pub(super) fn leaf(&self) -> Option<BorrowedFd<'_>> {
        self.leaf.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn due_in(&self) -> Option<Duration> {
        self.next_look.map(|at| at.saturating_duration_since(Instant::now()))
    }

    pub(super) fn is_due(&self) -> bool {
        self.due_in().is_some_and(|pause| pause.is_zero())
    }

    /// Checks the tree. Returns whether it exceeds a limit; the caller then kills it.
    pub(super) fn look(&mut self, init: Option<Pid>) -> bool {
        let begun = Instant::now();
        let usage = match &self.leaf {
            Some(leaf) => {
                let TreeUse { peak_memory_bytes, cpu } = leaf.usage();
                self.peak_memory_bytes = self.peak_memory_bytes.max(peak_memory_bytes);
                Use { cpu, ..Use::default() }
            }
            None => self.measure(init),
        };
        self.cpu = self.cpu.max(usage.cpu);
        let exceeded = pace::exceeded(&self.watched(), &usage);
        if let Some(limit) = exceeded {
            self.hit.add(limit);
            self.next_look = None;
        } else {
            let pause = self.pause(&usage, begun.elapsed());
            self.next_look = pause.map(|pause| Instant::now() + pause);
        }
        exceeded.is_some()
    }

    /// Kills the cgroup at once. Without one, stops the tree, so that it does not grow while it is
    /// killed.
    pub(super) fn stop_tree(&self, leader: Option<Pid>) {
        match &self.leaf {
            Some(leaf) => leaf.kill(),
            None => measure::stop_tree(leader),
        }
    }

    /// Kills all processes in the cgroup, if there is one. The keeper kills its own children in
    /// addition.
    pub(super) fn kill_leaf(&self) {
        if let Some(leaf) = &self.leaf {
            leaf.kill();
        }
    }

    pub(super) fn reaped(&mut self, dead: &Dead) {
        self.reaped_cpu += dead.cpu();
    }

    /// Returns the limits reached and the resources used, for the report of the program's exit.
    pub(super) fn record(&mut self, leader: &Dead) -> (LimitsHit, TreeUse) {
        let (cpu, peak_memory_bytes) = match &self.leaf {
            Some(leaf) => {
                for limit in leaf.hit().iter() {
                    self.hit.add(limit);
                }
                let usage = leaf.usage();
                (usage.cpu, usage.peak_memory_bytes)
            }
            None => (self.reaped_cpu, leader.max_rss_bytes()),
        };
        self.cpu = self.cpu.max(cpu);
        self.peak_memory_bytes = self.peak_memory_bytes.max(peak_memory_bytes);
        let died_by = |signal| died_by(leader.status, signal);
        if self.limits.file_size_bytes.is_some() && died_by(libc::SIGXFSZ) {
            self.hit.add(Limit::FileSize);
        }
        let is_used_up = |limit| self.cpu >= limit || died_by(libc::SIGXCPU);
        if self.limits.cpu_time.is_some_and(is_used_up) {
            self.hit.add(Limit::CpuTime);
        }
        (self.hit, TreeUse { peak_memory_bytes: self.peak_memory_bytes, cpu: self.cpu })
    }

    fn measure(&mut self, init: Option<Pid>) -> Use {
        let (mut usage, pids) = measure::tree(&self.limits, init);
        usage.cpu += self.reaped_cpu;
        if self.limits.memory_bytes.is_some_and(|limit| usage.memory_bytes > limit) {
            // The sum counts a page once for each process that shares it.
            usage.memory_bytes = measure::exact_memory(&pids);
        }
        self.peak_memory_bytes = self.peak_memory_bytes.max(usage.memory_bytes);
        usage
    }

    /// Returns the limits that the keeper checks. In a cgroup the kernel enforces memory and tasks,
    /// but not the CPU time.
    fn watched(&self) -> Limits {
        match &self.leaf {
            Some(_) => Limits { memory_bytes: None, pids: None, ..self.limits },
            None => self.limits,
        }
    }

    fn pause(&self, usage: &Use, last_took: Duration) -> Option<Duration> {
        pace::next_look(&self.watched(), usage, self.processors, last_took)
    }
}

/// Whether a process died from the signal. A shell and bubblewrap report the signal that killed a
/// child as 128 plus its number.
fn died_by(status: i32, signal: i32) -> bool {
    match libc::WIFSIGNALED(status) {
        true => libc::WTERMSIG(status) == signal,
        false => libc::WEXITSTATUS(status) == 128 + signal,
    }
}
