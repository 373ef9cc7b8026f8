//! A server that supports neither the extensions of this project nor sandboxes.

use exec_server_client::ExecServerError;
use exec_server_protocol::{
    Empty, FsReadDirectoryParams, ListParams, NetworkRules, PathUri, ProcessTeardown, SandboxMode,
    SandboxRequest, StartParams,
};
use serde_json::{Value, json};

use crate::peer::connected_to;

fn uri(path: &str) -> PathUri {
    PathUri::from_path(path).unwrap()
}

#[tokio::test]
async fn extensions_may_be_missing() {
    let (client, _listening, mut peer) = connected_to(false).await;
    let info = client.environment_info(Empty {});
    let capabilities = json!({
        "networkProxyLaunch": false, "capabilityDiscoverySandbox": false, "environmentConfigRead": false,
        "httpHeaderEnvVars": false, "sandboxedFileStreaming": false, "shellSnapshotV2": false,
    });
    let answer = json!({
        "shell": {"name": "sh", "path": "/bin/sh"}, "cwd": "file:///", "temporaryDirectories": [],
        "tempDir": "file:///tmp", "capabilities": capabilities,
    });
    let (info, ()) = tokio::join!(info, async {
        let (id, _) = peer.expect("environment/info").await;
        peer.answer(&id, &answer).await;
    });
    assert_eq!(info.unwrap().process_teardown, ProcessTeardown::default());

    let params = FsReadDirectoryParams::new(uri("/srv/a"));
    let answer = json!({"entries": [{"fileName": "b c", "isDirectory": false, "isFile": true}]});
    let (listed, ()) = tokio::join!(client.fs_read_directory(params), async {
        let (id, _) = peer.expect("fs/readDirectory").await;
        peer.answer(&id, &answer).await;
    });
    let listed = listed.unwrap().with_paths(&uri("/srv/a"));
    assert_eq!(listed.entries[0].path, uri("/srv/a/b c"));

    let answer = json!({"processes": [{
        "processId": "p", "argv": ["true"], "tty": false, "running": true, "exitCode": null,
        "startedAtMs": 1, "nextSeq": 1,
    }]});
    let (listed, ()) = tokio::join!(client.process_list(ListParams::default()), async {
        let (id, _) = peer.expect("process/list").await;
        peer.answer(&id, &answer).await;
    });
    assert_eq!(listed.unwrap().processes[0].descendants, 0);
}

#[tokio::test]
async fn a_process_without_its_requested_sandbox_is_terminated() {
    let read_only = SandboxRequest::mode(&SandboxMode::ReadOnly { network_access: false });
    let nothing = SandboxRequest::mode(&SandboxMode::DangerFullAccess {});
    let silent = json!({"processId": "p"});
    let says = |kind: &str| json!({"processId": "p", "sandboxType": kind});
    for (sandbox, answer, is_refused) in [
        (Some(&read_only), says("none"), true),
        (Some(&read_only), silent.clone(), true),
        (Some(&read_only), says("linuxSeccomp"), false),
        (Some(&nothing), says("none"), false),
        (None, silent, false),
    ] {
        let (client, _listening, mut peer) = connected_to(false).await;
        let params = StartParams::new("p", ["true"], uri("/"));
        let params = StartParams { sandbox: sandbox.cloned(), ..params };
        let (started, ended) = tokio::join!(client.start(params), async {
            let (id, _) = peer.expect("process/start").await;
            peer.answer(&id, &answer).await;
            if !is_refused {
                return Value::Null;
            }
            let (id, params) = peer.expect("process/terminate").await;
            peer.answer(&id, &json!({"running": true})).await;
            params["processId"].clone()
        });
        match started {
            Err(ExecServerError::NotSandboxed { process_id }) => {
                assert!(is_refused, "{answer}");
                assert_eq!((process_id.as_str(), ended), ("p", json!("p")));
            }
            other => assert!(!is_refused, "{answer}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_start_with_host_rules_fails_if_the_server_ignores_them() {
    let managed = json!({"processId": "p", "sandboxType": "none", "enforcement": {
        "seccomp": false, "pidNamespace": false, "bubblewrap": false, "network": "transparent",
    }});
    for (answer, is_refused) in [(json!({"processId": "p"}), true), (managed, false)] {
        let (client, _listening, mut peer) = connected_to(false).await;
        let network = NetworkRules { allow: vec!["a.example".to_owned()], ..Default::default() };
        let params = StartParams::new("p", ["true"], uri("/"));
        let params = StartParams { network: Some(Box::new(network)), ..params };
        let (started, ()) = tokio::join!(client.start(params), async {
            let (id, _) = peer.expect("process/start").await;
            peer.answer(&id, &answer).await;
            if is_refused {
                let (id, _) = peer.expect("process/terminate").await;
                peer.answer(&id, &json!({"running": true})).await;
            }
        });
        let error = started.err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(error.contains("does not enforce host rules"), is_refused, "{error}");
    }
}
