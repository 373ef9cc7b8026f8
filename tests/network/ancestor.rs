//! A client in another language manages networks as some deployed clients do.

use std::path::Path;

use exec_server_test_support::skipped;

use super::world::World;
use crate::foreign_client::python;
use crate::support::{command, run_command};

#[test]
fn a_client_in_another_language_manages_the_network_of_its_processes() {
    let world = match World::new() {
        Ok(world) => world,
        Err(why) => return skipped(format_args!("managed networking of a foreign client: {why}")),
    };
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/foreign");
    let mut client = command(python().to_str().unwrap());
    client.arg(directory.join("network_client.py")).arg(world.path("server.sock"));
    let outcome = run_command(client);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, "ok\n");
}
