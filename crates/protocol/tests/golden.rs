//! Round trips of every message in the example sessions that this protocol is based on. A change
//! here is a change to the wire contract.
#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]

use exec_server_protocol::{
    Base64Bytes, Call, ClientNotification, ClosedNotification, ExecExitedNotification,
    ExecOutputDeltaNotification, ExitedNotification, Message, NotificationHeader,
    NotificationParams, OutputNotification, OutputStream, PathUri, RequestId, Rpc, decode,
    notification, response, rpc,
};
use serde_json::Value;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Asserts that a request decodes to a call whose params encode to the same JSON.
fn request<M: Rpc>(text: &str, check: impl FnOnce(&M::Params)) {
    let Message::Request(request) = decode(text.as_bytes()).unwrap() else {
        panic!("not a request: {text}")
    };
    let call = Call::decode(&request.method, request.params).unwrap();
    assert_eq!(call.method(), M::METHOD);
    let params: M::Params = serde_json::from_str(request.params.unwrap().get()).unwrap();
    assert_eq!(serde_json::to_value(&params).unwrap(), json(request.params.unwrap().get()));
    check(&params);
}

/// Asserts that a response decodes to the method's result, which encodes to the same text.
fn answer<M: Rpc>(text: &str) {
    let Message::Response { id, result: Some(result), error: None } =
        decode(text.as_bytes()).unwrap()
    else {
        panic!("not a response: {text}")
    };
    let result: M::Response = serde_json::from_str(result.get()).unwrap();
    assert_eq!(String::from_utf8(response(&id, &result).unwrap()).unwrap(), text);
}

fn sent<T: NotificationParams>(text: &str) -> T {
    let Message::Notification(received) = decode(text.as_bytes()).unwrap() else {
        panic!("not a notification: {text}")
    };
    assert_eq!(received.method, T::NAME);
    let params: T = serde_json::from_str(received.params.unwrap().get()).unwrap();
    assert_eq!(String::from_utf8(notification(&params)).unwrap(), text);
    params
}

