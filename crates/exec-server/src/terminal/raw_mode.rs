//! Raw mode: the terminal passes on typed bytes unchanged, Ctrl-C included, until the guard is
//! dropped.

use std::io;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// Keeps the terminal on standard input in raw mode; dropping the guard restores the previous mode.
/// The guard lives on the stack of the function that waits for the process, so it is dropped on a
/// return, a handled signal or a panic.
pub(crate) struct RawModeGuard {
    original: Termios,
}

impl RawModeGuard {
    pub(crate) fn enter() -> io::Result<Self> {
        let original = tcgetattr(io::stdin())?;
        let guard = Self { original };
        guard.apply()?;
        Ok(guard)
    }

    /// Also called when this program continues after a stop: by then [`Self::suspend`] or the
    /// user's shell has changed the mode.
    pub(crate) fn apply(&self) -> io::Result<()> {
        let mut raw = self.original.clone();
        raw.make_raw();
        Ok(tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?)
    }

    /// Restores the previous mode, also before this program stops.
    pub(crate) fn suspend(&self) -> io::Result<()> {
        Ok(tcsetattr(io::stdin(), OptionalActions::Drain, &self.original)?)
    }
}

impl Drop for RawModeGuard {
    fn drop(&mut self) {
        // A closed terminal has no mode to restore.
        let _ = self.suspend();
    }
}

impl std::fmt::Debug for RawModeGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RawModeGuard")
    }
}
