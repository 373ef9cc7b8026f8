//! The protocol as an OpenRPC document, made from the tables of methods and from the wire types.
//!
//! Types whose codec is derived have a derived schema. Types with a codec of their own have theirs in
//! [`codecs`], and a test compares the two.

mod codecs;
mod limits;
mod openrpc;
mod wire_form;

pub(crate) use codecs::without_type;
pub use openrpc::{document, text};
