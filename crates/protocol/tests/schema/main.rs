//! The OpenRPC document: that it is current, and that it allows what the decoder allows.

mod document;
