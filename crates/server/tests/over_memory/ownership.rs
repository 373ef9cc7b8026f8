//! Sessions belong to their subject. For other subjects without the role admin, and for a client
//! under a ceiling that the owner did not have, they do not exist, whichever method it calls.

use std::time::{Duration, SystemTime};

use exec_server_protocol::{Method, Principal, Role, SandboxCeiling, SandboxLevel, Subject};
use exec_server_server::{Server, ServerConfig};
use exec_server_test_support::{RpcClient, Served, TestServer};
use exec_server_transport::memory;
use serde_json::{Value, json};

fn named(name: &str) -> Principal {
    Principal::new(Subject::Named(name.into()))
}

fn with_role(name: &str, role: Role) -> Principal {
    Principal { role, ..named(name) }
}

/// Returns a principal under a ceiling that every machine can enforce for files.
fn agent(name: &str) -> Principal {
    let require = Some(SandboxLevel::ReadOnly);
    Principal { ceiling: SandboxCeiling { require, ..SandboxCeiling::default() }, ..named(name) }
}

fn connect(server: &Server, principal: Principal) -> RpcClient {
    let (connection, mut other_end) = memory();
    other_end.principal = principal;
    let server = server.clone();
    let serving = tokio::spawn(async move { server.serve(other_end).await });
    RpcClient::over(Served { connection, serving })
}

async fn open(server: &Server, principal: Principal) -> (RpcClient, String) {
    let mut client = connect(server, principal);
    let session = client.initialize(json!({ "clientName": "test" })).await;
    (client, session)
}

fn kind(error: &Value) -> &str {
    error["data"]["kind"].as_str().unwrap_or_default()
}

/// Returns params that name a session, a process or another resource of a client, for every method.
/// This does not compile until every method is listed.
fn naming(method: Method, session: &str, process: &str) -> Value {
    let path = "file:///nonexistent/file";
    match method {
        Method::Initialize => json!({ "clientName": "thief", "resumeSessionId": session }),
        Method::SessionClose => json!({ "sessionId": session }),
        Method::SessionList
        | Method::EnvironmentInfo
        | Method::EnvironmentStatus
        | Method::ServerStatus => json!({}),
        Method::ProcessStart => json!({
            "processId": process, "argv": ["/nonexistent/program"], "cwd": "file:///",
            "claimName": true,
        }),
        Method::ProcessRead | Method::ProcessCloseStdin | Method::ProcessSnapshot => {
            json!({ "processId": process, "sessionId": session })
        }
        Method::ProcessWait => {
            json!({ "processId": process, "sessionId": session, "timeoutMs": 0 })
        }
        Method::ProcessWrite | Method::CommandExecWrite => {
            json!({ "processId": process, "sessionId": session, "chunk": "eA==" })
        }
        Method::ProcessResize => {
            json!({ "processId": process, "sessionId": session, "rows": 1, "cols": 1 })
        }
        Method::ProcessSignal => {
            json!({ "processId": process, "sessionId": session, "signal": "kill" })
        }
        Method::ProcessTerminate | Method::CommandExecTerminate => {
            json!({ "processId": process, "sessionId": session })
        }
        Method::ProcessList => json!({ "sessionId": session }),
        Method::ProcessObserve => json!({ "processId": process, "sessionId": session }),
        Method::FsReadFile
        | Method::FsGetMetadata
        | Method::FsCanonicalize
        | Method::FsReadDirectory
        | Method::FsReadLink => json!({ "path": path }),
        Method::FsWriteFile => json!({ "path": path, "dataBase64": "" }),
        Method::FsCreateDirectory => json!({ "path": path, "recursive": false }),
        Method::FsWalk => json!({ "path": path, "options": {
            "maxDepth": 1, "maxDirectories": 1, "maxEntries": 1, "followDirectorySymlinks": false,
        } }),
        Method::FsGlob => json!({ "path": path, "pattern": "*" }),
        Method::FsRemove => json!({ "path": path, "force": false }),
        Method::FsCopy => {
            json!({ "sourcePath": path, "destinationPath": path, "recursive": false })
        }
        Method::FsRename => json!({ "sourcePath": path, "destinationPath": path }),
        Method::FsSymlink => json!({ "path": path, "target": "x" }),
        Method::FsSetPermissions => json!({ "path": path, "mode": 0o600 }),
        Method::FsOpen => json!({ "path": path, "handleId": process }),
        Method::FsReadBlock => json!({ "handleId": process, "offset": 0, "len": 1 }),
        Method::FsCreate => json!({ "path": path, "handleId": process }),
        Method::FsWriteBlock => json!({ "handleId": process, "offset": 0, "chunk": "" }),
        Method::FsClose => json!({ "handleId": process }),
        Method::FsWatch => json!({ "path": path, "watchId": process }),
        Method::FsUnwatch => json!({ "watchId": process }),
        Method::FsSearch => json!({ "path": path, "searchId": process, "pattern": "x" }),
        Method::FsCancelSearch => json!({ "searchId": process }),
        Method::HttpRequest => {
            json!({ "requestId": process, "method": "GET", "url": "http://127.0.0.1:1/" })
        }
        Method::HttpCancel => json!({ "requestId": process }),
        Method::CommandExec => json!({
            "processId": process, "argv": ["/nonexistent/program"], "cwd": "/",
            "env": {}, "tty": false,
        }),
    }
}

