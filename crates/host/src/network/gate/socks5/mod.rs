//! The SOCKS5 proxy of a managed process (RFC 1928): CONNECT and UDP ASSOCIATE. It needs no
//! authentication: in a network namespace only the process can reach the listener; elsewhere the
//! gate serves only this user and root.

mod address;
mod datagram;
pub(super) mod udp;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use self::address::{Address, AddressError};
use self::udp::Associations;
use super::dial::DialError;
use super::pump::{pump, reset};
use super::state::GateState;
use crate::network::policy::{Access, Protocol, Route};

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(30);

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;
const UDP_ASSOCIATE: u8 = 3;

/// The reply codes of RFC 1928.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum ReplyCode {
    Succeeded = 0,
    GeneralFailure = 1,
    NotAllowed = 2,
    NetworkUnreachable = 3,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    CommandNotSupported = 7,
    AddressTypeNotSupported = 8,
}

#[derive(Debug)]
enum Command {
    Connect(Address),
    /// Contains the port that the client will send from, or 0 if the client does not say.
    UdpAssociate {
        port: u16,
    },
}

#[derive(Debug, thiserror::Error)]
enum HandshakeError {
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("the peer does not speak SOCKS5; it sent version {found}")]
    Version { found: u8 },
    #[error("the peer does not offer to connect without authentication")]
    Authentication,
    #[error("the request was refused with {0:?}")]
    Request(ReplyCode),
}

pub(super) async fn serve(
    state: Arc<GateState>,
    associations: Option<Arc<Associations>>,
    mut stream: TcpStream,
) {
    let command = match timeout(HANDSHAKE_TIMEOUT, read_command(&mut stream)).await {
        Ok(Ok(command)) => command,
        Ok(Err(HandshakeError::Request(code))) => return refuse(stream, code).await,
        Ok(Err(error)) => {
            let peer = stream.peer_addr().ok();
            return tracing::debug!(%error, ?peer, "a SOCKS5 handshake failed");
        }
        Err(_) => return reset(stream),
    };
    match (command, associations) {
        (Command::Connect(address), _) => connect(&state, stream, &address).await,
        (Command::UdpAssociate { port }, Some(associations)) => {
            Box::pin(associate(state, &associations, stream, port)).await;
        }
        (Command::UdpAssociate { .. }, None) => {
            refuse(stream, ReplyCode::CommandNotSupported).await;
        }
    }
}

async fn connect(state: &GateState, mut stream: TcpStream, address: &Address) {
    let Some(host) = state.meant_host(address.host.clone()) else {
        return refuse(stream, ReplyCode::HostUnreachable).await;
    };
    let access = Access {
        host: &host,
        port: address.port,
        protocol: Protocol::Socks5Tcp,
        route: Route::Proxy,
        method: None,
    };
    match state.connect(&access, stream.peer_addr().ok()).await {
        Ok(outside) => match reply(&mut stream, ReplyCode::Succeeded, unspecified()).await {
            Ok(()) => pump(stream, outside, &state.traffic).await,
            Err(_) => reset(outside),
        },
        Err(error) => refuse(stream, code_of(&error)).await,
    }
}

async fn associate(
    state: Arc<GateState>,
    associations: &Arc<Associations>,
    mut stream: TcpStream,
    port: u16,
) {
    let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) else { return };
    let Some(association) = Associations::register(associations, port) else {
        return refuse(stream, ReplyCode::GeneralFailure).await;
    };
    let relay = SocketAddr::new(local.ip().to_canonical(), associations.port());
    if reply(&mut stream, ReplyCode::Succeeded, relay).await.is_err() {
        return;
    }
    let mut ignored = [0; 64];
    tokio::select! {
        // The association ends with its connection, which carries no further data.
        () = async { while matches!(stream.read(&mut ignored).await, Ok(1..)) {} } => {}
        () = association.relay(state, peer) => {}
    }
}

async fn read_command(stream: &mut TcpStream) -> Result<Command, HandshakeError> {
    let version = stream.read_u8().await?;
    if version != VERSION {
        return Err(HandshakeError::Version { found: version });
    }
    let mut methods = vec![0; usize::from(stream.read_u8().await?)];
    stream.read_exact(&mut methods).await?;
    if !methods.contains(&NO_AUTHENTICATION) {
        stream.write_all(&[VERSION, NO_ACCEPTABLE_METHOD]).await?;
        return Err(HandshakeError::Authentication);
    }
    stream.write_all(&[VERSION, NO_AUTHENTICATION]).await?;
    let [version, command, _reserved] = {
        let mut head = [0; 3];
        stream.read_exact(&mut head).await?;
        head
    };
    if version != VERSION {
        return Err(HandshakeError::Version { found: version });
    }
    let refused = HandshakeError::Request;
    let address = match address::read(stream).await? {
        Ok(address) => Ok(address),
        Err(AddressError::Kind) => return Err(refused(ReplyCode::AddressTypeNotSupported)),
        Err(AddressError::Host { port }) => Err(port),
    };
    match (command, address) {
        (CONNECT, Ok(address)) if address.port != 0 => Ok(Command::Connect(address)),
        (CONNECT, _) => Err(refused(ReplyCode::HostUnreachable)),
        // The address of the sender is not used, so any value is accepted.
        (UDP_ASSOCIATE, Ok(Address { port, .. }) | Err(port)) => Ok(Command::UdpAssociate { port }),
        _ => Err(refused(ReplyCode::CommandNotSupported)),
    }
}

async fn refuse(mut stream: TcpStream, code: ReplyCode) {
    reply(&mut stream, code, unspecified()).await.ok();
    stream.shutdown().await.ok();
}

async fn reply(stream: &mut TcpStream, code: ReplyCode, bound: SocketAddr) -> io::Result<()> {
    let mut message = vec![VERSION, code as u8, 0];
    address::write(&mut message, bound);
    stream.write_all(&message).await
}

fn unspecified() -> SocketAddr {
    (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0).into()
}

fn code_of(error: &DialError) -> ReplyCode {
    match error {
        DialError::Refused(_) => ReplyCode::NotAllowed,
        DialError::Connect { source } => match source.kind() {
            io::ErrorKind::ConnectionRefused => ReplyCode::ConnectionRefused,
            io::ErrorKind::NetworkUnreachable => ReplyCode::NetworkUnreachable,
            _ => ReplyCode::HostUnreachable,
        },
        DialError::Resolve { .. } | DialError::TimedOut => ReplyCode::HostUnreachable,
        DialError::Upstream { .. } => ReplyCode::GeneralFailure,
    }
}

#[cfg(test)]
mod tests;
