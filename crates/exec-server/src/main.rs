//! The `exec-server` program. Everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    exec_server::main()
}
