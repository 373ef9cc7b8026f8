//! Tests of the OpenRPC document.

mod document;
