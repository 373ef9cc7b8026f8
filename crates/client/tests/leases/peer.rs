//! A server that does what the test says, one message at a time.

use std::time::Duration;

use exec_server_client::{
    ConnectError, Connector, Dialing, ExecServerClient, ExecServerClientConnectOptions,
    RecoveryPolicy,
};
use exec_server_transport::{Connection, Received, memory};
use serde_json::{Value, json};
use tokio::sync::mpsc;

/// Every connection that the client makes comes here.
pub(crate) struct Listening {
    connections: mpsc::Receiver<Connection>,
    acks: bool,
}

/// The server's end of one connection. Dropping it is the loss of the connection.
pub(crate) struct Peer {
    connection: Connection,
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

/// A client and the server it talks to.
pub(crate) async fn connected() -> (ExecServerClient, Listening, Peer) {
    connected_to(true).await
}

/// The same with a server that knows acknowledgements or does not.
pub(crate) async fn connected_to(acks: bool) -> (ExecServerClient, Listening, Peer) {
    let (sender, connections) = mpsc::channel(1);
    let options = ExecServerClientConnectOptions {
        recovery: RecoveryPolicy {
            first_pause: Duration::from_millis(1),
            ..RecoveryPolicy::default()
        },
        ..ExecServerClientConnectOptions::default()
    };
    let mut listening = Listening { connections, acks };
    let connecting = ExecServerClient::connect_by(ToTest(sender), options);
    let (client, peer) = tokio::join!(connecting, listening.accept());
    (client.unwrap(), listening, peer)
}

impl Listening {
    pub(crate) async fn accept(&mut self) -> Peer {
        let connection = self.connections.recv().await.expect("the client connects");
        let mut peer = Peer { connection };
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

impl Peer {
    pub(crate) async fn receive(&mut self) -> Value {
        match self.connection.incoming.recv().await {
            Some(Received::Message(message)) => serde_json::from_slice(&message).unwrap(),
            other => panic!("{other:?} instead of a message"),
        }
    }

    /// The next message is a request of this method: its id and params.
    pub(crate) async fn expect(&mut self, method: &str) -> (Value, Value) {
        let mut request = self.receive().await;
        assert_eq!(request["method"], method, "{request}");
        (request["id"].take(), request["params"].take())
    }

    pub(crate) async fn answer(&mut self, id: &Value, result: &Value) {
        self.send(&json!({"id": id, "result": result})).await;
    }

    pub(crate) async fn refuse(&mut self, id: &Value, message: &str) {
        self.send(&json!({"id": id, "error": {"code": -32602, "message": message}})).await;
    }

    pub(crate) async fn notify(&mut self, method: &str, params: &Value) {
        self.send(&json!({"method": method, "params": params})).await;
    }

    async fn send(&mut self, message: &Value) {
        self.connection.outgoing.push(message.to_string().as_bytes());
        self.connection.outgoing.flush().await.unwrap();
    }

    /// Answers one call, by which the test knows that everything before it was dealt with.
    pub(crate) async fn round_trip(&mut self, client: &ExecServerClient) {
        let asking = client.environment_status(exec_server_protocol::Empty {});
        let answering = async {
            let (id, _) = self.expect("environment/status").await;
            self.answer(&id, &json!({"status": "ready"})).await;
        };
        tokio::join!(asking, answering).0.unwrap();
    }
}
