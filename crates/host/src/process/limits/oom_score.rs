//! OOM scores: when the machine runs out of memory, the kernel kills programs before their keepers.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const OWN: &CStr = c"/proc/self/oom_score_adj";
/// Added to the keeper's value to get a program's.
const DIFFERENCE: i32 = 200;
const HIGHEST: i32 = 1000;
/// Attempts to raise a program's value. Until its exec is complete, the program shares its keeper's
/// non-dumpable memory, so the write is denied.
const ATTEMPTS: usize = 10;

/// The value for programs, as text; `None` if the system has no OOM scores.
static OF_PROGRAMS: OnceLock<Option<Text>> = OnceLock::new();
/// Set by a child, in memory that it shares with its keeper.
static RAISED_BY_CHILD: AtomicBool = AtomicBool::new(false);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Text {
    digits: [u8; 6],
    len: usize,
}

/// Reads the value of this process and derives that of programs. Call it before any fork.
pub(in crate::process) fn prepare() {
    OF_PROGRAMS.get_or_init(|| {
        let own = fs::read_to_string("/proc/self/oom_score_adj").ok()?;
        Text::new(of_program(own.trim().parse().ok()?))
    });
}

/// Raises the calling process's value to that for programs, if permitted. Only root may write the
/// value of a process that shares the keeper's memory, which is not dumpable; in a sandbox, /proc
/// may be read-only.
///
/// Makes only system calls on plain values. The kernel gives a `CLONE_VFORK` child its own value
/// even while it shares its parent's memory.
pub(in crate::process) fn raise_own() {
    let Some(Some(text)) = OF_PROGRAMS.get() else { return };
    // SAFETY: the path ends with its NUL, and the digits outlive the call.
    unsafe {
        let file = libc::open(OWN.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if file != -1 {
            let written = libc::write(file, text.digits.as_ptr().cast(), text.len);
            RAISED_BY_CHILD.store(written > 0, Ordering::Relaxed);
            libc::close(file);
        }
    }
}

/// Whether the keeper still has to raise the value of its program.
pub(in crate::process) fn is_left_to_keeper() -> bool {
    matches!(OF_PROGRAMS.get(), Some(Some(_))) && !RAISED_BY_CHILD.load(Ordering::Relaxed)
}

/// Raises the value of a running process. Failure is harmless; the process may belong to another
/// user.
#[expect(clippy::disallowed_methods, reason = "no event reports that an exec is complete")]
pub(in crate::process) fn raise(pid: u32) {
    let Some(Some(text)) = OF_PROGRAMS.get() else { return };
    let digits = text.digits.get(..text.len).unwrap_or_default();
    let path = format!("/proc/{pid}/oom_score_adj");
    for _ in 0..ATTEMPTS {
        match fs::write(&path, digits) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                std::thread::sleep(Duration::from_millis(1));
            }
            _ => return,
        }
    }
}

/// Like [`raise`] with a single attempt, for a server that must not wait. One attempt is enough:
/// the standard library's spawn returns only after the exec.
pub(in crate::process) fn raise_once(pid: u32) {
    if let Some(Some(text)) = OF_PROGRAMS.get() {
        let digits = text.digits.get(..text.len).unwrap_or_default();
        let _ = fs::write(format!("/proc/{pid}/oom_score_adj"), digits);
    }
}

fn of_program(own: i32) -> i32 {
    own.saturating_add(DIFFERENCE).min(HIGHEST)
}

impl Text {
    fn new(value: i32) -> Option<Self> {
        let text = value.to_string();
        let mut digits = [0; 6];
        digits.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Self { digits, len: text.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_get_a_higher_value_up_to_the_maximum() {
        assert_eq!([-1000, 0, 900, 1000].map(of_program), [-800, 200, 1000, 1000]);
        let text = Text::new(-800).unwrap();
        assert_eq!(&text.digits[..text.len], b"-800");
    }
}
