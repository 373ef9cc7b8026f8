//! Signed tokens, their secret, and servers that require them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use exec_server_transport::{Claims, SigningSecret, new_token};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Server, ServerBuilder};

pub(crate) struct Issuer {
    directory: TempDir,
    secret: SigningSecret,
}

impl Issuer {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o700)).unwrap();
        let path = directory.path().join("secret");
        write_secret(&path, &new_token());
        let secret = SigningSecret::read(&path).unwrap();
        Self { directory, secret }
    }

    pub(crate) fn secret_file(&self) -> PathBuf {
        self.directory.path().join("secret")
    }

    /// Returns a server on loopback that requires tokens of this issuer.
    pub(crate) fn server(&self) -> ServerBuilder {
        let secret = self.secret_file();
        ServerBuilder::new().arguments(&[
            "--ws-auth",
            "signed-bearer-token",
            "--ws-shared-secret-file",
            secret.to_str().expect("test paths are text"),
        ])
    }

    pub(crate) fn start(&self) -> Server {
        self.server().start()
    }

    /// Returns a token with these claims that is valid for an hour.
    pub(crate) fn token(&self, claims: &Value) -> String {
        let mut all = json!({ "exp": now() + 3600 });
        all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
        let claims: Claims = serde_json::from_value(all).unwrap();
        self.secret.sign(&claims)
    }

    /// Writes a token with these claims, valid for an hour, to a file.
    pub(crate) fn token_file(&self, name: &str, claims: &Value) -> PathBuf {
        let path = self.directory.path().join(name);
        std::fs::write(&path, self.token(claims)).unwrap();
        path
    }
}

/// Writes a file that only its user can read.
pub(crate) fn write_secret(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
}

/// Returns the time in seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}
