//! Responds to DNS queries of a managed process.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::super::names::{Family, Reach};
use super::super::state::GateState;
use super::message::{Kind, Query, ResponseCode};
use crate::network::policy::Host;

/// Any value would do: the answers do not change while the process runs.
const TTL_SECONDS: u32 = 60;

/// Returns the response to a message, or `None` if the message must not be answered.
pub(super) fn respond(state: &GateState, message: &[u8], peer: SocketAddr) -> Option<Vec<u8>> {
    match Query::parse(message) {
        Ok(query) => Some(answer(state, &query, peer)),
        Err(error) => error.response(),
    }
}

fn answer(state: &GateState, query: &Query, peer: SocketAddr) -> Vec<u8> {
    let no_such_name = || query.fails(ResponseCode::NoSuchName);
    let Some(name) = query.name() else { return no_such_name() };
    if name == "localhost" || name.ends_with(".localhost") {
        let loopback = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        return query.answer(&loopback, TTL_SECONDS);
    }
    // Synthetic addresses have no reverse entries, and such a query is not an attempt to reach a
    // host.
    if name == "arpa" || name.ends_with(".arpa") {
        return no_such_name();
    }
    let Ok(host @ Host::Name(_)) = name.parse() else { return no_such_name() };
    if is_expansion(state, name, &host) {
        return no_such_name();
    }
    let reach = match state.judge.may_look_up(&host, peer) {
        true => Reach::Open,
        false => Reach::Prohibited,
    };
    let family = match (query.kind(), reach) {
        (_, Reach::Prohibited) if state.hide_refused => return no_such_name(),
        (Kind::A, _) => Family::V4,
        (Kind::Aaaa, _) => Family::V6,
        (Kind::Other(_), Reach::Open) => return query.empty(),
        (Kind::Other(_), Reach::Prohibited) => return no_such_name(),
    };
    let mut names = state.names.lock().expect("no code panics while it holds the synthetic names");
    match names.address_of(name, reach, family) {
        Some(address) => query.answer(&[address], TTL_SECONDS),
        None => query.fails(ResponseCode::ServerFailure),
    }
}

/// Whether a resolver probably appended a search domain to the intended name.
fn is_expansion(state: &GateState, name: &str, host: &Host) -> bool {
    let Some(original) = state.search_domains.strip(name) else { return false };
    let is_original_named = original.parse().is_ok_and(|original| state.judge.names(&original));
    is_original_named || (original.contains('.') && !state.judge.names(host))
}
