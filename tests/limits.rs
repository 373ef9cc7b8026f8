//! A machine that has no more to give: the server says so, answers, and recovers.

use serde_json::json;

use crate::support::daemons::marker;
use crate::support::machine::{self, Watched, is_root, marked};
use crate::support::{ServerBuilder, eventually, shell};

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

#[test]
fn a_fork_bomb_ends_with_terminate() {
    const BOMB: &str = "perl -e 'fork while 1'";
    // A user of its own, so that the limit is the bomb's alone.
    const NOBODY_ELSE: u32 = 61_234;
    if !is_root() || !std::path::Path::new("/usr/bin/perl").exists() {
        println!(
            "skipped: only root can give the bomb a user of its own, and it is written in perl"
        );
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
    eventually("nothing is left of it", || {
        Watched::new(&marked(&marker("bomb"))).wait_until_all_end();
        marked(&marker("bomb")).is_empty()
    });
    assert_eq!(client.run(&shell("after", "echo fine")).text(), "fine\n");
}
