//! Exit codes of client commands: docker's codes, and those of a shell for signals.

use std::process::ExitCode;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExitStatus(u8);

impl ExitStatus {
    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const FAILURE: Self = Self(1);
    /// The command line or a file is invalid, as opposed to a failure at run time.
    pub(crate) const USAGE_ERROR: Self = Self(2);
    /// Any failure of grep; 1 means no match.
    pub(crate) const NOT_ALL_SEARCHED: Self = Self(2);
    /// As in curl: the response has an error status.
    pub(crate) const HTTP_FAILURE: Self = Self(22);
    pub(crate) const TIMED_OUT: Self = Self(124);
    /// The client failed, not the command that it was running.
    pub(crate) const CLIENT_FAILURE: Self = Self(125);
    pub(crate) const NOT_EXECUTABLE: Self = Self(126);
    pub(crate) const NOT_FOUND: Self = Self(127);
    /// Disconnected with `~.`, as in ssh.
    pub(crate) const LEFT: Self = Self(255);
    pub(crate) const BROKEN_PIPE: Self = Self::of_signal(13);

    /// Returns the exit code of a process. A number that is not an exit code becomes
    /// [`Self::CLIENT_FAILURE`].
    pub(crate) fn of_process(code: i32) -> Self {
        u8::try_from(code).map_or(Self::CLIENT_FAILURE, Self)
    }

    pub(crate) const fn of_signal(number: u8) -> Self {
        Self(128 + number)
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
        assert_eq!(ExitStatus::BROKEN_PIPE, ExitStatus(141));
    }
}
