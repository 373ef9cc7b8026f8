//! `exec-server bench`: what this server costs, against what this machine can do at all.
//!
//! Every measurement does the same work twice, in turn within the same rounds: through a server of its
//! own over a real WebSocket, and bare, with nothing in between. Ratios travel between machines; seconds
//! do not. Only the wire and what the kernel tells about a process are known here, nothing of the
//! server's insides. A missed target is a result, not a failure.

mod bare;
mod client;
mod footprint;
mod keystroke;
mod latency;
mod listening;
mod output;
mod program;
mod rate;
mod report;
mod samples;
mod server;
mod usage;
mod websocket;
mod writer;

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;

use report::{Report, Row};
pub(crate) use writer::write_blocks_if_asked;

/// How much work each measurement does.
#[derive(Debug, Clone, Copy)]
struct Scale {
    starts: usize,
    keystrokes: usize,
    /// Repetitions of the measurements that take long enough to be one sample.
    rounds: usize,
    processes_per_round: usize,
    flood_bytes: u64,
    lines: u64,
    sessions: usize,
    listenings: usize,
}

impl Scale {
    const FULL: Self = Self {
        starts: 1000,
        keystrokes: 5000,
        rounds: 5,
        processes_per_round: 1000,
        flood_bytes: 512 << 20,
        lines: 1_000_000,
        sessions: 200,
        listenings: 20,
    };

    const QUICK: Self = Self {
        starts: 100,
        keystrokes: 300,
        rounds: 1,
        processes_per_round: 200,
        flood_bytes: 64 << 20,
        lines: 100_000,
        sessions: 200,
        listenings: 5,
    };
}

/// Processes that want to run, on average, on a machine that does nothing else.
const QUIET_LOAD: f64 = 0.7;

type Measure = fn(Scale) -> anyhow::Result<Vec<Row>>;

const MEASUREMENTS: [(&str, Measure); 7] = [
    ("start to close", latency::measure),
    ("processes per second", rate::measure),
    ("a flood of output", output::measure_flood),
    ("short lines", output::measure_lines),
    ("keystrokes", keystroke::measure),
    ("memory", footprint::measure),
    ("time to listening", listening::measure),
];

/// Measures, and prints a table or JSON.
pub(crate) fn run(quick: bool, json: bool) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(cfg!(target_os = "linux"), "bench reads /proc, which only Linux has");
    let scale = if quick { Scale::QUICK } else { Scale::FULL };
    warn_of_other_work();
    let mut rows = Vec::new();
    for (name, measure) in MEASUREMENTS {
        let _ = writeln!(io::stderr(), "measuring {name}");
        rows.extend(measure(scale).with_context(|| format!("cannot measure {name}"))?);
    }
    let report = Report { quick, rows };
    let mut stdout = io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut stdout, &report)?;
        writeln!(stdout)?;
    } else {
        write!(stdout, "{report}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Processes that share a core and processes that have one each differ by a factor of two and more.
fn warn_of_other_work() {
    if let Some(load) = usage::load().filter(|load| *load > QUIET_LOAD) {
        let _ = writeln!(
            io::stderr(),
            "the load of this machine is {load}: other work disturbs what follows, ratios included"
        );
    }
}
