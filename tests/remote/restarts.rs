//! A rendezvous that is killed while it carries many streams.

use std::sync::Arc;

use exec_server::{Environment, ExecBackend as _, ExecProcess, ExecProcessEvent, ProcessEvents};
use rustix::process::Signal;
use tokio::sync::Barrier;

use crate::support::{HANG, Relay, program};

const STREAMS: usize = 100;
const ROUNDS: u32 = 6;

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_streams_survive_kills_of_the_rendezvous() {
    let mut relay = Relay::start();
    let server = relay.remote_server();
    // All streams, and the task that kills the rendezvous.
    let barrier = Arc::new(Barrier::new(STREAMS + 1));
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..STREAMS {
        let (server, barrier) = (server.clone(), Arc::clone(&barrier));
        clients.spawn(async move {
            let environment = Environment::remote(format!("client {number}"), server);
            let start = program("cat", &["cat"]).with_stdin().typed();
            let process = environment.start(start).await.unwrap();
            let mut events = process.subscribe_events();
            for round in 0..ROUNDS {
                barrier.wait().await;
                echo(&*process, &mut events, &format!("{number}:{round}\n")).await;
            }
            process.close_stdin().await.unwrap();
            let mut rest = Vec::new();
            while let Some(event) = events.next().await {
                if let ExecProcessEvent::Output(output) = event {
                    rest.extend_from_slice(&output.chunk);
                }
            }
            assert!(rest.is_empty(), "output was repeated");
        });
    }
    for round in 0..ROUNDS {
        barrier.wait().await;
        if round % 2 == 1 {
            // All streams are in use.
            relay.end_rendezvous(Signal::KILL);
            relay.start_rendezvous();
        }
    }
    let all = async {
        while let Some(client) = clients.join_next().await {
            client.unwrap();
        }
    };
    tokio::time::timeout(HANG, all).await.expect("all streams finish");
}

pub(super) async fn echo(process: &dyn ExecProcess, events: &mut ProcessEvents, line: &str) {
    let chunk = line.as_bytes().to_vec();
    process.write(chunk.into()).await.unwrap();
    let mut echoed = String::new();
    while echoed.len() < line.len() {
        match events.next().await {
            Some(ExecProcessEvent::Output(output)) => {
                echoed.push_str(std::str::from_utf8(&output.chunk).unwrap());
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(echoed, line);
}
