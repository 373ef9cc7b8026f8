//! Requests that proxy and server interpret differently, and requests that limited mode refuses.

use super::Policy::Limited;
use super::Proof::Contact;
use super::{Attempt, attempt};

/// The server that these attempts may reach. Text that contains `smuggled` is a leak at any server.
const ALLOWED: &[&str] = &["93.184.216.34:80"];

pub(in super::super) const REQUESTS: &[Attempt] = &[
    attempt("http_0_9", "judge(proxy(b'GET http://other.test/\\r\\n'))"),
    attempt(
        "line_feeds",
        "judge(proxy(b'GET http://other.test/ HTTP/1.1\\nHost: other.test\\n\\n'))",
    ),
    attempt(
        "folded_host",
        "judge(proxy(b'GET http://allowed.test/ HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\thost: x\\r\\nHost: other.test\\r\\n\\r\\n'))",
    ),
    attempt(
        "space_before_colon",
        "judge(proxy(b'GET http://allowed.test/ HTTP/1.1\\r\\nHost : x\\r\\nHost: other.test\\r\\n\\r\\n'))",
    ),
    attempt(
        "nul_in_a_header",
        "judge(proxy(b'GET http://other.test/ HTTP/1.1\\r\\nHost: other.test\\r\\nX: a\\0b\\r\\n\\r\\n'))",
    ),
    attempt(
        "huge_header",
        "judge(proxy(b'GET http://other.test/ HTTP/1.1\\r\\nHost: other.test\\r\\nX: ' + b'x' * 300000 + b'\\r\\n\\r\\n'))",
    )
    .proved_by(Contact),
    attempt(
        "byte_by_byte",
        "
with socket.create_connection(PROXY, 30) as connection:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in b'GET http://other.test/ HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n':
        connection.sendall(bytes([byte]))
    connection.shutdown(socket.SHUT_WR)
    judge(rest(connection))",
    ),
    attempt(
        "proxy_connection",
        "
judge(proxy(b'GET http://allowed.test/ HTTP/1.1\\r\\nHost: allowed.test\\r\\nProxy-Connection: keep-alive\\r\\n'
            b'Connection: keep-alive, host\\r\\n\\r\\nGET http://other.test/ HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n'
            ).split(b'HTTP/1.1')[2])",
    )
    .may_reach(ALLOWED),
    attempt(
        "h2c",
        "
judge(proxy(b'GET http://other.test/ HTTP/1.1\\r\\nHost: other.test\\r\\nConnection: Upgrade, HTTP2-Settings\\r\\n'
            b'Upgrade: h2c\\r\\nHTTP2-Settings: AAMAAABkAAQAAP__\\r\\n\\r\\n'))",
    ),
    attempt(
        "limited_upgrade",
        "
judge(proxy(b'GET http://allowed.test/upgrade HTTP/1.1\\r\\nHost: allowed.test\\r\\nConnection: upgrade\\r\\n'
            b'Upgrade: raw\\r\\n\\r\\nsmuggled').partition(b'101 Switching')[2])",
    )
    .under(Limited)
    .may_reach(ALLOWED),
    attempt(
        "limited_content_length_and_chunks",
        "
sent(proxy(b'GET http://allowed.test/ HTTP/1.1\\r\\nHost: allowed.test\\r\\nContent-Length: 5\\r\\n'
            b'Transfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\nPOST /smuggled HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n'))",
    )
    .under(Limited)
    .may_reach(ALLOWED)
    .proved_by(Contact),
    attempt(
        "limited_chunks_and_content_length",
        "
sent(proxy(b'GET http://allowed.test/ HTTP/1.1\\r\\nHost: allowed.test\\r\\nTransfer-Encoding: chunked\\r\\n'
            b'Content-Length: 4\\r\\n\\r\\n2b\\r\\nPOST /smuggled HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n0\\r\\n\\r\\n'))",
    )
    .under(Limited)
    .may_reach(ALLOWED)
    .proved_by(Contact),
    attempt(
        "limited_two_transfer_codings",
        "
sent(proxy(b'GET http://allowed.test/ HTTP/1.1\\r\\nHost: allowed.test\\r\\nTransfer-Encoding: chunked\\r\\n'
            b'Transfer-Encoding: x\\r\\n\\r\\n0\\r\\n\\r\\nPOST /smuggled HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n'))",
    )
    .under(Limited)
    .may_reach(ALLOWED)
    .proved_by(Contact),
    attempt(
        "limited_two_lengths",
        "
sent(proxy(b'GET http://allowed.test/ HTTP/1.1\\r\\nHost: allowed.test\\r\\nContent-Length: 0\\r\\n'
            b'Content-Length: 44\\r\\n\\r\\nPOST /smuggled HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n'))",
    )
    .under(Limited)
    .may_reach(ALLOWED)
    .proved_by(Contact),
    attempt(
        "limited_chunk_extension",
        "
sent(proxy(b'GET http://allowed.test/ HTTP/1.1\\r\\nHost: allowed.test\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n'
            b'1;\\nxx\\r\\nx\\r\\n0\\r\\n\\r\\nPOST http://allowed.test/smuggled HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n'))",
    )
    .under(Limited)
    .may_reach(ALLOWED)
    .proved_by(Contact),
    attempt(
        "limited_post",
        "judge(proxy(b'POST http://allowed.test/ HTTP/1.1\\r\\nHost: allowed.test\\r\\nContent-Length: 6\\r\\n\\r\\nsecret'))",
    )
    .under(Limited),
    attempt(
        "limited_method_in_small_letters",
        "judge(proxy(b'get http://allowed.test/ HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n'))",
    )
    .under(Limited),
    attempt(
        "limited_unknown_method",
        "judge(proxy(b'GETX http://allowed.test/ HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n'))",
    )
    .under(Limited),
    attempt(
        "limited_trace",
        "judge(proxy(b'TRACE http://allowed.test/ HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n'))",
    )
    .under(Limited),
    attempt("limited_connect", "judge(through(b'allowed.test:80'))").under(Limited),
    attempt("limited_connect_to_tls", "judge(through(b'allowed.test:443'))")
        .under(Limited)
        .proved_by(Contact),
    attempt("limited_socks", "judge(socks(domain(b'allowed.test')))").under(Limited),
    attempt("limited_tls", "judge(named('allowed.test', 443))").under(Limited).proved_by(Contact),
    attempt("limited_raw", "judge(named('allowed.test', data=b'smuggled\\r\\n\\r\\n'))").under(Limited),
    attempt(
        "limited_direct_post",
        "judge(named('allowed.test', data=b'POST / HTTP/1.1\\r\\nHost: allowed.test\\r\\nConnection: close\\r\\nContent-Length: 0\\r\\n\\r\\n'))",
    )
    .under(Limited),
    attempt(
        "limited_direct_put",
        "#! curl -sf --noproxy '*' -T /etc/hostname http://allowed.test/ | grep reached || exit 42",
    )
    .under(Limited),
    attempt(
        "limited_direct_other_host",
        "judge(named('allowed.test', data=b'GET / HTTP/1.1\\r\\nHost: other.test\\r\\nConnection: close\\r\\n\\r\\n'))",
    )
    .under(Limited),
    attempt(
        "limited_direct_other_uri",
        "judge(named('allowed.test', data=b'GET http://other.test/ HTTP/1.1\\r\\nHost: other.test\\r\\nConnection: close\\r\\n\\r\\n'))",
    )
    .under(Limited),
    attempt(
        "limited_direct_other_name",
        "judge(named('other.test'))",
    )
    .under(Limited),
    attempt(
        "limited_direct_second_request",
        "
answer = named('allowed.test', data=b'GET / HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n'
               b'POST /smuggled HTTP/1.1\\r\\nHost: allowed.test\\r\\nConnection: close\\r\\n\\r\\n')
# The policy refuses the second request with 403. The test server itself responds only once.
leave(43, 'sent') if b'403' in answer else judge(answer)",
    )
    .under(Limited)
    .may_reach(ALLOWED),
    attempt(
        "limited_direct_content_length_and_chunks",
        "
sent(named('allowed.test', data=b'GET / HTTP/1.1\\r\\nHost: allowed.test\\r\\nContent-Length: 5\\r\\n'
            b'Transfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\nPOST /smuggled HTTP/1.1\\r\\n\\r\\n'))",
    )
    .under(Limited)
    .may_reach(ALLOWED)
    .proved_by(Contact),
    attempt(
        "limited_direct_upgrade",
        "
judge(named('allowed.test', data=b'GET /upgrade HTTP/1.1\\r\\nHost: allowed.test\\r\\nConnection: upgrade, close\\r\\n'
            b'Upgrade: raw\\r\\n\\r\\nsmuggled').partition(b'101 Switching')[2])",
    )
    .under(Limited)
    .may_reach(ALLOWED),
];
