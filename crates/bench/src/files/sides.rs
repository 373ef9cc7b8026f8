//! The two servers of a measurement, each with one client.

use super::client::{Dialect, FilesClient};
use super::limit_server;
use crate::client::Client;
use crate::endpoint::Nagle;
use crate::samples::Samples;
use crate::server::BenchServer;
use crate::socket::Socket;
use crate::websocket::WebSocket;

#[derive(Debug)]
pub(super) struct Sides {
    ours: FilesClient,
    minimal: FilesClient,
    _servers: [BenchServer; 2],
}

#[derive(Debug, Default)]
pub(super) struct Timings {
    pub(super) ours: Samples,
    pub(super) limit: Samples,
}

impl Sides {
    pub(super) fn start() -> anyhow::Result<Self> {
        let server = BenchServer::start()?;
        let minimal = limit_server::start()?;
        let ours = Client::connect(&server, Nagle::Off)?.into_socket();
        let socket = Socket::WebSocket(WebSocket::connect(minimal.endpoint(), Nagle::Off)?);
        Ok(Self {
            ours: FilesClient::new(ours, Dialect::Ours),
            minimal: FilesClient::new(socket, Dialect::Minimal),
            _servers: [server, minimal],
        })
    }

    /// Does the work on both sides in turn, the given number of times. An additional first round is
    /// not counted: it fills caches and grows buffers.
    pub(super) fn time(
        &mut self,
        rounds: usize,
        mut work: impl FnMut(&mut FilesClient) -> anyhow::Result<()>,
    ) -> anyhow::Result<Timings> {
        work(&mut self.ours)?;
        work(&mut self.minimal)?;
        let mut timings = Timings::default();
        for _ in 0..rounds {
            timings.ours.time(|| work(&mut self.ours))?;
            timings.limit.time(|| work(&mut self.minimal))?;
        }
        Ok(timings)
    }
}
