//! Tests of the OpenRPC document: it is current, and it allows the same values as the decoder.

mod document;
