//! `http/*`: requests that the server makes for a client. URLs and header values must not reach
//! logs, so `Debug` shows neither.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Base64Bytes, nullable};

pub const MAX_BODY_DELTA_BYTES: usize = 1 << 20;

#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpRequestParams {
    pub method: String,
    pub url: String,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub headers: Vec<HttpRequestHeader>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_base64: Option<Base64Bytes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub redirect_policy: RedirectPolicy,
    /// Chosen by the client. Names the request and its streamed body.
    pub request_id: String,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub stream_response: bool,
    /// The client confirms consumed parts of the body with `http/request/ack`, and the server
    /// pauses while 2 MiB or more are unconfirmed (extension).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acks: Option<bool>,
}

impl HttpRequestParams {
    #[must_use]
    pub fn new(method: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            method: method.into(),
            url: url.into(),
            headers: Vec::new(),
            body_base64: None,
            timeout_ms: None,
            redirect_policy: RedirectPolicy::default(),
            request_id: String::new(),
            stream_response: false,
            acks: None,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpRequestHeader {
    pub name: String,
    #[serde(default, deserialize_with = "nullable::or_default")]
    pub value: String,
    /// An environment variable of the server whose value is appended to `value`, so that the client
    /// need not know the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_env_var: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum RedirectPolicy {
    #[default]
    Follow,
    /// Return the redirect itself as the response.
    Stop,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpResponse {
    pub status: u16,
    pub headers: Vec<HttpResponseHeader>,
    pub body_base64: Base64Bytes,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HttpResponseHeader {
    pub name: String,
    pub value: String,
}

/// `http/request/bodyDelta`
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct BodyDeltaNotification {
    pub request_id: String,
    /// Counted from 1.
    pub seq: u64,
    pub delta_base64: Base64Bytes,
    pub done: bool,
    #[serde(default)]
    pub error: Option<String>,
}

/// `http/request/ack`: confirms that the body up to `seq` has been consumed (extension).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpAckParams {
    pub request_id: String,
    pub seq: u64,
}

/// Cancels every request with this id, and the stream of its response. An unknown id is ignored
/// (extension).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct HttpCancelParams {
    pub request_id: String,
}

impl fmt::Debug for HttpRequestParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpRequestParams")
            .field("method", &self.method)
            .field("headers", &self.headers)
            .field("body_base64", &self.body_base64)
            .field("timeout_ms", &self.timeout_ms)
            .field("redirect_policy", &self.redirect_policy)
            .field("request_id", &self.request_id)
            .field("stream_response", &self.stream_response)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for HttpRequestHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpRequestHeader")
            .field("name", &self.name)
            .field("value_env_var", &self.value_env_var)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for HttpResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpResponse")
            .field("status", &self.status)
            .field("headers", &self.headers)
            .field("body_base64", &self.body_base64)
            .finish()
    }
}

impl fmt::Debug for HttpResponseHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpResponseHeader").field("name", &self.name).finish_non_exhaustive()
    }
}
