//! Limits of processes: those of a start, of the operator and of the token, and their reports. The
//! server has no keepers here, so only the wall time and the limits per process apply, and the
//! response reports that.

use exec_server_protocol::{Cpus, LimitValues, Principal, Subject};
use exec_server_server::{Server, ServerConfig};
use exec_server_test_support::{RpcClient, Served, TestServer};
use exec_server_transport::memory;
use serde_json::{Value, json};

async fn open(server: &Server, limits: LimitValues) -> RpcClient {
    let (connection, mut other_end) = memory();
    other_end.principal = Principal { limits, ..Principal::new(Subject::Named("a".into())) };
    let server = server.clone();
    let serving = tokio::spawn(async move { server.serve(other_end).await });
    let mut client = RpcClient::over(Served { connection, serving });
    client.initialize(json!({ "clientName": "test" })).await;
    client
}

async fn unlimited_client(config: ServerConfig) -> RpcClient {
    open(&TestServer::new(config), LimitValues::default()).await
}

fn start(id: &str, script: &str, extra: &Value) -> Value {
    let argv = ["/bin/sh", "-c", script];
    let mut params = json!({ "processId": id, "argv": argv, "cwd": "file:///", "env": {} });
    for (name, value) in extra.as_object().unwrap() {
        params[name] = value.clone();
    }
    params
}

async fn exit_of(client: &mut RpcClient, id: &str) -> Value {
    let is_exit = |message: &Value| {
        message["method"] == "process/exited" && message["params"]["processId"] == id
    };
    client.next("the exit", is_exit).await["params"].clone()
}

#[tokio::test]
async fn without_limits_nothing_is_reported() {
    let mut client = unlimited_client(ServerConfig::default()).await;
    let answer = client.call("process/start", start("p", "exit 0", &json!({}))).await.unwrap();
    assert!(answer.get("limits").is_none(), "{answer}");
    let exit = exit_of(&mut client, "p").await;
    for absent in ["limitsHit", "peakMemoryBytes", "treeCpuMs"] {
        assert!(exit.get(absent).is_none(), "{exit}");
    }
    for limits in [Value::Null, json!({}), json!({ "memoryBytes": null, "required": null })] {
        let params = start(&limits.to_string(), "exit 0", &json!({ "limits": limits }));
        let answer = client.call("process/start", params).await.unwrap();
        assert!(answer.get("limits").is_none(), "{answer}");
    }
}

#[tokio::test]
async fn the_response_reports_which_limits_apply() {
    let mut client = unlimited_client(ServerConfig::default()).await;
    let limits = json!({
        "memoryBytes": 1 << 20, "pids": 9, "cpuTimeMs": 1000, "cpus": 1.5, "wallTimeMs": 60000,
        "openFiles": 33, "fileSizeBytes": 0, "coreSizeBytes": 0,
    });
    let params = start("p", "ulimit -n", &json!({ "limits": limits }));
    let answer = client.call("process/start", params).await.unwrap();
    let mut expected = limits;
    expected["tier"] = "rlimit".into();
    expected["notEnforced"] = json!(["memory", "pids", "cpuTime", "cpus"]);
    assert_eq!(answer["limits"], expected);
    assert_eq!(answer["timeoutMs"], 60000);
    let is_output = |message: &Value| message["method"] == "process/output";
    let output = client.next("output", is_output).await;
    assert_eq!(output["params"]["chunk"], "MzMK");
}

#[tokio::test]
async fn defaults_and_ceilings_of_the_operator_and_the_token_apply() {
    let config = ServerConfig {
        default_limits: LimitValues {
            open_files: Some(20),
            pids: Some(50),
            ..LimitValues::default()
        },
        max_limits: LimitValues {
            open_files: Some(100),
            cpus: Some(Cpus::new(2.0).unwrap()),
            ..LimitValues::default()
        },
        ..ServerConfig::default()
    };
    let token = LimitValues {
        open_files: Some(60),
        wall_time_ms: Some(3_600_000),
        ..LimitValues::default()
    };
    let server = TestServer::new(config);
    let mut operators = open(&server, LimitValues::default()).await;
    let mut tokens = open(&server, token).await;
    for (limits, by_operator, by_token) in [
        (json!({}), 20, 20),
        (json!({ "openFiles": 10 }), 10, 10),
        (json!({ "openFiles": 80 }), 80, 60),
        (json!({ "openFiles": u64::MAX }), 100, 60),
    ] {
        for (client, expected) in [(&mut operators, by_operator), (&mut tokens, by_token)] {
            let id = limits.to_string();
            for mode in ["direct", "prepared"] {
                let extra = json!({ "limits": limits, "mode": mode });
                let params = start(&format!("{id}{mode}"), "exit 0", &extra);
                let answer = client.call("process/start", params).await.unwrap();
                assert_eq!(answer["limits"]["openFiles"], expected, "{answer}");
                assert_eq!(answer["limits"]["pids"], 50, "{answer}");
                assert_eq!(answer["limits"]["cpus"], 2, "{answer}");
            }
        }
    }
    let answer = tokens.call("process/start", start("w", "exit 0", &json!({}))).await.unwrap();
    assert_eq!(answer["timeoutMs"], 3_600_000);
    let soon = json!({ "timeoutMs": 60000 });
    let answer = tokens.call("process/start", start("s", "exit 0", &soon)).await.unwrap();
    let expected = (&json!(60000), &json!(3_600_000));
    assert_eq!((&answer["timeoutMs"], &answer["limits"]["wallTimeMs"]), expected);
}

