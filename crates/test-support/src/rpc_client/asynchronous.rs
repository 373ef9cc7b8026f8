use exec_server_transport::{Connection, Received};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{HANG, RpcClient, answers, is_notification, notification, outcome};

/// A connection whose other end is served by a task of the same program.
#[derive(Debug)]
pub struct Served {
    pub connection: Connection,
    pub serving: JoinHandle<()>,
}

impl RpcClient<Served> {
    /// Performs both steps of the handshake. Returns the session's id.
    pub async fn initialize(&mut self, params: Value) -> String {
        let greeting = self.call("initialize", params).await.expect("initialize");
        self.notify("initialized", json!({})).await;
        greeting["sessionId"].as_str().expect("a session id").to_owned()
    }

    pub async fn send(&mut self, message: Value) {
        self.send_text(&message.to_string()).await;
    }

    pub async fn send_text(&mut self, text: &str) {
        self.schema.sent(text);
        let outgoing = &mut self.wire.connection.outgoing;
        outgoing.push(text.as_bytes());
        outgoing.flush().await.expect("the server reads");
    }

    pub async fn notify(&mut self, method: &str, params: Value) {
        self.send(notification(method, params)).await;
    }

    /// Returns the id with which the response can be awaited later.
    pub async fn request(&mut self, method: &str, params: Value) -> u64 {
        let (id, message) = self.next_request(method, params);
        self.send(message).await;
        id
    }

    pub async fn response(&mut self, id: u64) -> Result<Value, Value> {
        outcome(self.response_with(&json!(id)).await)
    }

    /// Returns the whole response to the request with this id, which need not be a number.
    pub async fn response_with(&mut self, id: &Value) -> Value {
        self.next(&format!("the response to {id}"), |message| answers(message, id)).await
    }

    pub async fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.request(method, params).await;
        self.response(id).await
    }

    /// Returns the next error response to a message without a readable id.
    pub async fn nameless_error(&mut self) -> Value {
        outcome(self.response_with(&json!(-1)).await).expect_err("an error")
    }

    pub async fn notification(&mut self) -> Value {
        self.next("a notification", is_notification).await
    }

    /// Sends a request whose response must be the first message to arrive. Returns the session id
    /// in the response.
    pub async fn first_message_answers(&mut self, method: &str, params: Value) -> String {
        let id = self.request(method, params).await;
        let response = self.response(id).await.expect(method);
        assert!(self.unread.is_empty(), "{:?} came first", self.unread);
        response["sessionId"].as_str().expect("a session").to_owned()
    }

    /// Returns the next matching message. Others are kept for later.
    pub async fn next(&mut self, awaited: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(message) = self.take_unread(&wanted) {
            return message;
        }
        loop {
            let received = timeout(HANG, self.wire.connection.incoming.recv()).await;
            match received {
                Ok(Some(Received::Message(text))) => match self.read(&text) {
                    message if wanted(&message) => return message,
                    message => self.unread.push_back(message),
                },
                Ok(Some(other)) => self.fail(awaited, &format!("{other:?} arrived")),
                Ok(None) => self.fail(awaited, "the connection ended"),
                Err(_) => self.fail(awaited, "nothing arrived for a minute"),
            }
        }
    }

    pub async fn start(&mut self, id: &str, script: &str, extra: Value) {
        let mut params = json!({
            "processId": id, "argv": ["/bin/sh", "-c", script], "cwd": "file:///",
            "env": { "PATH": "/usr/bin:/bin" },
        });
        params.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        self.call("process/start", params).await.expect("process/start");
    }

    /// Waits until the server has closed the connection.
    pub async fn ended(mut self) {
        while self.wire.connection.incoming.recv().await.is_some() {}
        self.cut().await;
    }

    /// Cuts the connection and waits until the server no longer serves it.
    pub async fn cut(self) {
        drop(self.wire.connection);
        self.wire.serving.await.expect("the server does not panic");
    }
}
