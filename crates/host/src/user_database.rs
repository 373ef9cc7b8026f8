//! The machine's user database.

use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::ptr;

const MAX_ENTRY_BYTES: usize = 1 << 20;

/// Returns the home directory of a user, independent of `HOME`. `None` if the database has none for
/// the user, or the look-up fails. May query other machines and block.
#[must_use]
pub fn home_directory_of(uid: u32) -> Option<PathBuf> {
    let mut buffer: Vec<libc::c_char> = vec![0; 1 << 10];
    loop {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = ptr::null_mut();
        let (text, len) = (buffer.as_mut_ptr(), buffer.len());
        // SAFETY: `entry` and `found` are writable, and so are `len` characters at `text`.
        let error = unsafe { libc::getpwuid_r(uid, entry.as_mut_ptr(), text, len, &raw mut found) };
        match error {
            libc::EINTR => {}
            libc::ERANGE if len < MAX_ENTRY_BYTES => buffer.resize(2 * len, 0),
            0 if !found.is_null() => {
                // SAFETY: `found` points to the entry, which was filled in.
                let directory = unsafe { (*found).pw_dir };
                if directory.is_null() {
                    return None;
                }
                // SAFETY: a string of the entry lies in the buffer and is NUL-terminated.
                let directory = unsafe { CStr::from_ptr(directory) };
                return Some(PathBuf::from(OsStr::from_bytes(directory.to_bytes())));
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_directories_come_from_the_database() {
        let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        for line in text.lines() {
            let fields: Vec<_> = line.split(':').collect();
            let [_, _, uid, _, _, home, _] = fields[..] else { continue };
            let uid = uid.parse().unwrap();
            let first = text.lines().find(|line| line.split(':').nth(2) == fields.get(2).copied());
            if first == Some(line) {
                assert_eq!(home_directory_of(uid), Some(PathBuf::from(home)), "{uid}");
            }
        }
        assert_eq!(home_directory_of(u32::MAX - 1), None);
    }
}
