//! Limits on the resources of a program and all its descendants.
//!
//! [`Limits`] are plain values. The machine decides which of them hold, and how; [`LimitsSupport`]
//! reports that. Three mechanisms enforce them:
//!
//! * rlimits, set between fork and exec: open files, file size, core size, and the CPU time of each
//!   process;
//! * `cgroup`: a cgroup for the tree, in which the kernel bounds memory, tasks and the share of
//!   CPUs;
//! * the keeper samples the CPU time of its tree and, without a cgroup, its memory and tasks
//!   (`pace` says how often). It kills a tree that exceeds a limit.
//!
//! `oom_score` makes programs the first victims when the machine runs out of memory.

#[cfg(target_os = "linux")]
pub(super) mod cgroup;
#[cfg(target_os = "linux")]
pub(super) mod oom_score;
#[cfg(target_os = "linux")]
pub(super) mod pace;
pub(super) mod rlimits;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The most that a tree may use. An absent value means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub memory_bytes: Option<u64>,
    /// Processes and threads combined.
    pub pids: Option<u64>,
    pub cpu_time: Option<Duration>,
    /// CPUs that the tree may keep busy, in thousandths of a CPU.
    pub cpu_thousandths: Option<u32>,
    /// This limit and the following ones apply to each process, not to the whole tree.
    pub open_files: Option<u64>,
    pub file_size_bytes: Option<u64>,
    pub core_size_bytes: Option<u64>,
}

/// Limits whose enforcement depends on the machine, or whose hits are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Memory,
    Pids,
    CpuTime,
    Cpus,
    FileSize,
}

impl Limits {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether any limit applies to the whole tree.
    pub(super) fn bound_tree(&self) -> bool {
        self.memory_bytes.is_some()
            || self.pids.is_some()
            || self.cpu_time.is_some()
            || self.cpu_thousandths.is_some()
    }

    #[must_use]
    pub fn not_enforced(&self, tier: LimitsTier) -> Vec<Limit> {
        let set = [
            (Limit::Memory, self.memory_bytes.is_some()),
            (Limit::Pids, self.pids.is_some()),
            (Limit::CpuTime, self.cpu_time.is_some()),
            (Limit::Cpus, self.cpu_thousandths.is_some()),
        ];
        let is_missing = |limit: &Limit| match tier {
            LimitsTier::Cgroup | LimitsTier::Systemd => false,
            LimitsTier::Sampling => *limit == Limit::Cpus,
            LimitsTier::ProcessOnly => true,
        };
        set.into_iter()
            .filter(|(_, is_set)| *is_set)
            .map(|(limit, _)| limit)
            .filter(is_missing)
            .collect()
    }
}

#[cfg(target_os = "linux")]
pub(super) const ENCODED_LEN: usize = 64;

#[cfg(target_os = "linux")]
impl Limits {
    /// Encodes the limits for a keeper of the same executable: a bit set, then the values.
    pub(super) fn encode(&self) -> [u8; ENCODED_LEN] {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let values = [
            self.memory_bytes,
            self.pids,
            self.cpu_time.map(nanos),
            self.cpu_thousandths.map(u64::from),
            self.open_files,
            self.file_size_bytes,
            self.core_size_bytes,
        ];
        let set = (0..).zip(values).map(|(bit, value)| u64::from(value.is_some()) << bit).sum();
        let words = [Some(set)].into_iter().chain(values);
        let mut bytes = [0; ENCODED_LEN];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&u64::to_ne_bytes(word.unwrap_or(0)));
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |index: usize| -> Option<u64> {
            Some(u64::from_ne_bytes(bytes.get(8 * index..8 * index + 8)?.try_into().ok()?))
        };
        let set = word(0)?;
        let mut values = [None; 7];
        for (index, value) in values.iter_mut().enumerate() {
            *value = Some(word(index + 1)?).filter(|_| set & (1 << index) != 0);
        }
        let [memory_bytes, pids, cpu_time, cpus, open_files, file_size_bytes, core_size_bytes] =
            values;
        Some(Self {
            memory_bytes,
            pids,
            cpu_time: cpu_time.map(Duration::from_nanos),
            cpu_thousandths: cpus.map(u32::try_from).transpose().ok()?,
            open_files,
            file_size_bytes,
            core_size_bytes,
        })
    }
}

