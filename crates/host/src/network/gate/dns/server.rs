//! Serves DNS queries over UDP and TCP.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::super::state::GateState;
use super::answer::respond;
use super::udp_socket::AddressedUdpSocket;

pub(in super::super) const MAX_TCP_CONNECTIONS: usize = 64;
const TCP_IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// A query has one question and perhaps a few additional records.
const MAX_QUERY: usize = 4 << 10;

/// Answers the queries on a UDP socket, each from the address that it was sent to.
pub(in super::super) fn serve_udp(
    socket: UdpSocket,
    state: Arc<GateState>,
) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let socket = AddressedUdpSocket::new(socket)?;
    Ok(async move {
        let mut buffer = vec![0; MAX_QUERY];
        loop {
            let received = match socket.receive(&mut buffer).await {
                Ok(received) => received,
                Err(error) => {
                    // For example ECONNREFUSED for an earlier response.
                    tracing::debug!(%error, "cannot receive a DNS query");
                    tokio::task::yield_now().await;
                    continue;
                }
            };
            let query = &buffer[..received.bytes];
            let Some(response) = respond(&state, query, received.peer) else { continue };
            if let Err(error) = socket.send(&response, &received).await {
                let peer = received.peer;
                tracing::debug!(%error, %peer, "cannot send a DNS response");
            }
        }
    })
}

pub(in super::super) async fn serve_tcp(state: Arc<GateState>, mut stream: TcpStream) {
    let Ok(peer) = stream.peer_addr() else { return };
    while let Ok(Ok(query)) = timeout(TCP_IDLE_TIMEOUT, read_message(&mut stream)).await {
        let Some(response) = respond(&state, &query, peer) else { return };
        let written = timeout(TCP_IDLE_TIMEOUT, write_message(&mut stream, &response)).await;
        if !matches!(written, Ok(Ok(()))) {
            return;
        }
    }
}

async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    if length > MAX_QUERY {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut message = vec![0; length];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    stream.write_all(&[&length.to_be_bytes(), message].concat()).await
}

#[cfg(test)]
mod tests;
