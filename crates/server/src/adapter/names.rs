//! The limit on names. Decoding enforces it for calls over the wire, and this module for calls in
//! the same program.

use exec_server_protocol::{MAX_NAME_BYTES, RpcError};

pub(crate) fn check_name(what: &str, name: &str) -> Result<(), RpcError> {
    let len = name.len();
    if len > MAX_NAME_BYTES {
        let message = format!("{what} of {len} bytes exceeds the limit of {MAX_NAME_BYTES}");
        return Err(RpcError::invalid_params(message));
    }
    Ok(())
}
