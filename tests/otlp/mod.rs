//! Exports of a server and a rendezvous to an OpenTelemetry collector. A faulty collector affects
//! neither.

mod collector;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;

use exec_server_test_support::{TestAuthority, Validity};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::monitoring::{get, value};
use crate::support::rendezvous::Rendezvous;
use crate::support::{Client, PROGRAM, Server, command, eventually, program, run_command};
pub(crate) use collector::Collector;
use collector::{exporting_to, series};

const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT_ID: &str = "b7ad6b7169203331";

fn call(client: &mut Client, id: &str, method: &str, params: &Value, trace: &Value) -> Value {
    client.send(&json!({"id": id, "method": method, "params": params, "trace": trace}));
    client.answer_with(&json!(id))
}

fn named<'a>(spans: &'a [Value], name: &str) -> Vec<&'a Value> {
    spans.iter().filter(|span| span["name"] == name).collect()
}

/// Makes two starts and two reads; the second of each fails. Their ids, arguments, variables and
/// paths contain SECRET.
fn traced_requests(client: &mut Client, readable: &Path) {
    let traceparent = format!("00-{TRACE_ID}-{PARENT_ID}-01");
    let trace = json!({"traceparent": traceparent, "tracestate": "a=1"});
    let start = program("ID-SECRET-1", &["/bin/sh", "-c", "exit 0", "COMMAND-SECRET"]);
    let start = start.variable("TOKEN", "TOKEN-SECRET").params();
    let missing = program("ID-SECRET-2", &["/no/such/COMMAND-SECRET"]).params();
    let [readable, unreadable] =
        [readable.to_str().unwrap(), "/no/such/PATH-SECRET"].map(|path| json!({"path": path}));
    for (method, params, failure) in [
        ("process/start", &start, Value::Null),
        ("process/start", &missing, json!("programNotFound")),
        ("fs/readFile", &readable, Value::Null),
        ("fs/readFile", &unreadable, json!("notFound")),
    ] {
        let answer = call(client, "REQUEST-SECRET", method, params, &trace);
        assert_eq!(answer["error"]["data"]["kind"], failure, "{answer}");
    }
}

/// Checks the spans of two requests of a method, each with a child span named `part`: the first
/// request succeeded, the second failed.
fn check_tree(spans: &[Value], method: &str, part: &str, failure: &str) {
    let (requests, parts) = (named(spans, method), named(spans, part));
    assert_eq!((requests.len(), parts.len()), (2, 2), "{spans:#?}");
    let outcomes = [("STATUS_CODE_UNSET", Value::Null), ("STATUS_CODE_ERROR", json!(failure))];
    for ((request, part), (status, failure)) in requests.iter().zip(parts).zip(outcomes) {
        for span in [*request, part] {
            assert_eq!(span["traceId"], TRACE_ID, "{span}");
            assert_eq!(span["traceState"], "a=1", "{span}");
            assert_eq!(span["status"], status, "{span}");
            assert_eq!(span["attributes"]["error.type"], failure, "{span}");
        }
        assert_eq!(request["parentSpanId"], PARENT_ID);
        assert_eq!(request["kind"], "SPAN_KIND_SERVER");
        assert_eq!(request["flags"], 0x301, "the parent is remote");
        assert_eq!(request["attributes"]["rpc.system"], "jsonrpc");
        assert_eq!(request["attributes"]["rpc.method"], method);
        assert_eq!(part["parentSpanId"], request["spanId"]);
        assert_eq!(part["kind"], "SPAN_KIND_INTERNAL");
        assert_eq!(part["flags"], 0x101, "the parent is not remote");
    }
}

