//! A link with delays, stalls and cuts, between both ends and the rendezvous.

use std::time::Duration;

use exec_server::environment::RemoteServer;
use exec_server::{Environment, ExecBackend as _, ExecProcessEvent};
use exec_server_test_support::{Cut, FaultProxy};
use rustix::process::Signal;

use super::restarts::echo;
use crate::support::relay::{ENVIRONMENT_ID, wait_until_online};
use crate::support::rendezvous::{Rendezvous, create_token};
use crate::support::{Choices, PROGRAM, Running, command, program};

const ROUNDS: u32 = 30;

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_survives_delays_stalls_and_cuts() {
    let scratch = tempfile::tempdir().unwrap();
    let data = scratch.path().join("data");
    let first = Rendezvous::start(&data);
    let listen = first.url.clone();
    // Starts while the rendezvous still holds its port, so that the link gets another port.
    let link = FaultProxy::start(listen.strip_prefix("http://").unwrap().parse().unwrap()).await;
    first.end_by(Signal::TERM);
    let url = format!("http://{}", link.address());
    let _rendezvous = Rendezvous::start_with(&data, &listen, |program| {
        program.args(["--public-url", &url]);
    });
    for role in ["environment", "harness"] {
        std::fs::write(scratch.path().join(role), create_token(&data, role)).unwrap();
    }
    let mut environment = command(PROGRAM);
    environment
        .args(["--remote", &url, "--environment-id", ENVIRONMENT_ID, "--remote-token-file"])
        .arg(scratch.path().join("environment"));
    let mut environment = Running::start(environment);
    wait_until_online(&mut environment);

    let mut server = RemoteServer::through_relay(&url, ENVIRONMENT_ID).unwrap();
    server.token_file = Some(scratch.path().join("harness"));
    let client = Environment::remote("far", server);
    let process = client.start(program("cat", &["cat"]).with_stdin().typed()).await.unwrap();
    let mut events = process.subscribe_events();
    let mut choices = Choices::new(7);
    for round in 0..ROUNDS {
        link.delay(Duration::from_millis(choices.below(30)));
        let line = format!("{round} {}\n", "x".repeat(choices.below(100_000) as usize));
        let disturb = async {
            match choices.below(6) {
                0 => link.cut(Cut::Rst).await,
                1 => link.cut(Cut::ALL[choices.below(Cut::ALL.len() as u64) as usize]).await,
                2 => {
                    link.black_hole();
                    // Any duration will do.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    link.resume();
                }
                _ => {}
            }
        };
        tokio::join!(echo(&*process, &mut events, &line), disturb);
    }
    process.close_stdin().await.unwrap();
    while let Some(event) = events.next().await {
        let is_output = matches!(event, ExecProcessEvent::Output(_));
        assert!(!is_output, "output was repeated: {event:?}");
    }
}
