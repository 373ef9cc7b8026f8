//! Authentication: which tokens and which local users the server accepts.

use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use exec_server_test_support::skipped;
use exec_server_transport::new_token;
use rustix::net::sockopt::set_socket_linger;
use serde_json::{Value, json};

use crate::support::machine::is_root;
use crate::support::tokens::{Issuer, now, write_secret};
use crate::support::{
    Server, ServerBuilder, command, encoded, eventually, run_command, run_program, shell,
};

const UPGRADE: &str = "Host: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

fn status(server: &Server, token: &str) -> u16 {
    server.http(&format!("GET / HTTP/1.1\r\n{UPGRADE}Authorization: Bearer {token}\r\n\r\n")).0
}

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are text")
}

/// Returns a token with any header and claims, signed with `secret`.
fn forged(secret: &str, header: &Value, claims: &Value) -> String {
    const SIGN: &str = r#"
import sys, hmac, hashlib, base64
encode = lambda data: base64.urlsafe_b64encode(data).rstrip(b"=")
signed = encode(sys.argv[2].encode()) + b"." + encode(sys.argv[3].encode())
signature = hmac.new(sys.argv[1].encode(), signed, hashlib.sha256).digest()
print((signed + b"." + encode(signature)).decode(), end="")
"#;
    let mut python = command("python3");
    python.args(["-c", SIGN, secret, &header.to_string(), &claims.to_string()]);
    run_command(python).stdout
}

#[test]
fn forged_and_outdated_tokens_are_refused_and_never_logged() {
    let issuer = Issuer::new();
    let arguments =
        ["--ws-issuer", "me", "--ws-audience", "box", "--ws-max-clock-skew-seconds", "0"];
    let builder = issuer.server().arguments(&arguments).arguments(&["--log", "trace"]);
    let mut server = builder.capture_stderr().start();
    let secret = std::fs::read_to_string(issuer.secret_file()).unwrap();
    let header = json!({ "alg": "HS256", "typ": "JWT" });
    let good = json!({ "sub": "a", "exp": now() + 600, "iss": "me", "aud": "box" });
    let with = |member: &str, value: Value| {
        let mut claims = good.clone();
        claims[member] = value;
        claims
    };
    let without = |member: &str| {
        let mut claims = good.clone();
        claims.as_object_mut().unwrap().remove(member);
        claims
    };
    let valid = forged(&secret, &header, &good);
    let (signed, _) = valid.rsplit_once('.').unwrap();
    let unsigned = forged("", &json!({ "alg": "none" }), &good);
    let (unsigned, _) = unsigned.rsplit_once('.').unwrap();
    let refused = [
        format!("{unsigned}."),
        forged("", &json!({ "alg": "none" }), &good),
        // Algorithm confusion: a flawed server would take the secret for a public key.
        forged(&secret, &json!({ "alg": "RS256" }), &good),
        forged(&secret, &json!({ "alg": "HS512" }), &good),
        forged(&new_token(), &header, &good),
        format!("{signed}."),
        forged(&secret, &header, &without("exp")),
        forged(&secret, &header, &with("exp", json!(now() - 1))),
        forged(&secret, &header, &with("nbf", json!(now() + 600))),
        forged(&secret, &header, &without("aud")),
        forged(&secret, &header, &with("aud", json!("other"))),
        forged(&secret, &header, &without("iss")),
        forged(&secret, &header, &with("iss", json!("other"))),
        forged(&secret, &header, &with("role", json!("root"))),
        forged(&secret, &header, &with("sandbox", json!({ "mode": "off" }))),
    ];
    for token in &refused {
        assert_eq!(status(&server, token), 401, "{token}");
    }
    assert_eq!(status(&server, &valid), 101);
    let (status, _) = server.http(&format!("GET /?token={valid} HTTP/1.1\r\n{UPGRADE}\r\n"));
    assert_eq!(status, 101);

    server.signal(rustix::process::Signal::TERM);
    let log = server.stderr();
    assert!(log.contains("refused a client"), "{log}");
    for token in refused.iter().chain([&valid, &secret]) {
        for part in token.split('.').filter(|part| part.len() > 16) {
            assert!(!log.contains(part), "{part} is in the log");
        }
    }
}