#[test]
fn a_span_has_the_parent_of_its_request_and_no_secret() {
    let mut collector = Collector::start();
    let scratch = tempfile::tempdir().unwrap();
    let (log, readable) = (scratch.path().join("log"), scratch.path().join("PATH-SECRET"));
    std::fs::write(&readable, "BODY-SECRET").unwrap();
    let server = collector.server();
    let server = server
        .variable("OTEL_METRICS_EXPORTER", "none")
        .variable("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20HEADER-SECRET")
        .variable("OTEL_RESOURCE_ATTRIBUTES", "deployment=test")
        .arguments(&["--log", "trace"])
        .stderr(File::create(&log).unwrap());
    let mut server = server.start();
    traced_requests(&mut server.client(), &readable);
    // One span of the handshake, and four requests with one child span each.
    let spans = collector.spans(9);
    let initialize = named(&spans, "initialize")[0];
    assert_eq!((&initialize["parentSpanId"], &initialize["traceState"]), (&json!(""), &json!("")));
    assert_ne!(initialize["traceId"], TRACE_ID);
    check_tree(&spans, "process/start", "launch", "programNotFound");
    check_tree(&spans, "fs/readFile", "file operation", "notFound");

    // No process inherits the `OTEL_` variables.
    let env = server.run(&["run", "--connect", server.url(), "--", "env"]);
    assert!(env.stdout.contains("PATH=") && !env.stdout.contains("OTEL_"), "{env:?}");
    let export = collector.export();
    assert_eq!(export["headers"]["authorization"], "Bearer HEADER-SECRET");
    assert_eq!(export["headers"]["content-type"], "application/x-protobuf");
    assert_eq!(export["resource"]["service.name"], "exec-server");
    assert_eq!(export["resource"]["deployment"], "test");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    let received = collector.received().replace("HEADER-SECRET", "");
    assert!(!received.contains("SECRET"), "{received}");
    let log = std::fs::read_to_string(log).unwrap();
    let line = log.lines().find(|line| line.contains("exporting telemetry")).unwrap();
    assert!(line.contains(&format!("{}/v1/traces", collector.url)), "{line}");
    assert!(!log.contains("HEADER-SECRET") && !log.contains(TRACE_ID), "{log}");
}

#[test]
fn hostile_names_reach_neither_spans_nor_metrics() {
    let mut collector = Collector::start();
    let mut server = collector.server().start();
    let mut client = server.client();
    let mut hostile: Vec<String> =
        ["\n", "\u{1b}[31m", "\"", "\u{2028}", "\\", "\u{fffd}", "}\n# "]
            .map(|text| format!("HOSTILE{text}"))
            .to_vec();
    hostile.push("HOSTILE".repeat(150_000));
    for text in &hostile {
        let traces = [
            json!({"traceparent": text, "tracestate": text}),
            json!({"traceparent": format!("00-{TRACE_ID}-{PARENT_ID}-{text}")}),
            json!({"traceparent": 7}),
            json!([text]),
        ];
        for trace in &traces {
            let refused = call(&mut client, text, text, &json!({"x": text}), trace);
            assert!(refused["error"].is_object());
            let params = json!({"path": format!("/no/such/{text}")});
            assert!(call(&mut client, text, "fs/readFile", &params, trace)["error"].is_object());
        }
        let state =
            json!({"traceparent": format!("00-{TRACE_ID}-{PARENT_ID}-01"), "tracestate": text});
        let params = json!({"processId": text});
        assert!(call(&mut client, text, "process/wait", &params, &state)["error"].is_object());
    }
    let mut spans = Vec::new();
    while named(&spans, "process/wait").len() < hostile.len() {
        spans.extend(collector.spans(1));
    }
    for span in &spans {
        let name = span["name"].as_str().unwrap();
        let known = ["initialize", "unknown", "fs/readFile", "file operation", "process/wait"];
        assert!(known.contains(&name), "{span}");
        assert_eq!(span["traceState"], "");
        // For each text, only the trace of `process/wait` is valid.
        assert_eq!(span["traceId"] == TRACE_ID, name == "process/wait", "{span}");
    }
    assert_eq!(named(&spans, "unknown").len(), 4 * hostile.len());
    server.signal(Signal::TERM);
    while collector.export()["path"] != "/v1/metrics" {}
    assert_eq!(server.wait().code(), Some(0));
    assert!(!collector.received().contains("HOSTILE"));
}

