use exec_server_transport::{Connection, Received};
use serde_json::{Value, json};

/// The server's end of a connection. It does what the test says, one message at a time. Dropping it
/// cuts the connection.
#[derive(Debug)]
pub struct ScriptedServer {
    connection: Connection,
}

impl ScriptedServer {
    #[must_use]
    pub fn over(connection: Connection) -> Self {
        Self { connection }
    }

    pub async fn receive(&mut self) -> Value {
        match self.connection.incoming.recv().await {
            Some(Received::Message(message)) => serde_json::from_slice(&message).unwrap(),
            other => panic!("expected a message, received {other:?}"),
        }
    }

    /// Expects the next message to be a request of this method. Returns its id and params.
    pub async fn expect(&mut self, method: &str) -> (Value, Value) {
        let mut request = self.receive().await;
        assert_eq!(request["method"], method, "{request}");
        (request["id"].take(), request["params"].take())
    }

    pub async fn answer(&mut self, id: &Value, result: &Value) {
        self.send(&json!({"id": id, "result": result})).await;
    }

    pub async fn refuse(&mut self, id: &Value, message: &str) {
        self.send(&json!({"id": id, "error": {"code": -32602, "message": message}})).await;
    }

    pub async fn ask(&mut self, id: &Value, method: &str, params: &Value) {
        self.send(&json!({"id": id, "method": method, "params": params})).await;
    }

    pub async fn notify(&mut self, method: &str, params: &Value) {
        self.send(&json!({"method": method, "params": params})).await;
    }

    async fn send(&mut self, message: &Value) {
        self.connection.outgoing.push(message.to_string().as_bytes());
        self.connection.outgoing.flush().await.unwrap();
    }
}
