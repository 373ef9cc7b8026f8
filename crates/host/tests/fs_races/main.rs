//! What promises not to follow symlinks does not, while a directory and a symlink to one outside are exchanged under it
//! as fast as the kernel can. An escape changes something outside, or brings something from there.

#![expect(clippy::unwrap_used, reason = "a step that fails fails its test")]
#![expect(clippy::print_stdout, reason = "how often each side was met")]

mod arena;
mod operations;

use std::fmt::Write as _;

use arena::Arena;
use operations::OPERATIONS;

#[test]
fn nothing_leaves_the_tree_while_a_directory_is_exchanged_with_a_symlink() {
    race(2_000);
}

#[test]
#[ignore = "soak: 400,000 rounds, run by `just soak-counts`"]
fn soak_nothing_leaves_the_tree_while_a_directory_is_exchanged_with_a_symlink() {
    race(400_000);
}

/// In each round every operation runs once.
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
    // Otherwise there was no race.
    assert!(outcomes.iter().any(|outcomes| outcomes.refused > 0), "{table}");
    assert!(outcomes.iter().all(|outcomes| outcomes.done > 0), "{table}");
}

#[derive(Clone, Default)]
struct Outcomes {
    done: usize,
    refused: usize,
}
