//! A file that belongs to one process, for as long as that keeps it open: a write lock on the open file (`F_OFD_SETLK`).
//!
//! Unlike `flock` it takes a descriptor that is open for writing. So whoever can only read the file, as a process in a sandbox, can
//! neither pretend to own it nor be taken for its owner. What such a one can do is to hold a lock for reading, which keeps everybody from
//! owning the file.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};

/// Takes possession of a file, until the last descriptor of this opening of it is closed. False if somebody holds a lock on it. The
/// file must be open for writing.
pub fn try_own(file: impl AsFd) -> io::Result<bool> {
    let mut lock = whole_file(libc::F_WRLCK);
    match control(file, libc::F_OFD_SETLK, &mut lock) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        // POSIX allows both.
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether somebody else owns a file. Takes no lock, and so is in nobody's way.
pub fn has_owner(file: impl AsFd) -> io::Result<bool> {
    // Only locks for writing are in the way of one for reading.
    let mut lock = whole_file(libc::F_RDLCK);
    control(file, libc::F_OFD_GETLK, &mut lock)?;
    Ok(lock.l_type != whole_file(libc::F_UNLCK).l_type)
}

fn whole_file(kind: impl Into<i32>) -> libc::flock {
    let narrow = |value: i32| value.try_into().expect("the kinds of locks are small numbers");
    // SAFETY: it is made of numbers, for which zero is a value; and a length of zero means "to the end".
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = narrow(kind.into());
    lock.l_whence = narrow(libc::SEEK_SET);
    lock
}

fn control(file: impl AsFd, command: i32, lock: &mut libc::flock) -> io::Result<()> {
    let file = file.as_fd();
    loop {
        // SAFETY: the descriptor is open, and the kernel reads and writes one structure of this kind.
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
    fn it_belongs_to_one_until_that_closes_it() {
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
    fn who_can_only_read_it_neither_owns_it_nor_seems_to() {
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
    fn a_lock_for_reading_keeps_it_from_everybody() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let reading = File::open(file.path()).unwrap();
        control(&reading, libc::F_OFD_SETLK, &mut whole_file(libc::F_RDLCK)).unwrap();
        assert!(!try_own(file.as_file()).unwrap());
        assert!(!has_owner(file.as_file()).unwrap());
    }
}
