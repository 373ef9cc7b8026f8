//! HTTP requests that this machine makes for a remote caller, with secrets that stay on this
//! machine.
//!
//! Bytes pass unchanged: no cookies, no decompression, no `Referer`. A caller cannot change where a
//! request ends on its connection, because framing belongs to this module. Nothing here prints a
//! URL, a header value, a body or the value of a variable: neither `Debug` nor errors nor the log.
//!
//! This module knows neither the caller nor how responses reach the caller.

mod client;
mod deadline;
mod diagnosis;
mod error;
mod headers;
mod outgoing;
mod pool;
mod protected;
mod proxies;
mod redirect;
mod request;
mod response;
mod trust;

pub use client::HttpClient;
pub use error::{BadRequest, HttpError, TlsProblem, VariableProblem};
pub use headers::{MAX_HEADER_BYTES, MAX_HEADERS};
pub use protected::{PROTECTED_VARIABLES, ProtectedVariables};
pub use redirect::MAX_REDIRECTS;
pub use request::{Header, Redirects, Request};
pub use response::{MAX_CHUNK_BYTES, Response};

/// Looks up a variable; [`std::env::var_os`] outside tests.
type Variables = dyn Fn(&str) -> Option<std::ffi::OsString> + Send + Sync;
