//! Many clients that exhaust a limit: other clients are served, and the server recovers.

use std::io::Write as _;
use std::net::TcpStream;

use serde_json::json;
use tungstenite::{Message, WebSocket};

use crate::support::daemons::marker;
use crate::support::machine::{Watched, marked};
use crate::support::wire::{frame_header, tcp};
use crate::support::{
    AckingInbox, Client, Cut, Server, ServerBuilder, eventually, random_file, shell,
};

#[test]
fn fifty_clients_with_unfinished_messages_and_unread_responses_share_one_budget() {
    const CLIENTS_OF_EACH_KIND: usize = 25;
    const BUDGET: u64 = 64 << 20;
    /// The budget counts messages and responses. Other memory comes on top: 40 to 61 MiB were
    /// measured with budgets of 32, 64 and 128 MiB.
    const TOLERANCE: u64 = 80 << 20;
    const MESSAGE: usize = 8 << 20;
    const FILE: usize = 4 << 20;
    const READS: usize = 20;
    let directory = tempfile::tempdir().unwrap();
    let file = random_file(directory.path(), FILE);
    let budget = BUDGET.to_string();
    let mut server =
        ServerBuilder::new().arguments(&["--max-buffered-bytes", &budget]).capture_stderr().start();
    let mut other = server.client();
    assert_eq!(other.run(&shell("before", "echo fine")).text(), "fine\n");
    let before = memory(server.pid(), "VmRSS:");

    let read = json!({"id": 1, "method": "fs/readFile", "params": {"path": file}}).to_string();
    // These sockets stay open until the test ends.
    let mut deaf: Vec<_> = (0..CLIENTS_OF_EACH_KIND).map(|_| open_session(&server)).collect();
    for socket in &mut deaf {
        for _ in 0..READS {
            socket.send(Message::text(read.as_str())).unwrap();
        }
    }
    let mut half = frame_header(0x81, MESSAGE as u64);
    half.resize(MESSAGE / 2, b'x');
    for _ in 0..CLIENTS_OF_EACH_KIND {
        let (mut socket, half) = (open_session(&server), half.clone());
        std::thread::spawn(move || {
            // The server may close the connection first.
            let _ = socket.get_mut().write_all(&half);
            while socket.read().is_ok() {}
        });
    }
    // The budget is exceeded repeatedly.
    for closed in 0..3 {
        let warning = server.error_line();
        assert!(warning.contains("max_buffered_bytes"), "{warning}");
        let start = shell(&format!("meanwhile-{closed}"), "echo fine");
        assert_eq!(other.run(&start).text(), "fine\n");
        assert_eq!(server.get("/healthz"), 200);
    }
    let growth = memory(server.pid(), "VmHWM:").saturating_sub(before);
    assert!(growth > BUDGET / 4, "the budget was not used: {growth} bytes");
    assert!(growth <= BUDGET + TOLERANCE, "{growth} bytes for a budget of {BUDGET}");
}

#[test]
fn a_server_full_of_busy_sessions_refuses_the_next_and_recovers() {
    const SESSIONS: usize = 8;
    let server = Server::with(&["--max-sessions", &SESSIONS.to_string()]);
    let marker = marker("busy");
    let mut clients: Vec<Client> = (0..SESSIONS).map(|_| server.client()).collect();
    for client in &mut clients {
        let start = shell("busy", "echo up; exec sleep 1000");
        client.start(&start.variable("EXEC_SERVER_TEST", &marker));
        client.wait_for_output(&mut AckingInbox::new("busy"), "up\n");
    }
    let refuse_the_next = || {
        let params = json!({"clientName": "one too many"});
        let refused = server.connect().refused("initialize", params);
        assert_eq!(refused.kind.as_deref(), Some("tooManySessions"), "{refused:?}");
        assert_eq!(server.get("/healthz"), 200);
    };
    refuse_the_next();
    // A session without a client counts as long as its process runs.
    let lost = clients.pop().unwrap();
    let session = lost.session();
    lost.cut(Cut::Rst);
    refuse_the_next();
    for client in &mut clients {
        let alive = client.run(&shell("alive", "echo alive"));
        assert_eq!(alive.text(), "alive\n");
    }

    clients.push(server.resume(&session, &json!({})));
    let watched = Watched::new(&marked(&marker));
    for client in &mut clients {
        client.call("session/close", json!({}));
    }
    watched.wait_until_all_end();
    eventually("every process of the sessions has ended", || marked(&marker).is_empty());
    let mut fresh: Vec<Client> = (0..SESSIONS).map(|_| server.client()).collect();
    for client in &mut fresh {
        assert_eq!(client.run(&shell("after", "echo fine")).text(), "fine\n");
    }
    refuse_the_next();
}

/// Opens a session and returns its socket for direct use: the server may close it at any time.
fn open_session(server: &Server) -> WebSocket<TcpStream> {
    let stream = tcp(server.url()).unwrap();
    let (mut socket, _) = tungstenite::client(server.url(), stream).unwrap();
    let initialize =
        json!({"id": 0, "method": "initialize", "params": {"clientName": "end-to-end"}});
    socket.send(Message::text(initialize.to_string())).unwrap();
    let response = socket.read().unwrap();
    assert!(response.to_text().unwrap().contains("sessionId"), "{response:?}");
    let initialized = json!({"method": "initialized", "params": {}});
    socket.send(Message::text(initialized.to_string())).unwrap();
    socket
}

/// Returns a value of `/proc/PID/status` in bytes.
fn memory(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let kibibytes = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    kibibytes.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}
