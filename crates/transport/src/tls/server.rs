//! The listener's side: certificate and key, which may change while connections stay open, and the
//! names of clients with certificates.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::TlsAcceptor;
use webpki::EndEntityCert;

use super::{Fingerprint, TlsError, provider, read_certificates, read_private_key};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of the server, followed by those of the authorities up to the root.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Requires client certificates signed by one of these authorities.
    pub client_ca: Option<PathBuf>,
}

/// The TLS setup of a listener. New connections use the files loaded last; open connections keep
/// theirs.
#[derive(Debug)]
pub struct TlsServer {
    files: TlsFiles,
    loaded: RwLock<Loaded>,
}

#[derive(Debug)]
struct Loaded {
    config: Arc<ServerConfig>,
    fingerprint: Fingerprint,
    versions: Vec<Option<FileVersion>>,
}

/// Differs after a file was written or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileVersion {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl TlsServer {
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let loaded = RwLock::new(Loaded::read(&files)?);
        Ok(Self { files, loaded })
    }

    /// Reads the files again. On an error, the old ones stay in force. Blocks.
    pub fn reload(&self) -> Result<(), TlsError> {
        let loaded = Loaded::read(&self.files)?;
        *self.loaded.write().expect("no code panics while it holds the certificate") = loaded;
        Ok(())
    }

    /// Whether a file has changed since it was loaded. Blocks.
    pub fn has_changed(&self) -> bool {
        self.files.versions() != self.read(|loaded| loaded.versions.clone())
    }

    pub fn fingerprint(&self) -> Fingerprint {
        self.read(|loaded| loaded.fingerprint)
    }

    pub fn asks_for_certificates(&self) -> bool {
        self.files.client_ca.is_some()
    }

    /// Files whose reader could impersonate this server.
    pub fn secret_files(&self) -> Vec<PathBuf> {
        vec![self.files.key.clone()]
    }

    /// The certificate files. They are not secret, but must not be replaced.
    pub fn public_files(&self) -> Vec<PathBuf> {
        let TlsFiles { certificate, client_ca, .. } = self.files.clone();
        [Some(certificate), client_ca].into_iter().flatten().collect()
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.read(|loaded| TlsAcceptor::from(Arc::clone(&loaded.config)))
    }

    fn read<T>(&self, get: impl FnOnce(&Loaded) -> T) -> T {
        get(&self.loaded.read().expect("no code panics while it holds the certificate"))
    }
}

impl Loaded {
    fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        // Taken before the content is read, so that a concurrent change is detected.
        let versions = files.versions();
        let certificates = read_certificates(&files.certificate)?;
        let key = read_private_key(&files.key)?;
        let fingerprint = Fingerprint::of(&certificates[0]);
        let unusable = |reason| {
            let (certificate, key) = (files.certificate.clone(), files.key.clone());
            TlsError::Unusable { certificate, key, reason }
        };
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let config = match &files.client_ca {
            None => config.with_no_client_auth(),
            Some(path) => {
                let roots = Arc::new(authorities(path)?);
                // Health requests need no certificate; admission requires it for other requests.
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                    .allow_unauthenticated()
                    .build()
                    .map_err(|error| TlsError::NoAuthority {
                        path: path.clone(),
                        reason: error.to_string(),
                    })?;
                config.with_client_cert_verifier(verifier)
            }
        };
        let mut config = config.with_single_cert(certificates, key).map_err(unusable)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        if files.client_ca.is_some() {
            // A resumed TLS session keeps its certificate without verifying it again, even one that
            // has expired since.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Self { config: Arc::new(config), fingerprint, versions })
    }
}

impl TlsFiles {
    fn versions(&self) -> Vec<Option<FileVersion>> {
        let files = [Some(&self.certificate), Some(&self.key), self.client_ca.as_ref()];
        files.into_iter().flatten().map(|path| FileVersion::of(path)).collect()
    }
}

impl FileVersion {
    /// Returns `None` if there is no file, which can happen briefly while it is replaced.
    fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

pub(super) fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate).map_err(|error| TlsError::NoAuthority {
            path: path.to_owned(),
            reason: error.to_string(),
        })?;
    }
    Ok(roots)
}

/// Returns the first name in a certificate: a URI such as a SPIFFE id, or else a DNS name. The
/// common name does not count: authorities do not vouch for it.
pub(crate) fn name_of(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    let name =
        certificate.valid_uri_names().next().or_else(|| certificate.valid_dns_names().next());
    name.map(str::to_owned)
}
