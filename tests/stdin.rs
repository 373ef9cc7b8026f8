//! Input reaches the process once, in order, and within the limits of its queue.

use serde_json::{Value, json};

use crate::support::{
    AckingInbox, Choices, Client, Cut, Inbox as _, Server, Start, encoded, machine, program, shell,
};

const INVALID_PARAMS: i64 = -32602;
const MEBIBYTE: usize = 1 << 20;

fn cat(id: &str) -> Start {
    program(id, &["cat"]).with_stdin()
}

/// Returns the params of a `process/write`.
fn chunk(process: &str, bytes: impl AsRef<[u8]>) -> Value {
    json!({"processId": process, "chunk": encoded(bytes)})
}

#[test]
fn a_write_retried_after_a_cut_is_written_once() {
    retried_writes(60);
}

#[test]
#[ignore = "soak: 1,000 retries"]
fn soak_a_write_retried_after_a_cut_is_written_once() {
    retried_writes(1000);
}

fn retried_writes(count: usize) {
    let server = Server::start();
    let mut inbox = AckingInbox::new("cat");
    let mut client = server.client_with(&inbox.handshake());
    let session = client.session();
    client.start(&cat("cat"));
    let mut expected = String::new();
    for round in 0..count {
        let line = format!("line {round}\n");
        let mut write = chunk("cat", &line);
        write["writeId"] = format!("write {round}").into();
        client.request("process/write", write.clone());
        // The server may have received the whole write, half of it, or nothing.
        client.cut(Cut::ALL[round % Cut::ALL.len()]);
        client = server.resume_with(&session, &mut inbox);
        assert_eq!(client.call("process/write", write)["status"], "accepted");
        client.wait_for_output(&mut inbox, &line);
        inbox.confirm(&mut client);
        expected.push_str(&line);
    }
    client.call("process/closeStdin", json!({"processId": "cat"}));
    while !inbox.transcript().closed {
        inbox.take(&client.event_of("cat"));
    }
    assert_eq!(inbox.transcript().text(), expected);
}

#[test]
fn a_write_id_identifies_its_bytes() {
    let server = Server::start();
    let mut client = server.client();
    client.start(&cat("cat"));
    let mut named = |id: &str, bytes: &str| {
        let mut write = chunk("cat", bytes);
        write["writeId"] = id.into();
        client.try_call("process/write", write)
    };
    let accepted = json!({"status": "accepted"});
    assert_eq!(named("a", "one").unwrap(), accepted);
    assert_eq!(named("a", "one").unwrap(), accepted);
    assert_eq!(named("a", "other").unwrap_err().code, INVALID_PARAMS);
    assert_eq!(named("", "one").unwrap_err().code, INVALID_PARAMS);
    assert_eq!(named("b", "two").unwrap(), accepted);
    client.call("process/closeStdin", json!({"processId": "cat"}));
    assert_eq!(client.finish_process("cat").text(), "onetwo");
    let mut write = chunk("cat", "two");
    write["writeId"] = "b".into();
    assert_eq!(client.call("process/write", write), accepted, "accepted stays accepted");
}

#[test]
fn a_write_that_is_impossible_gets_a_status() {
    let server = Server::start();
    let mut client = server.client();
    assert_eq!(client.write("nobody", "x"), "unknownProcess");
    client.start(&shell("deaf", "exec sleep 1000"));
    assert_eq!(client.write("deaf", "x"), "stdinClosed");
    client.start(&cat("cat"));
    let close = |client: &mut Client, id: &str| {
        client.call("process/closeStdin", json!({"processId": id}))["status"].clone()
    };
    assert_eq!(close(&mut client, "cat"), "accepted");
    assert_eq!(close(&mut client, "cat"), "stdinClosed");
    assert_eq!(close(&mut client, "nobody"), "unknownProcess");
    assert_eq!(client.write("cat", "x"), "stdinClosed");
}

#[test]
fn megabytes_pass_through_unchanged() {
    let server = Server::start();
    let mut client = server.client();
    let mut choices = Choices::new(8);
    let sent: Vec<u8> = (0..MEBIBYTE).flat_map(|_| choices.next().to_le_bytes()).collect();
    client.start(&cat("cat"));
    for piece in sent.chunks(100_000) {
        assert_eq!(client.write("cat", piece), "accepted");
    }
    client.call("process/closeStdin", json!({"processId": "cat"}));
    assert!(client.finish_process("cat").stdout == sent, "the bytes differ");
}

#[test]
fn the_input_of_a_terminal_ends_with_close_stdin() {
    let server = Server::start();
    let mut client = server.client();
    client.start(&shell("tty", "stty -echo; echo ready; cat; echo over").tty());
    let mut inbox = AckingInbox::new("tty");
    client.wait_for_output(&mut inbox, "ready");
    client.write("tty", "hello\n");
    client.call("process/closeStdin", json!({"processId": "tty"}));
    client.wait_for_output(&mut inbox, "over");
    assert_eq!(inbox.transcript().text(), "ready\r\nhello\r\nover\r\n");
}

#[test]
fn writes_to_a_process_that_never_reads_wait_until_it_is_terminated() {
    let server = Server::start();
    let mut client = server.client();
    client.start(&shell("deaf", "exec sleep 1000").with_stdin());
    let mebibyte = vec![b'x'; MEBIBYTE];
    for _ in 0..4 {
        assert_eq!(client.write("deaf", &mebibyte), "accepted");
    }
    let waiting = client.request("process/write", chunk("deaf", &mebibyte));
    client.call("environment/status", json!({}));
    assert!(!client.has_answer(waiting), "more than 4 MiB were accepted");
    assert!(client.terminate("deaf"));
    assert_eq!(client.answer(waiting).unwrap()["status"], "stdinClosed");
    assert_eq!(client.finish_process("deaf").exit_code, Some(137));
}

#[test]
fn unawaited_writes_exhaust_no_memory_and_do_not_delay_terminate() {
    const OFFERS: usize = 200;
    let server = Server::start();
    let mut client = server.client();
    client.start(&shell("deaf", "echo $$; exec sleep 1000").with_stdin());
    let mut inbox = AckingInbox::new("deaf");
    client.wait_for_output(&mut inbox, "\n");
    let child = machine::Watched::new(&[inbox.transcript().text().trim().parse().unwrap()]);
    let write = chunk("deaf", vec![b'x'; MEBIBYTE]);
    let offers: Vec<u64> =
        (0..OFFERS).map(|_| client.request("process/write", write.clone())).collect();
    let terminate = client.request("process/terminate", json!({"processId": "deaf"}));
    child.wait_until_all_end();
    assert_eq!(client.answer(terminate).unwrap(), json!({"running": true}));

    let outcomes: Vec<_> = offers.into_iter().map(|id| client.answer(id)).collect();
    let accepted = |outcome: &&Result<Value, _>| {
        outcome.as_ref().is_ok_and(|result| result["status"] == "accepted")
    };
    // The queue accepts 4 MiB. The pipe holds a little more, so a fifth write may fit.
    assert!((4..=5).contains(&outcomes.iter().filter(accepted).count()), "{outcomes:?}");
    // Another 4 MiB waited for room. The server refused all others and does not keep them.
    let taken = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert!((8..=9).contains(&taken), "{taken} MiB were taken: {outcomes:?}");
    for failure in outcomes.into_iter().filter_map(Result::err) {
        assert!(failure.message.contains("deaf"), "{failure:?}");
    }
}
