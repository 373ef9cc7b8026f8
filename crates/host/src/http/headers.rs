//! Turns the headers given by a caller into those that are sent.
//!
//! Only this module decides where a request ends on its connection. Otherwise a caller could
//! smuggle a second request behind the first, and other users of the connection would receive the
//! wrong responses. So framing headers are refused, except a correct `Content-Length`. Headers that
//! only describe a connection, which clients often copy, are dropped. `Host` may be set, once.

use std::os::unix::ffi::OsStrExt;

use reqwest::header::{
    CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};

use super::Variables;
use super::error::{BadRequest, VariableProblem};
use super::protected::ProtectedVariables;
use super::request::Header;

pub const MAX_HEADERS: usize = 256;
/// Includes the values of variables.
pub const MAX_HEADER_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct CheckedHeaders {
    pub(super) map: HeaderMap,
    pub(super) holds_variable: bool,
}

impl CheckedHeaders {
    pub(super) fn check(
        headers: &[Header],
        body_len: usize,
        variables: &Variables,
        protected: &ProtectedVariables,
    ) -> Result<Self, BadRequest> {
        if headers.len() > MAX_HEADERS {
            return Err(BadRequest::TooManyHeaders { max: MAX_HEADERS });
        }
        let mut checked = Self { map: HeaderMap::new(), holds_variable: false };
        let mut total = 0;
        for (index, header) in headers.iter().enumerate() {
            let name = HeaderName::from_bytes(header.name.as_bytes())
                .map_err(|_| BadRequest::HeaderName { index })?;
            let value = value(&name, header, variables, protected)?;
            total += name.as_str().len() + value.len();
            if total > MAX_HEADER_BYTES {
                return Err(BadRequest::HeadersTooLarge { max: MAX_HEADER_BYTES });
            }
            checked.holds_variable |= header.value_env_var.is_some();
            checked.add(name, value, body_len)?;
        }
        Ok(checked)
    }

    fn add(
        &mut self,
        name: HeaderName,
        value: HeaderValue,
        body_len: usize,
    ) -> Result<(), BadRequest> {
        if [TRANSFER_ENCODING, TRAILER, UPGRADE].contains(&name) {
            return Err(BadRequest::HeaderOfConnection { name: name.to_string() });
        }
        if name == CONTENT_LENGTH {
            let says_the_truth = value.as_bytes() == body_len.to_string().as_bytes();
            return if says_the_truth { Ok(()) } else { Err(BadRequest::ContentLength) };
        }
        if [CONNECTION, TE].contains(&name)
            || ["keep-alive", "proxy-connection", "http2-settings"].contains(&name.as_str())
        {
            return Ok(());
        }
        if name == HOST {
            if self.map.contains_key(HOST) {
                return Err(BadRequest::HeaderTwice { name: name.to_string() });
            }
            if !is_authority(&value) {
                return Err(BadRequest::Host);
            }
        }
        self.map.append(name, value);
        Ok(())
    }
}

fn value(
    name: &HeaderName,
    header: &Header,
    variables: &Variables,
    protected: &ProtectedVariables,
) -> Result<HeaderValue, BadRequest> {
    let mut bytes = header.value.as_bytes().to_vec();
    if let Some(variable) = &header.value_env_var {
        let refused = |problem| BadRequest::Variable {
            header: name.to_string(),
            variable: variable.clone(),
            problem,
        };
        if protected.has(variable) {
            return Err(refused(VariableProblem::Protected));
        }
        let secret = variables(variable).ok_or_else(|| refused(VariableProblem::Missing))?;
        if secret.is_empty() {
            return Err(refused(VariableProblem::Empty));
        }
        bytes.extend_from_slice(secret.as_bytes());
    }
    let mut value = HeaderValue::from_bytes(&bytes)
        .map_err(|_| BadRequest::HeaderValue { name: name.to_string() })?;
    // Sensitive values are neither printed by the libraries nor kept in the compression tables of
    // HTTP/2.
    value.set_sensitive(true);
    Ok(value)
}

