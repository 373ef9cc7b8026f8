//! Compare and swap: the condition for a write, and the change of the modification time that makes
//! such a write visible to later conditions.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};

use crate::fs::error::FsError;
use crate::fs::read::metadata::{modified_at_ms, size};

/// The state that a file must have before a write. The default requires nothing. Among writers of
/// this process, the comparison and the write are one atomic step. Two changes can go unnoticed:
/// one by another program between the comparison and the write, and an unconditional overwrite that
/// changes neither the size nor the millisecond of the modification time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Condition {
    pub modified_at_ms: Option<i64>,
    pub size: Option<u64>,
    /// The name must not exist, not even as a dangling symlink.
    pub create_new: bool,
}

/// The state of the file after a write; the next condition can be built from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    pub modified_at_ms: i64,
    pub size: u64,
}

impl From<&Stat> for Written {
    fn from(stat: &Stat) -> Self {
        Self { modified_at_ms: modified_at_ms(stat), size: size(stat) }
    }
}

impl Condition {
    pub(in crate::fs) fn is_none(&self) -> bool {
        *self == Self::default()
    }

    pub(in crate::fs) fn check(&self, path: &Path, found: Option<&Stat>) -> Result<(), FsError> {
        let conflict = |is| Err(FsError::Conflict { path: path.to_owned(), is });
        let Some(found) = found else {
            let expects_a_file = self.modified_at_ms.is_some() || self.size.is_some();
            return if expects_a_file { conflict("does not exist".to_owned()) } else { Ok(()) };
        };
        if self.create_new {
            return Err(FsError::already_exists(path));
        }
        let modified_at = modified_at_ms(found);
        if let Some(wanted) = self.modified_at_ms.filter(|wanted| *wanted != modified_at) {
            return conflict(format!("was modified at {modified_at} ms, not at {wanted} ms"));
        }
        let size = size(found);
        if let Some(wanted) = self.size.filter(|wanted| *wanted != size) {
            return conflict(format!("has {size} bytes, not {wanted}"));
        }
        Ok(())
    }
}

/// How far an unconditional write may set a time ahead of the clock.
const MAX_AHEAD_MS: i64 = 100;
/// A time further ahead of the clock than this was presumably set on purpose. The clock will not
/// reach it soon.
const FUTURE_MS: i64 = 10_000;
/// How many times to wait for a new clock time, one millisecond each. Most kernels tick every 1 to
/// 10 ms.
const MAX_WAITS: usize = 30;
/// Resolutions of file system times: a millisecond or better, one second, two seconds.
const GRANULARITIES_MS: [i64; 3] = [1, 1_000, 2_000];

/// How the new content was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::fs) enum Arrival {
    /// Into a new file that no other program has seen.
    Unseen,
    /// Over the old content, so other programs could see a part of it.
    Overwritten,
}

/// Makes the modification time distinct from earlier ones. Called under the write lock, for the
/// file whose new content replaces `old`. Kernels take timestamps from a clock that ticks every few
/// milliseconds, so two writes of equal size within one tick would look the same to a later
/// condition.
///
/// Conditional writers may have to wait: the file gets a time later than its previous one, and
/// later than any that it showed during the write. So no reader that saw partial content has the
/// time of the complete content. Other writes do not wait, and almost always keep the time of the
/// clock.
pub(in crate::fs) fn distinguish(
    path: &Path,
    file: impl AsFd,
    old: Option<&Stat>,
    arrival: Arrival,
    condition: &Condition,
) -> Result<Written, FsError> {
    let file = file.as_fd();
    let look = || rustix::fs::fstat(file).map_err(FsError::os("stat", path));
    let stat = look()?;
    let now = modified_at_ms(&stat);
    match (old.map(modified_at_ms), arrival) {
        (Some(old), Arrival::Unseen) if condition.is_none() => step_past(file, old, now),
        (Some(old), Arrival::Unseen) => leave_behind(file, now, &[old]),
        (Some(old), Arrival::Overwritten) if !condition.is_none() => {
            leave_behind(file, now, &[old, now]);
        }
        _ => return Ok(Written::from(&stat)),
    }
    Ok(Written::from(&look()?))
}

/// If `now`, the time of the file, is not later than `old`: sets a time just after `old`, without
/// waiting, and at most [`MAX_AHEAD_MS`] ahead of the clock.
fn step_past(file: BorrowedFd<'_>, old: i64, now: i64) {
    let next = old.saturating_add(1);
    if now <= old && next <= clock_ms().saturating_add(MAX_AHEAD_MS) {
        // Only the owner may set a time, and some file systems cannot store it. The write succeeds
        // regardless.
        let _ = rustix::fs::futimens(file, &modified_at(next));
    }
}

/// Gives the file, whose time is `now`, a time later than all in `seen`, except any that was set
/// far into the future. If that is not possible, the write succeeds regardless.
fn leave_behind(file: BorrowedFd<'_>, now: i64, seen: &[i64]) {
    let is_later = seen.iter().all(|seen| *seen < now);
    if is_later || wait_for_the_clock(file, seen) {
        return;
    }
    for step in GRANULARITIES_MS {
        let Ok(stat) = rustix::fs::fstat(file) else { return };
        let Some(last) = last_repeatable(seen, modified_at_ms(&stat)) else { return };
        if rustix::fs::futimens(file, &modified_at(last.saturating_add(step))).is_err() {
            return;
        }
    }
}

