//! Computes when a keeper next samples its tree: the closer the tree is to a limit, the sooner.

use std::time::Duration;

use super::{Limit, Limits};

/// The resource use of a tree at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::process) struct Use {
    pub(in crate::process) memory_bytes: u64,
    /// Processes and threads.
    pub(in crate::process) tasks: u64,
    pub(in crate::process) cpu: Duration,
}

const SHORTEST: Duration = Duration::from_millis(5);
const LONGEST: Duration = Duration::from_millis(250);
/// Roughly the highest rate at which a program touches fresh memory on a few CPUs.
const BYTES_PER_SECOND: u64 = 4 << 30;
/// Roughly the highest rate at which a program forks.
const TASKS_PER_SECOND: u64 = 20_000;
/// Sampling a large tree is expensive. The keeper may spend a tenth of a CPU on it.
const PAUSE_PER_LOOK: u32 = 9;

/// The delay until the next sample; `None` if no limit needs sampling.
pub(in crate::process) fn next_look(
    limits: &Limits,
    usage: &Use,
    processors: u32,
    last_took: Duration,
) -> Option<Duration> {
    let memory = limits
        .memory_bytes
        .map(|limit| at_rate(limit.saturating_sub(usage.memory_bytes), BYTES_PER_SECOND));
    let tasks =
        limits.pids.map(|limit| at_rate(limit.saturating_sub(usage.tasks), TASKS_PER_SECOND));
    let cpu = limits.cpu_time.map(|limit| limit.saturating_sub(usage.cpu) / processors.max(1));
    let soonest = [memory, tasks, cpu].into_iter().flatten().min()?;
    Some(soonest.clamp(SHORTEST, LONGEST).max(last_took.saturating_mul(PAUSE_PER_LOOK)))
}

/// The delay until the first sample. Short: a program can use a lot right after its start.
pub(in crate::process) const FIRST_LOOK: Duration = SHORTEST;

fn at_rate(headroom: u64, per_second: u64) -> Duration {
    Duration::try_from_secs_f64(headroom as f64 / per_second as f64).unwrap_or(Duration::MAX)
}

pub(in crate::process) fn exceeded(limits: &Limits, usage: &Use) -> Option<Limit> {
    let is_over = |limit: Option<u64>, used: u64| limit.is_some_and(|limit| used > limit);
    if is_over(limits.pids, usage.tasks) {
        Some(Limit::Pids)
    } else if is_over(limits.memory_bytes, usage.memory_bytes) {
        Some(Limit::Memory)
    } else if limits.cpu_time.is_some_and(|limit| usage.cpu >= limit) {
        Some(Limit::CpuTime)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Use = Use { memory_bytes: 0, tasks: 0, cpu: Duration::ZERO };

    fn pause(limits: &Limits, usage: &Use) -> Duration {
        next_look(limits, usage, 2, Duration::ZERO).unwrap()
    }

    #[test]
    fn the_pause_shrinks_with_the_headroom() {
        let limits = Limits { memory_bytes: Some(1 << 30), ..Limits::default() };
        let using = |memory_bytes| Use { memory_bytes, ..NOTHING };
        assert_eq!(pause(&limits, &NOTHING), LONGEST);
        assert_eq!(pause(&limits, &using(1 << 29)), Duration::from_millis(125));
        for used in [1 << 30, (1 << 30) + 1, u64::MAX] {
            assert_eq!(pause(&limits, &using(used)), SHORTEST);
        }
        let limits = Limits { pids: Some(100), ..limits };
        assert_eq!(pause(&limits, &NOTHING), SHORTEST);
        let limits = Limits { cpu_time: Some(Duration::from_millis(200)), ..Limits::default() };
        assert_eq!(pause(&limits, &NOTHING), Duration::from_millis(100));
    }

    #[test]
    fn absurd_limits_still_give_a_pause() {
        let most = Limits {
            memory_bytes: Some(u64::MAX),
            pids: Some(u64::MAX),
            cpu_time: Some(Duration::MAX),
            ..Limits::default()
        };
        assert_eq!(pause(&most, &NOTHING), LONGEST);
        let least = Limits { memory_bytes: Some(1), ..most };
        assert_eq!(pause(&least, &NOTHING), SHORTEST);
    }

    #[test]
    fn a_keeper_sleeps_if_no_limit_needs_sampling() {
        let files = Limits { open_files: Some(1), cpu_thousandths: Some(1), ..Limits::default() };
        assert_eq!(next_look(&files, &NOTHING, 2, Duration::ZERO), None);
    }

    #[test]
    fn a_large_tree_is_sampled_less_often() {
        let limits = Limits { pids: Some(1), ..Limits::default() };
        let slow = Duration::from_millis(20);
        assert_eq!(next_look(&limits, &NOTHING, 2, slow), Some(slow * PAUSE_PER_LOOK));
    }

    #[test]
    fn memory_and_tasks_may_reach_their_limit_but_cpu_time_may_not() {
        let cpu_time = Some(Duration::from_secs(1));
        let limits =
            Limits { memory_bytes: Some(10), pids: Some(2), cpu_time, ..Limits::default() };
        let usage = Use { memory_bytes: 10, tasks: 2, cpu: Duration::from_millis(999) };
        assert_eq!(exceeded(&limits, &usage), None);
        assert_eq!(exceeded(&limits, &Use { memory_bytes: 11, ..usage }), Some(Limit::Memory));
        assert_eq!(exceeded(&limits, &Use { tasks: 3, ..usage }), Some(Limit::Pids));
        let burnt = Use { cpu: Duration::from_secs(1), ..usage };
        assert_eq!(exceeded(&limits, &burnt), Some(Limit::CpuTime));
    }
}
