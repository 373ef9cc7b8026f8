//! The certificate authorities trusted for TLS: those of the system, unless variables name others.
//! `SSL_CERT_DIR` lists directories, separated by colons. `CODEX_CA_CERTIFICATE`, or else
//! `SSL_CERT_FILE`, names one file. Empty variables are ignored.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_native_certs::{CertificateResult, load_certs_from_paths, load_native_certs};

use super::Variables;
use super::diagnosis;
use super::error::HttpError;

/// Reads files. Without any authority every handshake fails, but plain http still works.
pub(super) fn tls(variables: &Variables) -> Result<ClientConfig, HttpError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| diagnosis::of_setup(&error))?
        .with_root_certificates(authorities(variables))
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn authorities(variables: &Variables) -> RootCertStore {
    let file = ["CODEX_CA_CERTIFICATE", "SSL_CERT_FILE"]
        .into_iter()
        .find_map(|name| variables(name).filter(|value| !value.is_empty()).map(PathBuf::from));
    let directories = variables("SSL_CERT_DIR").unwrap_or_default();
    let directories = env::split_paths(&directories).filter(|path| !path.as_os_str().is_empty());
    let mut found: Vec<CertificateResult> = directories
        .map(|directory| load_certs_from_paths(None, Some(&directory)))
        .chain(file.map(|file| load_certs_from_paths(Some(&file), None)))
        .collect();
    if found.is_empty() {
        found.push(load_native_certs());
    }

    let mut store = RootCertStore::empty();
    let mut unreadable = 0;
    let mut first_error = None;
    for found in found {
        let (_, unusable) = store.add_parsable_certificates(found.certs);
        unreadable += unusable + found.errors.len();
        first_error = first_error.or_else(|| found.errors.first().map(ToString::to_string));
    }
    if store.is_empty() {
        tracing::warn!(
            unreadable,
            error = first_error,
            "found no usable certificate authority for TLS, so https requests will fail; install \
             the authorities of the system (ca-certificates), or check CODEX_CA_CERTIFICATE, \
             SSL_CERT_FILE and SSL_CERT_DIR"
        );
    } else if unreadable > 0 {
        tracing::warn!(
            trusted = store.len(),
            unreadable,
            error = first_error,
            "cannot read all certificate authorities for TLS; check CODEX_CA_CERTIFICATE, \
             SSL_CERT_FILE and SSL_CERT_DIR"
        );
    }
    store
}
