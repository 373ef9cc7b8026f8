//! Exit codes of client commands: docker's numbers, and a shell's for signals.

use std::io;
use std::process::ExitCode;

/// How a client command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExitStatus(u8);

impl ExitStatus {
    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const FAILURE: Self = Self(1);
    /// The command line or a file is wrong, as opposed to a failure of the machine.
    pub(crate) const USAGE_ERROR: Self = Self(2);
    /// grep's for any failure: 1 says that nothing was found.
    pub(crate) const NOT_ALL_SEARCHED: Self = Self(2);
    /// curl's, for a response that says that the request failed.
    pub(crate) const HTTP_FAILURE: Self = Self(22);
    pub(crate) const TIMED_OUT: Self = Self(124);
    /// The client failed, not the command that it ran.
    pub(crate) const CLIENT_FAILURE: Self = Self(125);
    pub(crate) const NOT_EXECUTABLE: Self = Self(126);
    pub(crate) const NOT_FOUND: Self = Self(127);
    /// Left with `~.`, as in ssh.
    pub(crate) const LEFT: Self = Self(255);
    const SIGPIPE: u8 = 13;

    /// The code of a process; a number that is not an exit code becomes [`Self::CLIENT_FAILURE`].
    pub(crate) fn of_process(code: i32) -> Self {
        u8::try_from(code).map_or(Self::CLIENT_FAILURE, Self)
    }

    pub(crate) const fn of_signal(number: u8) -> Self {
        Self(128 + number)
    }

    /// On a broken pipe the exit code is that of a program ended by SIGPIPE.
    pub(crate) fn of_write_error(error: io::Error) -> anyhow::Result<Self> {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Ok(Self::of_signal(Self::SIGPIPE));
        }
        Err(anyhow::Error::new(error).context("cannot write the output"))
    }
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        Self::from(status.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_shell() {
        assert_eq!(ExitStatus::of_process(7), ExitStatus(7));
        assert_eq!(ExitStatus::of_process(-1), ExitStatus::CLIENT_FAILURE);
        assert_eq!(ExitStatus::of_signal(9), ExitStatus(137));
        let broken = ExitStatus::of_write_error(io::ErrorKind::BrokenPipe.into());
        assert_eq!(broken.unwrap(), ExitStatus(141));
        let full = ExitStatus::of_write_error(io::ErrorKind::StorageFull.into()).unwrap_err();
        assert!(full.to_string().starts_with("cannot write the output"));
    }
}
