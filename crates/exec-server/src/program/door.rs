//! Access control: the credentials, certificate and limits that all listeners of a server share.

use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exec_server_host::process::origin::{PeerUser, user_of_tcp_peer, user_of_unix_peer};
use exec_server_protocol::Subject;
use exec_server_transport::{
    Authenticator, ListenUrl, Listener, ListenerOptions, Peer, SelfSigned, SubjectLimits, TlsFiles,
    TlsServer, self_signed,
};

use super::reload::Reloadable;
use super::serve::ServeError;
use super::sockets::Endpoint;
use crate::config::Settings;
use crate::config::exposure::CertificateSource;
use crate::program::write_history_files::own_state_directories;

#[derive(Debug)]
pub(super) struct Door {
    authenticator: Option<Arc<Authenticator>>,
    tls: Option<Arc<TlsServer>>,
    is_self_signed: bool,
    limits: Arc<SubjectLimits>,
}

impl Door {
    /// Reads the files that the settings name, and creates a certificate if they request one.
    pub(super) fn new(settings: &Settings, endpoints: &[Endpoint]) -> Result<Self, ServeError> {
        let authenticator = settings.auth_options()?.map(Authenticator::new).transpose()?;
        let source = settings.certificate()?;
        let is_self_signed = source == Some(CertificateSource::SelfSigned);
        let files = match source {
            None => None,
            Some(CertificateSource::Files { certificate, key }) => Some((certificate, key)),
            Some(CertificateSource::SelfSigned) => {
                let directories = own_state_directories();
                let state = directories.first().ok_or(ServeError::NoStateDirectory)?;
                let made = self_signed(&state.join("tls"), names(endpoints))?;
                let SelfSigned { certificate, key } = made;
                Some((certificate, key))
            }
        };
        let tls = files.map(|(certificate, key)| {
            TlsServer::load(TlsFiles { certificate, key, client_ca: settings.client_ca() })
        });
        let limits =
            SubjectLimits::new(settings.max_connections, settings.max_connections_per_subject);
        let door = Self {
            authenticator: authenticator.map(Arc::new),
            tls: tls.transpose()?.map(Arc::new),
            is_self_signed,
            limits,
        };
        for file in door.secret_files().iter().filter(|file| is_open_to_others(file)) {
            tracing::warn!("other users have access to {}; set its mode to 600", file.display());
        }
        Ok(door)
    }

    pub(super) fn options(&self, settings: &Settings) -> ListenerOptions {
        ListenerOptions {
            allowed_origins: settings.allow_origins.clone(),
            allowed_hosts: settings.allow_hosts.clone(),
            authenticator: self.authenticator.clone(),
            tls: self.tls.clone(),
            insecure: settings.insecure,
            identify_user: match settings.allow_other_users {
                true => any_user,
                false => own_user,
            },
            open_to_other_users: settings.allow_other_users,
            limits: Arc::clone(&self.limits),
            handshake_timeout: settings.handshake_timeout,
            ..ListenerOptions::default()
        }
    }

    /// Returns the files that no sandbox may read.
    pub(super) fn secret_files(&self) -> Vec<PathBuf> {
        let of_tokens = self.authenticator.iter().flat_map(|tokens| tokens.secret_files());
        let of_tls = self.tls.iter().flat_map(|tls| tls.secret_files());
        of_tokens.chain(of_tls).collect()
    }

    /// Returns the files that no sandbox may change, because they decide who may connect.
    pub(super) fn protected_files(&self) -> Vec<PathBuf> {
        self.tls.iter().flat_map(|tls| tls.public_files()).collect()
    }

    /// Whether commands of the server's user can connect without credentials or flags.
    pub(super) fn is_open_to_own_user(&self, listener: &Listener) -> bool {
        match listener.local_url() {
            ListenUrl::Unix(_) => true,
            ListenUrl::WebSocket(_) => self.authenticator.is_none(),
            ListenUrl::SecureWebSocket(_)
            | ListenUrl::Systemd(_)
            | ListenUrl::Stdio
            | ListenUrl::Off => false,
        }
    }

    /// If the certificate is self-signed, prints a command line for each TLS listener, to paste on
    /// another machine.
    pub(super) fn explain(&self, settings: &Settings, listeners: &[Listener]) {
        let Some(tls) = self.tls.as_ref().filter(|_| self.is_self_signed) else { return };
        for listener in listeners {
            let ListenUrl::SecureWebSocket(address) = listener.local_url() else { continue };
            let token = match (&self.authenticator, settings.ws_token_file.as_str()) {
                (None, _) => String::new(),
                (Some(_), "") => " --token-file FILE".to_owned(),
                (Some(_), file) => format!(" --token-file {file}"),
            };
            let certificate = match tls.asks_for_certificates() {
                true => " --tls-client-cert FILE --tls-client-key FILE",
                false => "",
            };
            // A failure to write this line is harmless.
            let _ = writeln!(
                io::stderr(),
                "exec-server shell --connect wss://{}{token}{certificate} --tls-fingerprint {}",
                reachable(*address),
                tls.fingerprint()
            );
        }
    }

    /// Returns the certificate, tokens and secrets for reloading, which does not affect open
    /// connections.
    pub(super) fn reloadable(&self) -> Reloadable {
        let (authenticator, tls) = (self.authenticator.clone(), self.tls.clone());
        Reloadable { authenticator, tls, ..Reloadable::default() }
    }
}

/// Accepts only this server's user and root. Any user of the machine can reach a loopback port, or
/// a socket whose mode has been changed.
fn own_user(peer: &Peer) -> Option<Subject> {
    any_user(peer).filter(|subject| *subject == Subject::LocalUser)
}

fn any_user(peer: &Peer) -> Option<Subject> {
    let user = match peer {
        Peer::Tcp { remote, local } => user_of_tcp_peer(*remote, *local),
        Peer::Unix { socket } => user_of_unix_peer(socket.as_fd()),
    };
    Some(match user {
        PeerUser::Trusted => Subject::LocalUser,
        PeerUser::Other(uid) => Subject::OtherUser(Some(uid)),
        PeerUser::Unknown => Subject::OtherUser(None),
    })
}

fn is_open_to_others(file: &Path) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o077 != 0)
}

fn names(endpoints: &[Endpoint]) -> Vec<String> {
    let addresses = endpoints.iter().filter_map(Endpoint::tls_address);
    certificate_names(addresses.map(|address| address.ip()), None)
}

/// Returns the names and addresses for a certificate of listeners on these addresses.
pub(super) fn certificate_names(
    addresses: impl Iterator<Item = IpAddr>,
    public_names: impl IntoIterator<Item = String>,
) -> Vec<String> {
    let addresses = addresses.filter(|address| !address.is_unspecified());
    let usual = ["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let names = usual.into_iter().chain(host_name()).chain(public_names);
    let names: BTreeSet<_> = names.chain(addresses.map(|address| address.to_string())).collect();
    names.into_iter().collect()
}

/// Replaces an unspecified IP address by the host name, which another machine may be able to
/// resolve.
fn reachable(address: SocketAddr) -> String {
    match (address.ip(), host_name()) {
        (IpAddr::V4(ip), Some(name)) if ip.is_unspecified() => format!("{name}:{}", address.port()),
        (IpAddr::V6(ip), Some(name)) if ip.is_unspecified() => format!("{name}:{}", address.port()),
        _ => address.to_string(),
    }
}

fn host_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_str().ok()?.to_owned();
    let is_usable = |name: &String| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
        !name.is_empty() && name.bytes().all(is_part)
    };
    Some(name).filter(is_usable)
}