/// Returns the whole response, with ids replaced, so that stolen and invented ids compare equal.
async fn answer(thief: &mut RpcClient, method: Method, session: &str, process: &str) -> String {
    let answer = thief.call(method.name(), naming(method, session, process)).await;
    format!("{answer:?}").replace(session, "SESSION").replace(process, "PROCESS")
}

#[tokio::test]
async fn a_stolen_id_gets_the_same_response_as_an_invented_one_on_every_method() {
    let server = TestServer::new(ServerConfig::default());
    let (mut owner, session) = open(&server, named("alice")).await;
    let running = "victim-process-1";
    owner.start(running, "echo secret; exec cat", json!({ "pipeStdin": true })).await;
    let invented = ("00000000-0000-4000-8000-000000000000", "nobody-process-1");
    for principal in [named("bob"), agent("alice"), with_role("bob", Role::Observer)] {
        for &method in Method::ALL {
            let fresh = async || match method {
                // The handshake itself is under test.
                Method::Initialize => connect(&server, principal.clone()),
                _ => open(&server, principal.clone()).await.0,
            };
            let stolen = answer(&mut fresh().await, method, &session, running).await;
            let unknown = answer(&mut fresh().await, method, invented.0, invented.1).await;
            // Sessions of earlier rounds may still be ending.
            let is_list = method == Method::SessionList;
            assert!(is_list || stolen == unknown, "{}: {stolen} {unknown}", method.name());
            assert!(!stolen.contains("victim") && !stolen.contains("c2VjcmV0"), "{stolen}");
        }
    }
    // None of the calls had an effect.
    let listed = owner.call("process/list", json!({})).await.unwrap();
    assert_eq!(listed["processes"][0]["running"], true);
    let written = json!({ "processId": running, "chunk": "eA==" });
    assert_eq!(owner.call("process/write", written).await.unwrap()["status"], "accepted");
    let sessions = owner.call("session/list", json!({})).await.unwrap();
    let ids: Vec<_> = sessions["sessions"].as_array().unwrap().iter().collect();
    assert!(ids.iter().any(|info| info["sessionId"] == session.as_str()));
}

#[tokio::test]
async fn an_acknowledgement_for_a_stolen_process_confirms_nothing() {
    let server = TestServer::new(ServerConfig::default());
    let mut owner = connect(&server, named("alice"));
    let session = owner.initialize(json!({ "acks": true })).await;
    owner.start("p", "echo one", json!({})).await;
    let (mut thief, _) = open(&server, named("bob")).await;
    thief.notify("process/ack", json!({ "processId": "p", "seq": 1 })).await;
    thief.call("environment/status", json!({})).await.unwrap();
    assert!(thief.has_no_notification());
    owner.cut().await;
    let resume = json!({ "resumeSessionId": session, "acks": true });
    let mut again = connect(&server, named("alice"));
    again.initialize(resume).await;
    assert_eq!(again.notification().await["params"]["seq"], 1);
}

