//! A rendezvous on loopback, and its credentials.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use super::machine::eventually;
use super::program::{Outcome, PROGRAM, command, run_program};
use super::relay::ENVIRONMENT_ID;
use super::running::Running;

/// A running rendezvous. Dropping this value kills it.
pub(crate) struct Rendezvous {
    running: Running,
    pub(crate) url: String,
}

impl Rendezvous {
    /// Starts at an address that no other test uses. On 127.0.0.1, a connection of another test
    /// could get the port during a restart.
    pub(crate) fn start(data: &Path) -> Self {
        let [.., high, middle, low] = std::process::id().to_be_bytes();
        Self::start_at(data, &format!("http://127.{}.{middle}.{low}:0", 64 | high))
    }

    pub(crate) fn start_at(data: &Path, listen: &str) -> Self {
        Self::start_with(data, listen, |_| {})
    }

    pub(crate) fn start_with(
        data: &Path,
        listen: &str,
        options: impl FnOnce(&mut Command),
    ) -> Self {
        let mut program = command(PROGRAM);
        program.args(["rendezvous", "--listen", listen, "--data"]).arg(data);
        options(&mut program);
        let mut running = Running::start(program);
        let url = running.line().trim_end().to_owned();
        assert!(url.starts_with("http://127."), "{url}");
        Self { running, url }
    }

    /// Makes a call and returns the status and the body of the response.
    pub(crate) fn post(&self, path: &str, token: &str, body: &Value) -> (u16, Value) {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        let (status, text) = self.exchange(&(head + &body));
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.exchange(&format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"))
    }

    fn exchange(&self, request: &str) -> (u16, String) {
        let mut socket = self.socket();
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    pub(crate) fn socket(&self) -> TcpStream {
        TcpStream::connect(self.url.strip_prefix("http://").unwrap()).unwrap()
    }

    /// Stops the rendezvous with SIGTERM. Returns its log.
    pub(crate) fn stop(self) -> String {
        self.running.signal(Signal::TERM);
        let (status, out, log) = self.running.finish();
        assert_eq!((status.code(), &*out), (Some(0), ""), "{log}");
        log
    }

    /// Ends the rendezvous by a signal and waits until its port and its store are free.
    pub(crate) fn end_by(&self, signal: Signal) {
        self.running.signal(signal);
        eventually("the rendezvous has ended", || self.running.has_ended());
    }
}

/// Creates a bearer token for the environment `box`.
pub(crate) fn create_token(data: &Path, role: &str) -> String {
    create(data, "create", role)
}

/// Creates an agent identity for the environment `box`.
pub(crate) fn create_identity(data: &Path, role: &str) -> String {
    create(data, "create-agent", role)
}

fn create(data: &Path, command: &str, role: &str) -> String {
    let is_new = std::fs::read_dir(data).map_or(true, |mut files| files.next().is_none());
    let data = data.to_str().unwrap();
    let id = ENVIRONMENT_ID;
    let arguments =
        ["token", command, "--data", data, "--role", role, "--environment", id, "--ttl", "30d"];
    let Outcome { code, stdout, stderr } = run_program(&arguments);
    assert_eq!(code, Some(0), "{stderr}");
    let notice = if is_new {
        format!("exec-server: created a new store in {data}\n")
    } else {
        String::new()
    };
    assert_eq!(stderr, notice);
    stdout.strip_suffix('\n').unwrap().to_owned()
}
