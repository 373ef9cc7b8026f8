//! A client that loses its connection resumes its session without loss.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    AckingInbox, Choices, Client, Cut, Gate, Inbox, OldStyleInbox, Server, machine, random_file,
    shell,
};

#[test]
fn a_client_that_confirms_survives_cuts_without_loss() {
    cuts(&mut AckingInbox::new("cat"), 100);
}

#[test]
fn an_old_style_client_survives_cuts_without_loss() {
    cuts(&mut OldStyleInbox::new("cat"), 100);
}

#[test]
#[ignore = "soak: 10,000 cuts"]
fn soak_a_client_that_confirms_survives_cuts_without_loss() {
    cuts(&mut AckingInbox::new("cat"), 10_000);
}

#[test]
#[ignore = "soak: 10,000 cuts"]
fn soak_an_old_style_client_survives_cuts_without_loss() {
    cuts(&mut OldStyleInbox::new("cat"), 10_000);
}

/// Repeatedly reads some events, loses the connection in one of several ways, and resumes. Each cut
/// also drops the contents of the kernel's buffers.
fn cuts(inbox: &mut impl Inbox, count: usize) {
    let directory = tempfile::tempdir().unwrap();
    let file = random_file(directory.path(), count * (96 << 10));
    let server = Server::start();
    let mut client = server.client_with(&inbox.handshake());
    let session = client.session();
    client.start(&start_cat(&file));
    let mut choices = Choices::new(count as u64);
    for round in 0..count {
        for _ in 0..choices.below(3) {
            take_news(&mut client, inbox);
        }
        if choices.below(3) == 0 {
            inbox.confirm(&mut client);
        }
        client.cut(Cut::ALL[round % Cut::ALL.len()]);
        client = server.resume_with(&session, inbox);
    }
    while !inbox.transcript().closed {
        take_news(&mut client, inbox);
        inbox.confirm(&mut client);
    }
    assert!(inbox.transcript().stdout == std::fs::read(&file).unwrap(), "the bytes differ");
}

fn start_cat(file: &Path) -> crate::support::Start {
    crate::support::program("cat", &["cat", file.to_str().unwrap()])
}

/// Takes events until one is new or the process is closed.
fn take_news(client: &mut Client, inbox: &mut impl Inbox) {
    while !inbox.transcript().closed {
        let event = client.event_of(inbox.process());
        if inbox.take(&event) {
            return;
        }
    }
}

#[test]
fn several_processes_catch_up_together() {
    let server = Server::start();
    let mut client = server.client();
    let session = client.session();
    let mut inboxes: Vec<_> = (0..10).map(|n| OldStyleInbox::new(&format!("p{n}"))).collect();
    for inbox in &mut inboxes {
        let script = "echo ready; read x; seq 1 20000; echo done >&2; exit 8";
        client.start(&shell(inbox.process(), script).with_stdin());
        client.wait_for_output(inbox, "ready");
    }
    for inbox in &inboxes {
        client.write(inbox.process(), "\n");
    }
    client.cut(Cut::Rst);
    let mut client = server.resume(&session, &json!({}));
    for inbox in &mut inboxes {
        inbox.catch_up(&mut client);
    }
    let numbers: String = (1..=20_000).map(|n| format!("{n}\n")).collect();
    for inbox in &mut inboxes {
        while !inbox.transcript().closed {
            inbox.take(&client.event_of(inbox.process()));
        }
        assert_eq!(inbox.transcript().exit_code, Some(8));
        assert!(inbox.transcript().stdout == format!("ready\n{numbers}").as_bytes());
    }
}

#[test]
fn an_exit_while_disconnected_is_reported_to_a_client_that_confirms() {
    exit_while_away(&mut AckingInbox::new("brief"));
}

#[test]
fn an_exit_while_disconnected_is_reported_to_an_old_style_client() {
    exit_while_away(&mut OldStyleInbox::new("brief"));
}

fn exit_while_away(inbox: &mut impl Inbox) {
    let gate = Gate::new();
    let server = Server::start();
    let mut client = server.client_with(&inbox.handshake());
    let session = client.session();
    client
        .start(&shell("brief", &format!("echo $$; read x < {}; echo tail; exit 11", gate.path())));
    client.wait_for_output(inbox, "\n");
    let pid: u32 = inbox.transcript().text().trim().parse().unwrap();
    let watched = machine::Watched::new(&[pid]);
    client.cut(Cut::Fin);
    gate.open();
    watched.wait_until_all_end();
    let mut client = server.resume_with(&session, inbox);
    while !inbox.transcript().closed {
        inbox.take(&client.event_of("brief"));
    }
    assert_eq!(inbox.transcript().exit_code, Some(11));
    assert_eq!(inbox.transcript().text(), format!("{pid}\ntail\n"));
}