/// Waits for a clock time that conflicts with none in `seen`, and returns whether one came in time.
/// Sets the times of the file from the clock of the file system, for which write access is enough.
#[expect(clippy::disallowed_methods, reason = "a clock tick raises no event")]
fn wait_for_the_clock(file: BorrowedFd<'_>, seen: &[i64]) -> bool {
    for _ in 0..MAX_WAITS {
        if rustix::fs::futimens(file, &NOW).is_err() {
            return false;
        }
        let Ok(stat) = rustix::fs::fstat(file) else { return false };
        if last_repeatable(seen, modified_at_ms(&stat)).is_none() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Sets both times: setting only one requires ownership of the file.
const NOW: Timestamps = Timestamps {
    last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
    last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
};

/// Returns the latest time in `seen` that conflicts with the time `new`.
fn last_repeatable(seen: &[i64], new: i64) -> Option<i64> {
    seen.iter().copied().filter(|seen| is_repeatable(*seen, new)).max()
}

/// Whether the file may have had the new time before, or may get it again.
fn is_repeatable(old: i64, new: i64) -> bool {
    (0..FUTURE_MS).contains(&old.saturating_sub(new))
}

fn clock_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

fn modified_at(ms: i64) -> Timestamps {
    let last_modification =
        Timespec { tv_sec: ms.div_euclid(1000), tv_nsec: ms.rem_euclid(1000) * 1_000_000 };
    Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }, last_modification }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mismatch_is_named() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        std::fs::write(&path, "12345").unwrap();
        let stat = rustix::fs::stat(&path).unwrap();
        let time = modified_at_ms(&stat);
        let refusal = |condition: Condition, found| match condition.check(&path, found) {
            Ok(()) => String::new(),
            Err(FsError::Conflict { is, .. }) => is,
            Err(other) => panic!("{other}"),
        };
        let none = Condition::default();
        let right = Condition { modified_at_ms: Some(time), size: Some(5), create_new: false };
        let new = Condition { create_new: true, ..none };
        assert_eq!(refusal(none, Some(&stat)), "");
        assert_eq!(refusal(none, None), "");
        assert_eq!(refusal(right, Some(&stat)), "");
        assert_eq!(refusal(new, None), "");
        assert_eq!(refusal(right, None), "does not exist");
        assert_eq!(refusal(new, Some(&stat)), "already exists");
        let size = Condition { size: Some(6), ..right };
        assert_eq!(refusal(size, Some(&stat)), "has 5 bytes, not 6");
        let earlier = Condition { modified_at_ms: Some(1), ..right };
        assert_eq!(
            refusal(earlier, Some(&stat)),
            format!("was modified at {time} ms, not at 1 ms")
        );
    }

    #[test]
    fn a_time_never_recurs() {
        assert!(!is_repeatable(100, 101));
        assert!(is_repeatable(100, 100));
        assert!(is_repeatable(107, 101), "the old time is ahead of the clock");
        assert!(!is_repeatable(4_000_000_000_000, 101), "its time was set into the future");
        assert!(!is_repeatable(i64::MAX, i64::MIN));
    }

    fn dated(ms: i64) -> (std::fs::File, Stat) {
        let file = tempfile::tempfile().unwrap();
        rustix::fs::futimens(&file, &modified_at(ms)).unwrap();
        let stat = rustix::fs::fstat(&file).unwrap();
        (file, stat)
    }

    #[test]
    fn an_unconditional_write_stays_near_the_clock() {
        let none = Condition::default();
        let time = |old: &Stat, arrival| {
            // As if the new content were written in the same tick.
            let (file, _) = dated(modified_at_ms(old));
            distinguish(Path::new("file"), &file, Some(old), arrival, &none).unwrap().modified_at_ms
        };
        let past = clock_ms() - 50;
        let (_file, old) = dated(past);
        assert_eq!(time(&old, Arrival::Unseen), past + 1);
        assert_eq!(time(&old, Arrival::Overwritten), past);
        let ahead = clock_ms() + 60_000;
        let (_file, old) = dated(ahead);
        assert_eq!(time(&old, Arrival::Unseen), ahead, "not further ahead");
    }

    #[test]
    fn a_conditional_write_has_a_distinct_time() {
        let condition = Condition { size: Some(0), ..Condition::default() };
        for arrival in [Arrival::Unseen, Arrival::Overwritten] {
            // The clock has passed the time, reaches it shortly, or takes too long to reach it.
            for ahead in [-50_000, -50, 0, 5, 5_000] {
                let time = clock_ms() + ahead;
                let (_, old) = dated(time);
                // The new file was written earlier, which makes no difference.
                let (file, _) = dated(time - 20_000);
                let written =
                    distinguish(Path::new("file"), &file, Some(&old), arrival, &condition).unwrap();
                assert!(written.modified_at_ms > time, "{ahead} {arrival:?} {written:?}");
                let latest = clock_ms().max(time + 1);
                assert!(written.modified_at_ms <= latest, "{ahead} {arrival:?} {written:?}");
            }
        }
    }

    #[test]
    fn a_time_is_set_to_the_millisecond() {
        let file = tempfile::tempfile().unwrap();
        for ms in [-1, 0, 1_700_000_000_123] {
            rustix::fs::futimens(&file, &modified_at(ms)).unwrap();
            assert_eq!(modified_at_ms(&rustix::fs::fstat(&file).unwrap()), ms);
        }
    }
}
