//! The endpoint of a server and the byte stream to it: TCP, or TLS over TCP.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether the kernel may delay the client's small messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Nagle {
    /// The default of a socket, which many clients never change.
    On,
    Off,
}

#[derive(Debug)]
pub(super) struct Endpoint {
    address: SocketAddr,
    security: Option<Security>,
}

#[derive(Debug)]
pub(super) struct Security {
    tls: Arc<ClientConfig>,
    token: String,
}

impl Endpoint {
    pub(super) fn plain(address: SocketAddr) -> Self {
        Self { address, security: None }
    }

    pub(super) fn secured(address: SocketAddr, security: Security) -> Self {
        Self { address, security: Some(security) }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn token(&self) -> Option<&str> {
        self.security.as_ref().map(|security| security.token.as_str())
    }

    /// Opens a TCP connection. The TLS handshake happens on the first write.
    pub(super) fn connect(&self, nagle: Nagle) -> anyhow::Result<Stream> {
        let socket = TcpStream::connect(self.address)
            .with_context(|| format!("cannot connect to {}", self.address))?;
        socket.set_nodelay(nagle == Nagle::Off)?;
        socket.set_read_timeout(Some(READ_TIMEOUT))?;
        let Some(security) = &self.security else { return Ok(Stream::Plain(socket)) };
        let name = ServerName::from(self.address.ip());
        let connection = ClientConnection::new(security.tls.clone(), name)?;
        Ok(Stream::Tls(Box::new(StreamOwned::new(connection, socket))))
    }
}

impl Security {
    /// `certificate` is a PEM file with the only certificate that the client trusts.
    pub(super) fn new(certificate: &Path, token: String) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        let trusted = CertificateDer::from_pem_file(certificate)
            .with_context(|| format!("cannot read the certificate {}", certificate.display()))?;
        roots
            .add(trusted)
            .with_context(|| format!("the certificate {} is invalid", certificate.display()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Every connection must pay for a full handshake, not for a cheaper resumed one.
        tls.resumption = Resumption::disabled();
        Ok(Self { tls: Arc::new(tls), token })
    }
}

#[derive(Debug)]
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
