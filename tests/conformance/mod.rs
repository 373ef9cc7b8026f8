//! Drives the clients of all languages through a bad network. `clients/conformance` has the
//! scenarios and describes the adapters.

mod adapter;
mod expectation;
mod player;
mod scenario;

use std::collections::BTreeSet;
use std::path::Path;

use exec_server_test_support::skipped;

use adapter::Language;
use scenario::{DIRECTORY, Scenario};

/// The number of cuts that each client survives across all scenarios.
const CUTS: usize = 1000;

async fn play(language: Language, name: &str) {
    match language.adapter() {
        Ok(adapter) => player::play(&adapter, &Scenario::named(name)).await,
        Err(missing) => skipped(missing),
    }
}

/// Makes a test of each client for each scenario.
macro_rules! scenarios {
    ($($name:ident,)*) => {
        const SCENARIOS: &[&str] = &[$(stringify!($name)),*];
        scenarios!(rust, Rust: $($name)*);
        scenarios!(python, Python: $($name)*);
        scenarios!(typescript, TypeScript: $($name)*);
    };
    ($module:ident, $language:ident: $($name:ident)*) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::play(super::Language::$language, stringify!($name)).await;
                }
            )*
        }
    };
}

scenarios! {
    cut_at_every_message,
    cut_while_recovering,
    cut_while_output_flows,
    cut_while_input_flows,
    cut_while_starting,
    lost_responses,
    files,
    slow_reader,
    gaps,
    expiry,
    another_program_continues,
    two_resumers,
}

#[test]
fn every_scenario_is_played_with_a_thousand_cuts_in_total() {
    let files = Path::new(DIRECTORY).read_dir().unwrap();
    let files = files.map(|file| file.unwrap().path().file_stem().unwrap().to_owned());
    let played = SCENARIOS.iter().map(|name| name.replace('_', "-").into());
    assert_eq!(files.collect::<BTreeSet<_>>(), played.collect());
    let cuts: usize = SCENARIOS.iter().map(|name| Scenario::named(name).cuts).sum();
    assert!(cuts >= CUTS, "{cuts}");
}
