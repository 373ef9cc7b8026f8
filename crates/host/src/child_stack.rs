//! The stack of a process that `clone` starts in the caller's memory.
//!
//! A guard page lies below it. A child that overflows its stack crashes instead of overwriting its
//! parent's memory.

use std::ptr;

use rustix::io::Errno;

/// The size of the largest page on a supported system.
const GUARD_LEN: usize = 64 << 10;

/// Invariant: `base` is the start of a mapping owned by this value alone: the guard, and `len`
/// bytes above it.
#[derive(Debug)]
pub(crate) struct ChildStack {
    base: *mut libc::c_void,
    len: usize,
}

impl ChildStack {
    /// `len` must be a multiple of 64 KiB.
    pub(crate) fn new(len: usize) -> Result<Self, Errno> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), GUARD_LEN + len, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(last_errno());
        }
        let stack = Self { base, len };
        // SAFETY: the range is the mapping without the guard.
        let opened =
            unsafe { libc::mprotect(stack.bottom(), len, libc::PROT_READ | libc::PROT_WRITE) };
        if opened == -1 {
            return Err(last_errno());
        }
        Ok(stack)
    }

    /// Returns the end of the stack for `clone`: it grows down from here.
    pub(crate) fn top(&self) -> *mut libc::c_void {
        self.bottom().wrapping_byte_add(self.len)
    }

    /// Returns the lowest address and the length for `clone3`.
    pub(crate) fn range(&self) -> (*mut libc::c_void, usize) {
        (self.bottom(), self.len)
    }

    /// Keeps the mapping for a child that runs beside its parent and may outlive this value.
    pub(crate) fn leak(self) {
        std::mem::forget(self);
    }

    fn bottom(&self) -> *mut libc::c_void {
        self.base.wrapping_byte_add(GUARD_LEN)
    }
}

impl Drop for ChildStack {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and the child that used it has ended or has
        // its own memory.
        unsafe { libc::munmap(self.base, GUARD_LEN + self.len) };
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::NOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_below_a_stack_cannot_be_accessed() {
        const LEN: usize = 64 << 10;
        let stack = ChildStack::new(LEN).unwrap();
        let bottom = stack.bottom().addr();
        assert_eq!(access_of(bottom - 1), "---p");
        assert_eq!(access_of(bottom), "rw-p");
        assert_eq!(access_of(stack.top().addr() - 1), "rw-p");
        assert_eq!(stack.top().addr(), bottom + LEN);
    }

    fn access_of(address: usize) -> String {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let found = maps.lines().find_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let start = usize::from_str_radix(start, 16).ok()?;
            let end = usize::from_str_radix(end, 16).ok()?;
            (start..end).contains(&address).then(|| rest[..4].to_owned())
        });
        found.unwrap_or_else(|| format!("nothing is mapped at {address:#x}"))
    }
}