#[test]
fn exported_metrics_equal_those_for_prometheus() {
    let mut collector = Collector::start();
    let server = collector.server().variable("OTEL_TRACES_EXPORTER", "none");
    let server = server.variable("OTEL_METRIC_EXPORT_INTERVAL", "50");
    let server = server.arguments(&["--metrics"]).start();
    assert_eq!(
        server.run(&["run", "--connect", server.url(), "--", "echo", "12345"]).code,
        Some(0)
    );
    let scraped = || -> BTreeMap<String, f64> {
        let (status, text) = get(server.url(), "/metrics", "");
        assert_eq!(status, 200);
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let pairs = lines.map(|line| line.rsplit_once(' ').unwrap());
        let pairs = pairs.filter(|(name, _)| {
            // The `process_` metrics change all the time; OTLP has no bucket without a bound.
            !name.starts_with("process_") && !name.contains("le=\"+Inf\"")
        });
        pairs.map(|(name, number)| (name.to_owned(), number.parse().unwrap())).collect()
    };
    let exited = "exec_server_process_exits_total{cause=\"success\"}";
    eventually("the server is at rest", || {
        let now = scraped();
        now[exited] == 1.0 && now["exec_server_connections"] == 0.0
    });
    eventually("an export has the same values", || {
        let export = collector.export();
        assert_eq!(
            (&export["path"], &export["scope"]),
            (&json!("/v1/metrics"), &json!("exec-server"))
        );
        let mut exported = series(&export);
        assert!(exported.remove("process_resident_memory_bytes").unwrap() > 0.0);
        exported.retain(|name, _| !name.starts_with("process_"));
        exported == scraped()
    });
    let duration = "exec_server_request_duration_seconds_count{method=\"process/start\"}";
    assert_eq!(scraped()[duration], 1.0);
}

#[test]
fn shutdown_flushes_spans_and_metrics() {
    let mut collector = Collector::start();
    let mut server = exporting_to(&collector.url).start();
    drop(server.client());
    server.signal(Signal::TERM);
    let [one, other] = [collector.export(), collector.export()];
    let (traces, metrics) = if one["spans"].is_array() { (one, other) } else { (other, one) };
    assert_eq!(traces["spans"][0]["name"], "initialize");
    assert_eq!(series(&metrics)["exec_server_connections_total"], 1.0);
    assert_eq!(server.wait().code(), Some(0));
    assert_eq!(traces["resource"], metrics["resource"]);
}

fn metric(server: &Server, name: &str) -> f64 {
    value(&get(server.url(), "/metrics", "").1, name)
}

const DROPPED: &str = "exec_server_trace_spans_dropped_total";

#[test]
fn a_hanging_collector_loses_spans_and_nothing_else() {
    // The kernel accepts connections; no response ever arrives.
    let hanging = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut server = exporting_to(&format!("http://{}", hanging.local_addr().unwrap()))
        .variable("OTEL_BSP_SCHEDULE_DELAY", "1")
        .variable("OTEL_BSP_MAX_QUEUE_SIZE", "4")
        .arguments(&["--metrics"])
        .start();
    let mut client = server.client();
    for _ in 0..50 {
        client.call("environment/status", json!({}));
    }
    eventually("spans are dropped", || metric(&server, DROPPED) > 0.0);
    client.call("environment/status", json!({}));
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn an_unreachable_collector_is_reported_once() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut server = exporting_to(&format!("http://user:URL-SECRET@{closed}/?key=URL-SECRET"))
        .variable("OTEL_BSP_SCHEDULE_DELAY", "1")
        .variable("OTEL_EXPORTER_OTLP_TIMEOUT", "100")
        .variable("OTEL_METRICS_EXPORTER", "none")
        .arguments(&["--metrics", "--log", "debug"])
        .capture_stderr()
        .start();
    let mut client = server.client();
    let failures = "exec_server_telemetry_export_failures_total{signal=\"traces\"}";
    eventually("several exports fail", || {
        client.call("environment/status", json!({}));
        metric(&server, failures) > 2.0
    });
    assert!(metric(&server, DROPPED) > 2.0);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    let log = server.stderr();
    assert_eq!(log.matches("telemetry is lost").count(), 1, "{log}");
    assert!(log.contains("cannot reach the collector") && !log.contains("SECRET"), "{log}");
}

