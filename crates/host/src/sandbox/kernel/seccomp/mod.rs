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

use crate::sandbox::policy::Network;

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

/// A complete BPF program, as `struct sock_filter` in native order. Made once.
pub fn program(
    network: Network,
    attributes: AttributeChanges,
    neighbours: Neighbours,
) -> &'static [u8] {
    static PROGRAMS: [OnceLock<Vec<u8>>; 8] = [const { OnceLock::new() }; 8];
    let index = usize::from(network == Network::Enabled)
        + 2 * usize::from(attributes == AttributeChanges::Frozen)
        + 4 * usize::from(neighbours == Neighbours::InReach);
    PROGRAMS[index]
        .get_or_init(|| to_bytes(&calls::filter(network, attributes, neighbours).assemble()))
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
