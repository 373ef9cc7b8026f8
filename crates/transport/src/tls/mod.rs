//! TLS: the certificate of a listener, and how a client trusts a server. Uses rustls with TLS 1.2
//! and 1.3.

mod client;
mod fingerprint;
mod self_signed;
mod server;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{Error as PemError, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub use client::{ClientIdentity, ServerTrust, TlsOptions, client_config};
pub use fingerprint::{Fingerprint, FingerprintParseError, parse_sha256};
pub use self_signed::{SelfSigned, self_signed};
pub(crate) use server::name_of;
pub use server::{TlsFiles, TlsServer};

/// The reason why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("cannot read {}: {reason}", path.display())]
    Unreadable { path: PathBuf, reason: io::Error },
    #[error("{} contains no certificate in PEM format, or a damaged one", path.display())]
    NoCertificate { path: PathBuf },
    #[error("{} contains no private key in PEM format, or one that is damaged or encrypted", path.display())]
    NoPrivateKey { path: PathBuf },
    #[error("cannot use {} with the key {}: {reason}", certificate.display(), key.display())]
    Unusable { certificate: PathBuf, key: PathBuf, reason: rustls::Error },
    #[error("{} contains no usable certificate authority: {reason}", path.display())]
    NoAuthority { path: PathBuf, reason: String },
    #[error(
        "the system has no certificate authorities; install some, or name a PEM file (--tls-ca; of \
         a server for its rendezvous --remote-tls-ca; for telemetry OTEL_EXPORTER_OTLP_CERTIFICATE)"
    )]
    NoSystemRoots,
    #[error("cannot generate a certificate: {reason}")]
    SelfSigned { reason: rcgen::Error },
    #[error("cannot write {}: {reason}", path.display())]
    Unwritable { path: PathBuf, reason: io::Error },
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let path = || path.to_owned();
    let pem =
        std::fs::read(path()).map_err(|reason| TlsError::Unreadable { path: path(), reason })?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    certificates
        .ok()
        .filter(|certificates| !certificates.is_empty())
        .ok_or_else(|| TlsError::NoCertificate { path: path() })
}

fn read_private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| match error {
        PemError::Io(reason) => TlsError::Unreadable { path: path.to_owned(), reason },
        _ => TlsError::NoPrivateKey { path: path.to_owned() },
    })
}
