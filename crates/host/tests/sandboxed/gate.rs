//! The network namespace of a managed process: every address leads to the gate's sockets, which the
//! launch returns.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;

use exec_server_host::process::launch::Launched;
use exec_server_host::sandbox::{GateSockets, NetworkNamespace, Plan};

use super::scene::Scene;

fn sockets() -> GateSockets {
    GateSockets { dns: true, direct_ports: vec![443], http_proxy: true, ..GateSockets::default() }
}

fn gated(scene: &Scene) -> Arc<Plan> {
    let plan = scene.managed_plan(&sockets());
    assert_eq!(plan.network_namespace, NetworkNamespace::Gated(sockets()));
    Arc::new(plan)
}

/// Returns a script that runs a Python program: a shell supports neither IPv6 nor UDP.
fn python(program: &str) -> String {
    format!("exec python3 -c '\nimport socket, errno\n{program}\n'")
}

pub(crate) async fn every_address_leads_to_the_gate(scene: &Scene) {
    let script = python(
        r#"
for family, host in [(socket.AF_INET, "203.0.113.7"), (socket.AF_INET, "10.1.2.3"),
        (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "2001:db8::7"), (socket.AF_INET6, "::1")]:
    s = socket.socket(family, socket.SOCK_STREAM)
    s.connect((host, 443))
    s.sendall(b"hello")
    print(s.recv(100).decode())
    s.close()
"#,
    );
    let launched = scene.launcher.launch(scene.command(&gated(scene), &script)).await.unwrap();
    let Launched { gate, tree, .. } = launched;
    assert_eq!(gate.len(), sockets().list().len());
    let listener = TcpListener::from(gate.into_iter().nth(2).unwrap());
    listener.set_nonblocking(false).unwrap();
    for expected in
        ["203.0.113.7:443", "10.1.2.3:443", "127.0.0.1:443", "[2001:db8::7]:443", "[::1]:443"]
    {
        let (mut accepted, _) = listener.accept().unwrap();
        let wanted = accepted.local_addr().unwrap();
        let wanted = SocketAddr::new(wanted.ip().to_canonical(), wanted.port());
        assert_eq!(wanted.to_string(), expected);
        let mut greeting = [0; 5];
        accepted.read_exact(&mut greeting).unwrap();
        accepted.write_all(expected.as_bytes()).unwrap();
    }
    drop(tree);
}

pub(crate) async fn datagrams_to_any_name_server_reach_the_gate(scene: &Scene) {
    let script = python(
        r#"
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.sendto(b"question", ("8.8.8.8", 53))
"#,
    );
    let launched = scene.launcher.launch(scene.command(&gated(scene), &script)).await.unwrap();
    let socket = UdpSocket::from(launched.gate.into_iter().next().unwrap());
    socket.set_nonblocking(false).unwrap();
    let mut received = [0; 100];
    let (len, _) = socket.recv_from(&mut received).unwrap();
    assert_eq!(&received[..len], b"question");
}

/// The gate accepts nothing in this test, so no attempt can succeed through it.
pub(crate) async fn all_other_connections_fail(scene: &Scene) {
    let script = python(
        r#"
def attempt(family, kind, address, protocol=0):
    try:
        s = socket.socket(family, kind, protocol)
        s.settimeout(5)
        s.connect(address)
        if kind == socket.SOCK_DGRAM:
            s.send(b"x")
            s.recv(1)
        return "connected"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
v4, v6, tcp, udp = socket.AF_INET, socket.AF_INET6, socket.SOCK_STREAM, socket.SOCK_DGRAM
for attempted in [
    (v4, tcp, ("203.0.113.7", 80)),
    (v6, tcp, ("2001:db8::7", 80)),
    (v4, tcp, ("198.19.0.1", 443)),
    (v6, tcp, ("fd65:7865:6373:1::1", 443)),
    (v4, udp, ("203.0.113.7", 443)),
    (v6, udp, ("2001:db8::7", 443)),
    (v4, socket.SOCK_RAW, ("203.0.113.7", 0), 1),
    (socket.AF_UNIX, tcp, "/run/anything"),
    (socket.AF_PACKET, socket.SOCK_RAW, ("lo", 0)),
    (40, tcp, (2, 1)),
]:
    print(attempt(*attempted))
"#,
    );
    let (output, _) = scene.run(&gated(scene), &script).await;
    let refusals: Vec<_> = output.lines().collect();
    let (refused, prohibited, denied) = ("ECONNREFUSED", "EACCES", "EPERM");
    let mut expected = vec![refused; 2];
    expected.extend([prohibited, prohibited, refused, refused]);
    expected.extend([denied; 4]);
    assert_eq!(refusals, expected, "{output}");
}

pub(crate) async fn routes_and_addresses_cannot_be_changed(scene: &Scene) {
    if !std::path::Path::new("/usr/sbin/ip").exists() && !std::path::Path::new("/sbin/ip").exists()
    {
        return exec_server_test_support::skipped("iproute2 is not installed");
    }
    let plan = gated(scene);
    let (routes, _) =
        scene.run(&plan, "PATH=$PATH:/usr/sbin:/sbin; ip route show table local").await;
    assert!(routes.contains("local default dev lo"), "{routes}");
    let attempts = [
        "ip route del local default dev lo table local",
        "ip route add 192.0.2.0/24 dev lo",
        "ip link set lo down",
        "ip addr add 192.0.2.9/32 dev lo",
        "ip link add dummy0 type dummy",
        "ip netns add other",
    ];
    let attempts = attempts.map(|attempt| format!("PATH=$PATH:/usr/sbin:/sbin; {attempt}"));
    let attempts: Vec<_> = attempts.iter().map(String::as_str).collect();
    scene.all_fail(&plan, &attempts).await;
}

/// Each process has its own network namespace, so it cannot reach listeners of another.
pub(crate) async fn processes_do_not_share_a_network(scene: &Scene) {
    let plan = gated(scene);
    let listening = python(
        r#"
s = socket.socket()
s.bind(("127.0.0.1", 9000))
s.listen()
print("listening", flush=True)
s.accept()
"#,
    );
    let mut first = scene.start(&plan, &listening).await;
    first.wait_for_output("listening").await;
    let connecting = python(r#"socket.create_connection(("127.0.0.1", 9000), 5)"#);
    let (output, exit) = scene.run(&plan, &connecting).await;
    assert!(exit.code != 0 && output.contains("ConnectionRefused"), "{output}");
}
