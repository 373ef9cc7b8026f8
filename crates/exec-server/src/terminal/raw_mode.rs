//! Raw mode: what is typed goes to the program, uninterpreted, until the guard is dropped.

use std::io;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

/// The terminal of our standard input in raw mode; dropping it restores the mode it had. It lives on the stack of
/// whoever waits for the program, so it is dropped however that ends: return, signal or panic.
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

    /// Also for after a stop: the shell that had the terminal meanwhile has set its own mode.
    pub(crate) fn apply(&self) -> io::Result<()> {
        let mut raw = self.original.clone();
        raw.make_raw();
        Ok(tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?)
    }

    /// The mode that it had, for as long as we are stopped.
    pub(crate) fn suspend(&self) -> io::Result<()> {
        Ok(tcsetattr(io::stdin(), OptionalActions::Drain, &self.original)?)
    }
}

impl Drop for RawModeGuard {
    fn drop(&mut self) {
        // A terminal that is gone needs no mode.
        let _ = self.suspend();
    }
}

impl std::fmt::Debug for RawModeGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RawModeGuard")
    }
}
