//! Connections that a program opens without a proxy. Their destination is the local address of the
//! accepted socket.
//!
//! The kernel completes the handshake before the gate sees the connection, so a refusal is a reset.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpStream;

use super::dial::dial_loopback;
use super::http_proxy;
use super::pump::{pump, reset};
use super::state::GateState;
use crate::network::policy::{Access, Host, Protocol, Route};

pub(super) async fn serve(state: Arc<GateState>, stream: TcpStream) {
    match stream.local_addr() {
        Ok(destination) => serve_destination(state, stream, destination).await,
        Err(_) => reset(stream),
    }
}

async fn serve_destination(state: Arc<GateState>, stream: TcpStream, destination: SocketAddr) {
    let (address, port) = (destination.ip().to_canonical(), destination.port());
    let peer = stream.peer_addr().ok();
    if state.is_loopback_port(address, port) {
        return connect_both(&state, stream, dial_loopback(port).await.ok()).await;
    }
    let Some(host) = state.meant_host(Host::Address(address)) else { return reset(stream) };
    let access = Access {
        host: &host,
        port,
        protocol: protocol_of(port),
        route: Route::Direct,
        method: None,
    };
    // Requests of plain HTTP may be allowed even if the connection itself is not.
    if state.judge.refuses_by_mode(&access) {
        return http_proxy::serve_fixed(state, stream, host, port).await;
    }
    let outside = state.connect(&access, peer).await;
    if let Err(error) = &outside {
        tracing::debug!(%error, host = %host.with_port(port), "a direct connection failed");
    }
    connect_both(&state, stream, outside.ok()).await;
}

async fn connect_both(state: &GateState, inside: TcpStream, outside: Option<TcpStream>) {
    match outside {
        Some(outside) => pump(inside, outside, &state.traffic).await,
        None => reset(inside),
    }
}

/// Returns the protocol under which the connection is judged and reported. It is guessed from the
/// port, because nothing has been read from the program yet.
fn protocol_of(port: u16) -> Protocol {
    match port {
        80 => Protocol::Http,
        443 => Protocol::HttpsConnect,
        _ => Protocol::Socks5Tcp,
    }
}

#[cfg(test)]
mod tests;
