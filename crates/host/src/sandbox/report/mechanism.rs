//! The enforcement mechanisms: their names, purposes and remedies.
//!
//! This module contains only text. `probe` finds out which mechanisms a machine has.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mechanism {
    Landlock,
    Seccomp,
    /// User, mount, PID and IPC namespaces.
    UserNamespace,
    NetworkNamespace,
    /// A network namespace where every address leads to sockets of the server.
    ManagedNetwork,
    FreshProc,
    Bubblewrap,
    Seatbelt,
}

impl Mechanism {
    pub const ALL: &'static [Self] = if cfg!(target_os = "linux") {
        &[
            Self::Landlock,
            Self::Seccomp,
            Self::UserNamespace,
            Self::NetworkNamespace,
            Self::ManagedNetwork,
            Self::FreshProc,
            Self::Bubblewrap,
        ]
    } else if cfg!(target_os = "macos") {
        &[Self::Seatbelt]
    } else {
        &[]
    };

    pub const fn name(self) -> &'static str {
        match self {
            Self::Landlock => "landlock",
            Self::Seccomp => "seccomp",
            Self::UserNamespace => "user-namespace",
            Self::NetworkNamespace => "network-namespace",
            Self::ManagedNetwork => "managed-network",
            Self::FreshProc => "fresh-proc",
            Self::Bubblewrap => "bubblewrap",
            Self::Seatbelt => "seatbelt",
        }
    }

    /// Returns the protection that a sandbox lacks without the mechanism.
    pub const fn gives(self) -> &'static str {
        match self {
            Self::Landlock => "only what the policy grants can be read and written",
            Self::Seccomp => {
                "no network if the policy restricts it, and no system calls that lead out of a sandbox"
            }
            Self::UserNamespace => {
                "parts of a writable directory stay protected (.git, denied files), and processes outside are out of reach"
            }
            Self::NetworkNamespace => "a second barrier if the policy restricts the network",
            Self::ManagedNetwork => {
                "a process reaches only the allowed hosts, whichever program it runs"
            }
            Self::FreshProc => "/proc shows only the processes of the sandbox",
            Self::Bubblewrap => {
                "creates the namespaces where only a few programs may create them (Ubuntu 24.04)"
            }
            Self::Seatbelt => "files and network are restricted as the policy says",
        }
    }

    /// Returns how to get the mechanism if nothing more is known about the machine.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Landlock => {
                "Linux 5.13 or later (6.12 to confine signals as well) with `landlock` listed in /sys/kernel/security/lsm (boot parameter \
                 `lsm=landlock,...`); in a container, a seccomp profile that allows landlock_create_ruleset (Docker 23 or later)"
            }
            Self::Seccomp => {
                "a kernel with CONFIG_SECCOMP_FILTER; in a container, a seccomp profile that allows the call seccomp"
            }
            Self::UserNamespace | Self::NetworkNamespace | Self::ManagedNetwork => {
                "let this user create user namespaces: `sysctl -w user.max_user_namespaces=15000`; on Ubuntu 24.04 `sysctl -w \
                 kernel.apparmor_restrict_unprivileged_userns=0` or an AppArmor profile with `userns,` for exec-server; in Docker \
                 `--security-opt seccomp=unconfined --security-opt apparmor=unconfined`"
            }
            Self::FreshProc => {
                "user namespaces, and in Docker also `--security-opt systempaths=unconfined`"
            }
            Self::Bubblewrap => "`apt-get install bubblewrap` (or dnf, pacman, apk, zypper)",
            Self::Seatbelt => "macOS",
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Landlock => "Landlock",
            Self::Seccomp => "seccomp",
            Self::UserNamespace => "user namespaces",
            Self::NetworkNamespace => "network namespaces",
            Self::ManagedNetwork => "a managed network",
            Self::FreshProc => "a private /proc",
            Self::Bubblewrap => "bubblewrap",
            Self::Seatbelt => "Seatbelt",
        })
    }
}
