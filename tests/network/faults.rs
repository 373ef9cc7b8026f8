//! The client, the session or the server disappears while a question is open, or there are too many
//! questions: no access is granted without an answer, and other processes are not affected.

use exec_server_test_support::skipped;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::bypass::PRELUDE;
use super::world::{World, finish, python};
use crate::support::machine::{Watched, marked};
use crate::support::{AckingInbox, Client, Inbox as _, Start, Transcript, eventually, shell};

fn world() -> Option<World> {
    match World::new() {
        Ok(world) => Some(world),
        Err(why) => {
            skipped(format_args!("network questions: {why}"));
            None
        }
    }
}

/// Returns a start of a process whose client is asked about all hosts but `allowed.test`.
fn asking(world: &mut World, code: &str, timeout_ms: u64) -> Start {
    let program = format!("{PRELUDE}\n{code}");
    let fields =
        json!({"network": {"allow": ["allowed.test"], "ask": true, "askTimeoutMs": timeout_ms}});
    let marker = format!("{}-network", std::process::id());
    world.start(&[python(), "-c", &program], &fields).variable("EXEC_SERVER_TEST", &marker)
}

/// The events of one process, as a client receives them.
struct Listener {
    inbox: AckingInbox,
    questions: Vec<Value>,
    decisions: Vec<Value>,
}

impl Listener {
    fn new(process: &str) -> Self {
        let (questions, decisions) = (Vec::new(), Vec::new());
        Self { inbox: AckingInbox::new(process), questions, decisions }
    }

    fn hear(&mut self, client: &mut Client) {
        let message = client.event_of(self.inbox.process());
        match message["method"].as_str() {
            Some("network/policyRequest") => self.questions.push(message),
            Some("network/policyDecision") => self.decisions.push(message["params"].clone()),
            _ => _ = self.inbox.take(&message),
        }
    }

    fn next_question(&mut self, client: &mut Client) -> Value {
        let known = self.questions.len();
        while self.questions.len() == known {
            self.hear(client);
        }
        self.questions[known].clone()
    }

    fn end(mut self, client: &mut Client) -> (Transcript, Vec<Value>) {
        while !self.inbox.transcript().closed {
            self.hear(client);
        }
        (self.inbox.into_transcript(), self.decisions)
    }
}

fn answer(client: &mut Client, question: &Value, decision: &Value) {
    client.send(&json!({"id": question["id"], "result": {"decision": decision}}));
}

#[test]
fn a_question_is_repeated_after_a_cut() {
    let Some(mut world) = world() else { return };
    let mut client = world.server().client_with(&json!({"acks": true}));
    let start = asking(&mut world, "judge(named('asked.test'))", 600_000);
    let mut listener = Listener::new(start.id());
    client.start(&start);
    let first = listener.next_question(&mut client);
    let wanted = json!({"protocol": "http", "host": "asked.test", "port": 80});
    assert_eq!(first["params"]["request"], wanted);
    let session = client.session();
    drop(client);
    let mut client = world.server().resume(&session, &json!({"acks": true}));
    let again = listener.next_question(&mut client);
    assert_eq!(again["params"], first["params"]);
    assert_eq!(world.leaks(), []);
    answer(&mut client, &again, &json!({"type": "allow"}));
    let (transcript, decisions) = listener.end(&mut client);
    assert_eq!(transcript.exit_code, Some(0), "{}", transcript.text());
    let decided = decisions.last().unwrap();
    assert_eq!(decided["source"], "decider");
    assert_eq!(decided["policyOverride"], true);
    assert!(!world.contacts().is_empty());
}

/// A client decides about names. It cannot know their addresses.
#[test]
fn an_allowed_name_with_a_private_address_is_refused() {
    let Some(mut world) = world() else { return };
    let mut client = world.client();
    let start = asking(&mut world, "judge(named('internal.test'))", 600_000);
    let mut listener = Listener::new(start.id());
    client.start(&start);
    let question = listener.next_question(&mut client);
    answer(&mut client, &question, &json!({"type": "allow"}));
    let (transcript, decisions) = listener.end(&mut client);
    assert_eq!(transcript.exit_code, Some(42), "{}", transcript.text());
    let verdicts: Vec<_> = decisions.iter().map(|decided| decided["decision"].clone()).collect();
    assert_eq!(verdicts, ["deny"], "{decisions:?}");
    assert_eq!(world.leaks(), []);
}

#[test]
fn closing_a_session_ends_its_questions() {
    let Some(mut world) = world() else { return };
    let mut client = world.client();
    let start = asking(&mut world, "judge(named('asked.test'))", 600_000);
    let mut listener = Listener::new(start.id());
    client.start(&start);
    listener.next_question(&mut client);
    let marker = format!("{}-network", std::process::id());
    let processes = Watched::new(&marked(&marker));
    client.call("session/close", json!({}));
    processes.wait_until_all_end();
    assert_eq!(world.leaks(), []);
    let mut other = world.client();
    assert_eq!(other.run(&shell("after", "echo fine")).text(), "fine\n");
}

