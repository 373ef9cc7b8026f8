//! Every absolute path survives a round trip through its URI, and every accepted URI has one normal
//! form.
#![no_main]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use exec_server_protocol::PathUri;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(uri) = str::from_utf8(bytes).unwrap_or_default().parse::<PathUri>() {
        round_trip(&uri);
    }
    if let Some(uri) = PathUri::from_path(OsStr::from_bytes(bytes)) {
        round_trip(&uri);
    }
});

fn round_trip(uri: &PathUri) {
    let text = uri.to_string();
    assert_eq!(text.len(), uri.encoded_len());
    let again: PathUri = text.parse().expect("a formatted URI can be parsed");
    // Compared as bytes: paths with different spellings can be equal.
    assert_eq!(again.as_path().as_os_str(), uri.as_path().as_os_str());
}
