//! The system calls that a confined process may not make.
//!
//! Everything is allowed but what leads out of a sandbox, or into the parts of the kernel where ways out are found. A seccomp filter
//! sees numbers and not what pointers lead to, so it knows nothing of paths: those are Landlock's and the mounts' business.
//!
//! The programs are made here and not by crate `seccompiler`, whose filters know one action, do not see x32, and compare with every
//! number in turn.

mod assembler;
mod calls;
#[cfg(test)]
mod interpreter;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

/// Whether modes, owners, times and extended attributes of files can be changed. Landlock does not know of these, and a filter
/// cannot tell which file is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttributeChanges {
    Changeable,
    Frozen,
}

/// Whether processes outside share the PID and IPC namespaces, so that a call can mean them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Neighbours {
    Absent,
    InReach,
}

/// Which sockets can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sockets {
    /// Pairs only, which reach nobody else.
    Pairs,
    /// Of the internet, in a network namespace that leads to a gate.
    Internet,
    /// The same, and Unix sockets.
    InternetAndUnix,
    /// TCP, whose ports are restricted by Landlock.
    Tcp,
    /// The same, and Unix sockets.
    TcpAndUnix,
}

impl Sockets {
    const COUNT: usize = 5;
}

/// A complete BPF program, as `struct sock_filter` in native order. Made once.
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
