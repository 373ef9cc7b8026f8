use std::ops::Deref;

use exec_server_host::process::launch::Launcher;
use exec_server_server::{Server, ServerConfig};
use exec_server_transport::memory;
use serde_json::Value;

use crate::{RpcClient, Served};

/// A server without a socket. Its connections use the memory transport.
#[derive(Debug)]
pub struct TestServer(Server);

impl TestServer {
    #[must_use]
    pub fn new(config: ServerConfig) -> Self {
        Self(Server::new(config, Launcher::plain()))
    }
}

impl Deref for TestServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl Served {
    /// Opens a new connection to this server.
    #[must_use]
    pub fn by(server: &Server) -> Self {
        let (connection, other_end) = memory();
        let server = server.clone();
        let serving = tokio::spawn(async move { server.serve(other_end).await });
        Self { connection, serving }
    }
}

impl RpcClient<Served> {
    /// Opens a connection on which nothing has been sent.
    #[must_use]
    pub fn connect(server: &Server) -> Self {
        Self::over(Served::by(server))
    }

    /// Opens a connection and performs the handshake. Also returns the session's id.
    pub async fn open(server: &Server, params: Value) -> (Self, String) {
        let mut client = Self::connect(server);
        let session = client.initialize(params).await;
        (client, session)
    }
}