#[test]
fn rejected_spans_are_counted() {
    let mut collector = Collector::with(&["--reject", "1"]);
    let server = collector.server().arguments(&["--metrics"]).start();
    let mut client = server.client();
    client.call("environment/status", json!({}));
    collector.spans(2);
    eventually("the rejected spans are counted", || metric(&server, DROPPED) >= 1.0);
}

#[test]
fn an_export_is_retried_while_the_collector_is_unavailable() {
    let mut collector = Collector::with(&["--unavailable", "1"]);
    let server = collector.server().variable("OTEL_METRICS_EXPORTER", "none");
    let server = server.arguments(&["--metrics"]).start();
    drop(server.client());
    let [first, second] = [collector.export(), collector.export()];
    assert_eq!(first["spans"], second["spans"]);
    assert_eq!(metric(&server, DROPPED), 0.0);
}

#[test]
fn a_collector_may_require_a_client_certificate() {
    let scratch = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    let [server, client] = ["server", "client"].map(|name| {
        let directory = scratch.path().join(name);
        std::fs::create_dir(&directory).unwrap();
        authority.issue(&directory, &["127.0.0.1"], Validity::Now)
    });
    let authority = authority.write(scratch.path());
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let files = [&*server.certificate, &server.key, &authority].map(text);
    let mut collector = Collector::with(&["--tls", &files[0], &files[1], &files[2]]);
    let server = collector.server();
    let server = server
        .variable("OTEL_EXPORTER_OTLP_CERTIFICATE", &text(&authority))
        .variable("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &text(&client.certificate))
        .variable("OTEL_EXPORTER_OTLP_CLIENT_KEY", &text(&client.key))
        .start();
    drop(server.client());
    assert_eq!(collector.spans(1)[0]["name"], "initialize");
}

#[test]
fn an_invalid_variable_stops_the_program() {
    for (name, value, why) in [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "only http/protobuf is supported"),
        (
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "grpc://u:VALUE@c",
            "is not an http:// or https:// URL",
        ),
        ("OTEL_EXPORTER_OTLP_HEADERS", "VALUE", "is not a list of headers"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file", "/no/such/file"),
    ] {
        for arguments in [
            &["--listen", "ws://127.0.0.1:0"][..],
            &["rendezvous", "--listen", "http://127.0.0.1:0"],
        ] {
            let data = tempfile::tempdir().unwrap();
            let mut program = command(PROGRAM);
            program.args(arguments).env("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:1");
            program.env(name, value);
            if arguments[0] == "rendezvous" {
                program.arg("--data").arg(data.path());
            }
            let outcome = run_command(program);
            assert_eq!(outcome.code, Some(1), "{outcome:?}");
            assert!(
                outcome.stderr.contains(why) && !outcome.stderr.contains("VALUE"),
                "{outcome:?}"
            );
        }
    }
}

#[test]
fn a_rendezvous_exports_its_calls_and_metrics() {
    let mut collector = Collector::start();
    let data = tempfile::tempdir().unwrap();
    let rendezvous = Rendezvous::start_with(data.path(), "http://127.0.0.1:0", |program| {
        program.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url).env("NO_PROXY", "127.0.0.1");
    });
    let mut socket = rendezvous.socket();
    write!(
        socket,
        "POST /cloud/environment/ID-SECRET/connect HTTP/1.1\r\nhost: localhost\r\n\
         connection: close\r\nauthorization: Bearer TOKEN-SECRET\r\ncontent-length: 0\r\n\
         traceparent: 00-{TRACE_ID}-{PARENT_ID}-01\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    rendezvous.stop();
    let [one, other] = [collector.export(), collector.export()];
    let (traces, metrics) = if one["spans"].is_array() { (one, other) } else { (other, one) };
    let span = &traces["spans"][0];
    assert_eq!(span["name"], "POST /cloud/environment/{id}/connect");
    assert_eq!((&span["traceId"], &span["parentSpanId"]), (&json!(TRACE_ID), &json!(PARENT_ID)));
    assert_eq!(span["attributes"]["error.type"], "unauthorized");
    assert_eq!(series(&metrics)["exec_server_relay_refusals_total"], 1.0);
    assert_eq!(metrics["resource"]["service.name"], "exec-server-rendezvous");
    assert!(!collector.received().contains("SECRET"), "{}", collector.received());
}
