//! The checked-in document.

use exec_server_protocol::schema;

const CHECKED_IN: &str = include_str!("../../../../docs/openrpc.json");

#[test]
fn the_checked_in_document_is_current() {
    // Not `assert_eq!`: both texts are long, and git shows the difference better.
    assert!(
        schema::text() == CHECKED_IN,
        "docs/openrpc.json is not current; run: exec-server schema > docs/openrpc.json"
    );
}
