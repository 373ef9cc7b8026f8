//! Targets that the HTTP proxy must not connect to.

use super::Policy::{Denied, Misleading, Nothing, OnePort};
use super::Proof::Contact;
use super::{Attempt, attempt};

pub(in super::super) const PROXY: &[Attempt] = &[
    attempt("connect", "judge(through(b'other.test:80'))"),
    attempt("connect_under_no_rules", "judge(through(b'allowed.test:80'))").under(Nothing),
    attempt("connect_to_a_literal", "judge(through(b'93.184.216.34:80'))"),
    attempt("connect_to_a_decimal", "judge(through(b'1572395043:80'))"),
    attempt("connect_to_a_mapped_literal", "judge(through(b'[::ffff:93.184.216.35]:80'))"),
    attempt("connect_to_ipv6", "judge(through(b'[2606:2800:220:1::1]:80'))"),
    attempt("connect_to_nat64", "judge(through(b'[64:ff9b::5db8:d823]:80'))"),
    attempt("connect_to_a_zone", "judge(through(b'[fe80::5%lo]:80'))"),
    attempt("connect_to_private", "judge(through(b'10.0.0.5:80'))"),
    attempt("connect_to_metadata", "judge(through(b'169.254.169.254:80'))"),
    attempt("connect_to_loopback", "judge(through(b'127.0.0.1:8000'))"),
    attempt("connect_to_localhost", "judge(through(b'localhost:8000'))"),
    attempt("connect_to_a_subdomain", "judge(through(b'sub.allowed.test:80'))"),
    attempt("connect_to_another_port", "judge(through(b'allowed.test:80'))").under(OnePort),
    attempt("connect_to_a_denied_name", "judge(through(b'sub.allowed.test:80'))").under(Denied),
    attempt("connect_to_a_denied_port", "judge(through(b'allowed.test:8080'))").under(Denied),
    attempt("connect_to_a_denied_literal", "judge(through(b'93.184.216.35:80'))").under(Denied),
    attempt("connect_to_a_denied_mapped_literal", "judge(through(b'[::ffff:5db8:d823]:80'))")
        .under(Denied),
    attempt("connect_to_a_private_name", "judge(through(b'internal.test:80'))").under(Misleading),
    attempt("connect_to_a_metadata_name", "judge(through(b'metadata.test:80'))").under(Misleading),
    attempt("connect_to_a_loopback_name", "judge(through(b'loopback.test:8000'))")
        .under(Misleading),
    attempt("connect_to_mixed_addresses", "judge(through(b'mixed.test:80'))").under(Misleading),
    attempt(
        "connect_and_rebind",
        "through(b'rebind.test:80'); judge(through(b'rebind.test:80'))",
    )
    .under(Misleading)
    .may_reach(&["93.184.216.34:80"]),
    attempt("connect_with_user", "judge(through(b'allowed.test@other.test:80'))"),
    attempt("connect_with_user_and_port", "judge(through(b'allowed.test:80@other.test:80'))"),
    attempt("connect_with_fragment", "judge(through(b'allowed.test:80#@other.test:80'))"),
    attempt("connect_with_query", "judge(through(b'allowed.test:80?@other.test:80'))"),
    attempt("connect_with_nul", "judge(through(b'other.test\\0.allowed.test:80'))")
        .proved_by(Contact),
    attempt("connect_with_percent_nul", "judge(through(b'other.test%00.allowed.test:80'))")
        .proved_by(Contact),
    attempt("connect_for_an_allowed_host", "judge(through(b'other.test:80', host=b'allowed.test'))"),
    attempt("connect_for_another_host", "judge(through(b'allowed.test:80', host=b'other.test'))"),
    attempt(
        "connect_with_two_targets",
        "judge(through(b'other.test:80 allowed.test:80'))",
    ),
    attempt(
        "request",
        "judge(proxy(b'GET http://other.test/ HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n'))",
    ),
    attempt(
        "request_to_metadata",
        "judge(proxy(b'GET http://169.254.169.254/ HTTP/1.1\\r\\nHost: 169.254.169.254\\r\\n\\r\\n'))",
    ),
    attempt(
        "request_to_a_private_name",
        "judge(proxy(b'GET http://internal.test/ HTTP/1.1\\r\\nHost: internal.test\\r\\n\\r\\n'))",
    )
    .under(Misleading),
    attempt(
        "request_with_user",
        "judge(proxy(b'GET http://allowed.test@other.test/ HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n'))",
    ),
    attempt(
        "request_with_password",
        "judge(proxy(b'GET http://allowed.test:80@other.test/ HTTP/1.1\\r\\n\\r\\n'))",
    ),
    attempt(
        "request_with_fragment",
        "judge(proxy(b'GET http://allowed.test#@other.test/ HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n'))",
    ),
    attempt(
        "request_for_another_host",
        "judge(proxy(b'GET http://allowed.test/ HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n'))",
    ),
    attempt(
        "request_for_two_hosts",
        "judge(proxy(b'GET http://allowed.test/ HTTP/1.1\\r\\nHost: allowed.test\\r\\nHost: other.test\\r\\n\\r\\n'))",
    ),
    attempt(
        "request_without_authority",
        "judge(proxy(b'GET / HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n'))",
    ),
    attempt(
        "request_without_scheme",
        "judge(proxy(b'GET //other.test/ HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n'))",
    ),
    attempt(
        "request_of_another_scheme",
        "judge(proxy(b'GET ftp://other.test:80/ HTTP/1.1\\r\\nHost: other.test:80\\r\\n\\r\\n'))",
    ),
    attempt(
        "second_request",
        "
judge(proxy(b'GET http://allowed.test/secret HTTP/1.1\\r\\nHost: allowed.test\\r\\n\\r\\n'
            b'GET http://other.test/ HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n').split(b'HTTP/1.1')[2])",
    )
    .may_reach(&["93.184.216.34:80"]),
    attempt(
        "redirect",
        "#! curl -sL -x http://127.0.0.1:43128 'http://allowed.test/redirect?http://169.254.169.254/' | grep reached || exit 42",
    )
    .may_reach(&["93.184.216.34:80"]),
    attempt(
        "redirect_in_a_tunnel",
        "#! curl -sL --proxytunnel -x http://127.0.0.1:43128 'http://allowed.test/redirect?http://10.0.0.5/' | grep reached || exit 42",
    )
    .may_reach(&["93.184.216.34:80"]),
];
