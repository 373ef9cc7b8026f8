//! A JSON-RPC client that uses the text of the protocol and none of its types.
//!
//! It is asynchronous over a connection in the same program, and blocks over a [`BlockingWire`].

mod asynchronous;
mod blocking;

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};

use crate::wire_schema::WireSchema;

pub use asynchronous::Served;
pub use blocking::BlockingWire;

/// A wait fails if no message arrives for this long.
pub(crate) const HANG: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct RpcClient<W = Served> {
    wire: W,
    last_id: u64,
    schema: WireSchema,
    /// Messages that arrived while another message was awaited.
    unread: VecDeque<Value>,
}

impl<W> RpcClient<W> {
    pub fn over(wire: W) -> Self {
        Self { wire, last_id: 0, schema: WireSchema::default(), unread: VecDeque::new() }
    }

    pub fn wire(&mut self) -> &mut W {
        &mut self.wire
    }

    pub fn into_wire(self) -> W {
        self.wire
    }

    /// Returns the received messages that the test has not taken yet, in order of arrival.
    pub fn unread(&self) -> impl Iterator<Item = &Value> {
        self.unread.iter()
    }

    pub fn has_response(&self, id: u64) -> bool {
        self.unread.iter().any(|message| answers(message, &json!(id)))
    }

    pub fn has_no_response(&self) -> bool {
        self.unread.iter().all(is_notification)
    }

    pub fn has_no_notification(&self) -> bool {
        !self.unread.iter().any(is_notification)
    }

    pub fn forget_notifications(&mut self) {
        self.unread.retain(|message| !is_notification(message));
    }

    fn next_request(&mut self, method: &str, params: Value) -> (u64, Value) {
        self.last_id += 1;
        let mut request = notification(method, params);
        request["id"] = self.last_id.into();
        (self.last_id, request)
    }

    /// Parses a message, and checks it against the schema of the protocol.
    fn read(&mut self, text: &[u8]) -> Value {
        let message = read(text);
        self.schema.received(&message, text.len());
        message
    }

    fn take_unread(&mut self, wanted: impl Fn(&Value) -> bool) -> Option<Value> {
        let index = self.unread.iter().position(wanted)?;
        self.unread.remove(index)
    }

    fn fail(&self, awaited: &str, instead: &str) -> ! {
        const SHOWN: usize = 20;
        let unread = self.unread.iter().rev().take(SHOWN);
        let unread: Vec<_> = unread.map(|message| shortened(message.to_string())).collect();
        panic!(
            "{instead} while {awaited} was awaited; of {} unread messages the last are {unread:#?}",
            self.unread.len()
        );
    }
}

fn notification(method: &str, params: Value) -> Value {
    let mut message = json!({"method": method});
    message["params"] = params;
    message
}

fn is_notification(message: &Value) -> bool {
    message.get("method").is_some()
}

fn answers(message: &Value, id: &Value) -> bool {
    !is_notification(message) && message["id"] == *id
}

fn read(text: &[u8]) -> Value {
    serde_json::from_slice(text).unwrap_or_else(|error| {
        panic!(
            "the server sent invalid JSON: {error} in {}",
            shortened(String::from_utf8_lossy(text).into_owned())
        )
    })
}

fn outcome(mut response: Value) -> Result<Value, Value> {
    match response.get_mut("error") {
        Some(error) => Err(error.take()),
        None => Ok(response["result"].take()),
    }
}

fn shortened(mut text: String) -> String {
    const SHOWN: usize = 200;
    if text.len() > SHOWN {
        text.truncate(text.floor_char_boundary(SHOWN));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The scripted messages of the server, independent of the client's messages.
    struct Script(VecDeque<&'static str>);

    impl BlockingWire for Script {
        fn send(&mut self, _text: &str) {}

        fn receive(&mut self) -> Option<String> {
            self.0.pop_front().map(str::to_owned)
        }
    }

    fn client(script: &[&'static str]) -> RpcClient<Script> {
        RpcClient::over(Script(script.iter().copied().collect()))
    }

    const CLOSED_A: &str = r#"{"method":"process/closed","params":{"processId":"a","seq":1}}"#;
    const CLOSED_B: &str = r#"{"method":"process/closed","params":{"processId":"b","seq":1}}"#;

    #[test]
    fn unread_messages_are_kept_in_order() {
        let mut client = client(&[
            CLOSED_A,
            r#"{"id":2,"error":{"code":-1,"message":"no"}}"#,
            CLOSED_B,
            r#"{"id":1,"result":{"running":true}}"#,
        ]);
        let [first, second] = ["a", "b"]
            .map(|process| client.request("process/terminate", json!({"processId": process})));
        assert_eq!(client.response(first), Ok(json!({"running": true})));
        assert!(client.has_response(second) && !client.has_response(first));
        assert_eq!(client.response(second), Err(json!({"code": -1, "message": "no"})));
        let processes = [(); 2].map(|()| client.notification()["params"]["processId"].clone());
        assert_eq!(processes, ["a", "b"]);
    }

    #[test]
    #[should_panic = "the connection ended while the response to 1 was awaited; of 1 unread messages \
                      the last are [\n    \"{\\\"method\\\":\\\"process/closed\\\","]
    fn a_failed_wait_names_the_awaited_message() {
        let _ = client(&[CLOSED_A]).call("process/terminate", json!({"processId": "a"}));
    }
}
