//! The escape attempts: which programs there are, and what each needs.

mod table;

pub(super) use table::{AT_SERVER_SOCKET, GONE_BEFORE_ASKED, all};

/// A program in `escapes/` and the circumstances in which it is run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    pub(super) name: &'static str,
    pub(super) goal: Goal,
    /// Without a sandbox only root can do it.
    pub(super) root_only: bool,
    /// Not every kernel, file system or setting has it: then the control says so, and the sandbox only must not do it.
    pub(super) may_lack: bool,
    pub(super) at_a_terminal: bool,
    /// The sandbox lets it use the network.
    pub(super) with_network: bool,
    /// Why Landlock and seccomp alone do not hold it. No policy promises that they do: this is about the time of another
    /// process of the same user, not about its memory, files or the network.
    pub(super) loose_without_namespaces: Option<&'static str>,
}

/// What the attempt is after, which says what policy it is run under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// Something that no policy with restrictions allows.
    Outside,
    /// A protected name in the workspace.
    CarveOut,
    /// A protected name in a workspace that has writable directories above it.
    CarveOutFromAbove,
    /// Something in the workspace that the policy denies.
    Denied,
}

impl Goal {
    /// Whether rules that only add cannot express it, so that mounts are needed.
    pub(super) const fn needs_mounts(self) -> bool {
        !matches!(self, Self::Outside)
    }
}

const fn attempt(name: &'static str, goal: Goal) -> Attempt {
    Attempt {
        name,
        goal,
        root_only: false,
        may_lack: false,
        at_a_terminal: false,
        with_network: false,
        loose_without_namespaces: None,
    }
}

const fn outside(name: &'static str) -> Attempt {
    attempt(name, Goal::Outside)
}

const fn carve_out(name: &'static str) -> Attempt {
    attempt(name, Goal::CarveOut)
}

const fn denied(name: &'static str) -> Attempt {
    attempt(name, Goal::Denied)
}

impl Attempt {
    const fn of_root(self) -> Self {
        Self { root_only: true, ..self }
    }

    const fn may_lack(self) -> Self {
        Self { may_lack: true, ..self }
    }

    const fn at_a_terminal(self) -> Self {
        Self { at_a_terminal: true, ..self }
    }

    const fn loose_without_namespaces(self, why: &'static str) -> Self {
        Self { loose_without_namespaces: Some(why), ..self }
    }

    const fn with_network(self) -> Self {
        Self { with_network: true, ..self }
    }
}
