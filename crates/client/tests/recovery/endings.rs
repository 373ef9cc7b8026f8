//! Permanently lost connections: everything that waits fails with one error.

use std::sync::Arc;
use std::time::Duration;

use exec_server_client::{
    ConnectionState, Connector, Dialing, DisconnectReason, ExecServerClient, ExecServerError,
    ExecServerProcess, Violation,
};
use exec_server_host::process::launch::Launcher;
use exec_server_protocol::{Empty, ErrorKind, Method, SignalName};
use exec_server_server::{Server, ServerConfig};
use exec_server_test_support::{Cut, FaultProxy, Served};
use exec_server_transport::Connection;
use tokio::task::JoinSet;

use crate::support::{
    LoopbackServer, args, connect, failure, follow, options, session_info, shell, wait_for,
    wait_until_recovering, with_stdin,
};
use crate::tap::{Fate, Tap};

/// Collects the errors of a client and its processes from every way to receive them.
async fn errors(
    client: &ExecServerClient,
    waiting: JoinSet<Result<(), ExecServerError>>,
    processes: &[ExecServerProcess],
) -> Vec<ExecServerError> {
    let mut errors: Vec<_> =
        waiting.join_all().await.into_iter().map(|call| call.unwrap_err()).collect();
    errors.push(client.environment_status(Empty {}).await.unwrap_err());
    for process in processes {
        errors.push(failure(process.subscribe_events()).await);
        errors.push(process.write("late").await.unwrap_err());
        errors.push(process.signal(SignalName::Interrupt).await.unwrap_err());
    }
    errors.push(client.start(shell("late", "true")).await.unwrap_err());
    match &*client.connection_state().borrow() {
        ConnectionState::Failed(error) => errors.push(error.clone()),
        other => panic!("{other:?}"),
    }
    errors
}

/// More calls than fit into the client's queue.
fn waiting_calls(client: &ExecServerClient) -> JoinSet<Result<(), ExecServerError>> {
    (0..100)
        .map(|_| {
            let client = client.clone();
            async move { client.environment_status(Empty {}).await.map(drop) }
        })
        .collect()
}

/// Returns the reason that all errors share.
fn the_loss(errors: &[ExecServerError]) -> Arc<DisconnectReason> {
    let losses: Vec<_> = errors
        .iter()
        .map(|error| match error {
            ExecServerError::Disconnected(lost) => lost,
            other => panic!("{other}"),
        })
        .collect();
    assert!(losses.iter().all(|lost| Arc::ptr_eq(lost, losses[0])), "{errors:?}");
    Arc::clone(losses[0])
}

