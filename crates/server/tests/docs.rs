//! Replays the examples of `docs/protocol.md` in the order of the document against a real server,
//! and checks lists in the documents against the code.
//!
//! The document explains its notation under "How to read the examples". This file knows that
//! notation and not the meaning of any message.
#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;

use exec_server_host::http::PROTECTED_VARIABLES;
use exec_server_protocol::Method;
use exec_server_server::ServerConfig;
use exec_server_test_support::{RpcClient, Scratch, TestServer};
use exec_server_transport::CloseCode;
use serde_json::Value;

const DOCUMENT: &str = include_str!("../../../docs/protocol.md");
const OPERATING: &str = include_str!("../../../docs/operating.md");

/// The directory of the examples; the test replaces it with its own.
const EXAMPLE_DIRECTORY: &str = "/tmp/exec-server-example";
/// The HTTP server of the examples; the test replaces it with its own.
const EXAMPLE_HTTP: &str = "127.0.0.1:8080";

#[tokio::test]
async fn the_examples_run_as_written() {
    let mut stage = Stage::new();
    let directory = Scratch::new();
    let document = DOCUMENT
        .replace(EXAMPLE_DIRECTORY, directory.root().to_str().unwrap())
        .replace(EXAMPLE_HTTP, &serve_hello());
    for Line { number, action } in script(&document) {
        if let Err(problem) = stage.play(action).await {
            panic!("docs/protocol.md, line {number}: {problem}");
        }
    }
    stage.leave().await;
}

#[test]
fn every_method_has_an_example() {
    let said: Vec<String> = script(DOCUMENT)
        .filter_map(|line| match line.action {
            Action::Say(_, text) => Some(text),
            Action::Hear(..) | Action::Cut => None,
        })
        .collect();
    for method in Method::ALL {
        let call = format!(r#""method":"{}""#, method.name());
        assert!(said.iter().any(|text| text.contains(&call)), "no example calls {}", method.name());
    }
}

#[test]
fn the_list_of_protected_variables_matches_the_code() {
    let start = OPERATING.find("<!-- protected variables -->").unwrap();
    let end = OPERATING.find("<!-- end of protected variables -->").unwrap();
    let mut said: Vec<&str> = OPERATING[start..end].split('`').skip(1).step_by(2).collect();
    let mut protected = PROTECTED_VARIABLES.to_vec();
    said.sort_unstable();
    protected.sort_unstable();
    assert_eq!(said, protected);
}

/// Returns the address of an HTTP server that responds to every request as in the examples.
fn serve_hello() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            std::thread::spawn(move || {
                let lines = BufReader::new(socket.try_clone().unwrap()).lines();
                for _ in lines.map_while(Result::ok).filter(String::is_empty) {
                    socket
                        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n")
                        .unwrap();
                }
            });
        }
    });
    address
}

#[derive(Debug)]
struct Line {
    number: usize,
    action: Action,
}

#[derive(Debug)]
enum Action {
    /// The client sends this text, with its placeholders filled in.
    Say(Who, String),
    /// The server sends a message like this.
    Hear(Who, String),
    /// The first client loses its connection and opens another.
    Cut,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    First,
    Second,
}

/// Returns all examples of a document, one after another.
fn script(document: &str) -> impl Iterator<Item = Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut inside = false;
    for (number, text) in (1..).zip(document.lines()) {
        match text {
            "```jsonrpc" => inside = true,
            "```" => inside = false,
            _ if !inside => {}
            _ if text.starts_with(' ') => match lines.last_mut().map(|line| &mut line.action) {
                Some(Action::Say(_, whole) | Action::Hear(_, whole)) => whole.push_str(text.trim()),
                _ => panic!("docs/protocol.md, line {number} continues nothing"),
            },
            _ => lines.push(Line { number, action: action(number, text) }),
        }
    }
    lines.into_iter()
}

fn action(number: usize, text: &str) -> Action {
    if text.starts_with("--") {
        return Action::Cut;
    }
    match text.split_once(' ') {
        Some(("->", said)) => Action::Say(Who::First, said.to_owned()),
        Some(("<-", heard)) => Action::Hear(Who::First, heard.to_owned()),
        Some(("=>", said)) => Action::Say(Who::Second, said.to_owned()),
        Some(("<=", heard)) => Action::Hear(Who::Second, heard.to_owned()),
        _ => panic!("docs/protocol.md, line {number} has an unknown notation: {text}"),
    }
}

