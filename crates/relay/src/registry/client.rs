//! Calls to the registry.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use exec_server_transport::{TlsError, TlsOptions, client_config};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{AUTHORIZATION, HeaderValue};
use reqwest::{StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::credentials::{CredentialsError, RegistryCredentials};
use super::messages::{
    ConnectRequest, ConnectResponse, ErrorResponse, RegisterRequest, RegisterResponse,
    SECURITY_PROFILE, ValidateRequest, ValidateResponse,
};
use crate::noise::PublicKey;

const CALL_TIMEOUT: Duration = Duration::from_secs(6);
const MAX_RESPONSE_BYTES: usize = 64 << 10;
const MAX_ENVIRONMENT_ID_BYTES: usize = 256;
/// The most characters of each text from a registry that an error shows.
const MAX_SHOWN_CHARS: usize = 200;

/// Why a call to the registry failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("{url:?} is not the URL of a registry; expected https://HOST[:PORT][/PATH]")]
    InvalidUrl { url: String },
    #[error("{url} is not encrypted; use https://, or a loopback address")]
    Unencrypted { url: String },
    #[error(
        "invalid environment id {id:?}; expected 1 to {MAX_ENVIRONMENT_ID_BYTES} bytes without \
         control characters, and not . or .."
    )]
    InvalidEnvironmentId { id: String },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    #[error("cannot reach the registry at {host}")]
    Unreachable { host: String, source: reqwest::Error },
    #[error("the registry at {host} did not answer within {}s", CALL_TIMEOUT.as_secs())]
    TimedOut { host: String },
    #[error("the registry refused the call {call:?} ({status}{}){}", detail(.code, .message), advice(*.status, .code))]
    Refused { call: &'static str, status: StatusCode, code: String, message: String },
    #[error("the registry sent an invalid response to the call {call:?}: {why}")]
    InvalidResponse { call: &'static str, why: &'static str },
}

impl RegistryError {
    /// Returns whether the same call may succeed later.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::TimedOut { .. } => true,
            Self::Refused { status, code, .. } => {
                let is_offline =
                    *status == StatusCode::CONFLICT && code == super::messages::ENVIRONMENT_OFFLINE;
                status.is_server_error()
                    || is_offline
                    || matches!(
                        *status,
                        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS
                    )
            }
            Self::Credentials(error) => error.is_temporary(),
            Self::InvalidUrl { .. }
            | Self::Unencrypted { .. }
            | Self::InvalidEnvironmentId { .. }
            | Self::Tls(_)
            | Self::InvalidResponse { .. } => false,
        }
    }
}

/// A client of a registry, for one environment or its harnesses.
#[derive(Clone)]
pub struct RegistryClient {
    http: reqwest::Client,
    /// Without query and fragment.
    base: Url,
    environment_id: String,
    credentials: Arc<dyn RegistryCredentials>,
}

impl RegistryClient {
    /// Creates a client. Blocks briefly: it reads the files of `tls`.
    pub fn new(
        base: &str,
        environment_id: &str,
        credentials: Arc<dyn RegistryCredentials>,
        tls: &TlsOptions,
    ) -> Result<Self, RegistryError> {
        let base = Self::check_address(base, environment_id)?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(client_config(tls)?.as_ref().clone())
            // A redirect would send the credentials to another host.
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .timeout(CALL_TIMEOUT)
            .build()
            .map_err(|source| RegistryError::Unreachable { host: host(&base), source })?;
        Ok(Self { http, base, environment_id: environment_id.to_owned(), credentials })
    }

    /// Returns a client for another registry or environment, with the same credentials and
    /// connections.
    pub fn at(&self, base: &str, environment_id: &str) -> Result<Self, RegistryError> {
        let base = Self::check_address(base, environment_id)?;
        Ok(Self { base, environment_id: environment_id.to_owned(), ..self.clone() })
    }

    /// Checks the form of a registry URL and an environment id. Returns the URL without query and
    /// fragment.
    pub fn check_address(base: &str, environment_id: &str) -> Result<Url, RegistryError> {
        let is_valid = (1..=MAX_ENVIRONMENT_ID_BYTES).contains(&environment_id.len())
            && !environment_id.chars().any(char::is_control)
            && !matches!(environment_id, "." | "..");
        if !is_valid {
            return Err(RegistryError::InvalidEnvironmentId { id: environment_id.to_owned() });
        }
        parse_base(base)
    }

    /// Returns the normal form of a registry URL: without query, fragment and trailing slash.
    pub fn normalize_url(base: &str) -> Result<String, RegistryError> {
        Ok(parse_base(base)?.as_str().trim_end_matches('/').to_owned())
    }

