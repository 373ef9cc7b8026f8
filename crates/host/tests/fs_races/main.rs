//! Operations that promise not to follow symlinks, while a directory and a symlink to one outside
//! are exchanged as fast as the kernel can. An escape would change or return a file outside.

#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]
#![expect(clippy::print_stdout, reason = "prints the outcomes of each operation")]

mod arena;
mod operations;

use std::fmt::Write as _;

use arena::Arena;
use operations::OPERATIONS;

#[test]
fn no_operation_escapes_while_a_directory_and_a_symlink_are_exchanged() {
    race(2_000);
}

#[test]
#[ignore = "soak: 400,000 rounds, run by `just soak-counts`"]
fn soak_no_operation_escapes_while_a_directory_and_a_symlink_are_exchanged() {
    race(400_000);
}

fn race(rounds: usize) {
    let arena = Arena::new();
    let mut outcomes = vec![Outcomes::default(); OPERATIONS.len()];
    let exchanges = arena.while_exchanged(|| {
        for round in 0..rounds {
            arena.tend();
            for ((name, operation), outcomes) in OPERATIONS.iter().zip(&mut outcomes) {
                match operation(&arena) {
                    Ok(()) => outcomes.done += 1,
                    Err(_) => outcomes.refused += 1,
                }
                arena.expect_outside_untouched(name, round);
            }
        }
    });
    let mut table = format!("{rounds} rounds, {exchanges} exchanges\n");
    for ((name, _), Outcomes { done, refused }) in OPERATIONS.iter().zip(&outcomes) {
        writeln!(table, "{name:>32}: {done} done, {refused} refused").unwrap();
    }
    println!("{table}");
    // Shows that operations really raced with exchanges.
    assert!(outcomes.iter().any(|outcomes| outcomes.refused > 0), "{table}");
    assert!(outcomes.iter().all(|outcomes| outcomes.done > 0), "{table}");
}

#[derive(Clone, Default)]
struct Outcomes {
    done: usize,
    refused: usize,
}