/// Only the process that asks is affected.
#[test]
fn an_unanswered_question_is_a_refusal() {
    let Some(mut world) = world() else { return };
    let mut client = world.client();
    let code = "
try:
    named('asked.test')
except OSError:
    pass
judge(named('asked.test'))";
    let start = asking(&mut world, code, 1);
    let mut listener = Listener::new(start.id());
    client.start(&start);
    let question = listener.next_question(&mut client);
    let other = world.start(&["/bin/echo", "meanwhile"], &json!({}));
    assert_eq!(finish(&mut client, &other).output, "meanwhile");
    let allowed = world.run(
        &mut client,
        &[python(), "-c", &format!("{PRELUDE}\njudge(named('allowed.test'))")],
        &json!({"network": {"allow": ["allowed.test"]}}),
    );
    assert_eq!(allowed.code, Some(0), "{allowed:?}");
    world.contacts();
    let (transcript, decisions) = listener.end(&mut client);
    assert_eq!(transcript.exit_code, Some(42), "{}", transcript.text());
    assert!(decisions.iter().all(|decided| decided["decision"] == "deny"), "{decisions:?}");
    assert_eq!(decisions[0]["source"], "decider");
    // A late answer does no harm.
    answer(&mut client, &question, &json!({"type": "allow"}));
    assert_eq!(client.call("environment/status", json!({}))["status"], "ready");
    assert_eq!(world.leaks(), []);
}

#[test]
fn a_server_that_is_killed_leaves_no_managed_process() {
    let Some(mut world) = world() else { return };
    let mut client = world.client();
    let start = asking(&mut world, "judge(named('asked.test'))", 600_000);
    let mut listener = Listener::new(start.id());
    client.start(&start);
    listener.next_question(&mut client);
    let marker = format!("{}-network", std::process::id());
    eventually("the process runs", || !marked(&marker).is_empty());
    world.server().signal(Signal::KILL);
    eventually("no process is left", || marked(&marker).is_empty());
    assert_eq!(world.leaks(), []);
}

/// More questions than the server asks at once: those beyond the limit are refused, the others wait
/// for their answers.
#[test]
fn too_many_questions_are_refused_and_not_queued() {
    const ATTEMPTS: usize = 257;
    let Some(mut world) = world() else { return };
    let mut client = world.client();
    let code = format!(
        "
import selectors
waiting = selectors.DefaultSelector()
for number in range({ATTEMPTS}):
    connection = socket.create_connection(PROXY, 30)
    connection.sendall(b'CONNECT h%d.test:443 HTTP/1.1\\r\\nHost: h%d.test:443\\r\\n\\r\\n' % (number, number))
    waiting.register(connection, selectors.EVENT_READ)
refused = 0
while refused < {ATTEMPTS}:
    for key, _ in waiting.select():
        assert b'x-proxy-error: blocked-by-policy' in key.fileobj.recv(4096)
        waiting.unregister(key.fileobj)
        refused += 1
print(refused)"
    );
    let start = asking(&mut world, &code, 600_000);
    let mut listener = Listener::new(start.id());
    client.start(&start);
    while listener.questions.len() + listener.decisions.len() < ATTEMPTS {
        listener.hear(&mut client);
    }
    let beyond = listener.decisions.len();
    assert!(beyond > 0 && !listener.questions.is_empty(), "{beyond}");
    for decided in &listener.decisions {
        let facts = json!([decided["decision"], decided["source"], decided["scope"]]);
        assert_eq!(facts, json!(["deny", "proxy_state", "non_domain"]));
    }
    // Neither other processes nor the client wait for the open questions.
    assert_eq!(client.run(&shell("other", "echo fine")).text(), "fine\n");
    for question in std::mem::take(&mut listener.questions) {
        answer(&mut client, &question, &json!({"type": "deny", "reason": "no"}));
    }
    let (transcript, _) = listener.end(&mut client);
    assert_eq!(transcript.text(), format!("{ATTEMPTS}\n"));
    assert_eq!(world.leaks(), []);
}

/// Each process may have 32 open questions, and all processes of a client 256 in total.
#[test]
fn processes_share_the_limit_of_questions() {
    const EACH: usize = 32;
    const PROCESSES: usize = 9;
    const IN_FLIGHT: usize = 256;
    let Some(mut world) = world() else { return };
    let mut client = world.client();
    let code = format!(
        "
connections = [socket.create_connection(PROXY, 30) for _ in range({EACH})]
for number, connection in enumerate(connections):
    connection.sendall(b'CONNECT h%d.test:443 HTTP/1.1\\r\\nHost: h%d.test:443\\r\\n\\r\\n' % (number, number))
for connection in connections:
    assert b'x-proxy-error: blocked-by-policy' in connection.recv(4096)"
    );
    let mut listeners: Vec<Listener> = (0..PROCESSES)
        .map(|_| {
            let start = asking(&mut world, &code, 600_000);
            client.start(&start);
            Listener::new(start.id())
        })
        .collect();
    for listener in &mut listeners {
        while listener.questions.len() + listener.decisions.len() < EACH {
            listener.hear(&mut client);
        }
    }
    let asked: usize = listeners.iter().map(|listener| listener.questions.len()).sum();
    assert_eq!(asked, IN_FLIGHT);
    for listener in &mut listeners {
        for question in std::mem::take(&mut listener.questions) {
            answer(&mut client, &question, &json!({"type": "deny", "reason": "no"}));
        }
    }
    for listener in listeners {
        let (transcript, _) = listener.end(&mut client);
        assert_eq!(transcript.exit_code, Some(0), "{}", transcript.text());
    }
    assert_eq!(world.leaks(), []);
}