struct Stage {
    server: TestServer,
    clients: BTreeMap<Who, RpcClient>,
    bindings: Bindings,
}

/// The values of the named placeholders.
#[derive(Debug, Default)]
struct Bindings(BTreeMap<String, Value>);

impl Stage {
    fn new() -> Self {
        Self {
            server: TestServer::new(ServerConfig::default()),
            clients: BTreeMap::new(),
            bindings: Bindings::default(),
        }
    }

    async fn play(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Say(who, text) => {
                let text = self.bindings.fill_in(&text);
                let client = self.client(who);
                expect_nothing_early(client)?;
                client.send_text(&text).await;
                Ok(())
            }
            Action::Hear(who, text) => {
                let expected: Value =
                    serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
                let is_like = |message: &Value| subject(message) == subject(&expected);
                let heard = self.client(who).next(&text, is_like).await;
                self.bindings.compare(&expected, &heard, "")
            }
            Action::Cut => {
                if let Some(client) = self.clients.remove(&Who::First) {
                    expect_nothing_early(&client)?;
                    client.cut().await;
                }
                Ok(())
            }
        }
    }

    /// Connects the client at its first use.
    fn client(&mut self, who: Who) -> &mut RpcClient {
        self.clients.entry(who).or_insert_with(|| RpcClient::connect(&self.server))
    }

    /// Closes all clients, and checks that the server had sent nothing more.
    async fn leave(self) {
        for mut client in self.clients.into_values() {
            let connection = &mut client.wire().connection;
            connection.outgoing.close(CloseCode::Normal, "").await;
            let more = connection.incoming.recv().await;
            assert_eq!(more, None, "the document does not mention this");
            client.cut().await;
        }
        self.server.shutdown().await;
    }
}

fn expect_nothing_early(client: &RpcClient) -> Result<(), String> {
    match client.unread().next() {
        Some(message) => Err(format!("before this, the server sent {message}")),
        None => Ok(()),
    }
}

/// Returns the key within which messages keep their order: responses stand alone, events of one
/// process follow each other, and notifications to an observer follow only each other.
fn subject(message: &Value) -> (&Value, &Value, bool) {
    let params = &message["params"];
    (&message["id"], &params["processId"], params["sessionId"].is_string())
}

impl Bindings {
    fn fill_in(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (name, value)| {
            text.replace(&format!("\"<{name}>\""), &value.to_string())
        })
    }

    fn compare(&mut self, expected: &Value, heard: &Value, place: &str) -> Result<(), String> {
        match (expected, heard) {
            (Value::String(text), _) if placeholder(text).is_some() => {
                self.compare_placeholder(placeholder(text).unwrap_or_default(), heard, place)
            }
            (Value::Object(expected), Value::Object(heard)) => {
                if let Some(name) = expected.keys().find(|name| !heard.contains_key(*name)) {
                    return Err(format!("{place}/{name} is missing in {heard:?}"));
                }
                for (name, value) in heard {
                    let place = format!("{place}/{name}");
                    match expected.get(name) {
                        Some(expected) => self.compare(expected, value, &place)?,
                        None => return Err(format!("{place} is not mentioned: {value}")),
                    }
                }
                Ok(())
            }
            (Value::Array(expected), Value::Array(heard)) if expected.len() == heard.len() => {
                let mut pairs = (0..).zip(expected.iter().zip(heard));
                pairs.try_for_each(|(index, (expected, heard))| {
                    self.compare(expected, heard, &format!("{place}/{index}"))
                })
            }
            _ if expected == heard => Ok(()),
            _ => Err(format!("{place}: expected {expected}, received {heard}")),
        }
    }

    fn compare_placeholder(
        &mut self,
        name: &str,
        heard: &Value,
        place: &str,
    ) -> Result<(), String> {
        let fits = match name {
            "string" => heard.is_string(),
            "number" => heard.is_u64(),
            "boolean" => heard.is_boolean(),
            "array" => heard.is_array(),
            _ => self.0.entry(name.to_owned()).or_insert_with(|| heard.clone()) == heard,
        };
        if fits { Ok(()) } else { Err(format!("{place}: {heard} is not <{name}>")) }
    }
}

fn placeholder(text: &str) -> Option<&str> {
    text.strip_prefix('<')?.strip_suffix('>')
}
