//! Exhausted resources: the server refuses, keeps responding, and recovers.

use exec_server_test_support::skipped;
use serde_json::json;

use crate::support::daemons::marker;
use crate::support::machine::{self, Watched, is_root, marked};
use crate::support::wire::frame_header;
use crate::support::{
    AckingInbox, HANG, Inbox as _, Server, ServerBuilder, command, encoded, eventually,
    run_command, shell,
};

#[test]
fn a_server_without_descriptors_refuses_and_recovers() {
    let limit = "ulimit -n 64; exec \"$0\" \"$@\"";
    let server = ServerBuilder::new().through(&["/bin/sh", "-c", limit]).start();
    let mut client = server.client();
    let mut started = Vec::new();
    let refusal = loop {
        let id = format!("p{}", started.len());
        assert!(started.len() < 64, "the limit is not in force");
        match client.try_call("process/start", shell(&id, "exec sleep 1000").params()) {
            Ok(_) => started.push(id),
            Err(refusal) => break refusal,
        }
    };
    assert!(refusal.message.contains("open files"), "{refusal:?}");
    assert_eq!(client.call("environment/status", json!({})), json!({"status": "ready"}));
    for id in &started {
        assert!(client.terminate(id));
        client.finish_process(id);
    }
    eventually("the keepers end", || machine::descendants(server.pid()).len() == 1);
    assert_eq!(server.get("/healthz"), 200);
    assert_eq!(client.run(&shell("after", "echo fine")).text(), "fine\n");
}

/// A user without other processes, so that the limit applies to the server alone.
const NOBODY_ELSE: u32 = 61_234;

#[test]
fn output_is_complete_when_no_thread_can_be_started() {
    const BYTES: usize = 20 << 20;
    if !is_root() {
        return skipped("only root can run the server as a separate user");
    }
    let directory = tempfile::tempdir().unwrap();
    let user = NOBODY_ELSE + 1;
    let server = ServerBuilder::new().with_user(user, directory.path()).start();
    let mut inbox = AckingInbox::new("loud");
    let mut client = server.client_with(&inbox.handshake());
    let script = format!("read go; head -c {BYTES} /dev/zero | tr '\\0' x; exit 7");
    client.start(&shell("loud", &script).with_stdin());
    // As the server's user: root in a container may not change the limits of other users.
    let ids = [format!("--reuid={user}"), format!("--regid={user}")];
    let pid = format!("--pid={}", server.pid());
    let mut prlimit = command("setpriv");
    prlimit.args(ids).args(["--clear-groups", "prlimit", &pid, "--nproc=1"]);
    let limited = run_command(prlimit);
    assert_eq!(limited.code, Some(0), "{}", limited.stderr);

    client.write("loud", "go\n");
    // The client confirms nothing, so the output must go to the spill file.
    let exit = client.call("process/wait", json!({"processId": "loud"}));
    assert_eq!(exit["exitCode"], 7);
    while !inbox.transcript().closed {
        inbox.take(&client.event_of("loud"));
    }
    assert_eq!(inbox.transcript().stdout.len(), BYTES);

    let params = json!({"path": "file:///etc/hostname"});
    let refused = client.refused("fs/readFile", params);
    assert_eq!(refused.kind.as_deref(), Some("outOfResources"), "{refused:?}");
}

#[test]
fn a_fork_bomb_ends_with_terminate() {
    const BOMB: &str = "perl -e 'fork while 1'";
    if !is_root() || !std::path::Path::new("/usr/bin/perl").exists() {
        skipped("the bomb needs perl, and root to run it as a separate user");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = ServerBuilder::new()
        .with_user(NOBODY_ELSE, directory.path())
        .through(&["prlimit", "--nproc=120"])
        .start();
    let mut client = server.client();
    client.start(&shell("bomb", BOMB).variable("EXEC_SERVER_TEST", &marker("bomb")));
    eventually("the bomb has filled its limit", || marked(&marker("bomb")).len() > 80);
    assert_eq!(server.get("/healthz"), 200);
    assert_eq!(client.call("environment/status", json!({})), json!({"status": "ready"}));
    client.terminate("bomb");
    eventually("every process of the bomb has ended", || {
        Watched::new(&marked(&marker("bomb"))).wait_until_all_end();
        marked(&marker("bomb")).is_empty()
    });
    assert_eq!(client.run(&shell("after", "echo fine")).text(), "fine\n");
}

#[test]
fn unfinished_messages_of_all_clients_share_one_budget() {
    const TRY_AGAIN_LATER: u16 = 1013;
    const CLIENTS: usize = 4;
    let server = Server::with(&["--max-buffered-bytes", &(8 << 20).to_string()]);
    let mut small = server.client();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let (closed, closings) = std::sync::mpsc::sync_channel(CLIENTS);
    for _ in 0..CLIENTS {
        let (mut client, closed) = (server.client(), closed.clone());
        std::thread::spawn(move || {
            let mut message = frame_header(0x81, 4 << 20);
            message.resize(3 << 20, b'x');
            client.send_raw(&message);
            let _ = closed.send(client.close_code());
        });
    }
    for _ in 0..CLIENTS - 1 {
        let content = encoded(vec![7; 200 << 10]);
        let write = json!({"path": path.to_str().unwrap(), "dataBase64": content});
        small.call("fs/writeFile", write);
        assert_eq!(closings.recv_timeout(HANG).unwrap(), Some(TRY_AGAIN_LATER));
    }
    // The remaining message fits into the budget.
    assert_eq!(small.call("environment/status", json!({})), json!({"status": "ready"}));
    assert!(closings.try_recv().is_err());
}

#[test]
fn the_first_message_has_a_smaller_limit() {
    let server = Server::start();
    let mut client = server.connect();
    client.send_raw(&frame_header(0x81, (1 << 20) + 1));
    assert_eq!(client.close_code(), Some(1009));

    let mut client = server.client();
    let long = "x".repeat(2 << 20);
    assert_eq!(client.refused("nothing", json!({ "long": long })).code, -32601);
}
