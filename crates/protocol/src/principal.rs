//! Who is at the other end of a connection, and what they may do. It is decided before the first
//! message, by the code that accepts connections.

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
    /// Besides the operator's: the lower of both holds.
    pub ceiling: SandboxCeiling,
    /// The most that each of its processes may use. The operator's limits hold besides.
    pub limits: LimitValues,
    /// No session is opened or resumed from then on. Calls of an open session go on.
    pub expires: Option<SystemTime>,
}

/// Who owns a session. Two kinds of credentials never prove the same subject, so no token can name
/// itself the local user.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Subject {
    /// The user that the server runs as, or root.
    LocalUser,
    /// Another user of the machine; `None` where the kernel does not tell which.
    OtherUser(Option<u32>),
    /// The SHA-256 of a token that names no subject.
    Token([u8; 32]),
    /// The `sub` of a signed token.
    Named(String),
    /// The name in a client certificate.
    Certificate(String),
    /// A client that came through a relay, by the name that the registry gives it; `None` where the
    /// registry gives no names.
    Relayed(Option<String>),
}

/// The longest `sub` of a token.
pub const MAX_SUBJECT_BYTES: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Works in the sessions of its subject.
    #[default]
    Owner,
    /// Reads files, and observes the sessions of its subject.
    Observer,
    /// Works in its own sessions, and lists, observes and ends those of all subjects.
    Admin,
}

/// The most that a request may have, whatever it asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct SandboxCeiling {
    /// `None`: requests may have what the server itself has.
    pub require: Option<SandboxLevel>,
    /// Where requests may write under [`SandboxLevel::WorkspaceWrite`], besides the temporary directories. Without any, the
    /// server's own working directory.
    pub writable_roots: Vec<PathBuf>,
    /// Whether requests may use the network.
    pub network: bool,
    /// The hosts that processes may reach; `None` for every host, if there is a network.
    pub hosts: Option<HostRules>,
}

/// Which hosts may be reached, as patterns.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostRules {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// Wins over `allow`.
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

    /// For transports that only the server's own user can use.
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

    /// Whether this is the operator: a client with the role, or one that can do whatever the
    /// server's user can. A capability token is the only one of its server. It never expires; a
    /// signed token always does.
    fn is_operator(&self) -> bool {
        match (self.role, &self.subject) {
            (Role::Admin, _) | (Role::Owner, Subject::LocalUser) => true,
            (Role::Owner, Subject::Token(_)) => self.expires.is_none(),
            _ => false,
        }
    }

    /// Whether the sessions of `owner` exist for this principal.
    #[must_use]
    pub fn sees(&self, owner: &Self) -> bool {
        (self.role == Role::Admin || self.subject == owner.subject) && self.is_bound_like(owner)
    }

    /// Whether this principal can take over a session of `owner`.
    #[must_use]
    pub fn owns(&self, owner: &Self) -> bool {
        self.subject == owner.subject && self.is_bound_like(owner)
    }

    /// A token with a ceiling must not type into a shell that was started without it.
    fn is_bound_like(&self, owner: &Self) -> bool {
        (self.ceiling.require.is_none() || self.ceiling == owner.ceiling)
            && (self.limits.is_empty() || self.limits == owner.limits)
    }

    #[must_use]
    pub fn has_expired(&self, now: SystemTime) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// With its kind first, so that no name passes for another kind.
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
    fn sessions_exist_for_their_subject_and_for_admins() {
        let bob = Principal::new(Subject::Named("bob".into()));
        let admin = Principal { role: Role::Admin, ..bob.clone() };
        assert!(alice().sees(&alice()) && alice().owns(&alice()));
        assert!(!bob.sees(&alice()) && !bob.owns(&alice()));
        assert!(admin.sees(&alice()) && !admin.owns(&alice()));
        let local = Principal::new(Subject::Named("local user".into()));
        assert!(!local.sees(&Principal::local()));
    }

    #[test]
    fn a_ceiling_hides_sessions_that_were_made_without_it() {
        assert!(alice().sees(&agent()) && alice().owns(&agent()));
        assert!(!agent().sees(&alice()) && !agent().owns(&alice()));
        assert!(agent().owns(&agent()));
        let admin = Principal { role: Role::Admin, ..agent() };
        assert!(!admin.sees(&alice()));
    }

    #[test]
    fn limits_of_a_token_hide_sessions_that_were_made_without_them() {
        let limits = LimitValues { pids: Some(9), ..LimitValues::default() };
        let limited = Principal { limits, ..alice() };
        assert!(alice().sees(&limited) && limited.owns(&limited));
        assert!(!limited.sees(&alice()) && !limited.owns(&alice()));
    }

    #[test]
    fn an_observer_only_reads() {
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
