//! DNS for a managed process. Queries are never forwarded to a real server: an allowed name gets a
//! synthetic address, and is resolved only when the program dials that address.

mod answer;
pub(super) mod message;
mod search_domains;
mod server;
mod udp_socket;

pub use search_domains::SearchDomains;
pub(super) use server::{MAX_TCP_CONNECTIONS, serve_tcp, serve_udp};
