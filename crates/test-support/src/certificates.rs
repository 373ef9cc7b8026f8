use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType, date_time_ymd,
};

/// A certificate authority for one test.
#[derive(Debug)]
pub struct TestAuthority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// A certificate and its key, in files.
#[derive(Debug, Clone)]
pub struct Issued {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    Now,
    Expired,
}

impl TestAuthority {
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // The default name would be that of the issued certificates too, and OpenSSL considers a
        // certificate self-signed if it has the same name as its issuer.
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    /// Writes the certificate of the authority.
    #[must_use]
    pub fn write(&self, directory: &Path) -> PathBuf {
        let path = directory.join("authority.pem");
        std::fs::write(&path, &self.certificate).unwrap();
        path
    }

    /// Issues a certificate for these names and addresses, and writes it with its key. A name with
    /// `://` is a URI.
    #[must_use]
    pub fn issue(&self, directory: &Path, names: &[&str], validity: Validity) -> Issued {
        let (uris, hosts): (Vec<&str>, Vec<&str>) =
            names.iter().partition(|name| name.contains("://"));
        let hosts: Vec<_> = hosts.into_iter().map(str::to_owned).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        let uris = uris.into_iter().map(|uri| SanType::URI(uri.try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        if validity == Validity::Expired {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let issued = Issued {
            certificate: directory.join("certificate.pem"),
            key: directory.join("certificate.key"),
        };
        std::fs::write(&issued.certificate, certificate.pem()).unwrap();
        std::fs::write(&issued.key, key.serialize_pem()).unwrap();
        std::fs::set_permissions(&issued.key, PermissionsExt::from_mode(0o600)).unwrap();
        issued
    }
}

impl Default for TestAuthority {
    fn default() -> Self {
        Self::new()
    }
}
