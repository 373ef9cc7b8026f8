//! Bytes and paths in the protocol's encoding. A second implementation, so that a test does not
//! compare the server's code with itself.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use serde_json::Value;

pub fn encoded(bytes: impl AsRef<[u8]>) -> String {
    base64_simd::STANDARD.encode_to_string(bytes.as_ref())
}

#[must_use]
pub fn decoded(text: &Value) -> Vec<u8> {
    let text = text.as_str().expect("base64 is text");
    base64_simd::STANDARD.decode_to_vec(text).expect("the server sends valid base64")
}

/// Returns the `file:` URI of an absolute path.
pub fn uri(path: impl AsRef<Path>) -> String {
    let mut uri = "file://".to_owned();
    for byte in path.as_ref().as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}
