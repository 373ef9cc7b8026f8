//! Where the server listens, and which clients it accepts.

use std::os::unix::fs::PermissionsExt as _;

use exec_server_test_support::skipped;
use serde_json::json;

use crate::support::machine::is_root;
use crate::support::{Server, ServerBuilder, command, run_command, run_program, shell};

const UPGRADE: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
const ROUTES: [&str; 4] = ["/", "/healthz", "/readyz", "/elsewhere"];

fn status(server: &Server, path: &str, headers: &str) -> u16 {
    server.http(&format!("GET {path} HTTP/1.1\r\n{headers}\r\n")).0
}

#[test]
fn the_first_line_is_the_url_and_nothing_follows_it() {
    let mut server = ServerBuilder::new().arguments(&["--log", "trace"]).capture_stderr().start();
    let address = server.url().strip_prefix("ws://127.0.0.1:").expect("a loopback URL");
    assert_ne!(address.parse::<u16>().unwrap(), 0);
    let mut client = server.client();
    client.run(&shell("p", "echo out; echo err >&2; exit 1"));
    client.send_raw(b"garbage");
    assert_eq!(server.get("/nowhere"), 404);
    server.signal(rustix::process::Signal::TERM);
    assert!(!server.stderr().is_empty());
    assert_eq!(server.rest_of_stdout(), "");
    assert!(server.wait().success());
}

#[test]
fn health_routes_need_no_websocket_handshake() {
    let server = Server::start();
    let host = "Host: localhost\r\n";
    let upgrade = format!("{host}{UPGRADE}");
    for (path, headers, expected) in [
        ("/healthz", host, 200),
        ("/readyz", host, 200),
        ("/", host, 426),
        ("/elsewhere", host, 404),
        ("/", &upgrade, 101),
        ("/any/path", &upgrade, 101),
    ] {
        assert_eq!(status(&server, path, headers), expected, "{path} {headers}");
    }
}

#[test]
fn every_route_refuses_web_pages() {
    let server = Server::start();
    let foreign = [
        "Host: localhost\r\nOrigin: https://evil.example\r\n",
        "Host: localhost\r\nOrigin: http://localhost\r\n",
        "Host: localhost\r\nOrigin: null\r\n",
        "Host: evil.example\r\n",
        "Host: localhost.evil.example\r\n",
        "Host: 192.0.2.1\r\n",
        "Host: localhost\r\nHost: evil.example\r\n",
        "Host: \r\n",
        "",
    ];
    for headers in foreign {
        for path in ROUTES {
            let upgrade = format!("{headers}{UPGRADE}");
            assert_eq!(status(&server, path, headers), 403, "{path} {headers:?}");
            assert_eq!(status(&server, path, &upgrade), 403, "upgrade of {path} {headers:?}");
        }
    }
    // Any port is accepted, so that a forwarded port works.
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1:65535", "[::1]:7"] {
        let headers = format!("Host: {host}\r\n");
        assert_eq!(status(&server, "/readyz", &headers), 200, "{host}");
    }
}

#[test]
fn the_operator_can_allow_origins_and_hosts() {
    let server = Server::with(&[
        "--allow-origin",
        "https://good.example",
        "--allow-host",
        "box.example",
        "--allow-host",
        "other.example",
    ]);
    for host in ["box.example", "other.example:80", "localhost"] {
        let headers = format!("Host: {host}\r\nOrigin: https://good.example\r\n{UPGRADE}");
        assert_eq!(status(&server, "/", &headers), 101, "{host}");
    }
    let headers = format!("Host: box.example\r\nOrigin: https://bad.example\r\n{UPGRADE}");
    assert_eq!(status(&server, "/", &headers), 403);
}

/// Requests an upgrade as another user. Returns the status line.
fn upgrade_as(user: u32, server: &Server, path: &str) -> String {
    const SCRIPT: &str =
        r#"exec 3<>"/dev/tcp/127.0.0.1/$0" && printf %b "$1" >&3 && head -n 1 <&3"#;
    let port = server.url().rsplit(':').next().unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{UPGRADE}\r\n");
    let ids = [format!("--reuid={user}"), format!("--regid={user}")];
    let mut client = command("setpriv");
    client.args(ids).args(["--clear-groups", "bash", "-c", SCRIPT, port, &request]);
    run_command(client).stdout
}

#[test]
fn other_users_are_refused_unless_allowed() {
    const OWN: u32 = 61_235;
    const OTHER: u32 = 61_236;
    if !is_root() {
        skipped("only root can connect as another user");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let builder = || ServerBuilder::new().with_user(OWN, directory.path());
    let server = builder().start();
    let refused = "HTTP/1.1 403 Forbidden";
    let upgraded = "HTTP/1.1 101 Switching Protocols";
    assert_eq!(upgrade_as(OTHER, &server, "/").trim_end(), refused);
    assert_eq!(upgrade_as(OTHER, &server, "/healthz").trim_end(), "HTTP/1.1 200 OK");
    assert_eq!(upgrade_as(OWN, &server, "/").trim_end(), upgraded);
    // Root may connect; this test runs as root.
    assert_eq!(server.client().run(&shell("p", "echo hi")).text(), "hi\n");

    let of_root = Server::start();
    assert_eq!(upgrade_as(OTHER, &of_root, "/").trim_end(), refused);
    drop(server);
    let open = builder().arguments(&["--allow-other-users", "true"]).start();
    assert_eq!(upgrade_as(OTHER, &open, "/").trim_end(), upgraded);
}

#[test]
fn a_public_address_needs_authentication() {
    for url in ["ws://0.0.0.0:0", "ws://[::]:0", "ws://192.0.2.1:0"] {
        let outcome = run_program(&["--listen", url]);
        assert_eq!(outcome.code, Some(1), "{url}");
        assert!(outcome.stderr.contains("authentication"), "{}", outcome.stderr);
        assert_eq!(outcome.stdout, "");
    }
}

#[test]
fn a_port_in_use_is_reported() {
    let server = Server::start();
    let outcome = run_program(&["--listen", server.url()]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""));
    let address = server.url().trim_start_matches("ws://");
    assert!(outcome.stderr.contains(address), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
}

#[test]
fn a_unix_socket_is_private_and_is_removed_at_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("server.sock");
    let url = format!("unix://{}", path.display());
    let mut server = Server::with(&["--listen", &url]);
    assert_eq!(server.url(), url);
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut client = server.client();
    assert_eq!(client.run(&shell("p", "echo hi")).text(), "hi\n");

    let second = run_program(&["--listen", &url]);
    assert_eq!(second.code, Some(1));
    assert!(second.stderr.contains(path.to_str().unwrap()), "{}", second.stderr);
    assert_eq!(client.call("environment/status", json!({})), json!({"status": "ready"}));

    server.signal(rustix::process::Signal::TERM);
    assert!(server.wait().success());
    assert!(!path.exists());
}

#[test]
fn a_socket_left_by_a_killed_server_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("unix://{}", directory.path().join("server.sock").display());
    let mut server = Server::with(&["--listen", &url]);
    server.signal(rustix::process::Signal::KILL);
    server.wait();
    let server = Server::with(&["--listen", &url]);
    server.client();
}
