//! The settings for remote mode, checked together.

use std::path::PathBuf;

use exec_server_relay::registry::{RegistryClient, RegistryError};
use exec_server_transport::{Fingerprint, ServerTrust, TlsOptions};

use super::Settings;
use crate::registry_credentials::CredentialChoice;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteOptions {
    pub(crate) registry: String,
    pub(crate) environment_id: String,
    pub(crate) name: Option<String>,
    pub(crate) credentials: CredentialChoice,
    pub(crate) tls: TlsOptions,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoteOptionsError {
    #[error("{key} has no effect without remote; set remote, or remove {key}")]
    NoEffect { key: &'static str },
    #[error("remote needs environment_id; set --environment-id or environment_id")]
    NoEnvironmentId,
    #[error("remote: {0}")]
    Registry(RegistryError),
    #[error(
        "remote_token_file and use_agent_identity_auth both select credentials; set only one of \
         them"
    )]
    TwoCredentials,
    #[error(
        "remote_tls_ca and remote_tls_fingerprint both decide which server to trust; set only \
         one of them"
    )]
    TwoTrusts,
    #[error("remote_tls_fingerprint: {0}")]
    Fingerprint(exec_server_transport::FingerprintParseError),
    #[error("remote cannot be combined with listen = \"stdio\"; remove one of them")]
    Stdio,
}

impl Settings {
    /// Returns `None` without the setting `remote`.
    pub(crate) fn remote_options(&self) -> Result<Option<RemoteOptions>, RemoteOptionsError> {
        if self.remote.is_empty() {
            let keys = [
                ("environment_id", !self.environment_id.is_empty()),
                ("name", !self.name.is_empty()),
                ("remote_token_file", !self.remote_token_file.is_empty()),
                ("remote_tls_ca", !self.remote_tls_ca.is_empty()),
                ("remote_tls_fingerprint", !self.remote_tls_fingerprint.is_empty()),
                ("use_agent_identity_auth", self.use_agent_identity_auth),
            ];
            let given = keys.into_iter().find(|(_, is_given)| *is_given);
            return given.map_or(Ok(None), |(key, _)| Err(RemoteOptionsError::NoEffect { key }));
        }
        if self.environment_id.is_empty() {
            return Err(RemoteOptionsError::NoEnvironmentId);
        }
        if self.listen.iter().any(|url| url == "stdio") {
            return Err(RemoteOptionsError::Stdio);
        }
        RegistryClient::check_address(&self.remote, &self.environment_id)
            .map_err(RemoteOptionsError::Registry)?;
        if !self.remote_token_file.is_empty() && self.use_agent_identity_auth {
            return Err(RemoteOptionsError::TwoCredentials);
        }
        Ok(Some(RemoteOptions {
            registry: self.remote.clone(),
            environment_id: self.environment_id.clone(),
            name: given(&self.name),
            credentials: CredentialChoice {
                token_file: given(&self.remote_token_file).map(PathBuf::from),
                token_variable: None,
                use_agent_identity: self.use_agent_identity_auth,
            },
            tls: self.remote_tls()?,
        }))
    }

    fn remote_tls(&self) -> Result<TlsOptions, RemoteOptionsError> {
        if !self.remote_tls_ca.is_empty() && !self.remote_tls_fingerprint.is_empty() {
            return Err(RemoteOptionsError::TwoTrusts);
        }
        let ca = given(&self.remote_tls_ca).map(PathBuf::from);
        let fingerprint = given(&self.remote_tls_fingerprint).map(|text| text.parse());
        let fingerprint = fingerprint.transpose().map_err(RemoteOptionsError::Fingerprint)?;
        Ok(trusting(ca, fingerprint))
    }
}

/// Trusts the authorities in a file, or one certificate, or otherwise the authorities of the
/// system.
pub(crate) fn trusting(ca: Option<PathBuf>, fingerprint: Option<Fingerprint>) -> TlsOptions {
    let trust = ca.map(ServerTrust::Authorities);
    let trust = trust.or(fingerprint.map(ServerTrust::Fingerprint));
    TlsOptions { trust: trust.unwrap_or(ServerTrust::SystemRoots), identity: None }
}

fn given(text: &str) -> Option<String> {
    Some(text.to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote() -> Settings {
        Settings {
            remote: "https://relay.example".into(),
            environment_id: "box".into(),
            listen: vec!["off".into()],
            ..Settings::default()
        }
    }

    #[test]
    fn contradictory_remote_settings_are_refused() {
        assert!(Settings::default().remote_options().unwrap().is_none());
        let options = remote().remote_options().unwrap().unwrap();
        assert_eq!(options.environment_id, "box");
        for (settings, expected) in [
            (Settings { remote: String::new(), ..remote() }, "environment_id has no effect"),
            (Settings { environment_id: String::new(), ..remote() }, "remote needs environment_id"),
            (Settings { remote: "http://relay.example".into(), ..remote() }, "is not encrypted"),
            (Settings { listen: vec!["stdio".into()], ..remote() }, "listen = \"stdio\""),
            (
                Settings {
                    remote_token_file: "t".into(),
                    use_agent_identity_auth: true,
                    ..remote()
                },
                "both select credentials",
            ),
            (
                Settings {
                    remote_tls_ca: "ca.pem".into(),
                    remote_tls_fingerprint: "sha256:00".into(),
                    ..remote()
                },
                "both decide which server to trust",
            ),
        ] {
            let error = settings.remote_options().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