#[test]
fn one_of_two_clients_that_resume_at_once_gets_the_session() {
    let server = Server::start();
    for _ in 0..20 {
        let mut first = server.client();
        let session = first.session();
        first.start(&shell("cat", "cat").with_stdin());
        first.cut(Cut::Rst);
        let losers = AtomicUsize::new(0);
        let outcomes = std::thread::scope(|scope| {
            let rivals = [(); 2].map(|()| scope.spawn(|| compete(&server, &session, &losers)));
            rivals.map(|rival| rival.join().unwrap())
        });
        let mut winners = outcomes.into_iter().flatten();
        let mut winner = winners.next().expect("one wins");
        assert!(winners.next().is_none(), "a session has one owner");
        winner.write("cat", "mine");
        winner.wait_for_output(&mut AckingInbox::new("cat"), "mine");
        winner.call("session/close", json!({}));
    }
}

/// Retries until this client or its rival has the session. The winner keeps responding until the
/// other has lost, since the server probes whether it is alive.
fn compete(server: &Server, session: &str, losers: &AtomicUsize) -> Option<Client> {
    loop {
        let mut client = server.connect();
        match client.initialize(&json!({"resumeSessionId": session, "acks": true})) {
            Ok(_) => {
                while losers.load(Ordering::SeqCst) == 0 {
                    client.call("environment/status", json!({}));
                }
                return Some(client);
            }
            Err(failure) => assert_eq!(failure.code, -32010, "{failure:?}"),
        }
        let sessions = server
            .client_with(&json!({"detachedTtlMs": 0}))
            .call("session/list", json!({}))["sessions"]
            .clone();
        let is_taken = |info: &Value| info["sessionId"] == session && info["attached"] == true;
        if sessions.as_array().unwrap().iter().any(is_taken) {
            losers.fetch_add(1, Ordering::SeqCst);
            return None;
        }
    }
}

#[test]
fn a_living_connection_keeps_its_session() {
    let server = Server::start();
    let mut owner = server.client();
    // The owner responds to pings only while it reads.
    let session = owner.session();
    let poll = owner.request("environment/status", json!({}));
    let thief = std::thread::scope(|scope| {
        let thief = scope.spawn(|| {
            let params = json!({"clientName": "thief", "resumeSessionId": session});
            server.connect().refused("initialize", params)
        });
        owner.answer(poll).unwrap();
        while !thief.is_finished() {
            owner.call("environment/status", json!({}));
        }
        thief.join().unwrap()
    });
    assert_eq!(thief.code, -32010);
}

#[test]
fn a_silent_connection_does_not_block_the_resume() {
    let server = Server::start();
    let mut vanished = server.client();
    let session = vanished.session();
    vanished.start(&shell("cat", "cat").with_stdin());
    // The first connection is still open, but its client no longer reads or responds.
    let mut client = server.resume(&session, &json!({"acks": true}));
    client.write("cat", "back");
    client.wait_for_output(&mut AckingInbox::new("cat"), "back");
    assert_eq!(vanished.try_call_or_end("process/list", json!({})), None);
}

#[test]
fn a_server_that_was_stopped_continues_without_loss() {
    let directory = tempfile::tempdir().unwrap();
    let file = random_file(directory.path(), 8 << 20);
    let server = Server::start();
    let mut inbox = AckingInbox::new("cat");
    let mut client = server.client_with(&inbox.handshake());
    let session = client.session();
    client.start(&start_cat(&file));
    take_news(&mut client, &mut inbox);
    server.signal(Signal::STOP);
    crate::support::eventually("the server stops", || machine::state(server.pid()) == Some('T'));
    // Drops the old connection and dials while the server cannot respond.
    client.cut(Cut::Rst);
    let dialled = wire_while_stopped(&server);
    server.signal(Signal::CONT);
    drop(dialled);
    let mut client = server.resume_with(&session, &mut inbox);
    while !inbox.transcript().closed {
        take_news(&mut client, &mut inbox);
        inbox.confirm(&mut client);
    }
    assert!(inbox.transcript().stdout == std::fs::read(&file).unwrap(), "the bytes differ");
}

fn wire_while_stopped(server: &Server) -> std::net::TcpStream {
    crate::support::wire::tcp(server.url()).unwrap()
}
