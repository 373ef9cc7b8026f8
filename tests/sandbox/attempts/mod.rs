//! The escape attempts: their programs and the requirements of each.

mod table;

pub(super) use table::{AT_SERVER_SOCKET, GONE_BEFORE_ASKED, all};

/// A program in `escapes/` and the conditions under which it runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    pub(super) name: &'static str,
    pub(super) goal: Goal,
    /// Without a sandbox, the attempt succeeds only as root.
    pub(super) root_only: bool,
    /// The kernel or the file system may lack the feature that the attempt uses, or a setting may
    /// turn it off. Then the run without a sandbox reports that, and the attempt must still fail in
    /// the sandbox.
    pub(super) may_lack: bool,
    pub(super) at_a_terminal: bool,
    /// The sandbox allows the attempt to use the network.
    pub(super) with_network: bool,
    /// Why Landlock and seccomp alone do not block the attempt. No policy promises that they do:
    /// such an attempt affects the CPU and I/O time of another process of the same user, not its
    /// memory, files or the network.
    pub(super) loose_without_namespaces: Option<&'static str>,
}

/// The target of the attempt, which determines its policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// A target that no restricted policy allows.
    Outside,
    /// A protected name in the workspace.
    CarveOut,
    /// A protected name in a workspace that has writable directories above it.
    CarveOutFromAbove,
    /// A path in the workspace that the policy denies.
    Denied,
}

impl Goal {
    /// Whether the policy needs mounts, because rules that only add access cannot express it.
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
