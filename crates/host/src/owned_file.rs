//! Exclusive ownership of a file by one process while it keeps the file open: a write lock on the
//! open file description (`F_OFD_SETLK`).
//!
//! Unlike `flock`, this lock needs a descriptor that is open for writing. So a process that can
//! only read the file, such as a sandboxed one, can neither own it nor be mistaken for its owner.
//! It can still hold a read lock, which prevents every process from owning the file.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// Acquires ownership of a file, until the last descriptor of this open file description is closed.
/// Returns false if the file is locked through another open file description, even one of this
/// process. The file must be open for writing.
pub fn try_own(file: impl AsFd) -> io::Result<bool> {
    let mut lock = whole_file(libc::F_WRLCK);
    match control(file, libc::F_OFD_SETLK, &mut lock) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        // POSIX allows either error.
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether the file is owned through another open file description. Takes no lock, so it does not
/// interfere with owners.
pub fn has_owner(file: impl AsFd) -> io::Result<bool> {
    // Only write locks conflict with a read lock.
    let mut lock = whole_file(libc::F_RDLCK);
    control(file, libc::F_OFD_GETLK, &mut lock)?;
    Ok(lock.l_type != whole_file(libc::F_UNLCK).l_type)
}

fn whole_file(kind: impl Into<i32>) -> libc::flock {
    let narrow = |value: i32| value.try_into().expect("lock types are small numbers");
    // SAFETY: the structure consists of numbers, for which zero is valid. A length of zero means
    // "to the end".
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = narrow(kind.into());
    lock.l_whence = narrow(libc::SEEK_SET);
    lock
}

fn control(file: impl AsFd, command: i32, lock: &mut libc::flock) -> io::Result<()> {
    let file = file.as_fd();
    loop {
        // SAFETY: the descriptor is open, and the kernel reads and writes one structure of this
        // type.
        let outcome = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut *lock) };
        let error = match outcome {
            -1 => io::Error::last_os_error(),
            _ => return Ok(()),
        };
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};

    use super::*;

    #[test]
    fn a_file_has_one_owner_until_the_owner_closes_it() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let writing = || OpenOptions::new().write(true).open(file.path()).unwrap();
        let (first, second) = (writing(), writing());
        assert!(!has_owner(&second).unwrap());
        assert!(try_own(&first).unwrap());
        assert!(!try_own(&second).unwrap());
        assert!(has_owner(&second).unwrap());
        drop(first);
        assert!(!has_owner(&second).unwrap());
        assert!(try_own(&second).unwrap());
    }

    #[test]
    fn a_reader_neither_owns_the_file_nor_appears_to() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (reading, asking) =
            (File::open(file.path()).unwrap(), File::open(file.path()).unwrap());
        assert!(try_own(&reading).is_err());
        rustix::fs::flock(&reading, rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert!(!has_owner(&asking).unwrap());
        assert!(try_own(file.as_file()).unwrap());
        assert!(has_owner(&asking).unwrap());
    }

    #[test]
    fn a_read_lock_prevents_ownership() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let reading = File::open(file.path()).unwrap();
        control(&reading, libc::F_OFD_SETLK, &mut whole_file(libc::F_RDLCK)).unwrap();
        assert!(!try_own(file.as_file()).unwrap());
        assert!(!has_owner(file.as_file()).unwrap());
    }
}
