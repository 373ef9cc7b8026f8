//! Measures the throughput of output: large blocks, written as fast as the child can, and short
//! lines with one write each.

use anyhow::ensure;

use super::Scale;
use super::bare::PipeReader;
use super::client::Client;
use super::endpoint::Nagle;
use super::program::Program;
use super::report::{Limit, Row, Target, Unit};
use super::samples::Samples;
use super::server::BenchServer;
use super::usage;
use super::writer::writer;

const FLOOD_BLOCK: usize = 256 << 10;
const LINE: usize = 16;
const GIB: f64 = (1 << 30) as f64;

/// Measures a child that only writes large blocks, the fastest way to fill a pipe, and an ordinary
/// program that writes in small pieces.
pub(super) fn measure_flood(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let bytes = scale.flood_bytes;
    let blocks = writer(FLOOD_BLOCK, bytes / FLOOD_BLOCK as u64)?;
    let arguments = ["-c".to_owned(), bytes.to_string(), "/dev/zero".to_owned()];
    let everyday = Program::new("/usr/bin/head").args(arguments);
    let mut rows = flood_rows("256 KiB writes", &blocks, bytes, scale.rounds)?;
    rows.extend(flood_rows("head -c", &everyday, bytes, scale.rounds)?);
    Ok(rows)
}

fn flood_rows(
    from: &str,
    program: &Program,
    bytes: u64,
    rounds: usize,
) -> anyhow::Result<Vec<Row>> {
    let measured = transfer(program, bytes, rounds)?;
    let throughput = Row::new(
        &format!("{} MiB of output, {from}", bytes >> 20),
        Unit::BytesPerSecond,
        bytes as f64 / measured.ours,
    )
    .limit(Limit {
        value: bytes as f64 / measured.bare,
        is: "bare pipe, best of four ways to read it",
    })
    .target(Target::RatioAtLeast(0.35));
    let gibibytes = bytes as f64 * rounds as f64 / GIB;
    let bare_gibibytes = gibibytes * PipeReader::ALL.len() as f64;
    let cpu = Row::new(
        &format!("server's processor time, {from}"),
        Unit::CpuSecondsPerGib,
        measured.cpu / gibibytes,
    )
    .limit(Limit { value: measured.bare_cpu / bare_gibibytes, is: "reader of the bare pipe" })
    .target(Target::AtMost(2.5));
    Ok(vec![throughput, cpu])
}

pub(super) fn measure_lines(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let lines = writer(LINE, scale.lines)?;
    let measured = transfer(&lines, scale.lines * LINE as u64, scale.rounds.min(3))?;
    let name = format!("{} short lines", scale.lines);
    let count = scale.lines as f64;
    Ok(vec![
        Row::new(&name, Unit::PerSecond, count / measured.ours)
            .limit(Limit { value: count / measured.bare, is: "bare pipe, one write per line" }),
    ])
}

/// Medians of the rounds in seconds, and the total CPU time of all rounds.
struct Transfer {
    ours: f64,
    bare: f64,
    cpu: f64,
    bare_cpu: f64,
}

fn transfer(program: &Program, bytes: u64, rounds: usize) -> anyhow::Result<Transfer> {
    let server = BenchServer::start()?;
    let mut client = Client::connect(&server, Nagle::Off)?;
    let mut ours = Samples::default();
    let mut bare = PipeReader::ALL.map(|reader| (reader, Samples::default()));
    let (mut cpu, mut bare_cpu) = (0.0, 0.0);
    for _ in 0..rounds {
        let before = server.cpu_seconds()?;
        let written = ours.time(|| client.run(program))?;
        cpu += server.cpu_seconds()? - before;
        let name = &program.argv()[0];
        ensure!(written == bytes, "received {written} of {bytes} bytes from {name}");

        let before = usage::cpu_seconds(std::process::id())?;
        for (reader, samples) in &mut bare {
            samples.time(|| reader.run(program))?;
        }
        bare_cpu += usage::cpu_seconds(std::process::id())? - before;
    }
    let bare = bare.iter().map(|(_, samples)| samples.median()).fold(f64::INFINITY, f64::min);
    Ok(Transfer { ours: ours.median(), bare, cpu, bare_cpu })
}