#[test]
fn a_short_secret_is_refused_at_startup() {
    let directory = tempfile::tempdir().unwrap();
    let secret = directory.path().join("secret");
    std::fs::write(&secret, "x".repeat(31)).unwrap();
    let file = ["--ws-shared-secret-file", text(&secret)];
    let outcome = run_program(&[&["--ws-auth", "signed-bearer-token"][..], &file].concat());
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""));
    assert!(outcome.stderr.contains("at least 32"), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("xxx"), "{}", outcome.stderr);
    let outcome = run_program(&file);
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("has no effect without ws_auth"), "{}", outcome.stderr);
}

#[test]
fn ten_thousand_bad_attempts_do_not_lock_out_a_valid_client() {
    const ATTEMPTS: usize = 10_000;
    const ATTACKERS: usize = 4;
    let issuer = Issuer::new();
    let server = issuer.start();
    let address = server.url().strip_prefix("ws://").unwrap().to_owned();
    let token = issuer.token(&json!({ "sub": "alice" }));
    thread::scope(|scope| {
        let attackers: Vec<_> = (0..ATTACKERS)
            .map(|_| {
                scope.spawn(|| {
                    let request = format!("GET /?token=guess HTTP/1.1\r\n{UPGRADE}\r\n");
                    // Attackers do not wait for the delayed refusals.
                    let mut open = std::collections::VecDeque::new();
                    for _ in 0..ATTEMPTS / ATTACKERS {
                        let Ok(mut stream) = TcpStream::connect(&address) else { continue };
                        // A reset frees the port at once.
                        set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
                        let _ = stream.write_all(request.as_bytes());
                        open.push_back(stream);
                        if open.len() > 100 {
                            open.pop_front();
                        }
                    }
                })
            })
            .collect();
        let mut served = 0;
        while attackers.iter().any(|attacker| !attacker.is_finished()) || served < 10 {
            // The session ends with its connection.
            let mut client = server.connect_with(&token).unwrap();
            client.initialize(&json!({ "detachedTtlMs": 0 })).unwrap();
            assert_eq!(client.run(&shell("p", "echo hi")).text(), "hi\n");
            served += 1;
        }
    });
    assert_eq!(server.get("/healthz"), 200);
}

#[test]
fn a_secret_that_others_can_read_causes_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    write_secret(&token, &new_token());
    std::fs::set_permissions(&token, PermissionsExt::from_mode(0o644)).unwrap();
    let arguments = ["--ws-auth", "capability-token", "--ws-token-file", text(&token)];
    let mut server = ServerBuilder::new().arguments(&arguments).capture_stderr().start();
    let line = server.error_line();
    assert!(line.contains(text(&token)) && line.contains("mode to 600"), "{line}");
}

#[test]
fn a_rotated_token_is_reloaded_on_sighup() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    write_secret(&file, "first-capability-token\n");
    let server = Server::with(&["--ws-auth", "capability-token", "--ws-token-file", text(&file)]);
    let mut client = server.client_of("first-capability-token");
    assert_eq!(status(&server, "second-capability-token"), 401);
    write_secret(&file, "second-capability-token\n");
    assert_eq!(status(&server, "first-capability-token"), 101);
    server.signal(rustix::process::Signal::HUP);
    eventually("the server accepts the new token", || {
        server.connect_with("second-capability-token").is_ok()
    });
    assert!(server.connect_with("first-capability-token").is_err());
    // Open connections continue.
    assert_eq!(client.run(&shell("p", "echo hi")).text(), "hi\n");
}