/// How the limits of a tree are enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitsTier {
    /// By the kernel, in cgroups below the server's group; CPU time by the keeper.
    Cgroup,
    /// Like `Cgroup`, but below a scope of the user's service manager.
    Systemd,
    /// By the keeper, which samples the tree.
    Sampling,
    /// Per process only: without keepers, limits on a tree are not enforced.
    ProcessOnly,
}

/// How this machine enforces limits, and the obstacle to a better tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsSupport {
    pub tier: LimitsTier,
    /// Why the kernel does not enforce the limits of trees; `None` if it does.
    pub obstacle: Option<Arc<str>>,
}

impl LimitsSupport {
    /// How to get limits enforced by the kernel.
    pub const REMEDY: &'static str = "run the server in a cgroup v2 that is delegated to its user, as in \
                                      a systemd service with Delegate=yes, or in a login session with a \
                                      systemd user manager";

    pub(super) fn process_only() -> Self {
        let obstacle = "this server has no keepers (create it with Launcher::with_spawner)";
        Self { tier: LimitsTier::ProcessOnly, obstacle: Some(obstacle.into()) }
    }

    /// Whether the kernel bounds whole trees.
    #[must_use]
    pub fn is_kept_by_kernel(&self) -> bool {
        matches!(self.tier, LimitsTier::Cgroup | LimitsTier::Systemd)
    }
}

/// The limits that a tree had reached when its program ended.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitsHit(u8);

const RECORDED: [Limit; 4] = [Limit::Memory, Limit::Pids, Limit::CpuTime, Limit::FileSize];

impl LimitsHit {
    pub(super) fn add(&mut self, limit: Limit) {
        if let Some(bit) = RECORDED.iter().position(|recorded| *recorded == limit) {
            self.0 |= 1 << bit;
        }
    }

    /// Returns the limits in the order in which [`Limit`] declares them.
    pub fn iter(self) -> impl Iterator<Item = Limit> {
        (0..).zip(RECORDED).filter(move |(bit, _)| self.0 & (1 << bit) != 0).map(|(_, limit)| limit)
    }

    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[cfg(target_os = "linux")]
    pub(super) fn bits(self) -> u32 {
        self.0.into()
    }

    #[cfg(target_os = "linux")]
    pub(super) fn from_bits(bits: u32) -> Option<Self> {
        u8::try_from(bits).ok().map(Self)
    }
}

impl fmt::Debug for LimitsHit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeUse {
    pub peak_memory_bytes: u64,
    pub cpu: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Limits = Limits {
        memory_bytes: Some(u64::MAX),
        pids: Some(1),
        cpu_time: Some(Duration::from_millis(1)),
        cpu_thousandths: Some(1500),
        open_files: Some(3),
        file_size_bytes: Some(0),
        core_size_bytes: Some(0),
    };

    #[cfg(target_os = "linux")]
    #[test]
    fn limits_survive_encoding_and_decoding() {
        for limits in [ALL, Limits::default(), Limits { core_size_bytes: None, pids: None, ..ALL }]
        {
            assert_eq!(Limits::decode(&limits.encode()), Some(limits));
        }
        for len in 0..ENCODED_LEN {
            assert_eq!(Limits::decode(&ALL.encode()[..len]), None);
        }
    }

    #[test]
    fn each_tier_reports_the_limits_that_it_cannot_enforce() {
        assert!(ALL.not_enforced(LimitsTier::Cgroup).is_empty());
        assert_eq!(ALL.not_enforced(LimitsTier::Sampling), [Limit::Cpus]);
        let nothing = [Limit::Memory, Limit::Pids, Limit::CpuTime, Limit::Cpus];
        assert_eq!(ALL.not_enforced(LimitsTier::ProcessOnly), nothing);
        let files = Limits { open_files: Some(1), ..Limits::default() };
        assert!(files.not_enforced(LimitsTier::ProcessOnly).is_empty());
        assert!(!files.bound_tree() && !files.is_empty());
    }

    #[test]
    fn hits_are_listed_once_and_in_order() {
        let mut hit = LimitsHit::default();
        assert!(hit.is_empty());
        for limit in [Limit::FileSize, Limit::Memory, Limit::Memory, Limit::Cpus] {
            hit.add(limit);
        }
        assert_eq!(hit.iter().collect::<Vec<_>>(), [Limit::Memory, Limit::FileSize]);
    }
}