#[tokio::test]
async fn the_v0_start_method_has_the_same_limits() {
    let max_limits = LimitValues { open_files: Some(21), ..LimitValues::default() };
    let mut client = unlimited_client(ServerConfig { max_limits, ..ServerConfig::default() }).await;
    let params = json!({
        "processId": "p", "argv": ["/bin/sh", "-c", "ulimit -n"], "cwd": "file:///", "env": {},
    });
    client.call("command/exec", params).await.unwrap();
    let is_output = |message: &Value| message["method"] == "command/exec/outputDelta";
    let output = client.next("output", is_output).await;
    assert_eq!(output["params"]["chunk"], "MjEK");
}

#[tokio::test]
async fn a_start_that_requires_a_missing_cgroup_is_refused() {
    let mut client = unlimited_client(ServerConfig::default()).await;
    let limits = json!({ "limits": { "memoryBytes": 1 << 30, "required": "cgroup" } });
    let error = client.call("process/start", start("p", "exit 0", &limits)).await.unwrap_err();
    assert_eq!(error["data"]["kind"], "limitsUnavailable", "{error}");
    let message = error["message"].as_str().unwrap();
    for part in ["process \"p\"", "tier \"rlimit\"", "has no keepers", "Delegate=yes"] {
        assert!(message.contains(part), "{message}");
    }
    // The id is free again, and other starts succeed.
    client.call("process/start", start("p", "exit 0", &json!({}))).await.unwrap();
}

#[tokio::test]
async fn hostile_limits_are_refused() {
    let mut client = unlimited_client(ServerConfig::default()).await;
    for (limits, expected) in [
        (json!({ "memoryBytes": 0 }), "memoryBytes must be at least 1"),
        (json!({ "pids": 0 }), "pids must be at least 1"),
        (json!({ "cpuTimeMs": 0 }), "cpuTimeMs must be at least 1"),
        (json!({ "wallTimeMs": 0 }), "wallTimeMs must be at least 1"),
        (json!({ "openFiles": 0 }), "openFiles must be at least 1"),
        (json!({ "memoryBytes": -1 }), "-1"),
        (json!({ "memoryBytes": 1.5 }), "1.5"),
        (json!({ "cpus": 0 }), "cpus must be"),
        (json!({ "cpus": -1 }), "cpus must be"),
        (json!({ "cpus": 1e300 }), "cpus must be"),
        (json!({ "cpus": "NaN" }), "string"),
        (json!({ "memory": 1 }), "memory"),
        (json!({ "MemoryBytes": 1 }), "MemoryBytes"),
        (json!({ "required": "magic" }), "magic"),
        (json!([1]), "sequence"),
        (json!("all"), "all"),
    ] {
        let params = start("p", "exit 0", &json!({ "limits": limits }));
        let error = client.call("process/start", params).await.unwrap_err();
        assert_eq!(error["code"], -32602, "{limits}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(expected), "{limits}: {message}");
    }
    let misspelt = json!({ "Limits": { "pids": 1 } });
    let error = client.call("process/start", start("p", "exit 0", &misspelt)).await.unwrap_err();
    assert!(error["message"].as_str().unwrap().contains("\"limits\""), "{error}");
    let most = json!({ "limits": {
        "memoryBytes": u64::MAX, "pids": u64::MAX, "cpuTimeMs": u64::MAX, "wallTimeMs": u64::MAX,
        "openFiles": u64::MAX, "fileSizeBytes": u64::MAX, "coreSizeBytes": u64::MAX, "cpus": 1e6,
    } });
    client.call("process/start", start("most", "exit 0", &most)).await.unwrap();
    assert_eq!(exit_of(&mut client, "most").await["exitCode"], 0);
}

#[tokio::test]
async fn a_reached_limit_is_reported_everywhere() {
    let mut client = unlimited_client(ServerConfig::default()).await;
    let limits = json!({ "limits": { "wallTimeMs": 1 }, "timeoutMs": 100_000 });
    client.call("process/start", start("w", "exec sleep 1000", &limits)).await.unwrap();
    let exit = exit_of(&mut client, "w").await;
    assert_eq!((&exit["limitsHit"], &exit["timedOut"]), (&json!(["wallTime"]), &json!(true)));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("f");
    let script = format!("exec dd if=/dev/zero of={} bs=4096 count=2", file.display());
    let limits = json!({ "limits": { "fileSizeBytes": 10 } , "env": { "PATH": "/usr/bin:/bin" } });
    client.call("process/start", start("f", &script, &limits)).await.unwrap();
    let exit = exit_of(&mut client, "f").await;
    assert_eq!(exit["limitsHit"], json!(["fileSize"]), "{exit}");
    let waited = client.call("process/wait", json!({ "processId": "f" })).await.unwrap();
    assert_eq!(waited["limitsHit"], json!(["fileSize"]));
    let read = client.call("process/read", json!({ "processId": "f" })).await.unwrap();
    assert_eq!(read["limitsHit"], json!(["fileSize"]));
    let list = client.call("process/list", json!({})).await.unwrap();
    let listed = list["processes"].as_array().unwrap();
    let of = |id: &str| listed.iter().find(|process| process["processId"] == id).unwrap();
    assert_eq!(of("f")["limitsHit"], json!(["fileSize"]));
    // A shorter deadline of the start is not a limit.
    let limits = json!({ "limits": { "wallTimeMs": 100_000 }, "timeoutMs": 1 });
    client.call("process/start", start("t", "exec sleep 1000", &limits)).await.unwrap();
    let exit = exit_of(&mut client, "t").await;
    assert_eq!((exit.get("limitsHit"), &exit["timedOut"]), (None, &json!(true)));
}