async fn two_processes(client: &ExecServerClient) -> [ExecServerProcess; 2] {
    let start = |id| client.start(with_stdin(shell(id, "exec cat")));
    [start("one").await.unwrap(), start("two").await.unwrap()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_session_fails_the_client() {
    let server = LoopbackServer::start().await;
    let watcher = connect(&server.url()).await;
    let proxy = FaultProxy::start(server.address).await;
    let mut args = args(&proxy.url());
    args.options.detached_ttl = Some(Duration::ZERO);
    let client = ExecServerClient::connect_websocket(args).await.unwrap();
    let processes = two_processes(&client).await;
    proxy.refuse();
    proxy.cut(Cut::Rst).await;
    wait_until_recovering(&client).await;
    let waiting = waiting_calls(&client);
    while session_info(&watcher, client.session_id()).await.is_some() {}
    proxy.resume();
    let errors = errors(&client, waiting, &processes).await;
    match &*the_loss(&errors) {
        DisconnectReason::Refused(error) => {
            assert_eq!(error.kind(), Some(&ErrorKind::UnknownSession));
        }
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_restarted_server_fails_the_client() {
    let server = LoopbackServer::start().await;
    let tap = Tap::on(&server.server);
    let client = tap.client().await;
    let processes = two_processes(&client).await;
    tap.replace_server(&Server::new(ServerConfig::default(), Launcher::plain()));
    tap.set_trap(Method::EnvironmentStatus, Fate::RequestLost);
    let waiting = waiting_calls(&client);
    let errors = errors(&client, waiting, &processes).await;
    match &*the_loss(&errors) {
        DisconnectReason::Refused(error) => {
            assert_eq!(error.kind(), Some(&ErrorKind::UnknownSession));
        }
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_recovery_deadline_fails_the_client() {
    let server = LoopbackServer::start().await;
    let proxy = FaultProxy::start(server.address).await;
    let mut args = args(&proxy.url());
    let deadline = Duration::from_millis(100);
    args.options.recovery.deadline = Some(deadline);
    let client = ExecServerClient::connect_websocket(args).await.unwrap();
    let processes = two_processes(&client).await;
    proxy.refuse();
    proxy.cut(Cut::Rst).await;
    let waiting = waiting_calls(&client);
    let errors = errors(&client, waiting, &processes).await;
    assert!(
        matches!(*the_loss(&errors), DisconnectReason::Deadline { deadline: after, .. } if after == deadline)
    );
}

/// Connects once. Every later attempt hangs.
struct Once(Option<Connection>);

impl Connector for Once {
    fn dial(&mut self) -> Dialing {
        let connection = self.0.take();
        Box::pin(async move {
            match connection {
                Some(connection) => Ok(connection),
                None => std::future::pending().await,
            }
        })
    }
}

#[tokio::test]
async fn the_end_of_a_working_connection_is_not_reported_as_a_failed_attempt() {
    let server = LoopbackServer::start().await;
    let Served { connection, serving } = Served::by(&server.server);
    let mut options = options();
    options.recovery.deadline = Some(Duration::from_millis(50));
    let client = ExecServerClient::connect_by(Once(Some(connection)), options).await.unwrap();
    serving.abort();
    let error = client.environment_status(Empty {}).await.unwrap_err();
    assert!(error.to_string().ends_with("; last attempt: not completed"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_deadline_the_client_keeps_trying() {
    let server = LoopbackServer::start().await;
    let proxy = FaultProxy::start(server.address).await;
    let mut args = args(&proxy.url());
    args.options.recovery.deadline = None;
    let client = ExecServerClient::connect_websocket(args).await.unwrap();
    let process = client.start(with_stdin(shell("p", "read line; exit 4"))).await.unwrap();
    proxy.refuse();
    proxy.cut(Cut::Rst).await;
    proxy.wait_for_refusals(30).await;
    proxy.resume();
    process.write("\n").await.unwrap();
    assert_eq!(follow(&process).await.exit_code, Some(4));
}

#[tokio::test]
async fn a_connection_that_cannot_be_redialled_fails_the_client() {
    let server = LoopbackServer::start().await;
    let Served { connection, serving } = Served::by(&server.server);
    let client = ExecServerClient::connect_over(connection, options()).await.unwrap();
    let processes = two_processes(&client).await;
    serving.abort();
    let errors = errors(&client, waiting_calls(&client), &processes).await;
    assert!(matches!(*the_loss(&errors), DisconnectReason::CannotRedial));
}

#[tokio::test]
async fn a_protocol_violation_fails_the_client() {
    for garbage in ["garbage", "[]", r#"{"method":"process/output","params":{"seq":"one"}}"#] {
        let server = LoopbackServer::start().await;
        let tap = Tap::on(&server.server);
        let client = tap.client().await;
        let processes = two_processes(&client).await;
        tap.set_trap(Method::EnvironmentStatus, Fate::Garbled(garbage));
        let errors = errors(&client, waiting_calls(&client), &processes).await;
        assert!(
            errors.iter().all(|error| matches!(error, ExecServerError::ProtocolViolation(_))),
            "{errors:?}"
        );
    }
}

#[tokio::test]
async fn an_unreadable_event_fails_only_its_process() {
    for event in [
        r#"{"method":"process/exited","params":{"processId":"p0","seq":1,"exitCode":3221225477}}"#,
        r#"{"method":"process/output","params":{"processId":"p0","seq":0,"stream":"stdout","chunk":""}}"#,
    ] {
        let server = LoopbackServer::start().await;
        let tap = Tap::on(&server.server);
        let client = tap.client().await;
        let broken = client.start(shell("p0", "exec sleep 100000")).await.unwrap();
        let whole = client.start(shell("p1", "read line; exit 3")).await.unwrap();
        tap.set_trap(Method::EnvironmentStatus, Fate::Garbled(event));
        let call = tokio::spawn({
            let client = client.clone();
            async move { client.environment_status(Empty {}).await }
        });
        let error = failure(broken.subscribe_events()).await;
        assert!(matches!(error, ExecServerError::ProtocolViolation(_)), "{error}");
        assert_eq!(crate::support::follow(&whole).await.exit_code, Some(3));
        call.abort();
    }
}

#[tokio::test]
async fn an_unreadable_response_fails_only_its_call() {
    let server = LoopbackServer::start().await;
    let tap = Tap::on(&server.server);
    let client = tap.client().await;
    // The id of the client's second call: the first was its handshake.
    let answer = r#"{"id":1,"result":{"status":7}}"#;
    tap.set_trap(Method::EnvironmentStatus, Fate::Garbled(answer));
    let error = client.environment_status(Empty {}).await.unwrap_err();
    let ExecServerError::ProtocolViolation(violation) = error else { panic!("{error}") };
    assert!(matches!(*violation, Violation::Result { method: "environment/status", .. }));
    client.environment_status(Empty {}).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_every_handle_disconnects_and_leaves_the_processes() {
    let server = LoopbackServer::start().await;
    let watcher = connect(&server.url()).await;
    let client = connect(&server.url()).await;
    let session_id = client.session_id().to_owned();
    let process = client.start(shell("p", "exec sleep 100000")).await.unwrap();
    let events = process.subscribe_events();
    drop(client);
    assert!(session_info(&watcher, &session_id).await.unwrap().attached, "one handle remains");
    drop(process);
    while session_info(&watcher, &session_id).await.unwrap().attached {}
    assert!(crate::support::is_running(&watcher, &session_id, "p").await);
    assert!(matches!(failure(events).await, ExecServerError::Closed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_ends_the_session_and_its_processes() {
    let server = LoopbackServer::start().await;
    let watcher = connect(&server.url()).await;
    let client = connect(&server.url()).await;
    let session_id = client.session_id().to_owned();
    let process = client.start(with_stdin(shell("p", "echo $$; exec cat"))).await.unwrap();
    let pid = wait_for(&mut process.subscribe_events(), "\n").await;
    let pid = String::from_utf8(pid).unwrap();
    let clone = client.clone();
    client.close().await.unwrap();
    assert!(session_info(&watcher, &session_id).await.is_none());
    assert!(!std::path::Path::new("/proc").join(pid.trim()).exists());
    assert!(matches!(failure(process.subscribe_events()).await, ExecServerError::Closed));
    assert!(matches!(process.write("late").await, Err(ExecServerError::Closed)));
    assert!(matches!(clone.environment_status(Empty {}).await, Err(ExecServerError::Closed)));
    assert!(matches!(clone.close().await, Err(ExecServerError::Closed)));
    assert!(matches!(*clone.connection_state().borrow(), ConnectionState::Closed));
}
