//! The client's side: how it trusts a server, and how it authenticates.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use super::server::authorities;
use super::{Fingerprint, TlsError, provider, read_certificates, read_private_key};

/// TLS settings of a client.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsOptions {
    pub trust: ServerTrust,
    pub identity: Option<ClientIdentity>,
}

/// The servers that a client trusts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ServerTrust {
    /// Servers with a certificate from an authority of the system.
    #[default]
    SystemRoots,
    /// Servers with a certificate from an authority in this PEM file.
    Authorities(PathBuf),
    /// The server with this certificate, whatever its names and dates.
    Fingerprint(Fingerprint),
}

/// The certificate of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Builds the TLS configuration of a client. Blocks: it reads files.
pub fn client_config(options: &TlsOptions) -> Result<Arc<ClientConfig>, TlsError> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the provider knows the default versions");
    let config = match &options.trust {
        ServerTrust::SystemRoots => config.with_root_certificates(system_roots()?),
        ServerTrust::Authorities(path) => config.with_root_certificates(authorities(path)?),
        ServerTrust::Fingerprint(expected) => {
            let pinned = Pinned { expected: *expected, provider: provider() };
            config.dangerous().with_custom_certificate_verifier(Arc::new(pinned))
        }
    };
    let mut config = match &options.identity {
        None => config.with_no_client_auth(),
        Some(ClientIdentity { certificate, key }) => {
            let chain = read_certificates(certificate)?;
            config.with_client_auth_cert(chain, read_private_key(key)?).map_err(|reason| {
                let (certificate, key) = (certificate.clone(), key.clone());
                TlsError::Unusable { certificate, key, reason }
            })?
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn system_roots() -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable == 0 { Err(TlsError::NoSystemRoots) } else { Ok(roots) }
}

/// Compares the certificate itself. The handshake's signature proves that the server has the key.
#[derive(Debug)]
struct Pinned {
    expected: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if Fingerprint::of(end_entity) == self.expected {
            return Ok(ServerCertVerified::assertion());
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
