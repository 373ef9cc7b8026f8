//! A server without a socket, and a client that speaks to it over the memory transport.

use std::collections::VecDeque;
use std::time::Duration;

use exec_server_host::process::launch::Launcher;
use exec_server_server::{Server, ServerConfig};
use exec_server_transport::{Connection, Incoming, Outgoing, Received, memory};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

/// Only a hang ever lasts this long.
const HANG: Duration = Duration::from_secs(60);

pub(crate) fn server(config: ServerConfig) -> Server {
    Server::new(config, Launcher::plain())
}

pub(crate) struct Client {
    incoming: Incoming,
    outgoing: Outgoing,
    serving: JoinHandle<()>,
    next_id: i64,
    notifications: VecDeque<Value>,
    responses: Vec<Value>,
}

impl Client {
    /// A connection on which nothing has been said.
    pub(crate) fn connect(server: &Server) -> Self {
        let (ours, theirs) = memory();
        let server = server.clone();
        let serving = tokio::spawn(async move { server.serve(theirs).await });
        let Connection { incoming, outgoing, .. } = ours;
        let (notifications, responses) = (VecDeque::new(), Vec::new());
        Self { incoming, outgoing, serving, next_id: 1, notifications, responses }
    }

    /// A connection that has done the handshake; also returns the session's id.
    pub(crate) async fn open(server: &Server, params: Value) -> (Self, String) {
        let mut client = Self::connect(server);
        let greeting = client.call("initialize", params).await.expect("initialize");
        client.notify("initialized", json!({})).await;
        let session = greeting["sessionId"].as_str().expect("a session id").to_owned();
        (client, session)
    }

    pub(crate) async fn send(&mut self, message: Value) {
        self.outgoing.push(message.to_string().as_bytes());
        self.outgoing.flush().await.expect("the server reads");
    }

    pub(crate) async fn notify(&mut self, method: &str, params: Value) {
        self.send(json!({ "method": method, "params": params })).await;
    }

    /// Sends a request and returns its id.
    pub(crate) async fn request(&mut self, method: &str, params: Value) -> i64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(json!({ "id": id, "method": method, "params": params })).await;
        id
    }

    /// The whole answer to a request of any id.
    pub(crate) async fn response_with(&mut self, id: &Value) -> Value {
        loop {
            if let Some(at) = self.responses.iter().position(|response| response["id"] == *id) {
                return self.responses.swap_remove(at);
            }
            self.receive().await;
        }
    }

    pub(crate) async fn response(&mut self, id: i64) -> Result<Value, Value> {
        let mut answer = self.response_with(&json!(id)).await;
        match answer.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(answer["result"].take()),
        }
    }

    pub(crate) async fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.request(method, params).await;
        self.response(id).await
    }

    pub(crate) async fn start(&mut self, id: &str, script: &str, extra: Value) {
        let mut params = json!({
            "processId": id, "argv": ["/bin/sh", "-c", script], "cwd": "file:///",
            "env": { "PATH": "/usr/bin:/bin" },
        });
        params.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        self.call("process/start", params).await.expect("process/start");
    }

    pub(crate) async fn notification(&mut self) -> Value {
        loop {
            if let Some(notification) = self.notifications.pop_front() {
                return notification;
            }
            self.receive().await;
        }
    }

    pub(crate) fn forget_notifications(&mut self) {
        self.notifications.clear();
    }

    pub(crate) fn has_no_response(&self) -> bool {
        self.responses.is_empty()
    }

    pub(crate) fn has_no_notification(&self) -> bool {
        self.notifications.is_empty()
    }

    /// The next error that answers a message without a readable id.
    pub(crate) async fn nameless_error(&mut self) -> Value {
        self.response(-1).await.expect_err("an error")
    }

    /// Sends a request whose answer must be the first thing to come; returns the session in it.
    pub(crate) async fn first_message_answers(&mut self, method: &str, params: Value) -> String {
        let id = self.request(method, params).await;
        self.receive().await;
        assert!(self.notifications.is_empty(), "{:?} came first", self.notifications);
        self.response(id).await.expect(method)["sessionId"].as_str().expect("a session").to_owned()
    }

    async fn receive(&mut self) {
        let received = tokio::time::timeout(HANG, self.incoming.recv()).await.expect("no hang");
        let Some(Received::Message(text)) = received else { panic!("the connection ended") };
        let message: Value = serde_json::from_slice(&text).expect("JSON");
        if message.get("method").is_some() {
            self.notifications.push_back(message);
        } else {
            self.responses.push(message);
        }
    }

    /// Waits until the server has ended the connection.
    pub(crate) async fn ended(mut self) {
        while self.incoming.recv().await.is_some() {}
        self.cut().await;
    }

    /// Cuts the connection, and waits until the server has noticed.
    pub(crate) async fn cut(self) {
        drop((self.incoming, self.outgoing));
        self.serving.await.expect("the server does not panic");
    }
}

/// Bytes of a base64 chunk.
pub(crate) fn bytes(chunk: &Value) -> Vec<u8> {
    serde_json::from_value::<exec_server_protocol::Base64Bytes>(chunk.clone()).unwrap().to_vec()
}
