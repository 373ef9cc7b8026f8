//! A server that a client starts over stdio, and that ends with its client.

use std::time::Duration;

use exec_server::protocol::{Empty, StartParams};
use exec_server::{
    ExecProcessEvent, ExecServerClient, ExecServerClientConnectOptions, ExecServerError,
    ExecServerLaunchCommand, ExecServerProcess, ProcessEvents,
};
use exec_server_client::{ConnectError, ConnectionState, DisconnectReason};
use rustix::process::Signal;

use crate::support::daemons::{daemons, marker};
use crate::support::machine::{Watched, descendants, marked, parent, signal};
use crate::support::{HANG, PROGRAM, Start, eventually, shell};

fn launch(program: &str, args: &[&str]) -> ExecServerLaunchCommand {
    ExecServerLaunchCommand {
        program: program.into(),
        args: args.iter().map(ToString::to_string).collect(),
        ..ExecServerLaunchCommand::default()
    }
}

async fn launched() -> ExecServerClient {
    let command = launch(PROGRAM, &["--log", "warn", "--listen", "stdio"]);
    let options = ExecServerClientConnectOptions {
        initialize_timeout: HANG,
        ..ExecServerClientConnectOptions::default()
    };
    ExecServerClient::connect_stdio(command, options).await.unwrap()
}

fn typed(start: &Start) -> StartParams {
    serde_json::from_str(&start.params().to_string()).unwrap()
}

async fn wait_for(events: &mut ProcessEvents, marker: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(marker) {
        match events.next().await {
            Some(ExecProcessEvent::Output(output)) => {
                seen.push_str(std::str::from_utf8(&output.chunk).unwrap());
            }
            other => panic!("{other:?} after {seen:?}"),
        }
    }
    seen
}

async fn failure(process: &ExecServerProcess) -> ExecServerError {
    let mut events = process.subscribe_events();
    loop {
        match events.next().await {
            Some(ExecProcessEvent::Failed(error)) => return error,
            Some(ExecProcessEvent::Closed { .. }) | None => panic!("the process did not fail"),
            Some(_) => {}
        }
    }
}

/// Returns the pid of the client's server: the parent of the spawner, which is the parent of the
/// keeper of a process.
async fn server_of(client: &ExecServerClient) -> u32 {
    let start = shell("whose", "echo $$; exec sleep 1000");
    let process = client.start(typed(&start)).await.unwrap();
    let pid = wait_for(&mut process.subscribe_events(), "\n").await;
    let keeper = parent(pid.trim().parse().unwrap());
    parent(parent(keeper))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launched_server_runs_commands() {
    let client = launched().await;
    let start = shell("p", "cat; exit 3").with_stdin();
    let process = client.start(typed(&start)).await.unwrap();
    let mut events = process.subscribe_events();
    process.write("through the pipe\n").await.unwrap();
    process.close_stdin().await.unwrap();
    wait_for(&mut events, "through the pipe\n").await;
    let exit = events.next().await;
    assert!(
        matches!(&exit, Some(ExecProcessEvent::Exited(exit)) if exit.exit_code == 3),
        "{exit:?}"
    );
    assert!(matches!(events.next().await, Some(ExecProcessEvent::Closed { .. })));
    client.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_waiting_call_reports_how_a_launched_server_ended() {
    let client = launched().await;
    let process = client.start(typed(&shell("p", "exec sleep 1000"))).await.unwrap();
    let server = server_of(&client).await;
    let everything = Watched::new(&descendants(server));
    let waiting = tokio::spawn({
        let client = client.clone();
        let params = serde_json::from_str(r#"{"processId":"p"}"#).unwrap();
        async move { client.process_wait(params).await.unwrap_err() }
    });
    signal(server, Signal::KILL);
    let state = {
        let mut state = client.connection_state();
        let failed = |state: &ConnectionState| matches!(state, ConnectionState::Failed(_));
        match &*state.wait_for(failed).await.unwrap() {
            ConnectionState::Failed(error) => error.clone(),
            other => panic!("{other:?}"),
        }
    };
    for error in [
        state,
        waiting.await.unwrap(),
        failure(&process).await,
        client.environment_status(Empty {}).await.unwrap_err(),
    ] {
        let ExecServerError::Disconnected(lost) = error else { panic!("{error}") };
        let DisconnectReason::ServerExited { status, .. } = &*lost else { panic!("{lost}") };
        assert!(status.contains('9'), "{status}");
    }
    everything.wait_until_all_end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_launched_server_ends_with_its_client() {
    let client = launched().await;
    let process = client.start(typed(&daemons("launched", 5))).await.unwrap();
    wait_for(&mut process.subscribe_events(), "all").await;
    eventually("all daemons run", || marked(&marker("launched")).len() > 5);
    let server = server_of(&client).await;
    let mut tree = descendants(server);
    tree.push(server);
    let tree = Watched::new(&tree);
    drop((process, client));
    tree.wait_until_all_end();
    assert_eq!(marked(&marker("launched")), [] as [u32; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_is_not_a_server_times_out() {
    let options = ExecServerClientConnectOptions {
        initialize_timeout: Duration::from_millis(100),
        ..ExecServerClientConnectOptions::default()
    };
    let missing = launch("/nonexistent/exec-server", &[]);
    match ExecServerClient::connect_stdio(missing, options.clone()).await.unwrap_err() {
        ExecServerError::ConnectFailed(error) => {
            assert!(matches!(*error, ConnectError::Launch { .. }), "{error}");
            assert!(error.to_string().contains("/nonexistent/exec-server"), "{error}");
        }
        other => panic!("{other}"),
    }
    let marker = marker("no-server");
    let mut silent = launch("/bin/sh", &["-c", "sleep 1000 & exec sleep 1000"]);
    silent.env.insert("EXEC_SERVER_TEST".into(), marker.clone());
    let error = ExecServerClient::connect_stdio(silent, options).await.unwrap_err();
    assert!(matches!(error, ExecServerError::TimedOut { .. }), "{error}");
    eventually("the program and its children are killed", || marked(&marker).is_empty());
}