#[tokio::test]
async fn only_the_owner_can_resume_and_may_use_a_renewed_token() {
    let server = TestServer::new(ServerConfig::default());
    let (owner, session) = open(&server, named("alice")).await;
    owner.cut().await;
    let resume = json!({ "clientName": "late", "resumeSessionId": session });
    for other in [
        named("bob"),
        with_role("bob", Role::Admin),
        Principal::local(),
        Principal::new(Subject::Certificate("alice".into())),
        Principal::new(Subject::Token([0; 32])),
        agent("alice"),
    ] {
        let refused = connect(&server, other).call("initialize", resume.clone()).await;
        assert_eq!(kind(&refused.unwrap_err()), "unknownSession");
    }
    let observer = with_role("alice", Role::Observer);
    let refused = connect(&server, observer).call("initialize", resume.clone()).await;
    assert_eq!(kind(&refused.unwrap_err()), "forbidden");

    let hour = Duration::from_secs(3600);
    let expired = Principal { expires: Some(SystemTime::now() - hour), ..named("alice") };
    let refused = connect(&server, expired).call("initialize", resume.clone()).await;
    assert_eq!(kind(&refused.unwrap_err()), "tokenExpired");
    let renewed = Principal { expires: Some(SystemTime::now() + hour), ..named("alice") };
    assert_eq!(connect(&server, renewed).initialize(resume).await, session);
}

#[tokio::test]
async fn an_observer_may_read_but_not_change() {
    let server = TestServer::new(ServerConfig::default());
    let (mut owner, session) = open(&server, named("alice")).await;
    owner.start("p", "echo hello; exec cat", json!({ "pipeStdin": true })).await;
    let (mut observer, _) = open(&server, with_role("alice", Role::Observer)).await;
    let of_owner = json!({ "sessionId": session, "processId": "p" });
    observer.call("process/observe", of_owner.clone()).await.unwrap();
    assert_eq!(observer.notification().await["params"]["sessionId"], session.as_str());
    let listed = observer.call("session/list", json!({})).await.unwrap();
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 2);
    assert!(listed["sessions"][0].get("subject").is_none());

    for method in [
        Method::ProcessStart,
        Method::ProcessWrite,
        Method::ProcessSignal,
        Method::ProcessTerminate,
        Method::ProcessCloseStdin,
        Method::SessionClose,
        Method::FsWriteFile,
        Method::FsRemove,
        Method::FsCreate,
        Method::HttpRequest,
        Method::CommandExec,
    ] {
        let refused = observer.call(method.name(), naming(method, &session, "p")).await;
        let error = refused.unwrap_err();
        assert_eq!(kind(&error), "forbidden", "{}", method.name());
        assert!(error["message"].as_str().unwrap().contains(method.name()), "{error}");
    }
    observer.call("session/close", json!({})).await.unwrap();
    let running = owner.call("process/list", json!({})).await.unwrap();
    assert_eq!(running["processes"][0]["running"], true);
}

#[tokio::test]
async fn an_admin_sees_and_ends_the_sessions_of_all() {
    let server = TestServer::new(ServerConfig::default());
    let (mut owner, session) = open(&server, named("alice")).await;
    owner.start("p", "exec sleep 1000", json!({})).await;
    let (mut admin, _) = open(&server, with_role("root", Role::Admin)).await;
    let listed = admin.call("session/list", json!({})).await.unwrap();
    let of_alice = listed["sessions"].as_array().unwrap().iter();
    let of_alice = of_alice.filter(|info| info["subject"] == "sub:alice");
    assert_eq!(of_alice.count(), 1);
    let named_process = json!({ "sessionId": session, "processId": "p" });
    admin.call("process/observe", named_process.clone()).await.unwrap();
    let ended = admin.call("process/terminate", named_process).await.unwrap();
    assert_eq!(ended["running"], true);
    admin.call("session/close", json!({ "sessionId": session })).await.unwrap();
    owner.ended().await;
}

