//! The protocol as an OpenRPC document, built from the method tables and the wire types.
//!
//! Types with a derived codec have a derived schema. Types with a hand-written codec have their
//! schema in `codecs`. The JSON-RPC client of the tests checks messages against the document.

mod codecs;
mod limits;
mod openrpc;
mod wire_form;

pub(crate) use codecs::without_type;
pub use openrpc::{document, text};
