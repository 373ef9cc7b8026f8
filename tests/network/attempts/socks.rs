//! Targets and commands that the SOCKS5 proxy must refuse.

use super::Policy::{Datagrams, Denied, Misleading, Nothing, OnePort};
use super::Proof::{Contact, Word};
use super::{Attempt, attempt};

pub(in super::super) const SOCKS: &[Attempt] = &[
    attempt("socks", "judge(socks(domain(b'other.test')))"),
    attempt("socks_under_no_rules", "judge(socks(domain(b'allowed.test')))").under(Nothing),
    attempt("socks_ipv4", "judge(socks(b'\\1\\x5d\\xb8\\xd8\\x23\\0\\x50'))"),
    attempt("socks_ipv4_of_an_allowed_name", "judge(socks(b'\\1\\x5d\\xb8\\xd8\\x22\\0\\x50'))"),
    attempt(
        "socks_ipv6",
        "judge(socks(b'\\4' + socket.inet_pton(V6, '2606:2800:220:1::1') + b'\\0\\x50'))",
    ),
    attempt(
        "socks_mapped",
        "judge(socks(b'\\4' + socket.inet_pton(V6, '::ffff:93.184.216.35') + b'\\0\\x50'))",
    ),
    attempt(
        "socks_nat64",
        "judge(socks(b'\\4' + socket.inet_pton(V6, '64:ff9b::a00:5') + b'\\0\\x50'))",
    ),
    attempt("socks_private", "judge(socks(b'\\1\\x0a\\0\\0\\5\\0\\x50'))"),
    attempt("socks_metadata", "judge(socks(b'\\1\\xa9\\xfe\\xa9\\xfe\\0\\x50'))"),
    attempt("socks_loopback", "judge(socks(b'\\1\\x7f\\0\\0\\1\\x1f\\x40'))"),
    attempt("socks_unspecified", "judge(socks(b'\\1\\0\\0\\0\\0\\0\\x50'))"),
    attempt("socks_literal_as_a_name", "judge(socks(domain(b'93.184.216.35')))"),
    attempt("socks_decimal_as_a_name", "judge(socks(domain(b'1572395043')))"),
    attempt("socks_ipv6_as_a_name", "judge(socks(domain(b'::ffff:93.184.216.35')))"),
    attempt("socks_trailing_dot", "judge(socks(domain(b'other.test.')))"),
    attempt("socks_upper_case", "judge(socks(domain(b'OTHER.TEST')))"),
    attempt("socks_nul", "judge(socks(domain(b'other.test\\0.allowed.test')))"),
    attempt("socks_empty_name", "judge(socks(domain(b'')))"),
    attempt("socks_localhost", "judge(socks(domain(b'localhost')))"),
    attempt("socks_long_name", "judge(socks(domain(b'.'.join([b's' * 60] * 4) + b'.test')))")
        .proved_by(Contact),
    attempt("socks_unknown_kind", "judge(socks(b'\\5\\x5d\\xb8\\xd8\\x23\\0\\x50'))"),
    attempt("socks_private_name", "judge(socks(domain(b'internal.test')))").under(Misleading),
    attempt("socks_mixed_addresses", "judge(socks(domain(b'mixed.test')))").under(Misleading),
    attempt("socks_other_port", "judge(socks(domain(b'allowed.test', 80)))").under(OnePort),
    attempt("socks_denied_port", "judge(socks(domain(b'allowed.test', 8080)))").under(Denied),
    attempt("socks_denied_name", "judge(socks(domain(b'sub.allowed.test')))").under(Denied),
    attempt("socks_bind", "socks(domain(b'allowed.test'), command=2)").proved_by(Word),
    attempt("socks_udp", "socks(b'\\1\\0\\0\\0\\0\\0\\0', command=3)").proved_by(Word),
    attempt(
        "socks_datagram",
        "
with socket.create_connection(SOCKS, 30) as connection:
    connection.sendall(b'\\5\\1\\0')
    connection.recv(2)
    connection.sendall(b'\\5\\3\\0\\1\\0\\0\\0\\0\\0\\0')
    answer = connection.recv(10)
    port = int.from_bytes(answer[8:10], 'big')
    with socket.socket(V4, UDP) as sender:
        sender.sendto(b'\\0\\0\\0\\1\\x5d\\xb8\\xd8\\x23\\x27\\x0fsecret', ('127.0.0.1', port))
        sender.sendto(b'\\0\\0\\0\\1\\x0a\\0\\0\\5\\x27\\x0fsecret', ('127.0.0.1', port))
leave(43, 'sent')",
    )
    .under(Datagrams)
    .proved_by(Contact),
    attempt(
        "socks4",
        "
with socket.create_connection(SOCKS, 30) as connection:
    connection.sendall(b'\\4\\1\\0\\x50\\x5d\\xb8\\xd8\\x23\\0' + GET)
    judge(rest(connection))",
    ),
    attempt(
        "socks4a",
        "
with socket.create_connection(SOCKS, 30) as connection:
    connection.sendall(b'\\4\\1\\0\\x50\\0\\0\\0\\1\\0other.test\\0' + GET)
    judge(rest(connection))",
    ),
    attempt(
        "socks_before_the_answer",
        "
with socket.create_connection(SOCKS, 30) as connection:
    connection.sendall(b'\\5\\1\\0\\5\\1\\0\\1\\x5d\\xb8\\xd8\\x23\\0\\x50' + GET)
    judge(rest(connection))",
    ),
];
