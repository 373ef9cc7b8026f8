//! The identity of the client on a connection, and its rights. Determined before the first message,
//! by the code that accepts connections.

use std::fmt;
use std::path::PathBuf;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::{Effect, LimitValues};

/// The client of a connection, as the server treats it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub subject: Subject,
    pub role: Role,
    /// The lower of this and the operator's ceiling applies.
    pub ceiling: SandboxCeiling,
    /// Limits for each of its processes, in addition to the operator's limits.
    pub limits: LimitValues,
    /// From this time on, no session can be opened or resumed. Calls of an open session continue.
    pub expires: Option<SystemTime>,
}

/// The owner of a session. Two kinds of credentials never prove the same subject, so no token can
/// claim to be the local user.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Subject {
    /// The user that runs the server, or root.
    LocalUser,
    /// Another user of this machine, or `None` if the kernel does not report the user.
    OtherUser(Option<u32>),
    /// The SHA-256 of a token without a subject.
    Token([u8; 32]),
    /// The `sub` of a signed token.
    Named(String),
    /// The name in a client certificate.
    Certificate(String),
    /// A client that connected through a relay, with the name assigned by the registry; `None` if
    /// the registry assigns no names.
    Relayed(Option<String>),
}

/// Maximum length of a token's `sub`.
pub const MAX_SUBJECT_BYTES: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Full use of its subject's sessions.
    #[default]
    Owner,
    /// Reads files and observes the sessions of its subject.
    Observer,
    /// Full use of its own sessions; lists, observes and ends those of all subjects.
    Admin,
}

/// The upper bound for requests, whatever they ask for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct SandboxCeiling {
    /// `None`: requests may have the server's own rights.
    pub require: Option<SandboxLevel>,
    /// Directories that requests may write under [`SandboxLevel::WorkspaceWrite`], in addition to
    /// the temporary directories. If empty, the server's working directory.
    pub writable_roots: Vec<PathBuf>,
    /// Whether requests may use the network. Ignored without `require`: then they may.
    pub network: bool,
    /// The hosts that processes may reach, if they have a network; `None` for every host.
    pub hosts: Option<HostRules>,
}

/// Host patterns that decide which hosts may be reached.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostRules {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Takes precedence over `allow`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
    /// Whether the client may be asked about hosts that no pattern names.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ask: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxLevel {
    ReadOnly,
    WorkspaceWrite,
}

impl Principal {
    #[must_use]
    pub fn new(subject: Subject) -> Self {
        let (role, ceiling) = (Role::default(), SandboxCeiling::default());
        Self { subject, role, ceiling, limits: LimitValues::default(), expires: None }
    }

    /// The principal of transports that only the server's own user can use.
    #[must_use]
    pub fn local() -> Self {
        Self::new(Subject::LocalUser)
    }

    #[must_use]
    pub fn may(&self, effect: Effect) -> bool {
        match effect {
            Effect::Reads => true,
            Effect::Changes => self.role != Role::Observer,
            Effect::Administers => self.is_operator(),
        }
    }

    /// Whether this is the operator: an admin, or an owner that is the local user or has the
    /// capability token. Signed tokens always expire; the capability token never does.
    fn is_operator(&self) -> bool {
        match (self.role, &self.subject) {
            (Role::Admin, _) | (Role::Owner, Subject::LocalUser) => true,
            (Role::Owner, Subject::Token(_)) => self.expires.is_none(),
            _ => false,
        }
    }

    /// Whether this principal can see the sessions of `owner`.
    #[must_use]
    pub fn sees(&self, owner: &Self) -> bool {
        (self.role == Role::Admin || self.subject == owner.subject) && self.is_bound_like(owner)
    }

    /// Whether this principal can take over a session of `owner`.
    #[must_use]
    pub fn owns(&self, owner: &Self) -> bool {
        self.subject == owner.subject && self.is_bound_like(owner)
    }

    /// A client with a ceiling or limits must not control a process that was started without them.
    fn is_bound_like(&self, owner: &Self) -> bool {
        (self.ceiling.require.is_none() || self.ceiling == owner.ceiling)
            && (self.limits.is_empty() || self.limits == owner.limits)
    }

    #[must_use]
    pub fn has_expired(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// Prefixed with the kind, so that no name can pass for a subject of another kind.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LocalUser => f.write_str("user:local"),
            Self::OtherUser(Some(uid)) => write!(f, "user:{uid}"),
            Self::OtherUser(None) => f.write_str("user:unknown"),
            Self::Token(hash) => {
                f.write_str("token:")?;
                hash[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Named(name) => write!(f, "sub:{name}"),
            Self::Certificate(name) => write!(f, "certificate:{name}"),
            Self::Relayed(Some(name)) => write!(f, "relay:{name}"),
            Self::Relayed(None) => f.write_str("relay"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent() -> Principal {
        let require = Some(SandboxLevel::ReadOnly);
        let ceiling = SandboxCeiling { require, ..SandboxCeiling::default() };
        Principal { ceiling, ..alice() }
    }

    fn alice() -> Principal {
        Principal::new(Subject::Named("alice".into()))
    }

    #[test]
    fn sessions_are_visible_to_their_subject_and_to_admins() {
        let bob = Principal::new(Subject::Named("bob".into()));
        let admin = Principal { role: Role::Admin, ..bob.clone() };
        assert!(alice().sees(&alice()) && alice().owns(&alice()));
        assert!(!bob.sees(&alice()) && !bob.owns(&alice()));
        assert!(admin.sees(&alice()) && !admin.owns(&alice()));
        let local = Principal::new(Subject::Named("local user".into()));
        assert!(!local.sees(&Principal::local()));
    }

    #[test]
    fn a_ceiling_hides_sessions_created_without_it() {
        assert!(alice().sees(&agent()) && alice().owns(&agent()));
        assert!(!agent().sees(&alice()) && !agent().owns(&alice()));
        assert!(agent().owns(&agent()));
        let admin = Principal { role: Role::Admin, ..agent() };
        assert!(!admin.sees(&alice()));
    }

    #[test]
    fn token_limits_hide_sessions_created_without_them() {
        let limits = LimitValues { pids: Some(9), ..LimitValues::default() };
        let limited = Principal { limits, ..alice() };
        assert!(alice().sees(&limited) && limited.owns(&limited));
        assert!(!limited.sees(&alice()) && !limited.owns(&alice()));
    }

    #[test]
    fn an_observer_may_only_read() {
        let observer = Principal { role: Role::Observer, ..alice() };
        assert!(observer.may(Effect::Reads) && !observer.may(Effect::Changes));
        assert!(alice().may(Effect::Changes));
    }

    #[test]
    fn the_operator_is_an_admin_or_can_act_as_the_servers_user() {
        let is_operator = |principal: &Principal| principal.may(Effect::Administers);
        let admin = Principal { role: Role::Admin, ..alice() };
        let capability = Principal::new(Subject::Token([7; 32]));
        for operator in [&admin, &capability, &Principal::local()] {
            assert!(is_operator(operator), "{operator:?}");
        }
        let nameless = Principal { expires: Some(SystemTime::UNIX_EPOCH), ..capability.clone() };
        let observer = Principal { role: Role::Observer, ..Principal::local() };
        let others = [
            Subject::OtherUser(Some(7)),
            Subject::Certificate("a".into()),
            Subject::Relayed(Some("a".into())),
        ];
        let others = others.map(Principal::new);
        for other in others.iter().chain([&alice(), &nameless, &observer]) {
            assert!(!is_operator(other), "{other:?}");
        }
    }
}
