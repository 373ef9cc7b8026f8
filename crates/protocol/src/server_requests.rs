//! The table of requests from server to client: name, params and result of each, in one place.
//!
//! The server assigns their ids: integers that start at 1 on each connection.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};

use crate::methods::decode_params;
use crate::{
    ErrorCode, NetworkPolicyRequestParams, NetworkPolicyResponse, Request, RequestId, RpcError,
    response,
};

/// Maximum number of unanswered server requests per connection.
pub const MAX_SERVER_REQUESTS: usize = 256;

/// A server request as a type.
pub trait ServerRequest {
    const METHOD: ServerMethod;
    type Params: Serialize + DeserializeOwned + Clone + Send + Sync + 'static;
    type Response: Serialize + DeserializeOwned + Send + 'static;

    fn into_call(params: Self::Params) -> ServerCall;

    fn into_response(response: Self::Response) -> ServerCallResponse;

    /// Returns `None` for the response of another method.
    fn from_response(response: ServerCallResponse) -> Option<Self::Response>;
}

macro_rules! server_requests {
    ($($name:ident = $wire:literal: $params:ident => $response:ident;)*) => {
        /// Every method that a server can call on its client.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ServerMethod {
            $($name,)*
        }

        impl ServerMethod {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($wire => Some(Self::$name),)*
                    _ => None,
                }
            }

            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $wire,)*
                }
            }

            pub fn decode_response(
                self,
                result: &RawValue,
            ) -> Result<ServerCallResponse, serde_json::Error> {
                match self {
                    $(Self::$name => {
                        serde_json::from_str(result.get()).map(ServerCallResponse::$name)
                    })*
                }
            }
        }

        pub mod server_request {
            $(
                #[derive(Debug, Clone, Copy)]
                pub enum $name {}

                impl super::ServerRequest for $name {
                    const METHOD: super::ServerMethod = super::ServerMethod::$name;
                    type Params = super::$params;
                    type Response = super::$response;

                    fn into_call(params: super::$params) -> super::ServerCall {
                        super::ServerCall::$name(params)
                    }

                    fn into_response(response: super::$response) -> super::ServerCallResponse {
                        super::ServerCallResponse::$name(response)
                    }

                    #[expect(unreachable_patterns, reason = "the table has one row")]
                    fn from_response(
                        response: super::ServerCallResponse,
                    ) -> Option<super::$response> {
                        match response {
                            super::ServerCallResponse::$name(response) => Some(response),
                            _ => None,
                        }
                    }
                }
            )*
        }

        /// A decoded request from a server.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum ServerCall {
            $($name($params),)*
        }

        impl ServerCall {
            /// Absent params count as an empty object.
            pub fn decode(request: &Request<'_>) -> Result<Self, RpcError> {
                let name = &*request.method;
                let text = request.params.map_or(&b"{}"[..], crate::Params::as_bytes);
                match ServerMethod::from_name(name) {
                    $(Some(ServerMethod::$name) => decode_params(name, text).map(Self::$name),)*
                    None => {
                        let message = format!("unknown method {name:?}");
                        Err(RpcError::new(ErrorCode::MethodNotFound, message))
                    }
                }
            }

            #[must_use]
            pub const fn method(&self) -> ServerMethod {
                match self {
                    $(Self::$name(_) => ServerMethod::$name,)*
                }
            }

            #[must_use]
            pub fn encode(&self, id: i64) -> Vec<u8> {
                let params = match self {
                    $(Self::$name(params) => to_raw_value(params),)*
                };
                let params = params.expect("params have only string keys");
                crate::request(&RequestId::Integer(id), self.method().name(), &params)
            }
        }

        /// The result of a server request.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum ServerCallResponse {
            $($name($response),)*
        }

        impl ServerCallResponse {
            #[must_use]
            pub fn encode(&self, id: &RequestId) -> Vec<u8> {
                let text = match self {
                    $(Self::$name(result) => response(id, result),)*
                };
                text.expect("results have only string keys")
            }
        }
    };
}

/// The table. Calls the given macro with one row per server request: type, wire name, params,
/// result.
#[macro_export]
macro_rules! for_each_server_request {
    ($callback:ident) => {
        $callback! {
            NetworkPolicyRequest = "network/policyRequest": NetworkPolicyRequestParams => NetworkPolicyResponse;
        }
    };
}

for_each_server_request!(server_requests);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Message, Method, NetworkDecision, NetworkProtocol, NetworkRequest, decode};

    fn call() -> ServerCall {
        let request = NetworkRequest {
            protocol: NetworkProtocol::HttpsConnect,
            host: "a.example".into(),
            port: 443,
        };
        ServerCall::NetworkPolicyRequest(NetworkPolicyRequestParams {
            process_id: "p".into(),
            request,
        })
    }

    #[test]
    fn names_round_trip_and_differ_from_server_methods() {
        for &method in ServerMethod::ALL {
            assert_eq!(ServerMethod::from_name(method.name()), Some(method));
            assert_eq!(Method::from_name(method.name()), None);
        }
    }

    #[test]
    fn a_request_and_its_response_round_trip() {
        let text = call().encode(1);
        let expected = [
            r#"{"id":1,"method":"network/policyRequest","params":{"processId":"p","#,
            r#""request":{"protocol":"https_connect","host":"a.example","port":443}}}"#,
        ];
        assert_eq!(String::from_utf8(text.clone()).unwrap(), expected.concat());
        let Ok(Message::Request(request)) = decode(&text) else { panic!("not a request") };
        assert_eq!(ServerCall::decode(&request), Ok(call()));

        let decision = NetworkDecision::Allow;
        let response = ServerCallResponse::NetworkPolicyRequest(NetworkPolicyResponse { decision });
        let text = response.encode(&request.id);
        assert_eq!(text, br#"{"id":1,"result":{"decision":{"type":"allow"}}}"#);
        let Ok(Message::Response { result: Some(result), .. }) = decode(&text) else {
            panic!("not a response")
        };
        assert_eq!(ServerMethod::NetworkPolicyRequest.decode_response(result).unwrap(), response);
    }

    #[test]
    fn unknown_methods_and_bad_params_have_codes() {
        for (text, code) in [
            (&br#"{"id":"probe","method":"connection/probe","params":{}}"#[..], -32601),
            (br#"{"id":1,"method":"network/policyRequest"}"#, -32602),
        ] {
            let Ok(Message::Request(request)) = decode(text) else { panic!("not a request") };
            assert_eq!(ServerCall::decode(&request).unwrap_err().code, code);
        }
    }
}
