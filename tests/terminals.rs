//! Terminals: the end of their output, their size, and many at once.

use serde_json::json;

use crate::support::{AckingInbox, Inbox as _, Server, Start, machine, shell};

#[test]
fn the_end_of_terminal_output_is_never_lost() {
    terminal_tails(100);
}

#[test]
#[ignore = "soak: 1,000 terminals"]
fn soak_the_end_of_terminal_output_is_never_lost() {
    terminal_tails(1000);
}

fn terminal_tails(count: usize) {
    const LINE: &str = "0123456789012345678901234567890123456789012345";
    let server = Server::start();
    let mut client = server.client();
    let script = format!("i=0; while [ $i -lt 128 ]; do echo {LINE}; i=$((i+1)); done; printf end");
    let expected = format!("{}end", format!("{LINE}\r\n").repeat(128));
    assert!(expected.len() > 6 << 10);
    let starts: Vec<Start> = (0..count).map(|n| shell(&format!("tty{n}"), &script).tty()).collect();
    for some in starts.chunks(20) {
        for start in some {
            client.request("process/start", start.params());
        }
        for start in some {
            let end = client.finish_process(start.id());
            assert!(end.text() == expected, "{}: {} bytes", start.id(), end.pty.len());
            assert_eq!(end.exit_code, Some(0));
        }
    }
}

#[test]
fn many_terminals_stream_at_once_without_a_thread_for_each() {
    const COUNT: usize = 600;
    let server = Server::start();
    let mut client = server.client();
    let id = |n: usize| format!("tty{n}");
    let script = "stty -echo; echo ready; read x; seq 1 300";
    for n in 0..COUNT {
        client.request("process/start", shell(&id(n), script).tty().params());
    }
    let mut inboxes: Vec<AckingInbox> = (0..COUNT).map(|n| AckingInbox::new(&id(n))).collect();
    for inbox in &mut inboxes {
        client.wait_for_output(inbox, "ready\r\n");
    }
    let threads = machine::threads(server.pid());
    assert!(threads < 40, "{threads} threads");
    for n in 0..COUNT {
        client.request(
            "process/write",
            json!({"processId": id(n), "chunk": crate::support::encoded("\n")}),
        );
    }
    let numbers: String = (1..=300).map(|n| format!("{n}\r\n")).collect();
    for inbox in &mut inboxes {
        while !inbox.transcript().closed {
            let event = client.event_of(inbox.process());
            inbox.take(&event);
        }
        assert_eq!(inbox.transcript().text(), format!("ready\r\n{numbers}"));
        assert_eq!(inbox.transcript().exit_code, Some(0));
    }
}

#[test]
fn a_terminal_has_the_requested_size_and_can_be_resized() {
    let server = Server::start();
    let mut client = server.client();
    let size = json!({"rows": 33, "cols": 101});
    // A busy loop: the trap for a signal that arrives just before `read` would wait for a line.
    let script = "trap 'stty size' WINCH; stty size; while :; do :; done";
    client.start(&shell("tty", script).tty().with("size", size));
    let mut inbox = AckingInbox::new("tty");
    client.wait_for_output(&mut inbox, "33 101");
    client.call("process/resize", json!({"processId": "tty", "rows": 44, "cols": 55}));
    client.wait_for_output(&mut inbox, "44 55");
    let end = client.run(&shell("default", "stty size").tty());
    assert_eq!(end.text(), "24 80\r\n");
    client.start(&shell("pipe", "read line").with_stdin());
    let params = json!({"processId": "pipe", "rows": 1, "cols": 1});
    assert_eq!(client.refused("process/resize", params).code, -32600);
}