#[test]
fn handshake_messages_round_trip() {
    request::<rpc::Initialize>(
        r#"{"id":1,"method":"initialize","params":{"clientName":"example-client"}}"#,
        |params| assert_eq!(params.client_name, "example-client"),
    );
    // The responses in the examples are `{}` or have only `protocolVersion`. This server also sends
    // `sessionId`.
    answer::<rpc::Initialize>(
        r#"{"id":1,"result":{"sessionId":"8a3c3d0e-5a55-4f0e-9a1c-0d1f0f6f2b11","protocolVersion":"exec-server.v0"}}"#,
    );
    let Message::Notification(initialized) =
        decode(br#"{"method":"initialized","params":{}}"#).unwrap()
    else {
        panic!("not a notification")
    };
    assert!(matches!(
        ClientNotification::decode(&initialized),
        Ok(ClientNotification::Initialized(_))
    ));
}

#[test]
fn process_messages_round_trip() {
    request::<rpc::ProcessStart>(
        r#"{"id":2,"method":"process/start","params":{"processId":"proc-1","argv":["bash","-lc","printf 'ready\\n'; while IFS= read -r line; do printf 'echo:%s\\n' \"$line\"; done"],"cwd":"file:///tmp","env":{"PATH":"/usr/bin:/bin"},"tty":true,"pipeStdin":false,"arg0":null}}"#,
        |params| {
            assert_eq!(params.cwd, PathUri::from_path("/tmp").unwrap());
            assert!(params.tty && !params.pipe_stdin && params.arg0.is_none());
        },
    );
    answer::<rpc::ProcessStart>(r#"{"id":2,"result":{"processId":"proc-1","sandboxType":"none"}}"#);
    let output: OutputNotification = sent(
        r#"{"method":"process/output","params":{"processId":"proc-1","seq":1,"stream":"stdout","chunk":"cmVhZHkK"}}"#,
    );
    assert_eq!(output.chunk, Base64Bytes::from("ready\n"));
    request::<rpc::ProcessWrite>(
        r#"{"id":3,"method":"process/write","params":{"processId":"proc-1","chunk":"aGVsbG8K"}}"#,
        |params| assert_eq!(params.chunk, Base64Bytes::from("hello\n")),
    );
    answer::<rpc::ProcessWrite>(r#"{"id":3,"result":{"status":"accepted"}}"#);
    sent::<OutputNotification>(
        r#"{"method":"process/output","params":{"processId":"proc-1","seq":2,"stream":"stdout","chunk":"ZWNobzpoZWxsbwo="}}"#,
    );
    request::<rpc::ProcessTerminate>(
        r#"{"id":4,"method":"process/terminate","params":{"processId":"proc-1"}}"#,
        |params| assert_eq!(params.process_id, "proc-1"),
    );
    answer::<rpc::ProcessTerminate>(r#"{"id":4,"result":{"running":true}}"#);
    // The examples lack `sandboxDenied` in `process/exited` and `seq` in `process/closed`.
    sent::<ExitedNotification>(
        r#"{"method":"process/exited","params":{"processId":"proc-1","seq":3,"exitCode":0,"sandboxDenied":false}}"#,
    );
    sent::<ClosedNotification>(
        r#"{"method":"process/closed","params":{"processId":"proc-1","seq":4}}"#,
    );
}

#[test]
fn read_messages_round_trip() {
    request::<rpc::ProcessRead>(
        r#"{"id":5,"method":"process/read","params":{"processId":"proc-1","afterSeq":null,"maxBytes":65536,"waitMs":1000}}"#,
        |params| assert_eq!((params.after_seq, params.wait_ms), (None, Some(1000))),
    );
    answer::<rpc::ProcessRead>(
        r#"{"id":5,"result":{"chunks":[],"nextSeq":1,"exited":false,"exitCode":null,"closed":false,"failure":null,"sandboxDenied":false}}"#,
    );
}

#[test]
fn v0_messages_round_trip() {
    let exec = r#"{"id":2,"method":"command/exec","params":{"processId":"proc-1","argv":["bash","-lc","printf 'ready\\n'; while IFS= read -r line; do printf 'echo:%s\\n' \"$line\"; done"],"cwd":"/tmp","env":{"PATH":"/usr/bin:/bin"},"tty":true,"outputBytesCap":4096,"arg0":null}}"#;
    // A native path decodes but encodes as a URI, so only decoding is compared.
    let Message::Request(request) = decode(exec.as_bytes()).unwrap() else { panic!("a request") };
    let Call::CommandExec(params) = Call::decode(&request.method, request.params).unwrap() else {
        panic!("another method")
    };
    assert_eq!(params.cwd, PathUri::from_path("/tmp").unwrap());
    assert_eq!((params.tty, params.output_bytes_cap), (true, Some(4096)));
    answer::<rpc::CommandExec>(
        r#"{"id":2,"result":{"processId":"proc-1","running":true,"exitCode":null,"stdout":null,"stderr":null}}"#,
    );
    sent::<ExecOutputDeltaNotification>(
        r#"{"method":"command/exec/outputDelta","params":{"processId":"proc-1","stream":"stdout","chunk":"cmVhZHkK"}}"#,
    );
    answer::<rpc::CommandExecWrite>(r#"{"id":3,"result":{"accepted":true}}"#);
    sent::<ExecExitedNotification>(
        r#"{"method":"command/exec/exited","params":{"processId":"proc-1","exitCode":0}}"#,
    );
}

#[test]
fn output_written_without_serde_matches_the_example() {
    let mut text = Vec::new();
    let chunk = b"ready\n";
    NotificationHeader::output("proc-1", None).write(&mut text, 1, OutputStream::Stdout, chunk, 0);
    assert_eq!(
        String::from_utf8(text).unwrap(),
        r#"{"method":"process/output","params":{"processId":"proc-1","seq":1,"stream":"stdout","chunk":"cmVhZHkK"}}"#
    );
}

#[test]
fn ids_are_strings_or_integers() {
    for (text, id) in [
        (r#"{"id":"a","method":"session/list"}"#, RequestId::String("a".into())),
        (r#"{"id":-7,"method":"session/list"}"#, RequestId::Integer(-7)),
    ] {
        let Message::Request(request) = decode(text.as_bytes()).unwrap() else { panic!("{text}") };
        assert_eq!(request.id, id);
    }
}