#[test]
fn a_server_listens_on_several_addresses_and_local_commands_find_the_open_one() {
    let directory = tempfile::tempdir().unwrap();
    let (socket, token) = (directory.path().join("server.sock"), directory.path().join("token"));
    write_secret(&token, &new_token());
    let unix = format!("unix://{}", socket.display());
    let mut server = Server::with(&[
        "--listen",
        "ws://127.0.0.1:0",
        "--listen",
        &unix,
        "--ws-auth",
        "capability-token",
        "--ws-token-file",
        text(&token),
    ]);
    assert_eq!(server.next_line(), unix);
    let url = server.url().to_owned();
    assert!(url.starts_with("ws://127.0.0.1:"));
    // The command uses the Unix socket, which needs no token.
    let outcome = server.run(&["run", "--", "echo", "hi"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(0), "hi\n"), "{}", outcome.stderr);
    let outcome = server.run(&["ps", "--connect", &url]);
    assert_eq!(outcome.code, Some(1));
    assert!(outcome.stderr.contains("401") && outcome.stderr.contains("--token-file"));
    let credentials = ["--connect", &url, "--token-file", text(&token)];
    let with_token = |words: &[&str]| {
        let (command, rest) = words.split_first().unwrap();
        server.run(&[&[*command], &credentials[..], rest].concat())
    };
    assert_eq!(with_token(&["run", "--", "echo", "hi"]).stdout, "hi\n");
    // Each principal lists only its own processes.
    server.run(&["run", "-d", "--name", "local-job", "--", "sleep", "1000"]);
    with_token(&["run", "-d", "--name", "remote-job", "--", "sleep", "1000"]);
    let local = server.run(&["ps"]).stdout;
    assert!(local.contains("local-job") && !local.contains("remote-job"), "{local}");
    let remote = with_token(&["ps"]).stdout;
    assert!(!remote.contains("local-job") && remote.contains("remote-job"), "{remote}");
    assert_ne!(with_token(&["kill", "local-job"]).code, Some(0));

    for alone in ["stdio", "off"] {
        let outcome = run_program(&["--listen", alone, "--listen", "ws://127.0.0.1:0"]);
        assert_eq!(outcome.code, Some(2));
        assert!(outcome.stderr.contains("cannot be combined"), "{}", outcome.stderr);
    }
}

