//! A client of the real binary: JSON-RPC, and helpers for processes.

use std::process::ChildStdin;

use exec_server_test_support::{RpcClient, encoded};
use serde_json::{Value, json};

use super::wire::{Arrival, Cut, Wire};
use super::{AckingInbox, Inbox, Start, Transcript};

pub(crate) struct Client {
    rpc: RpcClient<Wire>,
    session: Option<String>,
}

/// The `error` member of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: i64,
    pub(crate) message: String,
    pub(crate) kind: Option<String>,
}

impl Client {
    pub(crate) fn over(wire: Wire) -> Self {
        Self { rpc: RpcClient::over(wire), session: None }
    }

    /// Performs both steps of the handshake, with the client's name and these params.
    pub(crate) fn initialize(&mut self, extra: &Value) -> Result<Value, Failure> {
        let mut params = json!({"clientName": "end-to-end"});
        merge(&mut params, extra);
        let result = self.try_call("initialize", params)?;
        self.session = Some(result["sessionId"].as_str().unwrap().to_owned());
        self.notify("initialized", json!({}));
        Ok(result)
    }

    pub(crate) fn session(&self) -> String {
        self.session.clone().expect("the client is initialized")
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.rpc.send(message);
    }

    pub(crate) fn send_text(&mut self, text: &str) {
        self.rpc.send_text(text);
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) {
        self.rpc.wire().send_raw(bytes);
    }

    pub(crate) fn notify(&mut self, method: &str, params: Value) {
        self.rpc.notify(method, params);
    }

    /// Sends a request. Returns its id, with which `answer` awaits the response.
    pub(crate) fn request(&mut self, method: &str, params: Value) -> u64 {
        self.rpc.request(method, params)
    }

    pub(crate) fn answer(&mut self, id: u64) -> Result<Value, Failure> {
        self.rpc.response(id).map_err(|error| Failure {
            code: error["code"].as_i64().unwrap(),
            message: error["message"].as_str().unwrap().to_owned(),
            kind: error["data"]["kind"].as_str().map(str::to_owned),
        })
    }

    /// Returns the whole response with this id.
    pub(crate) fn answer_with(&mut self, id: &Value) -> Value {
        self.rpc.response_with(id)
    }

    /// Whether the messages received so far contain the response to a request.
    pub(crate) fn has_answer(&self, id: u64) -> bool {
        self.rpc.has_response(id)
    }

    pub(crate) fn try_call(&mut self, method: &str, params: Value) -> Result<Value, Failure> {
        let id = self.request(method, params);
        self.answer(id)
    }

    /// Returns `None` after an error response or the end of the connection.
    pub(crate) fn try_call_or_end(&mut self, method: &str, params: Value) -> Option<Value> {
        let id = self.request(method, params);
        loop {
            let message = self.receive()?;
            if message["id"] == json!(id) {
                return message.get("result").cloned();
            }
        }
    }

    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        self.try_call(method, params)
            .unwrap_or_else(|failure| panic!("{method} failed: {failure:?}"))
    }

    pub(crate) fn refused(&mut self, method: &str, params: Value) -> Failure {
        match self.try_call(method, params) {
            Ok(result) => panic!("{method} was not refused: {result}"),
            Err(failure) => failure,
        }
    }

    pub(crate) fn start(&mut self, start: &Start) -> Value {
        self.call("process/start", start.params())
    }

    pub(crate) fn write(&mut self, process: &str, bytes: impl AsRef<[u8]>) -> Value {
        let params = json!({"processId": process, "chunk": encoded(bytes)});
        self.call("process/write", params)["status"].clone()
    }

    pub(crate) fn terminate(&mut self, process: &str) -> bool {
        let result = self.call("process/terminate", json!({"processId": process}));
        result["running"].as_bool().unwrap()
    }

    pub(crate) fn run(&mut self, start: &Start) -> Transcript {
        self.start(start);
        self.finish_process(start.id())
    }

    /// Waits for the close of a process. Returns the transcript of all its events, of which the
    /// test must not have taken any.
    pub(crate) fn finish_process(&mut self, process: &str) -> Transcript {
        let mut inbox = AckingInbox::new(process);
        while !inbox.transcript().closed {
            inbox.take(&self.event_of(process));
        }
        inbox.into_transcript()
    }

    /// Takes events of a process until its output contains this text.
    pub(crate) fn wait_for_output(&mut self, inbox: &mut impl Inbox, expected: &str) {
        let process = inbox.process().to_owned();
        while !String::from_utf8_lossy(&inbox.transcript().output()).contains(expected) {
            assert!(!inbox.transcript().closed, "ended before {expected:?}");
            let event = self.event_of(&process);
            inbox.take(&event);
        }
    }

    pub(crate) fn event_of(&mut self, process: &str) -> Value {
        let is_about = |message: &Value| message["params"]["processId"] == process;
        self.rpc.next(&format!("an event of {process}"), is_about)
    }

    pub(crate) fn notification(&mut self) -> Value {
        self.rpc.notification()
    }

    /// Receives one more message, of any kind. Returns `None` at the end of the connection.
    pub(crate) fn receive(&mut self) -> Option<Value> {
        self.rpc.receive()
    }

    /// Reads to the end of the connection and returns the close code.
    pub(crate) fn close_code(&mut self) -> Option<u16> {
        loop {
            if let Arrival::End(code) = self.rpc.wire().arrival() {
                return code;
            }
        }
    }

    /// Closes the sending direction. Responses can still be received.
    pub(crate) fn finish(&mut self) {
        self.rpc.wire().finish();
    }

    pub(crate) fn wait_until_read(&mut self) {
        self.rpc.wire().wait_until_read();
    }

    pub(crate) fn stop_reading(self) -> Option<ChildStdin> {
        self.rpc.into_wire().stop_reading()
    }

    pub(crate) fn cut(self, how: Cut) {
        self.rpc.into_wire().cut(how);
    }
}

fn merge(into: &mut Value, from: &Value) {
    if let (Some(into), Some(from)) = (into.as_object_mut(), from.as_object()) {
        into.extend(from.clone());
    }
}
