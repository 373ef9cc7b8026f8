//! `exec-server bench`: compares the cost of this server with the limits of this machine.
//!
//! Most measurements do the same work twice, alternating within the same rounds: through a server
//! over a real WebSocket, and directly, without a server or with a minimal one. TLS, sandboxes,
//! managed networks and relays are compared with the same work without them. Ratios are comparable
//! between machines; seconds are not. This crate sees a server only through the wire protocol and
//! the kernel's figures about its process. A missed target is a result, not a failure.

mod bare;
mod client;
mod endpoint;
mod files;
mod first_request;
mod footprint;
mod keystroke;
mod latency;
mod listening;
mod network;
mod operated;
mod output;
mod pair;
mod program;
mod rate;
mod relay;
mod report;
mod samples;
mod sandbox;
mod secured;
mod server;
mod socket;
mod usage;
mod websocket;
mod writer;

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;

use report::{Report, Row};

/// The amount of work of each measurement.
#[derive(Debug, Clone, Copy)]
struct Scale {
    starts: usize,
    keystrokes: usize,
    /// Repetitions of work that takes long enough to be timed once per repetition.
    rounds: usize,
    processes_per_round: usize,
    flood_bytes: u64,
    lines: u64,
    sessions: usize,
    listenings: usize,
    file_requests: usize,
    /// How many times a file of 32 MiB is read and written.
    large_files: usize,
    /// How many times a tree is walked and searched.
    trees: usize,
    stream_bytes: u64,
    connects: usize,
    managed_processes: usize,
    /// The number of environments of a cluster.
    environments: usize,
    active_streams: usize,
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
        file_requests: 20_000,
        large_files: 20,
        trees: 20,
        stream_bytes: 1 << 30,
        connects: 2000,
        managed_processes: 500,
        environments: 2000,
        active_streams: 500,
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
        file_requests: 5_000,
        large_files: 5,
        trees: 5,
        stream_bytes: 64 << 20,
        connects: 400,
        managed_processes: 100,
        environments: 200,
        active_streams: 50,
    };
}

/// The highest load average of a machine that counts as otherwise idle.
const QUIET_LOAD: f64 = 0.7;

type Measure = fn(Scale) -> anyhow::Result<Vec<Row>>;

const MEASUREMENTS: [(&str, Measure); 25] = [
    ("start to close", latency::measure),
    ("processes per second", rate::measure),
    ("a flood of output", output::measure_flood),
    ("short lines", output::measure_lines),
    ("keystrokes", keystroke::measure),
    ("first request", first_request::measure),
    ("memory", footprint::measure),
    ("time to listening", listening::measure),
    ("files of 1 KiB", files::measure_small),
    ("files of 32 MiB", files::measure_large),
    ("files in blocks", files::measure_blocks),
    ("a walk over files", files::measure_walk),
    ("a search through files", files::measure_search),
    ("sandboxed starts", sandbox::measure_starts),
    ("sandboxed files", sandbox::measure_files),
    ("starts with a managed network", network::measure_starts),
    ("streams of a managed network", network::measure_streams),
    ("connections of a managed network", network::measure_connections),
    ("memory of a managed network", network::measure_memory),
    ("TLS and authentication", secured::measure),
    ("limits, metrics and audit log", operated::measure),
    ("processes through a relay", relay::measure_processes),
    ("handshakes of a relay", relay::measure_handshakes),
    ("the rendezvous of a relay", relay::measure_rendezvous),
    ("a cluster of rendezvous nodes", relay::measure_cluster),
];

/// Runs the hidden mode of a measurement if the arguments select one, and returns its exit code.
/// Otherwise returns `None`. Call it early in `main`.
pub fn take_part_if_asked() -> Option<ExitCode> {
    writer::write_blocks_if_asked()
        .or_else(files::serve_files_if_asked)
        .or_else(network::connect_if_asked)
        .or_else(network::copy_if_asked)
}

/// Runs the measurements whose names contain `only` (all if it is empty), and prints a table or
/// JSON.
pub fn run(quick: bool, json: bool, only: &str) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(cfg!(target_os = "linux"), "bench requires Linux: it reads /proc");
    let wanted: Vec<_> = MEASUREMENTS.iter().filter(|(name, _)| name.contains(only)).collect();
    if wanted.is_empty() {
        let names = MEASUREMENTS.map(|(name, _)| name).join(", ");
        anyhow::bail!("no measurement matches {only:?}; available: {names}");
    }
    let scale = if quick { Scale::QUICK } else { Scale::FULL };
    warn_of_other_work();
    let mut rows = Vec::new();
    for (name, measure) in wanted {
        let _ = writeln!(io::stderr(), "measuring {name}");
        rows.extend(measure(scale).with_context(|| format!("cannot measure {name}"))?);
    }
    let report = Report { quick, rows };
    let mut stdout = io::stdout().lock();
    if json {
        serde_json::to_writer(&mut stdout, &report)?;
        writeln!(stdout)?;
    } else {
        write!(stdout, "{report}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Warns of other work on the machine: sharing a core changes the results by a factor of two or
/// more.
fn warn_of_other_work() {
    if let Some(load) = usage::load().filter(|load| *load > QUIET_LOAD) {
        let _ = writeln!(
            io::stderr(),
            "the load average of this machine is {load}: other work distorts the results; measure \
             on an idle machine"
        );
    }
}
