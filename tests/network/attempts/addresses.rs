//! Addresses in every spelling, other ports, and programs that ignore proxies.

use super::Policy::{Denied, LoopbackPort, Nothing, OnePort};
use super::Proof::Contact;
use super::{Attempt, attempt};

pub(in super::super) const ADDRESSES: &[Attempt] = &[
    attempt("literal", "judge(tcp((OTHER, 80)))"),
    attempt("decimal", "judge(tcp(('1572395043', 80)))"),
    attempt("hexadecimal", "judge(tcp(('0x5db8d823', 80)))"),
    attempt("octal", "judge(tcp(('0135.0270.0330.043', 80)))"),
    attempt("two_parts", "judge(tcp(('93.12113955', 80)))"),
    attempt("three_parts", "judge(tcp(('93.184.55331', 80)))"),
    attempt("literal_of_an_allowed_name", "judge(tcp(('93.184.216.34', 80)))"),
    attempt("other_port", "judge(tcp((OTHER, 8080)))"),
    attempt("other_port_of_an_allowed_name", "judge(named('allowed.test', 8080))"),
    attempt("default_port_beside_a_named_one", "judge(named('allowed.test', 80))").under(OnePort),
    attempt("ssh_port_of_an_allowed_name", "judge(named('allowed.test', 22))"),
    attempt("port_without_a_protocol", "judge(tcp((OTHER, 6379)))"),
    attempt("ipv6", "judge(tcp(('2606:2800:220:1::1', 80), family=V6))"),
    attempt("ipv4_mapped", "judge(tcp(('::ffff:93.184.216.35', 80), family=V6))"),
    attempt("nat64", "judge(tcp(('64:ff9b::5db8:d823', 80), family=V6))"),
    attempt("six_to_four", "judge(tcp(('2002:5db8:d823::1', 80), family=V6))"),
    attempt("ipv4_translated", "judge(tcp(('::ffff:0:5db8:d823', 80), family=V6))"),
    attempt("zone", "judge(tcp(('fe80::5', 80, 0, socket.if_nametoindex('lo')), family=V6))"),
    attempt("zone_by_name", "judge(named('fe80::5%lo', 80))"),
    attempt("unique_local", "judge(tcp(('fd00::5', 80), family=V6))"),
    attempt("metadata", "judge(tcp(('169.254.169.254', 80)))"),
    attempt("private", "judge(tcp(('10.0.0.5', 80)))"),
    attempt("loopback_service", "judge(tcp(('127.0.0.1', 8000)))"),
    attempt("loopback_web_server", "judge(tcp(('127.0.0.1', 80)))"),
    attempt("loopback_by_another_address", "judge(tcp(('127.9.9.9', 80)))"),
    attempt("loopback_ipv6", "judge(tcp(('::1', 80), family=V6))"),
    attempt("unspecified", "judge(tcp(('0.0.0.0', 80)))"),
    attempt("unspecified_ipv6", "judge(tcp(('::', 80), family=V6))"),
    attempt("localhost", "judge(named('localhost', 80))"),
    attempt("literal_under_no_rules", "judge(tcp((OTHER, 80)))").under(Nothing),
    attempt("name_under_no_rules", "judge(named('allowed.test'))").under(Nothing),
    attempt("denied_literal", "judge(tcp((OTHER, 80)))").under(Denied),
    attempt("denied_literal_mapped", "judge(tcp(('::ffff:93.184.216.35', 80), family=V6))")
        .under(Denied),
    attempt("other_port_than_the_loopback_ports", "judge(tcp(('127.0.0.1', 8080)))")
        .under(LoopbackPort)
        .held_by_namespaces_only(),
    attempt("loopback_port_elsewhere", "judge(tcp(('10.0.0.5', 8000)))").under(LoopbackPort)
        .held_by_namespaces_only(),
    attempt("loopback_port_of_a_public_host", "judge(tcp((OTHER, 8000)))").under(LoopbackPort)
        .held_by_namespaces_only(),
    attempt("name_beside_loopback_ports", "judge(named('allowed.test'))")
        .under(LoopbackPort)
        .held_by_namespaces_only(),
    attempt(
        "source_address",
        "
with socket.socket(V4, TCP) as connection:
    connection.bind(('127.0.0.1', 0))
    connection.connect((OTHER, 80))
    connection.sendall(GET)
    judge(rest(connection))",
    ),
    attempt(
        "mark_and_device",
        "
with socket.socket(V4, TCP) as connection:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b'lo')
    connection.connect((OTHER, 80))
    connection.sendall(GET)
    judge(rest(connection))",
    ),
    attempt(
        "nonblocking",
        "
import select
connection = socket.socket(V4, TCP)
connection.setblocking(False)
connection.connect_ex((OTHER, 80))
select.select([], [connection], [])
if error := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
    blocked(error)
connection.setblocking(True)
connection.sendall(GET)
judge(rest(connection))",
    ),
    attempt(
        "fast_open",
        "
connection = socket.socket(V4, TCP)
connection.sendto(GET, 0x20000000, (OTHER, 80))
judge(rest(connection))",
    ),
    attempt(
        "fast_open_on_connect",
        "
connection = socket.socket(V4, TCP)
connection.setsockopt(socket.IPPROTO_TCP, 30, 1)
connection.connect((OTHER, 80))
connection.sendall(GET)
judge(rest(connection))",
    ),
    attempt(
        "reconnected_socket",
        "
connection = socket.socket(V4, TCP)
connection.connect((OTHER, 80))
connection.close()
judge(tcp((OTHER, 80)))",
    )
    .proved_by(Contact),
    attempt("curl", "#! curl -s --noproxy '*' http://93.184.216.35/ | grep reached || exit 42"),
    attempt(
        "curl_tls",
        "#! curl -sk --noproxy '*' https://93.184.216.35/ | grep reached || exit 42",
    ),
    attempt(
        "curl_resolved_by_hand",
        "#! curl -s --noproxy '*' --resolve allowed.test:80:93.184.216.35 http://allowed.test/ | grep reached || exit 42",
    ),
    attempt(
        "curl_connected_by_hand",
        "#! curl -s --noproxy '*' --connect-to allowed.test:80:93.184.216.35:80 http://allowed.test/ | grep reached || exit 42",
    ),
    attempt(
        "bash",
        "#! exec 3<> /dev/tcp/93.184.216.35/80 && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && grep reached <&3 || exit 42",
    ),
    attempt(
        "perl",
        "#! perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(PeerAddr => \"93.184.216.35:80\") or exit 42; \
         print $s \"GET / HTTP/1.0\\r\\n\\r\\n\"; print <$s>' | grep reached || exit 42",
    ),
    attempt(
        "inherited_socket",
        "#! exec 3<> /dev/tcp/93.184.216.35/80 || exit 42; (printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; grep reached <&3) || exit 42",
    ),
    attempt(
        "daemon",
        "#! setsid bash -c 'exec 3<> /dev/tcp/93.184.216.35/80 && printf \"GET / HTTP/1.0\\r\\n\\r\\n\" >&3 && grep reached <&3' || exit 42",
    ),
    attempt(
        "proxy_command",
        "#! command -v ssh > /dev/null || exit 77
         ssh -v -o ProxyCommand='bash -c \"exec 3<> /dev/tcp/93.184.216.35/22; cat <&3\"' allowed.test 2>&1 | grep reached || exit 42",
    ),
];