#[test]
fn a_signed_token_works_from_the_command_line() {
    let issuer = Issuer::new();
    let server = issuer.start();
    let (secret, directory) = (issuer.secret_file(), tempfile::tempdir().unwrap());
    let sign = |arguments: &[&str]| {
        let secret = ["token", "sign", "--secret-file", text(&secret), "--subject", "alice"];
        let outcome = run_program(&[&secret[..], arguments].concat());
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        let path = directory.path().join(format!("token-{}", arguments.join("")));
        std::fs::write(&path, outcome.stdout).unwrap();
        path
    };
    let token = sign(&["--ttl", "10m"]);
    let run = |token: &Path, words: &[&str]| {
        let (command, rest) = words.split_first().unwrap();
        let credentials = ["--connect", server.url(), "--token-file", text(token)];
        server.run(&[&[*command], &credentials[..], rest].concat())
    };
    assert_eq!(run(&token, &["run", "--", "echo", "hi"]).stdout, "hi\n");
    run(&token, &["run", "-d", "--name", "job", "--", "sleep", "1000"]);
    let observer = sign(&["--role", "observer"]);
    assert!(run(&observer, &["ps"]).stdout.contains("job"));
    let refused = run(&observer, &["kill", "job"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("the role of this client is observer"), "{}", refused.stderr);
    let outcome = run_program(&["token", "inspect", text(&observer)]);
    assert!(outcome.stdout.contains("observer") && outcome.stdout.contains("alice"));
}

#[test]
fn a_session_can_be_resumed_with_a_renewed_token() {
    let issuer = Issuer::new();
    let server = issuer.start();
    let mut client = server.client_of(&issuer.token(&json!({ "sub": "alice" })));
    client.start(&shell("p", "read line; echo $line; exit 3").with_stdin());
    let session = client.session();
    client.cut(crate::support::Cut::Rst);
    let resume = json!({ "resumeSessionId": session });
    let mut thief = server.connect_with(&issuer.token(&json!({ "sub": "bob" }))).unwrap();
    let refused = thief.initialize(&resume).unwrap_err();
    assert_eq!(refused.kind.as_deref(), Some("unknownSession"));
    let renewed = issuer.token(&json!({ "sub": "alice", "iat": 1 }));
    let mut client = loop {
        let mut client = server.connect_with(&renewed).unwrap();
        match client.initialize(&resume) {
            Ok(_) => break client,
            Err(failure) => assert_eq!(failure.kind.as_deref(), Some("sessionAttached")),
        }
    };
    let line = json!({ "processId": "p", "chunk": encoded("hello\n") });
    client.call("process/write", line);
    assert_eq!(client.finish_process("p").text(), "hello\n");
}

/// Requests an upgrade over a Unix socket as another user. Returns the status line.
fn upgrade_as(user: u32, socket: &Path) -> String {
    const SCRIPT: &str = r#"
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
client.sendall(sys.argv[2].encode())
print(client.makefile().readline().strip())
"#;
    let request = format!("GET / HTTP/1.1\r\n{UPGRADE}\r\n");
    let ids = [format!("--reuid={user}"), format!("--regid={user}")];
    let mut client = command("setpriv");
    client.args(ids).args(["--clear-groups", "/usr/bin/python3", "-c", SCRIPT, text(socket)]);
    client.arg(request);
    run_command(client).stdout
}

#[test]
fn a_unix_socket_refuses_other_users_unless_allowed() {
    const OTHER: u32 = 61_237;
    if !is_root() || !Path::new("/usr/bin/python3").exists() {
        return skipped("connecting as another user needs root and /usr/bin/python3");
    }
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let socket = directory.path().join("server.sock");
    let listen = format!("unix://{}", socket.display());
    let server = Server::with(&["--listen", &listen]);
    // An operator may believe that the mode alone controls access.
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
    assert_eq!(upgrade_as(OTHER, &socket).trim_end(), "HTTP/1.1 403 Forbidden");
    assert_eq!(server.client().run(&shell("p", "echo hi")).text(), "hi\n");
    drop(server);
    let builder = ServerBuilder::new().arguments(&["--listen", &listen, "--allow-other-users"]);
    let _server = builder.start();
    assert_eq!(upgrade_as(OTHER, &socket).trim_end(), "HTTP/1.1 101 Switching Protocols");
}

#[test]
fn a_token_that_expires_before_initialize_opens_no_session() {
    let issuer = Issuer::new();
    let server = issuer.server().arguments(&["--ws-max-clock-skew-seconds", "0"]).start();
    let alice = server.client_of(&issuer.token(&json!({ "sub": "alice" })));
    let expires = now() + 2;
    let token = issuer.token(&json!({ "sub": "alice", "exp": expires }));
    let mut late = server.connect_with(&token).unwrap();
    eventually("the token expires", || now() >= expires);
    for params in [json!({}), json!({ "resumeSessionId": alice.session() })] {
        let refused = late.initialize(&params).unwrap_err();
        assert_eq!(refused.kind.as_deref(), Some("tokenExpired"));
    }
    assert!(server.connect_with(&token).is_err());
}

#[test]
fn idle_connections_and_slow_handshakes_are_closed() {
    const POLICY: u16 = 1008;
    let server =
        Server::with(&["--idle-connection-timeout", "200ms", "--handshake-timeout", "300ms"]);
    assert_eq!(server.client().close_code(), Some(POLICY));
    let mut silent = TcpStream::connect(server.url().strip_prefix("ws://").unwrap()).unwrap();
    assert_eq!(std::io::Read::read(&mut silent, &mut [0]).unwrap(), 0);
    let outcome = run_program(&["--handshake-timeout", "0s"]);
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("handshake_timeout"), "{}", outcome.stderr);
}

#[test]
fn connections_and_requests_beyond_the_limits_are_refused() {
    let issuer = Issuer::new();
    let server = issuer.server().arguments(&["--max-connections-per-subject", "1"]).start();
    let token = issuer.token(&json!({ "sub": "alice" }));
    let _client = server.client_of(&token);
    let request = format!("GET / HTTP/1.1\r\n{UPGRADE}Authorization: Bearer {token}\r\n\r\n");
    assert_eq!(server.http(&request).0, 429);
    let other = issuer.token(&json!({ "sub": "bob" }));
    server.client_of(&other);

    let server = Server::with(&["--max-connections", "1", "--max-requests-per-second", "3"]);
    let mut client = server.client();
    assert_eq!(server.http(&format!("GET / HTTP/1.1\r\n{UPGRADE}\r\n")).0, 503);
    assert_eq!(server.get("/healthz"), 200);
    let ids: Vec<_> = (0..20).map(|_| client.request("session/list", json!({}))).collect();
    let refused = ids.into_iter().filter_map(|id| client.answer(id).err()).last().unwrap();
    assert_eq!(refused.kind.as_deref(), Some("tooManyRequests"));
    assert!(refused.message.contains("3 requests per second"), "{refused:?}");
}
