//! The seccomp filter: system calls that a confined process may not make.
//!
//! It allows all calls except those that lead out of a sandbox, those into kernel parts with a
//! history of escapes, and those newer than its list. A seccomp filter sees numbers, not the data
//! behind pointers, so it cannot restrict paths: Landlock and the mounts do that.
//!
//! The crate `seccompiler` does not fit: its filters have a single action, do not handle x32, and
//! compare with every number in turn.

mod assembler;
mod calls;
#[cfg(test)]
mod interpreter;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

/// Whether modes, owners, times and extended attributes of files can be changed. Landlock does not
/// restrict these, and a filter cannot see which file is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttributeChanges {
    Changeable,
    Frozen,
}

/// Whether outside processes share the PID and IPC namespaces, so that a call can address them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Neighbours {
    Absent,
    InReach,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sockets {
    /// Connected pairs only, which reach no other process.
    Pairs,
    /// Internet sockets, in a network namespace that leads to a gate.
    Internet,
    InternetAndUnix,
    /// TCP sockets, with ports restricted by Landlock.
    Tcp,
    TcpAndUnix,
}

impl Sockets {
    const COUNT: usize = 5;
}

/// Returns a complete BPF program, as an array of `struct sock_filter` in native byte order. Each
/// program is built once.
pub fn program(
    sockets: Sockets,
    attributes: AttributeChanges,
    neighbours: Neighbours,
) -> &'static [u8] {
    static PROGRAMS: [OnceLock<Vec<u8>>; 4 * Sockets::COUNT] =
        [const { OnceLock::new() }; 4 * Sockets::COUNT];
    let index = usize::from(attributes == AttributeChanges::Frozen)
        + 2 * usize::from(neighbours == Neighbours::InReach)
        + 4 * sockets as usize;
    PROGRAMS[index]
        .get_or_init(|| to_bytes(&calls::filter(sockets, attributes, neighbours).assemble()))
}

fn to_bytes(program: &[libc::sock_filter]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(program));
    for instruction in program {
        bytes.extend_from_slice(&instruction.code.to_ne_bytes());
        bytes.extend_from_slice(&[instruction.jt, instruction.jf]);
        bytes.extend_from_slice(&instruction.k.to_ne_bytes());
    }
    bytes
}
