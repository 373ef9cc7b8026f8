use serde_json::{Value, json};

use super::{RpcClient, answers, is_notification, notification, outcome};

/// A connection for a blocking client. It fails the test if nothing arrives for too long.
pub trait BlockingWire {
    fn send(&mut self, text: &str);

    /// Returns the next message, or `None` when the connection has ended.
    fn receive(&mut self) -> Option<String>;
}

impl<W: BlockingWire> RpcClient<W> {
    pub fn send(&mut self, message: &Value) {
        self.send_text(&message.to_string());
    }

    pub fn send_text(&mut self, text: &str) {
        self.schema.sent(text);
        self.wire.send(text);
    }

    pub fn notify(&mut self, method: &str, params: Value) {
        self.send(&notification(method, params));
    }

    /// Returns the id with which the response can be awaited later.
    pub fn request(&mut self, method: &str, params: Value) -> u64 {
        let (id, message) = self.next_request(method, params);
        self.send(&message);
        id
    }

    pub fn response(&mut self, id: u64) -> Result<Value, Value> {
        outcome(self.response_with(&json!(id)))
    }

    /// Returns the whole response to the request with this id, which need not be a number.
    pub fn response_with(&mut self, id: &Value) -> Value {
        self.next(&format!("the response to {id}"), |message| answers(message, id))
    }

    pub fn call(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        let id = self.request(method, params);
        self.response(id)
    }

    pub fn notification(&mut self) -> Value {
        self.next("a notification", is_notification)
    }

    /// Returns the next matching message. Others are kept for later.
    pub fn next(&mut self, awaited: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(message) = self.take_unread(&wanted) {
            return message;
        }
        loop {
            match self.receive() {
                Some(message) if wanted(&message) => return message,
                Some(message) => self.unread.push_back(message),
                None => self.fail(awaited, "the connection ended"),
            }
        }
    }

    /// Returns `None` when the connection has ended.
    pub fn receive(&mut self) -> Option<Value> {
        self.wire.receive().map(|text| self.read(text.as_bytes()))
    }
}
