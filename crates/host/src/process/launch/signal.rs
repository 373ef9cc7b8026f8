//! The signals that a client may send.

/// A signal by its meaning, independent of its number on this system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    Interrupt,
    Terminate,
    Kill,
    Hangup,
    Quit,
    User1,
    User2,
    Stop,
    Continue,
}

impl Signal {
    pub(super) fn as_system(self) -> rustix::process::Signal {
        use rustix::process::Signal as System;
        match self {
            Self::Interrupt => System::INT,
            Self::Terminate => System::TERM,
            Self::Kill => System::KILL,
            Self::Hangup => System::HUP,
            Self::Quit => System::QUIT,
            Self::User1 => System::USR1,
            Self::User2 => System::USR2,
            Self::Stop => System::STOP,
            Self::Continue => System::CONT,
        }
    }
}
