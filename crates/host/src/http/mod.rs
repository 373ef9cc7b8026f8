//! HTTP requests that this machine makes on behalf of someone elsewhere, with secrets that stay here.
//!
//! Bytes pass as they are: no cookies, no decompression, no `Referer`. What a caller sends cannot change where a request
//! ends on its connection, because framing belongs to this module. Nothing here prints a URL, the value of a header, a
//! body or a variable: neither `Debug` nor errors nor the log.
//!
//! This module does not know who asks, nor how answers travel to them.

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

/// Looks a variable up; [`std::env::var_os`] outside tests.
type Variables = dyn Fn(&str) -> Option<std::ffi::OsString> + Send + Sync;
