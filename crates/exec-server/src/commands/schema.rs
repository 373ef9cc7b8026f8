//! `exec-server schema`: the protocol as an OpenRPC document.

use std::io::Write;

pub(crate) fn run(out: &mut impl Write) -> anyhow::Result<()> {
    Ok(super::print(exec_server_protocol::schema::text().as_bytes(), out)?)
}
