//! Random cuts: no event is lost or duplicated.

use std::time::Duration;

use exec_server_client::{ConnectionState, ExecServerClient, ExecServerError, ExecServerProcess};
use exec_server_protocol::{SignalName, WriteStatus};
use exec_server_test_support::{Cut, FaultProxy};
use rand::RngExt as _;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::{LoopbackServer, Transcript, finish, follow, shell, with_stdin};

/// Returns a script that prints numbered lines, with a pause after each `burst` of them. USR1 makes
/// it print the number of lines and exit.
fn numbered(burst: usize, rest: &str) -> String {
    format!(
        "i=0; trap 'enough=1' USR1; while [ -z \"$enough\" ]; do i=$((i+1)); echo line $i; \
         [ $((i % {burst})) != 0 ] || sleep {rest}; done; echo end $i"
    )
}

fn check_numbered(transcript: &Transcript) {
    let text = String::from_utf8(transcript.stdout.clone()).unwrap();
    let mut lines = text.lines();
    let mut expected = 0;
    let end = loop {
        let line = lines.next().expect("the last line states the number of lines");
        if let Some(end) = line.strip_prefix("end ") {
            break end;
        }
        expected += 1;
        assert_eq!(line, format!("line {expected}"), "a line is lost or duplicated");
    };
    assert_eq!(end, expected.to_string());
    assert_eq!(lines.next(), None);
    assert_eq!(transcript.dropped_bytes, 0);
}

async fn numbered_lines(cuts: usize) {
    let server = LoopbackServer::start().await;
    let (client, proxy) = server.client().await;
    let process = client.start(shell("p", &numbered(1000, "0.001"))).await.unwrap();
    let following = tokio::spawn({
        let process = process.clone();
        async move { follow(&process).await }
    });
    cut_for(&client, &proxy, cuts).await;
    say_enough(&process).await;
    check_numbered(&following.await.unwrap());
}

/// Tells the script to finish. Repeats the call if the last cut interrupts it: the client does not
/// resend signals.
async fn say_enough(process: &ExecServerProcess) {
    loop {
        match process.signal(SignalName::User1).await {
            Ok(()) => return,
            Err(ExecServerError::Interrupted { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn cut_for(client: &ExecServerClient, proxy: &FaultProxy, cuts: usize) {
    let mut state = client.connection_state();
    for _ in 0..cuts {
        tokio::time::sleep(Duration::from_micros(rand::rng().random_range(0..10_000))).await;
        let how = Cut::ALL[rand::rng().random_range(0..Cut::ALL.len())];
        proxy.cut(how).await;
        // One in four cuts may hit the recovery from the previous cut.
        if rand::rng().random_range(0..4) > 0 {
            state
                .wait_for(|state| matches!(state, ConnectionState::Connected))
                .await
                .expect("the client lives");
        }
    }
}

/// Echoes lines until the end of the cuts.
async fn echo(cuts: usize) {
    let server = LoopbackServer::start().await;
    let (client, proxy) = server.client().await;
    let process = client.start(with_stdin(shell("p", "exec cat"))).await.unwrap();
    let following = tokio::spawn(finish(process.subscribe_events()));
    let (enough, is_enough) = watch::channel(false);
    let writing = tokio::spawn(async move {
        let mut written = String::new();
        for number in 0.. {
            let line = format!("{number}\n");
            assert_eq!(process.write(line.clone()).await.unwrap(), WriteStatus::Accepted);
            written.push_str(&line);
            if *is_enough.borrow() {
                break;
            }
        }
        process.close_stdin().await.unwrap();
        written
    });
    cut_for(&client, &proxy, cuts).await;
    enough.send_replace(true);
    let (written, transcript) = (writing.await.unwrap(), following.await.unwrap());
    assert!(transcript.stdout == written.as_bytes(), "a line is lost or duplicated");
    assert_eq!((transcript.exit_code, transcript.dropped_bytes), (Some(0), 0));
}

async fn twenty_at_once(cuts: usize) {
    let server = LoopbackServer::start().await;
    let (client, proxy) = server.client().await;
    let mut following = JoinSet::new();
    let mut processes = Vec::new();
    for id in 0..20 {
        let process = client.start(shell(&id.to_string(), &numbered(20, "0.02"))).await.unwrap();
        processes.push(process.clone());
        following.spawn(async move { check_numbered(&follow(&process).await) });
    }
    cut_for(&client, &proxy, cuts).await;
    for process in processes {
        say_enough(&process).await;
    }
    following.join_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbered_lines_survive_random_cuts() {
    numbered_lines(400).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn echoed_input_survives_random_cuts() {
    echo(400).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_processes_survive_random_cuts() {
    twenty_at_once(200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "10,000 cuts of each kind of process: `just soak-counts`"]
async fn nothing_is_lost_in_ten_thousand_cuts() {
    numbered_lines(10_000).await;
    echo(10_000).await;
    twenty_at_once(10_000).await;
}
