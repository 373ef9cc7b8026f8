//! A self-signed certificate for a quick start: generated once, kept, and trusted by its
//! fingerprint.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, DnType, KeyPair};
use rustix::fs::{FlockOperation, flock};

use super::TlsError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelfSigned {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Returns the certificate in this directory. Generates one for these names and addresses if there
/// is none.
pub fn self_signed(directory: &Path, names: Vec<String>) -> Result<SelfSigned, TlsError> {
    let files = SelfSigned {
        certificate: directory.join("self-signed.pem"),
        key: directory.join("self-signed.key"),
    };
    let unwritable = |reason| TlsError::Unwritable { path: directory.to_owned(), reason };
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(directory).map_err(unwritable)?;
    // One process at a time: two could leave the key of one with the certificate of the other.
    let lock = File::open(directory).map_err(unwritable)?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|errno| unwritable(errno.into()))?;
    if files.certificate.exists() && files.key.exists() {
        return Ok(files);
    }
    let failed = |reason| TlsError::SelfSigned { reason };
    let key = KeyPair::generate().map_err(failed)?;
    let mut params = CertificateParams::new(names).map_err(failed)?;
    params.distinguished_name.push(DnType::CommonName, "exec-server");
    // Clients that pin a fingerprint ignore dates; rcgen's default validity ends in the year 4096.
    let certificate = params.self_signed(&key).map_err(failed)?;
    // Invariant: if the certificate exists, so does its key. The old certificate is removed first,
    // the new one written last.
    let _ = std::fs::remove_file(&files.certificate);
    write_private(&files.key, &key.serialize_pem())?;
    write_private(&files.certificate, &certificate.pem())?;
    Ok(files)
}

/// Writes a file through a temporary name, so that a partial file never counts as complete.
fn write_private(path: &Path, text: &str) -> Result<(), TlsError> {
    let unfinished = path.with_extension(format!("{:08x}.tmp", rand::random::<u32>()));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .and_then(|()| std::fs::rename(&unfinished, path));
    written.map_err(|reason| {
        let _ = std::fs::remove_file(&unfinished);
        TlsError::Unwritable { path: path.to_owned(), reason }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::tls::{TlsFiles, TlsServer};

    #[test]
    fn a_certificate_is_generated_once_and_kept_private() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("tls");
        let names = || vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let fingerprint = || {
            let SelfSigned { certificate, key } = self_signed(&directory, names()).unwrap();
            let mode = std::fs::metadata(&key).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let files = TlsFiles { certificate, key, client_ca: None };
            TlsServer::load(files).unwrap().fingerprint()
        };
        assert_eq!(fingerprint(), fingerprint());
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 2);
    }
}