    #[must_use]
    pub fn environment_id(&self) -> &str {
        &self.environment_id
    }

    /// The response has the URL at which to wait for harnesses.
    pub async fn register(&self, key: &PublicKey) -> Result<RegisterResponse, RegistryError> {
        let call = "register";
        let request = RegisterRequest {
            security_profile: SECURITY_PROFILE.to_owned(),
            executor_public_key: key,
        };
        let response: RegisterResponse = self.call(call, &request).await?;
        self.check(call, &response.environment_id, &response.security_profile)?;
        check_present(
            call,
            [
                ("its url is empty", &response.url),
                ("its executor_registration_id is empty", &response.executor_registration_id),
            ],
        )?;
        Ok(response)
    }

    /// Gets the bundle with which a harness opens one physical connection.
    pub async fn connect(
        &self,
        key: &PublicKey,
    ) -> Result<ConnectResponse<PublicKey>, RegistryError> {
        let call = "connect";
        let request = ConnectRequest { harness_public_key: key };
        let response: ConnectResponse<PublicKey> = self.call(call, &request).await?;
        self.check(call, &response.environment_id, &response.security_profile)?;
        check_present(
            call,
            [
                ("its url is empty", &response.url),
                ("its executor_registration_id is empty", &response.executor_registration_id),
                ("its harness_key_authorization is empty", &response.harness_key_authorization),
            ],
        )?;
        Ok(response)
    }

    /// Asks on behalf of an environment whether this harness may open a stream at this
    /// registration. Each authorization is valid once.
    pub async fn validate(
        &self,
        registration_id: &str,
        harness: &PublicKey,
        authorization: &str,
    ) -> Result<ValidateResponse, RegistryError> {
        let request = ValidateRequest {
            executor_registration_id: registration_id.to_owned(),
            harness_public_key: harness,
            harness_key_authorization: authorization.to_owned(),
        };
        self.call("validate", &request).await
    }

    fn check(
        &self,
        call: &'static str,
        environment_id: &str,
        profile: &str,
    ) -> Result<(), RegistryError> {
        let invalid = |why| Err(RegistryError::InvalidResponse { call, why });
        if environment_id != self.environment_id {
            return invalid("its environment_id is not the requested one");
        }
        if profile != SECURITY_PROFILE {
            return invalid("its security_profile is not supported");
        }
        Ok(())
    }

    async fn call<T: DeserializeOwned>(
        &self,
        call: &'static str,
        request: &impl Serialize,
    ) -> Result<T, RegistryError> {
        let id = utf8_percent_encode(&self.environment_id, NON_ALPHANUMERIC);
        let url = self.resource(&format!("/cloud/environment/{id}/{call}"));
        let authorization = self.credentials.authorization(self).await?;
        let mut authorization =
            HeaderValue::try_from(authorization).map_err(|_| CredentialsError::NotAHeader)?;
        authorization.set_sensitive(true);
        let response =
            self.post(url, serde_json::to_vec(request).expect("requests are JSON"), |request| {
                request.header(AUTHORIZATION, authorization)
            });
        let response = response.await?;
        let status = response.status();
        if !status.is_success() {
            // The text about a refused harness may come from that harness, so it is not read.
            let error = match call {
                "validate" => None,
                _ => serde_json::from_slice::<ErrorResponse>(&self.read_body(response).await?).ok(),
            };
            let (code, message) =
                error.map(|body| (body.error.code, body.error.message)).unwrap_or_default();
            return Err(RegistryError::Refused { call, status, code, message });
        }
        let why = "it is not the expected JSON; check the URL of the registry";
        serde_json::from_slice(&self.read_body(response).await?)
            .map_err(|_| RegistryError::InvalidResponse { call, why })
    }

    pub(super) async fn post(
        &self,
        url: Url,
        body: Vec<u8>,
        with: impl FnOnce(reqwest::RequestBuilder) -> reqwest::RequestBuilder,
    ) -> Result<reqwest::Response, RegistryError> {
        let request = self.http.post(url).header("content-type", "application/json").body(body);
        with(request).send().await.map_err(|error| self.failed(error))
    }

