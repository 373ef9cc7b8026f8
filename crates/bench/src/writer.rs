//! The child whose output is measured: this executable in a hidden mode that writes a given number
//! of equal blocks, each with one system call. The same child writes to the server and to a bare
//! pipe.

use std::process::ExitCode;

use rustix::io::Errno;

use super::program::Program;

const WRITER_ARG: &str = "__bench-writer";

pub(super) fn writer(block_bytes: usize, blocks: u64) -> anyhow::Result<Program> {
    Ok(Program::this(WRITER_ARG)?.args([block_bytes.to_string(), blocks.to_string()]))
}

/// Runs the writer if the arguments select it, and returns its exit code. Otherwise returns `None`.
pub(super) fn write_blocks_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    arguments.next().filter(|argument| argument == WRITER_ARG)?;
    let mut number = || arguments.next()?.to_str()?.parse::<usize>().ok();
    let written = match (number(), number()) {
        (Some(block_bytes), Some(blocks)) if block_bytes > 0 => write_blocks(block_bytes, blocks),
        _ => Err(Errno::INVAL),
    };
    Some(if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn write_blocks(block_bytes: usize, blocks: usize) -> Result<(), Errno> {
    let mut block = vec![b'x'; block_bytes];
    block[block_bytes - 1] = b'\n';
    for _ in 0..blocks {
        let mut rest = &block[..];
        while !rest.is_empty() {
            rest = &rest[rustix::io::write(rustix::stdio::stdout(), rest)?..];
        }
    }
    Ok(())
}
