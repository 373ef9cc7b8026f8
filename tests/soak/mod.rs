//! Load and faults on a server with every feature enabled: no data is lost, and afterwards the
//! server uses no more resources than before.
//!
//! `just soak MINUTES` runs [`soak_everything`]. It prints its seed first; `SOAK_SEED=SEED` repeats
//! the same faults.

mod audit;
mod baseline;
mod disk;
mod faults;
mod jobs;
mod load;
mod place;
mod scarcity;
mod site;

use std::io::Write as _;
use std::time::{Duration, Instant, SystemTime};

use self::baseline::Baseline;
use self::faults::{FAULTS, Fault, Severity};
use self::load::Load;
use self::site::Site;
use crate::support::Choices;

/// The load stops after this many faults, to compare the server with its baseline.
const FAULTS_PER_CYCLE: usize = 12;

#[test]
fn each_fault_once_loses_no_data_and_leaks_nothing() {
    let mut site = Site::start();
    let mut choices = Choices::new(1);
    let mut baseline = warm_up(&mut site);
    let mut load = Load::start(&site);
    for fault in FAULTS {
        inflict(fault, Severity::Once, &mut site, &mut load, &mut choices);
    }
    settle(&mut site, load, &mut baseline);
    site.stop();
}

#[test]
#[ignore = "soak: for SOAK_MINUTES, run by `just soak MINUTES`"]
fn soak_everything() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let minutes = number("SOAK_MINUTES").expect("SOAK_MINUTES is a number");
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let seed = number("SOAK_SEED").unwrap_or(clock.as_secs());
    say(&format!("{minutes} minutes, SOAK_SEED={seed}"));
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let mut choices = Choices::new(seed);
    let mut site = Site::start();
    let mut baseline = warm_up(&mut site);
    let mut rounds = 0;
    while Instant::now() < end {
        let mut load = Load::start(&site);
        for _ in 0..FAULTS_PER_CYCLE {
            // First each fault once, then random ones.
            let any = FAULTS[choices.below(FAULTS.len() as u64) as usize];
            let fault = *FAULTS.get(rounds).unwrap_or(&any);
            inflict(fault, Severity::Soak, &mut site, &mut load, &mut choices);
            rounds += 1;
        }
        settle(&mut site, load, &mut baseline);
    }
    say(&format!("{rounds} faults, SOAK_SEED={seed}"));
    site.stop();
}

/// Runs the load without faults and takes the baseline at rest. By then, the server has allocated
/// the threads and buffers that it reuses.
fn warm_up(site: &mut Site) -> Baseline {
    let load = Load::start(site);
    load.wait_for_progress();
    load.finish();
    let baseline = Baseline::take(site);
    say(&format!("baseline: {baseline}"));
    baseline
}

/// Causes a fault and waits until it is over and the whole load continues.
fn inflict(
    fault: Fault,
    severity: Severity,
    site: &mut Site,
    load: &mut Load,
    choices: &mut Choices,
) {
    let began = Instant::now();
    load.expect_failures(true);
    faults::inflict(fault, severity, site, load, choices);
    load.wait_for_progress();
    load.expect_failures(false);
    let mended = began.elapsed();
    load.wait_for_progress();
    site.rotate_audit_log();
    say(&format!("{fault:?}: recovered after {mended:.1?}; {}", load.figures()));
}

/// Ends the load and compares the server with its baseline.
fn settle(site: &mut Site, load: Load, baseline: &mut Baseline) {
    let figures = load.finish();
    say(&format!("end of load: {figures}"));
    disk::fill_the_disk_of_the_audit_log(site);
    let now = baseline.wait_until_reached(site);
    say(&format!("at rest: {now}"));
    site.check_audit_log();
    site.check_exports();
    site.check_contacts();
}

fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
