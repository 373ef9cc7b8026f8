//! The settings for listeners, authentication and TLS, checked together. A setting without its
//! counterpart is an error: the operator would rely on protection that does not exist.

use std::path::PathBuf;

use exec_server_transport::{AuthOptions, CapabilityToken, ListenUrl, TokenRules, parse_sha256};

use super::Settings;
use super::table::{CAPABILITY_TOKEN, NO_AUTH, SIGNED_BEARER_TOKEN};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CertificateSource {
    Files { certificate: PathBuf, key: PathBuf },
    SelfSigned,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExposureError {
    #[error("handshake_timeout must be more than 0s")]
    NoTime,
    #[error("listen: {url:?} cannot be combined with other listeners; remove it, or the others")]
    OnlyListener { url: String },
    #[error("{key} has no effect without ws_auth = {kind:?}; set ws_auth, or remove {key}")]
    NoEffect { key: &'static str, kind: &'static str },
    #[error(
        "ws_auth = {CAPABILITY_TOKEN:?} needs exactly one of ws_token_file and ws_token_sha256"
    )]
    CapabilityToken,
    #[error("ws_auth = {SIGNED_BEARER_TOKEN:?} needs ws_shared_secret_file")]
    SharedSecret,
    #[error("tls_cert and tls_key must be set together")]
    HalfCertificate,
    #[error("tls_self_signed and tls_cert both select a certificate; set only one of them")]
    TwoCertificates,
    #[error("tls_client_ca has no effect without tls_cert and tls_key, or tls_self_signed")]
    NoCertificate,
}

impl Settings {
    /// Returns how WebSocket clients authenticate; `None` if they need not.
    pub(crate) fn auth_options(&self) -> Result<Option<AuthOptions>, ExposureError> {
        let only_with = |kind, keys: &[(&'static str, &String)]| {
            let given = keys.iter().find(|(_, value)| !value.is_empty() && self.ws_auth != kind);
            given.map_or(Ok(()), |(key, _)| Err(ExposureError::NoEffect { key, kind }))
        };
        only_with(
            CAPABILITY_TOKEN,
            &[("ws_token_file", &self.ws_token_file), ("ws_token_sha256", &self.ws_token_sha256)],
        )?;
        only_with(
            SIGNED_BEARER_TOKEN,
            &[
                ("ws_shared_secret_file", &self.ws_shared_secret_file),
                ("ws_issuer", &self.ws_issuer),
                ("ws_audience", &self.ws_audience),
            ],
        )?;
        match self.ws_auth.as_str() {
            NO_AUTH => Ok(None),
            SIGNED_BEARER_TOKEN => {
                let rules = TokenRules {
                    issuer: given(&self.ws_issuer).cloned(),
                    audience: given(&self.ws_audience).cloned(),
                    max_clock_skew: self.ws_max_clock_skew,
                };
                let secret_file = path(&self.ws_shared_secret_file);
                let secret_file = secret_file.ok_or(ExposureError::SharedSecret)?;
                Ok(Some(AuthOptions::SignedBearerToken { secret_file, rules }))
            }
            _ => {
                let file = path(&self.ws_token_file).map(CapabilityToken::File);
                let hash = parse_sha256(&self.ws_token_sha256).map(CapabilityToken::Sha256);
                match (file, hash) {
                    (Some(token), None) | (None, Some(token)) => {
                        Ok(Some(AuthOptions::CapabilityToken(token)))
                    }
                    _ => Err(ExposureError::CapabilityToken),
                }
            }
        }
    }

    pub(crate) fn certificate(&self) -> Result<Option<CertificateSource>, ExposureError> {
        let certificate = match (path(&self.tls_cert), path(&self.tls_key)) {
            (Some(_), Some(_)) if self.tls_self_signed => {
                return Err(ExposureError::TwoCertificates);
            }
            (Some(certificate), Some(key)) => Some(CertificateSource::Files { certificate, key }),
            (None, None) => self.tls_self_signed.then_some(CertificateSource::SelfSigned),
            _ => return Err(ExposureError::HalfCertificate),
        };
        if certificate.is_none() && !self.tls_client_ca.is_empty() {
            return Err(ExposureError::NoCertificate);
        }
        Ok(certificate)
    }

    pub(crate) fn client_ca(&self) -> Option<PathBuf> {
        path(&self.tls_client_ca)
    }

    pub(super) fn check_exposure(&self) -> Result<(), ExposureError> {
        if self.handshake_timeout.is_zero() {
            return Err(ExposureError::NoTime);
        }
        let is_alone = |url: &&String| {
            matches!(url.parse(), Ok(ListenUrl::Stdio | ListenUrl::Off)) && self.listen.len() > 1
        };
        if let Some(url) = self.listen.iter().find(is_alone) {
            return Err(ExposureError::OnlyListener { url: url.clone() });
        }
        self.auth_options()?;
        self.certificate().map(drop)
    }
}

fn given(text: &String) -> Option<&String> {
    Some(text).filter(|text| !text.is_empty())
}

/// Returns an absolute path, because sandbox policies that protect the file need one.
fn path(text: &String) -> Option<PathBuf> {
    given(text).map(|text| std::path::absolute(text).unwrap_or_else(|_| text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(change: impl FnOnce(&mut Settings)) -> Settings {
        let mut settings = Settings::default();
        change(&mut settings);
        settings
    }

    #[test]
    fn each_kind_needs_its_own_settings_and_no_others() {
        assert_eq!(Settings::default().auth_options(), Ok(None));
        let refused = |change: fn(&mut Settings)| settings(change).auth_options().unwrap_err();
        let error = refused(|settings| settings.ws_token_file = "token".into());
        assert!(matches!(error, ExposureError::NoEffect { key: "ws_token_file", .. }));
        let error = refused(|settings| {
            settings.ws_auth = CAPABILITY_TOKEN.into();
            settings.ws_token_file = "token".into();
            settings.ws_audience = "box".into();
        });
        assert!(matches!(error, ExposureError::NoEffect { key: "ws_audience", .. }));
        let error = refused(|settings| settings.ws_auth = CAPABILITY_TOKEN.into());
        assert_eq!(error, ExposureError::CapabilityToken);
        let error = refused(|settings| settings.ws_auth = SIGNED_BEARER_TOKEN.into());
        assert_eq!(error, ExposureError::SharedSecret);

        let by_file = settings(|settings| {
            settings.ws_auth = CAPABILITY_TOKEN.into();
            settings.ws_token_file = "/a/token".into();
        });
        let token = CapabilityToken::File("/a/token".into());
        assert_eq!(by_file.auth_options(), Ok(Some(AuthOptions::CapabilityToken(token))));
    }

    #[test]
    fn a_certificate_needs_both_files_or_none() {
        assert_eq!(Settings::default().certificate(), Ok(None));
        let refused = |change: fn(&mut Settings)| settings(change).certificate().unwrap_err();
        let error = refused(|settings| settings.tls_cert = "cert".into());
        assert_eq!(error, ExposureError::HalfCertificate);
        let error = refused(|settings| settings.tls_client_ca = "ca".into());
        assert_eq!(error, ExposureError::NoCertificate);
        let error = refused(|settings| {
            (settings.tls_cert, settings.tls_key) = ("cert".into(), "key".into());
            settings.tls_self_signed = true;
        });
        assert_eq!(error, ExposureError::TwoCertificates);
        let self_signed = settings(|settings| settings.tls_self_signed = true);
        assert_eq!(self_signed.certificate(), Ok(Some(CertificateSource::SelfSigned)));
    }
}
