//! Measures the processes per second of one connection with 64 in flight.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::Scale;
use super::bare;
use super::client::{Client, Event, Stdio};
use super::endpoint::Nagle;
use super::program::Program;
use super::report::{Limit, Row, Target, Unit};
use super::samples::Samples;
use super::server::BenchServer;

const IN_FLIGHT: usize = 64;
/// Several are tried, because the fastest number of threads differs between machines.
const THREADS: [usize; 4] = [2, 4, 16, 64];

pub(super) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let server = BenchServer::start()?;
    let program = Program::nothing();
    let count = scale.processes_per_round;
    let mut ours = Samples::default();
    let mut bare = THREADS.map(|threads| (threads, Samples::default()));
    for _ in 0..scale.rounds {
        // Each round has a new session: finished processes stay readable for a while and count
        // against the session's limit.
        let mut client = Client::connect(&server, Nagle::Off)?;
        ours.time(|| run_through(&mut client, &program, count))?;
        for (threads, samples) in &mut bare {
            samples.time(|| run_bare(*threads, &program, count))?;
        }
    }
    let fastest = bare.iter().map(|(_, samples)| samples.median()).fold(f64::INFINITY, f64::min);
    let limit =
        Limit { value: count as f64 / fastest, is: "bare spawn + wait, best of 2 to 64 threads" };
    let row = Row::new("processes, 64 in flight", Unit::PerSecond, count as f64 / ours.median());
    Ok(vec![row.limit(limit).target(Target::RatioAtLeast(0.5))])
}

fn run_through(client: &mut Client, program: &Program, count: usize) -> anyhow::Result<()> {
    let mut started = 0;
    let mut closed = 0;
    while closed < count {
        if started < count && started - closed < IN_FLIGHT {
            client.start(program, Stdio::Pipes)?;
            started += 1;
        } else if let Event::Closed = client.next_event()? {
            closed += 1;
        }
    }
    Ok(())
}

fn run_bare(threads: usize, program: &Program, count: usize) -> anyhow::Result<()> {
    let taken = AtomicUsize::new(0);
    let work = || {
        while taken.fetch_add(1, Ordering::Relaxed) < count {
            bare::run(program)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("workers do not panic"))
    })
}