#[tokio::test]
async fn names_are_claimed_among_the_processes_that_a_client_sees() {
    let server = TestServer::new(ServerConfig::default());
    let (mut alice, _) = open(&server, named("alice")).await;
    let (mut again, _) = open(&server, named("alice")).await;
    let (mut bob, _) = open(&server, named("bob")).await;
    let claim = json!({ "claimName": true });
    alice.start("build", "exec sleep 1000", claim.clone()).await;
    bob.start("build", "exec sleep 1000", claim).await;
    let refused = again
        .call(
            "process/start",
            json!({ "processId": "build", "argv": ["true"], "cwd": "/", "claimName": true }),
        )
        .await;
    assert_eq!(kind(&refused.unwrap_err()), "nameTaken");
}

#[tokio::test]
async fn each_subject_has_its_own_session_limit() {
    let config = ServerConfig { max_sessions_per_subject: 2, ..ServerConfig::default() };
    let server = TestServer::new(config);
    let _first = open(&server, named("alice")).await;
    let _second = open(&server, named("alice")).await;
    let refused = connect(&server, named("alice")).call("initialize", json!({})).await;
    let error = refused.unwrap_err();
    assert_eq!(kind(&error), "tooManySessions");
    assert!(error["message"].as_str().unwrap().contains("\"sub:alice\" already has 2"), "{error}");
    open(&server, named("bob")).await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_session_makes_room_only_for_its_subject() {
    let minute = Duration::from_secs(60);
    let config = ServerConfig {
        max_sessions_per_subject: 1,
        detached_session_ttl: 60 * minute,
        ..ServerConfig::default()
    };
    let server = TestServer::new(config);
    let (alice, of_alice) = open(&server, named("alice")).await;
    let (bob, of_bob) = open(&server, named("bob")).await;
    // Bob's session has been detached longer, but Alice's must end.
    bob.cut().await;
    tokio::time::advance(Duration::from_secs(1)).await;
    alice.cut().await;
    // A client that lost its connection may still reconnect.
    let refused = connect(&server, named("alice")).call("initialize", json!({})).await;
    assert_eq!(kind(&refused.unwrap_err()), "tooManySessions");
    tokio::time::advance(minute).await;
    let (_alice, newer) = open(&server, named("alice")).await;
    assert_ne!(newer, of_alice);
    let mut bob = connect(&server, named("bob"));
    assert_eq!(bob.initialize(json!({ "resumeSessionId": of_bob })).await, of_bob);
}

#[tokio::test]
async fn requests_beyond_the_rate_are_refused_and_control_requests_are_not() {
    let config = ServerConfig { max_requests_per_second: 5, ..ServerConfig::default() };
    let server = TestServer::new(config);
    let (mut client, _) = open(&server, named("alice")).await;
    let mut ids = Vec::new();
    for _ in 0..50 {
        ids.push(client.request("session/list", json!({})).await);
    }
    let mut refused = 0;
    for id in ids {
        if let Err(error) = client.response(id).await {
            assert_eq!(kind(&error), "tooManyRequests");
            assert!(error["message"].as_str().unwrap().contains("5 requests"), "{error}");
            refused += 1;
        }
    }
    assert!(refused > 0);
    for _ in 0..50 {
        client.call("environment/status", json!({})).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_and_its_session_stays() {
    let minute = Duration::from_secs(60);
    let config = ServerConfig {
        idle_connection_timeout: minute,
        detached_session_ttl: 10 * minute,
        ..ServerConfig::default()
    };
    let server = TestServer::new(config);
    let (client, session) = open(&server, named("alice")).await;
    client.ended().await;
    let mut again = connect(&server, named("alice"));
    assert_eq!(again.initialize(json!({ "resumeSessionId": session })).await, session);
    // A connection that never sends anything is closed as well.
    connect(&server, named("alice")).ended().await;
}

#[tokio::test]
async fn a_client_that_watches_or_observes_is_not_idle() {
    let minute = Duration::from_secs(60);
    let config = ServerConfig { idle_connection_timeout: minute, ..ServerConfig::default() };
    let server = TestServer::new(config);
    let directory = tempfile::tempdir().unwrap();
    let (mut owner, session) = open(&server, named("alice")).await;
    owner.start("p", "exec sleep 1000", json!({})).await;
    let (mut observer, _) = open(&server, named("alice")).await;
    let observed = json!({ "sessionId": session, "processId": "p" });
    observer.call("process/observe", observed).await.unwrap();
    let (mut watcher, _) = open(&server, named("alice")).await;
    let watched = json!({ "path": directory.path(), "watchId": "w" });
    watcher.call("fs/watch", watched).await.unwrap();
    let (idle, _) = open(&server, named("alice")).await;
    // A paused clock jumps ahead whenever the runtime waits for another thread, so it is paused
    // only while no request is in progress.
    tokio::time::pause();
    idle.ended().await;
    tokio::time::resume();
    for client in [&mut observer, &mut watcher] {
        client.call("environment/status", json!({})).await.unwrap();
    }
    watcher.call("fs/unwatch", json!({ "watchId": "w" })).await.unwrap();
    tokio::time::pause();
    watcher.ended().await;
}

#[tokio::test]
async fn a_connection_with_work_in_progress_is_not_idle() {
    let config = ServerConfig {
        idle_connection_timeout: Duration::from_millis(1),
        ..ServerConfig::default()
    };
    let server = TestServer::new(config);
    let (mut connection, other_end) = memory();
    // Everything has arrived when the server begins to read, so no time passes in between.
    for message in [
        json!({ "id": "a", "method": "initialize", "params": { "clientName": "t" } }),
        json!({ "method": "initialized" }),
        json!({ "id": "b", "method": "process/start", "params": {
            "processId": "p", "argv": ["/bin/sh", "-c", "sleep 0.2; exit 7"], "cwd": "/",
            "env": { "PATH": "/usr/bin:/bin" },
        } }),
    ] {
        connection.outgoing.push(message.to_string().as_bytes());
    }
    connection.outgoing.flush().await.unwrap();
    let serving = tokio::spawn({
        let server = (*server).clone();
        async move { server.serve(other_end).await }
    });
    let mut client = RpcClient::over(Served { connection, serving });
    let exited = client.next("the exit", |message| message["method"] == "process/exited").await;
    assert_eq!(exited["params"]["exitCode"], 7);
    client.ended().await;
}

#[tokio::test]
async fn processes_are_limited_per_subject_and_in_total() {
    let config =
        ServerConfig { max_processes_per_subject: 2, max_processes: 3, ..ServerConfig::default() };
    let server = TestServer::new(config);
    // Two sessions of one subject share its limit.
    let (mut first, _) = open(&server, named("alice")).await;
    let (mut second, _) = open(&server, named("alice")).await;
    let (mut bob, _) = open(&server, named("bob")).await;
    let start = |id: &str| json!({ "processId": id, "argv": ["sleep", "1000"], "cwd": "/" });
    first.call("process/start", start("a")).await.unwrap();
    second.call("process/start", start("b")).await.unwrap();
    let error = first.call("process/start", start("c")).await.unwrap_err();
    assert_eq!(kind(&error), "tooManyProcesses");
    let expected = "subject \"sub:alice\" already runs 2 processes (max_processes_per_subject)";
    assert!(error["message"].as_str().unwrap().ends_with(expected), "{error}");
    bob.call("process/start", start("d")).await.unwrap();
    let error = bob.call("process/start", start("e")).await.unwrap_err();
    assert!(error["message"].as_str().unwrap().contains("(max_processes)"), "{error}");
    // A failed start takes no slot, and a process that ends frees its slot.
    first.call("process/terminate", json!({ "processId": "a" })).await.unwrap();
    let failing = json!({ "processId": "f", "argv": ["/no/such/program"], "cwd": "/" });
    loop {
        match first.call("process/start", failing.clone()).await {
            Err(error) if kind(&error) == "tooManyProcesses" => tokio::task::yield_now().await,
            Err(error) => break assert_eq!(kind(&error), "programNotFound"),
            Ok(_) => panic!("a missing program was started"),
        }
    }
    bob.call("process/start", start("g")).await.unwrap();
}
