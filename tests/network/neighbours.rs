//! Other targets that managed processes must not reach: the server that runs them, and each other.

use exec_server_test_support::skipped;
use serde_json::{Value, json};

use super::bypass::PRELUDE;
use super::world::{World, allow, finish, python};
use crate::support::{AckingInbox, Inbox as _};

/// Opens a session at the server's own listener.
const OPEN_A_SESSION: &str = r#"
def frame(text):
    return bytes([0x81, 0x80 | 126]) + len(text).to_bytes(2, "big") + bytes(4) + text
with socket.create_connection((os.environ["HOST"], int(os.environ["PORT"])), 30) as connection:
    connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:" + os.environ["PORT"].encode() + b"\r\nConnection: Upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        + frame(b'{"id": 1, "method": "initialize", "params": {"clientName": "' + b"x" * 200 + b'"}}'))
    connection.settimeout(30)
    data = b""
    while received := connection.recv(65536):
        data += received
        if b"sessionId" in data:
            escaped(data)
    blocked(data)
"#;

/// A connection through the gate comes from the server's own process. The server must refuse it
/// nevertheless.
#[test]
fn a_process_cannot_reach_its_server_through_the_gate() {
    try_to_reach_the_server("");
}

/// Here the proxies of the gate listen on the machine's own loopback.
#[test]
fn a_process_without_namespaces_cannot_reach_its_server_either() {
    try_to_reach_the_server("namespaces,bubblewrap");
}

fn try_to_reach_the_server(without: &str) {
    let listen = ["--listen", "ws://127.0.0.1:0"];
    let Some(mut world) = made(World::build(&listen, without)) else { return };
    let url = world.server_mut().next_line();
    let port = url.rsplit(':').next().unwrap().trim_end_matches('/').to_owned();
    let mut client = world.client();
    let program = format!("{PRELUDE}\n{OPEN_A_SESSION}");
    let mut attempt = |world: &mut World, host: &str, fields: &Value| {
        let start = world.start(&[python(), "-c", &program], fields);
        finish(&mut client, &start.variable("PORT", &port).variable("HOST", host))
    };
    let control = attempt(&mut world, "127.0.0.1", &json!({}));
    assert_eq!(control.code, Some(0), "{control:?}");
    let number: u16 = port.parse().unwrap();
    let loopback = json!({"managedNetwork": {"loopbackPorts": [number]}});
    let literal = json!({"network": {"allow": [format!("127.0.0.1:{port}")]}});
    let localhost = json!({"network": {"allow": [format!("localhost:{port}")]}});
    let binding = json!({"networkProxy": {"proxy": {
        "allowLocalBinding": true, "domains": {format!("loopback.test:{port}"): "allow"},
    }}});
    // This policy needs namespaces: Landlock alone would open the ports on every host, so without
    // namespaces the start is refused.
    let loopback = without.is_empty().then_some(("127.0.0.1", loopback));
    let ways = [("127.0.0.1", literal), ("localhost", localhost), ("loopback.test", binding)];
    for (host, fields) in ways.into_iter().chain(loopback) {
        let confined = attempt(&mut world, host, &fields);
        assert_eq!(confined.code, Some(42), "{host} {fields}: {confined:?}");
    }
}

/// A process cannot use the synthetic addresses, proxies or listeners of another.
#[test]
fn a_process_cannot_use_the_network_of_another() {
    let Some(mut world) = made(World::new()) else { return };
    let mut client = world.client();
    let program = format!(
        "{PRELUDE}
print(socket.gethostbyname('allowed.test'), flush=True)
server = socket.create_server(('0.0.0.0', 7000))
server.accept()"
    );
    let idle = world.start(&[python(), "-c", &program], &allow(&["allowed.test"]));
    client.start(&idle);
    let mut inbox = AckingInbox::new(idle.id());
    client.wait_for_output(&mut inbox, "\n");
    let address = inbox.transcript().text().trim().to_owned();
    let attempts = [
        format!("judge(tcp(('{address}', 80)))"),
        format!("judge(through(b'{address}:80'))"),
        "judge(through(b'allowed.test:80'))".to_owned(),
        "judge(socks(domain(b'allowed.test')))".to_owned(),
        "judge(tcp(('127.0.0.1', 7000)))".to_owned(),
    ];
    for attempt in attempts {
        let program = format!("{PRELUDE}\n{attempt}");
        let argv = [python(), "-c", &program];
        let ending = world.run(&mut client, &argv, &allow(&["unrelated.test"]));
        assert_eq!(ending.code, Some(42), "{attempt}: {ending:?}");
    }
    assert_eq!(world.leaks(), []);
    client.terminate(idle.id());
}

fn made(world: Result<World, String>) -> Option<World> {
    match world {
        Ok(world) => Some(world),
        Err(why) => {
            skipped(format_args!("network access between processes: {why}"));
            None
        }
    }
}
