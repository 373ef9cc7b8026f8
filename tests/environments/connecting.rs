//! When an environment connects, and failures to connect.

use exec_server::ExecServerError;
use rustix::process::Signal;

use super::*;
use crate::support::{ServerBuilder, machine, shell};

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_starts_later_is_found() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("unix://{}/socket", directory.path().display());
    let environment = Environment::remote("box", RemoteServer::at(url.as_str()).unwrap());
    let error = environment.info().await.unwrap_err();
    assert!(matches!(error, ExecServerError::ConnectFailed(_)), "{error}");
    assert!(error.to_string().contains(&url), "{error}");

    let _server = ServerBuilder::new().arguments(&["--listen", &url]).start();
    let process = environment.start(shell("p", "exit 5").typed()).await.unwrap();
    assert_eq!(process.wait().await.unwrap().exit_code, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_died_is_replaced_and_its_processes_keep_their_error() {
    let directory = tempfile::tempdir().unwrap();
    let pid_file = directory.path().join("pid");
    let script = "echo $$ > \"$0\"; exec \"$@\"";
    let mut args = vec!["-c".to_owned(), script.to_owned(), pid_file.display().to_string()];
    args.extend([PROGRAM, "--log", "warn", "--listen", "stdio"].map(str::to_owned));
    let command = ExecServerLaunchCommand {
        program: "/bin/sh".into(),
        args,
        ..ExecServerLaunchCommand::default()
    };
    let environment = Environment::remote("far", RemoteServer::launched(command));
    let old = environment.start(shell("p", "sleep 1000").typed()).await.unwrap();
    let pid = std::fs::read_to_string(&pid_file).unwrap().trim().parse().unwrap();
    machine::signal(pid, Signal::KILL);
    let error = old.wait().await.unwrap_err();
    assert!(matches!(error, ExecServerError::Disconnected(_)), "{error}");

    let new = environment.start(shell("p", "exit 5").typed()).await.unwrap();
    assert_eq!(new.wait().await.unwrap().exit_code, 5);
    let again = old.terminate(Default::default()).await.unwrap_err();
    assert_eq!(again.to_string(), error.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn handles_keep_their_environment_alive() {
    for site in Site::every() {
        let Site { environment, _server } = site;
        let process =
            environment.start(shell("p", "read x; echo $x").with_stdin().typed()).await.unwrap();
        drop(environment);
        let output = process.communicate("still here").await.unwrap();
        assert_eq!(output.stdout.to_text(), "still here\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_get_an_error_when_the_last_handle_is_dropped() {
    let Site { environment, .. } = Site::local();
    let process = environment.start(shell("p", "echo ready; sleep 1000").typed()).await.unwrap();
    let mut events = process.subscribe_events();
    until_written(&mut events, "ready").await;
    drop((process, environment));
    assert!(matches!(events.next().await, Some(ExecProcessEvent::Failed(ExecServerError::Closed))));
}