    /// Reads the body. A body beyond the size limit is cut off, so that it is not valid JSON.
    pub(super) async fn read_body(
        &self,
        mut response: reqwest::Response,
    ) -> Result<Vec<u8>, RegistryError> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(error))? {
            if body.len() + chunk.len() > MAX_RESPONSE_BYTES {
                break;
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// Returns the URL of `path` below the base URL.
    pub(super) fn resource(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        url
    }

    fn failed(&self, error: reqwest::Error) -> RegistryError {
        let host = host(&self.base);
        match error.is_timeout() {
            true => RegistryError::TimedOut { host },
            false => RegistryError::Unreachable { host, source: error.without_url() },
        }
    }
}

impl fmt::Debug for RegistryClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistryClient")
            .field("host", &host(&self.base))
            .field("environment_id", &self.environment_id)
            .finish_non_exhaustive()
    }
}

/// Parses a base URL. HTTP without TLS would send credentials in plaintext, so it is accepted only
/// for loopback addresses.
fn parse_base(base: &str) -> Result<Url, RegistryError> {
    let shown = base.split(['?', '#']).next().unwrap_or_default();
    // The part before an @ may be a password.
    let shown = match shown.rsplit_once('@') {
        Some((_, host)) => format!("…@{host}"),
        None => shown.to_owned(),
    };
    let url = Url::parse(base).ok().filter(|url| {
        let is_http = matches!(url.scheme(), "http" | "https") && url.has_host();
        is_http && url.username().is_empty() && url.password().is_none()
    });
    let Some(mut url) = url else {
        return Err(RegistryError::InvalidUrl { url: shown });
    };
    if url.scheme() == "http" && !is_loopback(&url) {
        return Err(RegistryError::Unencrypted { url: shown });
    }
    url.set_query(None);
    url.set_fragment(None);
    Ok(url)
}

/// Returns whether the URL can only mean this machine.
pub(crate) fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn host(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}{port}", url.host_str().unwrap_or_default())
}

fn check_present<const N: usize>(
    call: &'static str,
    members: [(&'static str, &String); N],
) -> Result<(), RegistryError> {
    match members.iter().find(|(_, member)| member.is_empty()) {
        Some((why, _)) => Err(RegistryError::InvalidResponse { call, why }),
        None => Ok(()),
    }
}

/// Formats the registry's text without control characters, for a terminal.
fn detail(code: &str, message: &str) -> String {
    let shown = |text: &str| -> String {
        text.chars().filter(|c| !c.is_control()).take(MAX_SHOWN_CHARS).collect()
    };
    [shown(code), shown(message)]
        .iter()
        .filter(|text| !text.is_empty())
        .fold(String::new(), |all, text| format!("{all}: {text}"))
}

fn advice(status: StatusCode, code: &str) -> &'static str {
    match status {
        StatusCode::NOT_FOUND => "; check the URL of the registry",
        // A proxy in front of the registry may have responded.
        _ if code.is_empty() => "",
        StatusCode::CONFLICT if code == super::messages::ENVIRONMENT_OFFLINE => {
            "; is the environment's exec-server running?"
        }
        StatusCode::UNAUTHORIZED => {
            "; the token is missing, wrong, expired or revoked: see exec-server login --help"
        }
        StatusCode::FORBIDDEN => "; the token is for another environment or role",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_this_machine_only() {
        for (url, is_allowed) in [
            ("https://relay.example", true),
            ("https://relay.example/base/", true),
            ("http://localhost:8080", true),
            ("http://127.0.0.9:1", true),
            ("http://[::1]:1/x", true),
            ("http://relay.example", false),
            ("http://localhost.example", false),
            ("http://10.0.0.1", false),
            ("https://user:pass@relay.example", false),
            ("ws://localhost", false),
            ("relay.example", false),
            ("", false),
        ] {
            assert_eq!(parse_base(url).is_ok(), is_allowed, "{url}");
        }
    }

    #[test]
    fn refusals_for_timeouts_overload_and_offline_environments_are_temporary() {
        let refused = |status: u16, code: &str| RegistryError::Refused {
            call: "connect",
            status: StatusCode::from_u16(status).unwrap(),
            code: code.into(),
            message: String::new(),
        };
        for (status, code, is_temporary) in [
            (401, "", false),
            (403, "", false),
            (404, "", false),
            (408, "", true),
            (409, "environment_offline", true),
            (409, "other", false),
            (429, "", true),
            (500, "", true),
            (503, "", true),
            (302, "", false),
        ] {
            assert_eq!(refused(status, code).is_temporary(), is_temporary, "{status} {code}");
        }
    }

    #[test]
    fn the_text_of_a_registry_is_shown_without_control_characters() {
        let error = RegistryError::Refused {
            call: "connect",
            status: StatusCode::CONFLICT,
            code: "environment_offline".into(),
            message: "box\x1b[2J is away\n".into(),
        };
        let shown = error.to_string();
        assert!(shown.contains("environment_offline: box[2J is away"), "{shown}");
    }
}
