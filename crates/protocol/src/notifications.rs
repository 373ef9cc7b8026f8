//! The notification tables: name and params of each notification, in one place.

use serde::de::{DeserializeOwned, Deserializer, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::methods::decode_params;
use crate::{
    AckParams, BodyDeltaNotification, ChangedNotification, ClosedNotification,
    ExecExitedNotification, ExecOutputDeltaNotification, ExitedNotification, HttpAckParams, Method,
    NetworkPolicyDecisionNotification, Notification, OutputNotification, RpcError,
    SearchResultsNotification, notification,
};

/// The params of one notification, with its name.
pub trait NotificationParams: Serialize + DeserializeOwned {
    const NAME: &'static str;
}

/// The subject of a notification from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotificationTopic {
    /// A process, named by `processId` and optionally `sessionId`.
    Process,
    /// A watch, a search or an HTTP body: a lease, which ends with its connection.
    Lease,
    /// A network decision. Informational only.
    Network,
    /// A process of the v0 methods.
    Legacy,
}

/// The table of notifications from client to server: variant, name, params.
#[macro_export]
macro_rules! for_each_client_notification {
    ($callback:ident) => {
        $callback! {
            Initialized = "initialized": Initialized;
            ProcessAck = "process/ack": AckParams;
            HttpAck = "http/request/ack": HttpAckParams;
        }
    };
}

/// The table of notifications from server to client: variant, name, topic, params.
#[macro_export]
macro_rules! for_each_server_notification {
    ($callback:ident) => {
        $callback! {
            ProcessOutput = "process/output", Process: OutputNotification;
            ProcessExited = "process/exited", Process: ExitedNotification;
            ProcessClosed = "process/closed", Process: ClosedNotification;
            FsChanged = "fs/changed", Lease: ChangedNotification;
            FsSearchResults = "fs/searchResults", Lease: SearchResultsNotification;
            HttpBodyDelta = "http/request/bodyDelta", Lease: BodyDeltaNotification;
            NetworkPolicyDecision = "network/policyDecision", Network: NetworkPolicyDecisionNotification;
            CommandExecOutputDelta = "command/exec/outputDelta", Legacy: ExecOutputDeltaNotification;
            CommandExecExited = "command/exec/exited", Legacy: ExecExitedNotification;
        }
    };
}

macro_rules! client_notifications {
    ($($variant:ident = $name:literal: $params:ident;)*) => {
        /// A decoded notification from a client.
        #[derive(Debug, Clone)]
        pub enum ClientNotification {
            $($variant($params),)*
        }

        $(
            impl NotificationParams for $params {
                const NAME: &'static str = $name;
            }
        )*

        impl ClientNotification {
            /// An unknown name is an invalid request.
            pub fn decode(notification: &Notification<'_>) -> Result<Self, RpcError> {
                let text = notification.params.map_or("{}", RawValue::get).as_bytes();
                match &*notification.method {
                    $($name => decode_params($name, text).map(Self::$variant),)*
                    other => Err(unknown(other)),
                }
            }
        }
    };
}

macro_rules! server_notifications {
    ($($variant:ident = $name:literal, $topic:ident: $params:ident;)*) => {
        /// A decoded notification from a server.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum ServerNotification {
            $($variant($params),)*
        }

        $(
            impl NotificationParams for $params {
                const NAME: &'static str = $name;
            }

            impl From<$params> for ServerNotification {
                fn from(params: $params) -> Self {
                    Self::$variant(params)
                }
            }
        )*

        impl ServerNotification {
            /// Returns `None` if the name is not in the table.
            pub fn decode(
                notification: &Notification<'_>,
            ) -> Result<Option<Self>, serde_json::Error> {
                let text = notification.params.map_or("{}", RawValue::get);
                Ok(Some(match &*notification.method {
                    $($name => Self::$variant(serde_json::from_str(text)?),)*
                    _ => return Ok(None),
                }))
            }

            /// Encodes the whole message.
            #[must_use]
            pub fn encode(&self) -> Vec<u8> {
                match self {
                    $(Self::$variant(params) => notification(params),)*
                }
            }

            /// Returns the topic of a notification by name, even if its params cannot be decoded.
            #[must_use]
            pub fn topic(name: &str) -> Option<NotificationTopic> {
                match name {
                    $($name => Some(NotificationTopic::$topic),)*
                    _ => None,
                }
            }
        }
    };
}

for_each_client_notification!(client_notifications);
for_each_server_notification!(server_notifications);

/// `initialized`. Its params are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Initialized {}

impl<'de> Deserialize<'de> for Initialized {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self {})
    }
}

fn unknown(name: &str) -> RpcError {
    RpcError::invalid_request(match Method::from_name(name) {
        Some(_) => format!("{name} was sent as a notification; a request needs an id"),
        None => format!("unknown notification {name:?}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Message, decode};

    fn parse(text: &str) -> Result<Option<ServerNotification>, serde_json::Error> {
        match decode(text.as_bytes()).unwrap() {
            Message::Notification(notification) => ServerNotification::decode(&notification),
            other => panic!("not a notification: {other:?}"),
        }
    }

    #[test]
    fn notifications_round_trip() {
        let closed = ClosedNotification {
            process_id: "p".into(),
            session_id: None,
            seq: 3,
            dropped_bytes: 0,
        };
        let text = String::from_utf8(notification(&closed)).unwrap();
        assert_eq!(parse(&text).unwrap(), Some(ServerNotification::ProcessClosed(closed)));
    }

    #[test]
    fn unknown_names_are_ignored_and_bad_params_are_errors() {
        assert_eq!(parse(r#"{"method":"future/news","params":{}}"#).unwrap(), None);
        assert!(parse(r#"{"method":"process/closed","params":{}}"#).is_err());
        assert_eq!(ServerNotification::topic("process/closed"), Some(NotificationTopic::Process));
        assert_eq!(ServerNotification::topic("future/news"), None);
    }

    #[test]
    fn params_of_initialized_are_ignored() {
        for text in [
            r#"{"method":"initialized"}"#,
            r#"{"method":"initialized","params":null}"#,
            r#"{"method":"initialized","params":[1,{"a":2}]}"#,
        ] {
            let Ok(Message::Notification(notification)) = decode(text.as_bytes()) else {
                panic!("{text}")
            };
            let decoded = ClientNotification::decode(&notification);
            assert!(matches!(decoded, Ok(ClientNotification::Initialized(_))), "{text}");
        }
    }
}
