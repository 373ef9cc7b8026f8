//! Assembles a classic BPF program from the verdict on each system call.
//!
//! When a program is installed, the kernel runs it once for every call number (to find the calls
//! that are always allowed, which then cost nothing) and compiles it. Both costs occur at every
//! process start, so the program finds numbers by binary search.
//!
//! This module does not know what a call does.

use std::collections::BTreeMap;

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JA, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET,
    BPF_W, SECCOMP_RET_ALLOW, SECCOMP_RET_DATA, SECCOMP_RET_ERRNO, SECCOMP_RET_KILL_PROCESS,
    sock_filter,
};

/// Offsets in the kernel's `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Allow,
    Fail(i32),
    KillProcess,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Always(Action),
    /// The first successful test decides. If all fail, `otherwise` applies.
    Depends {
        tests: Vec<Test>,
        otherwise: Action,
    },
}

/// Succeeds when all its conditions hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Test {
    pub(super) all: Vec<Condition>,
    pub(super) action: Action,
}

/// A condition on one argument.
///
/// `Low` checks only the lower half. That is correct for arguments that the kernel takes as 32
/// bits: it ignores the upper half, so garbage there would defeat a comparison of all 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    LowEquals { argument: u32, value: u32 },
    LowMaskedEquals { argument: u32, mask: u32, value: u32 },
    LowHasAnyOf { argument: u32, bits: u32 },
    IsNotZero { argument: u32 },
}

/// The verdicts for an architecture. Calls below `first_unknown` without a verdict are allowed.
#[derive(Clone, Debug)]
pub(super) struct Filter {
    pub(super) architecture: u32,
    pub(super) verdicts: BTreeMap<u32, Verdict>,
    /// Numbers from here on are unknown.
    pub(super) first_unknown: u32,
    pub(super) unknown: Action,
    /// Numbers from here on belong to a second calling convention, such as x32, if the architecture
    /// has one.
    pub(super) first_foreign: Option<u32>,
}

impl Filter {
    pub(super) fn assemble(&self) -> Vec<sock_filter> {
        let mut program = vec![
            load(ARCHITECTURE_AT),
            jump(BPF_JEQ, self.architecture, 1, 0),
            give(Action::KillProcess),
            load(NUMBER_AT),
        ];
        program.extend(search(&self.ranges()));
        program
    }

    /// Returns the verdicts with the number at which each begins, in order from 0.
    fn ranges(&self) -> Vec<(u32, Verdict)> {
        let mut ranges = vec![(0, Verdict::Always(Action::Allow))];
        let mut begin = |number: u32, verdict: Verdict| match ranges.last_mut() {
            Some((_, last)) if *last == verdict => {}
            Some((start, last)) if *start == number => *last = verdict,
            _ => ranges.push((number, verdict)),
        };
        for (&number, verdict) in self.verdicts.range(..self.first_unknown) {
            begin(number, verdict.clone());
            if !self.verdicts.contains_key(&(number + 1)) {
                begin(number + 1, Verdict::Always(Action::Allow));
            }
        }
        begin(self.first_unknown, Verdict::Always(self.unknown));
        if let Some(number) = self.first_foreign {
            begin(number, Verdict::Always(Action::KillProcess));
        }
        ranges
    }
}

/// Returns code that finds the range of the loaded number. Every path through it ends in a return.
fn search(ranges: &[(u32, Verdict)]) -> Vec<sock_filter> {
    if let [(_, verdict)] = ranges {
        return decide(verdict);
    }
    let (lower, upper) = ranges.split_at(ranges.len() / 2);
    let (lower_code, upper_code) = (search(lower), search(upper));
    let mut program = match u8::try_from(lower_code.len()) {
        Ok(distance) => vec![jump(BPF_JGE, upper[0].0, distance, 0)],
        // Conditional jumps reach 255 instructions; an unconditional jump reaches any distance.
        Err(_) => {
            let distance = u32::try_from(lower_code.len()).expect("a filter is short");
            vec![jump(BPF_JGE, upper[0].0, 0, 1), statement(BPF_JMP | BPF_JA, distance)]
        }
    };
    program.extend(lower_code);
    program.extend(upper_code);
    program
}

fn decide(verdict: &Verdict) -> Vec<sock_filter> {
    match verdict {
        Verdict::Always(action) => vec![give(*action)],
        Verdict::Depends { tests, otherwise } => {
            let mut program: Vec<_> = tests.iter().flat_map(examine).collect();
            program.push(give(*otherwise));
            program
        }
    }
}

/// Returns code that returns the action if the test succeeds, and otherwise falls through.
fn examine(test: &Test) -> Vec<sock_filter> {
    let mut program = vec![give(test.action)];
    for condition in test.all.iter().rev() {
        let behind = u8::try_from(program.len()).expect("a test is short");
        let mut asked = ask(*condition, behind);
        asked.append(&mut program);
        program = asked;
    }
    program
}

/// Returns code that continues if the condition holds, and otherwise skips `behind` instructions.
fn ask(condition: Condition, behind: u8) -> Vec<sock_filter> {
    match condition {
        Condition::LowEquals { argument, value } => {
            vec![load(low_half(argument)), jump(BPF_JEQ, value, 0, behind)]
        }
        Condition::LowMaskedEquals { argument, mask, value } => vec![
            load(low_half(argument)),
            statement(BPF_ALU | BPF_AND | BPF_K, mask),
            jump(BPF_JEQ, value, 0, behind),
        ],
        Condition::LowHasAnyOf { argument, bits } => {
            vec![load(low_half(argument)), jump(BPF_JSET, bits, 0, behind)]
        }
        Condition::IsNotZero { argument } => vec![
            load(low_half(argument)),
            jump(BPF_JEQ, 0, 0, 2),
            load(high_half(argument)),
            jump(BPF_JEQ, 0, behind, 0),
        ],
    }
}

const fn low_half(argument: u32) -> u32 {
    ARGUMENTS_AT + 8 * argument + if cfg!(target_endian = "big") { 4 } else { 0 }
}

const fn high_half(argument: u32) -> u32 {
    ARGUMENTS_AT + 8 * argument + if cfg!(target_endian = "big") { 0 } else { 4 }
}

fn load(offset: u32) -> sock_filter {
    statement(BPF_LD | BPF_W | BPF_ABS, offset)
}

fn give(action: Action) -> sock_filter {
    let value = match action {
        Action::Allow => SECCOMP_RET_ALLOW,
        Action::Fail(errno) => SECCOMP_RET_ERRNO | (errno.cast_unsigned() & SECCOMP_RET_DATA),
        Action::KillProcess => SECCOMP_RET_KILL_PROCESS,
    };
    statement(BPF_RET | BPF_K, value)
}

fn statement(code: u32, operand: u32) -> sock_filter {
    sock_filter { code: opcode(code), jt: 0, jf: 0, k: operand }
}

fn jump(test: u32, operand: u32, if_true: u8, if_false: u8) -> sock_filter {
    let code = opcode(BPF_JMP | test | BPF_K);
    sock_filter { code, jt: if_true, jf: if_false, k: operand }
}

fn opcode(code: u32) -> u16 {
    u16::try_from(code).expect("every opcode has 16 bits")
}