fn is_authority(host: &HeaderValue) -> bool {
    let authority = hyper::http::uri::Authority::try_from(host.as_bytes());
    authority.is_ok_and(|authority| !authority.as_str().contains('@'))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn header(name: &str, value: &str) -> Header {
        Header { name: name.into(), value: value.into(), value_env_var: None }
    }

    fn with_variable(value: &str, variable: &str) -> Header {
        Header { value_env_var: Some(variable.into()), ..header("x-token", value) }
    }

    fn variables(name: &str) -> Option<OsString> {
        match name {
            "SERVICE_TOKEN" => Some("s3cret".into()),
            "EMPTY" => Some(OsString::new()),
            "TWO_LINES" => Some("s3cret\nx-admin: 1".into()),
            "OPENAI_API_KEY" => panic!("a protected variable was looked up"),
            _ => None,
        }
    }

    fn check(headers: &[Header]) -> Result<CheckedHeaders, BadRequest> {
        CheckedHeaders::check(headers, 3, &variables, &ProtectedVariables::default())
    }

    fn refused(headers: &[Header]) -> BadRequest {
        let error = check(headers).unwrap_err();
        let printed = format!("{error} {error:?}");
        assert!(!printed.contains("s3cret"), "{printed}");
        error
    }

    fn names(headers: &[Header]) -> Vec<String> {
        check(headers).unwrap().map.keys().map(ToString::to_string).collect()
    }

    #[test]
    fn a_variable_is_appended_to_the_value() {
        let checked = check(&[with_variable("Bearer ", "SERVICE_TOKEN")]).unwrap();
        assert_eq!(checked.map["x-token"], "Bearer s3cret");
        assert!(checked.holds_variable);
        assert!(!format!("{checked:?}").contains("s3cret"));
    }

    #[test]
    fn missing_empty_and_protected_variables_are_distinguished() {
        let problem = |variable| match refused(&[with_variable("s3cret", variable)]) {
            BadRequest::Variable { problem, .. } => problem,
            other => panic!("{other}"),
        };
        assert_eq!(problem("NO_SUCH"), VariableProblem::Missing);
        assert_eq!(problem(""), VariableProblem::Missing);
        assert_eq!(problem("EMPTY"), VariableProblem::Empty);
        assert_eq!(problem("OPENAI_API_KEY"), VariableProblem::Protected);
    }

    #[test]
    fn values_and_variables_cannot_add_lines() {
        let invalid = BadRequest::HeaderValue { name: "x-token".into() };
        assert_eq!(refused(&[header("x-token", "a\r\nx-admin: 1")]), invalid);
        assert_eq!(refused(&[header("x-token", "a\0")]), invalid);
        assert_eq!(refused(&[with_variable("", "TWO_LINES")]), invalid);
    }

    #[test]
    fn an_invalid_name_is_reported_by_its_index_only() {
        let headers = [header("accept", "*/*"), header("s3cret: x", "")];
        assert_eq!(refused(&headers), BadRequest::HeaderName { index: 1 });
    }

    #[test]
    fn non_ascii_text_is_sent_unchanged() {
        let checked = check(&[header("x-name", "Zoë")]).unwrap();
        assert_eq!(checked.map["x-name"].as_bytes(), "Zoë".as_bytes());
    }

    #[test]
    fn framing_headers_are_refused() {
        for name in ["Transfer-Encoding", "trailer", "UPGRADE"] {
            let name = name.to_owned();
            let expected = BadRequest::HeaderOfConnection { name: name.to_lowercase() };
            assert_eq!(refused(&[header(&name, "chunked")]), expected);
        }
        for length in ["4", "+3", "3, 3", "03", ""] {
            assert_eq!(refused(&[header("content-length", length)]), BadRequest::ContentLength);
        }
    }

    #[test]
    fn headers_about_the_callers_own_connection_are_dropped() {
        let headers = [
            header("Connection", "keep-alive, x-a"),
            header("Keep-Alive", "5"),
            header("Proxy-Connection", "close"),
            header("TE", "trailers"),
            header("Content-Length", "3"),
            header("x-a", "1"),
        ];
        assert_eq!(names(&headers), ["x-a"]);
    }

    #[test]
    fn a_host_may_be_set_once() {
        assert_eq!(names(&[header("Host", "other.example:81")]), ["host"]);
        assert_eq!(
            refused(&[header("host", "a"), header("host", "a")]),
            BadRequest::HeaderTwice { name: "host".into() }
        );
        for host in ["", "a b", "user@a", "a/b"] {
            assert_eq!(refused(&[header("host", host)]), BadRequest::Host, "{host}");
        }
    }

    #[test]
    fn other_headers_may_be_repeated() {
        let checked = check(&[header("accept", "a"), header("Accept", "b")]).unwrap();
        assert_eq!(checked.map.get_all("accept").iter().count(), 2);
    }

    #[test]
    fn too_many_or_too_large_headers_are_refused() {
        let many: Vec<_> = (0..=MAX_HEADERS).map(|_| header("a", "")).collect();
        assert_eq!(refused(&many), BadRequest::TooManyHeaders { max: MAX_HEADERS });
        let large = header("a", &"x".repeat(MAX_HEADER_BYTES));
        assert_eq!(refused(&[large]), BadRequest::HeadersTooLarge { max: MAX_HEADER_BYTES });
    }
}
