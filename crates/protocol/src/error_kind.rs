//! The stable error kinds that programs branch on, each defined in one place.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! error_kinds {
    ($($(#[doc = $doc:literal])* $variant:ident = $word:literal,)*) => {
        /// The kind of an error. A client keeps a kind that it does not know.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[doc = $doc])* $variant,)*
            /// A kind from another version or another server.
            Other(Box<str>),
        }

        impl ErrorKind {
            /// Every kind of this version.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name on the wire.
            #[must_use]
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $word,)*
                    Self::Other(word) => word,
                }
            }
        }

        impl From<&str> for ErrorKind {
            fn from(word: &str) -> Self {
                match word {
                    $($word => Self::$variant,)*
                    other => Self::Other(other.into()),
                }
            }
        }
    };
}

error_kinds! {
    AnswerTooLarge = "answerTooLarge",
    /// The server cannot write the audit record, and its operator forbids unaudited requests.
    AuditFailed = "auditFailed",
    BadCommand = "badCommand",
    BadCwd = "badCwd",
    BadLimits = "badLimits",
    BadPattern = "badPattern",
    BadNetworkRules = "badNetworkRules",
    BadSandbox = "badSandbox",
    BodyTooLarge = "bodyTooLarge",
    Cancelled = "cancelled",
    CannotStart = "cannotStart",
    Conflict = "conflict",
    CwdNotFound = "cwdNotFound",
    DuplicateId = "duplicateId",
    DuplicateProcess = "duplicateProcess",
    FileSizeLimit = "fileSizeLimit",
    FileTooLarge = "fileTooLarge",
    Forbidden = "forbidden",
    HttpFailed = "httpFailed",
    LimitsUnavailable = "limitsUnavailable",
    ManagedNetworkUnavailable = "managedNetworkUnavailable",
    ModeForbidden = "modeForbidden",
    NameTaken = "nameTaken",
    NotExecutable = "notExecutable",
    NotFound = "notFound",
    OutOfResources = "outOfResources",
    Overloaded = "overloaded",
    PermissionDenied = "permissionDenied",
    /// Set by the client: the server lost track of a process.
    ProcessLost = "processLost",
    ProgramNotFound = "programNotFound",
    SandboxDenied = "sandboxDenied",
    SandboxUnavailable = "sandboxUnavailable",
    SessionAttached = "sessionAttached",
    SessionEnded = "sessionEnded",
    SessionMoved = "sessionMoved",
    ShuttingDown = "shuttingDown",
    StdinFull = "stdinFull",
    StorageFull = "storageFull",
    Symlink = "symlink",
    TimedOut = "timedOut",
    TokenExpired = "tokenExpired",
    TooManyEntries = "tooManyEntries",
    TooManyObserved = "tooManyObserved",
    TooManyOpen = "tooManyOpen",
    TooManyProcesses = "tooManyProcesses",
    TooManyRequests = "tooManyRequests",
    TooManySessions = "tooManySessions",
    UnknownHandle = "unknownHandle",
    UnknownProcess = "unknownProcess",
    UnknownSession = "unknownSession",
    WrongFileKind = "wrongFileKind",
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for ErrorKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ErrorKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|word| Self::from(word.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_round_trip_and_unknown_ones_are_kept() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from(kind.as_str()), *kind);
        }
        let unknown: ErrorKind = serde_json::from_str(r#""fromTheFuture""#).unwrap();
        assert_eq!(unknown, ErrorKind::Other("fromTheFuture".into()));
        assert_eq!(serde_json::to_string(&unknown).unwrap(), r#""fromTheFuture""#);
    }
}
