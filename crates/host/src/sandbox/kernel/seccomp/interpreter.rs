//! An interpreter for the part of classic BPF that the filters use. With it every path can be
//! tested without a kernel.

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET,
    BPF_W,
};

/// The kernel's `struct seccomp_data`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) number: u32,
    pub(super) architecture: u32,
    pub(super) arguments: [u64; 6],
}

impl Call {
    fn to_bytes(self) -> Vec<u8> {
        let mut bytes = [self.number.to_ne_bytes(), self.architecture.to_ne_bytes()].concat();
        bytes.extend_from_slice(&[0; 8]);
        bytes.extend(self.arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
        bytes
    }
}

/// Returns the result of the program and the number of executed instructions. Panics on an
/// instruction that the filters do not use.
pub(super) fn run(program: &[u8], call: Call) -> (u32, usize) {
    let data = call.to_bytes();
    let (mut accumulator, mut at) = (0_u32, 0_usize);
    for steps in 1.. {
        let instruction = &program[8 * at..8 * at + 8];
        let code = u32::from(u16::from_ne_bytes(instruction[..2].try_into().unwrap()));
        let operand = u32::from_ne_bytes(instruction[4..].try_into().unwrap());
        let jump = |holds: bool| usize::from(instruction[if holds { 2 } else { 3 }]);
        at += 1;
        if code == BPF_LD | BPF_W | BPF_ABS {
            let offset = usize::try_from(operand).unwrap();
            accumulator = u32::from_ne_bytes(data[offset..offset + 4].try_into().unwrap());
        } else if code == BPF_ALU | BPF_AND | BPF_K {
            accumulator &= operand;
        } else if code == BPF_JMP | BPF_JA {
            at += usize::try_from(operand).unwrap();
        } else if code == BPF_JMP | BPF_JEQ | BPF_K {
            at += jump(accumulator == operand);
        } else if code == BPF_JMP | BPF_JGE | BPF_K {
            at += jump(accumulator >= operand);
        } else if code == BPF_JMP | BPF_JSET | BPF_K {
            at += jump(accumulator & operand != 0);
        } else if code == BPF_RET | BPF_K {
            return (operand, steps);
        } else {
            panic!("no such instruction: {code:#x}");
        }
    }
    unreachable!("a filter has no loops")
}
