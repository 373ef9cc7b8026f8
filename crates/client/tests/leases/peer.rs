//! A client connected to a scripted server.

use std::time::Duration;

use exec_server_client::{
    ConnectError, Connector, Dialing, ExecServerClient, ExecServerClientConnectOptions,
    RecoveryPolicy,
};
use exec_server_test_support::ScriptedServer;
use exec_server_transport::{Connection, memory};
use serde_json::json;
use tokio::sync::mpsc;

/// Receives every connection that the client makes.
pub(crate) struct Listening {
    connections: mpsc::Receiver<Connection>,
    acks: bool,
}

struct ToTest(mpsc::Sender<Connection>);

impl Connector for ToTest {
    fn dial(&mut self) -> Dialing {
        let sender = self.0.clone();
        Box::pin(async move {
            let (ours, theirs) = memory();
            sender.send(theirs).await.map_err(|_| ConnectError::EndedEarly)?;
            Ok(ours)
        })
    }
}

pub(crate) async fn connected() -> (ExecServerClient, Listening, ScriptedServer) {
    connected_to(true).await
}

/// Like [`connected`], with or without support for acknowledgements.
pub(crate) async fn connected_to(acks: bool) -> (ExecServerClient, Listening, ScriptedServer) {
    connected_with(ExecServerClientConnectOptions::default(), acks).await
}

/// Like [`connected`], with client options. The client reconnects at once.
pub(crate) async fn connected_with(
    options: ExecServerClientConnectOptions,
    acks: bool,
) -> (ExecServerClient, Listening, ScriptedServer) {
    let (sender, connections) = mpsc::channel(1);
    let first_pause = Duration::from_millis(1);
    let recovery = RecoveryPolicy { first_pause, ..RecoveryPolicy::default() };
    let options = ExecServerClientConnectOptions { recovery, ..options };
    let mut listening = Listening { connections, acks };
    let connecting = ExecServerClient::connect_by(ToTest(sender), options);
    let (client, peer) = tokio::join!(connecting, listening.accept());
    (client.unwrap(), listening, peer)
}

impl Listening {
    pub(crate) async fn accept(&mut self) -> ScriptedServer {
        let connection = self.connections.recv().await.expect("the client connects");
        let mut peer = ScriptedServer::over(connection);
        let (id, _) = peer.expect("initialize").await;
        let mut session = json!({"sessionId": "s", "protocolVersion": "exec-server.v0"});
        if self.acks {
            session["acks"] = json!(true);
        }
        peer.answer(&id, &session).await;
        assert_eq!(peer.receive().await["method"], "initialized");
        peer
    }
}

/// Serves one call. Afterwards the client has handled all earlier messages.
pub(crate) async fn round_trip(peer: &mut ScriptedServer, client: &ExecServerClient) {
    let asking = client.environment_status(exec_server_protocol::Empty {});
    let answering = async {
        let (id, _) = peer.expect("environment/status").await;
        peer.answer(&id, &json!({"status": "ready"})).await;
    };
    tokio::join!(asking, answering).0.unwrap();
}
