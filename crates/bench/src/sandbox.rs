//! Measures the cost of a sandbox: the same work with and without it, through the same server.

use anyhow::Context as _;
use exec_server_protocol::{PathUri, SandboxRequest};
use serde_json::json;
use serde_json::value::to_raw_value;
use tempfile::TempDir;

use super::Scale;
use super::client::{Client, Surroundings};
use super::endpoint::Nagle;
use super::program::Program;
use super::report::{Limit, Row, Target, Unit};
use super::samples::Samples;
use super::server::BenchServer;
use super::usage;

const WARM_UP: usize = 10;
const BYTES: usize = 4 << 10;
const DEPTH: usize = 32;
/// Requests that are timed together.
const SLICE: usize = 500;
/// The number of policies that alternate.
const POLICIES: usize = 100;
/// The total number of requests under the alternating policies.
const ALTERNATING: usize = 10_000;
/// A server with unbounded pools would exceed this at once.
const MAX_THREADS: f64 = 100.0;

pub(super) fn measure_starts(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let server = BenchServer::start()?;
    let workspace = workspace()?;
    std::fs::create_dir(workspace.path().join(".git"))?;
    let cwd = PathUri::from_path(workspace.path()).with_context(|| {
        format!("the workspace {} is not a valid path", workspace.path().display())
    })?;
    let mut client = Client::connect(&server, Nagle::Off)?;
    let program = Program::nothing();
    // Nothing is writable, so no path needs protection: Landlock and seccomp suffice.
    let simple = sandbox(&json!({"type": "read-only"}))?;
    let ordinary = sandbox(&json!({"type": "workspace-write"}))?;
    let mut run = |sandbox: Option<&SandboxRequest>| {
        client.run_in(&program, Surroundings { cwd: &cwd, sandbox, network: None })
    };
    for _ in 0..WARM_UP {
        for sandbox in [None, Some(&simple), Some(&ordinary)] {
            run(sandbox)?;
        }
    }
    let [mut plain_times, mut simple_times, mut ordinary_times] =
        std::array::from_fn(|_| Samples::default());
    for _ in 0..scale.starts {
        plain_times.time(|| run(None))?;
        simple_times.time(|| run(Some(&simple)))?;
        ordinary_times.time(|| run(Some(&ordinary)))?;
    }
    let limit = Limit { value: plain_times.median(), is: "the same start without a sandbox" };
    let row = |name, ours: &Samples| Row::new(name, Unit::Seconds, ours.median()).limit(limit);
    Ok(vec![
        row("sandboxed start, Landlock and seccomp, p50", &simple_times)
            .target(Target::RatioAtMost(1.3)),
        row("sandboxed start, ordinary workspace, p50", &ordinary_times)
            .target(Target::RatioAtMost(2.5)),
    ])
}

pub(super) fn measure_files(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let server = BenchServer::start()?;
    let directory = workspace()?;
    let path = directory
        .path()
        .to_str()
        .with_context(|| format!("{:?} is not UTF-8", directory.path()))?;
    let file = format!("{path}/file");
    std::fs::write(&file, vec![b'x'; BYTES]).with_context(|| format!("cannot write {file}"))?;
    let mut client = Client::connect(&server, Nagle::Off)?;
    let ordinary = sandbox(&json!({"type": "workspace-write", "cwd": path}))?;

    let [mut plain_times, mut sandboxed_times] = std::array::from_fn(|_| Samples::default());
    let mut read = |sandbox: Option<&SandboxRequest>| {
        client.read_files(DEPTH, SLICE, |_| (file.as_str(), sandbox), BYTES)
    };
    read(None)?;
    read(Some(&ordinary))?;
    for _ in 0..scale.file_requests.div_ceil(SLICE) {
        plain_times.time(|| read(None))?;
        sandboxed_times.time(|| read(Some(&ordinary)))?;
    }
    let per_second = |times: &Samples| SLICE as f64 / times.median();
    let limit = Limit { value: per_second(&plain_times), is: "the same reads without a sandbox" };

    let policies = (0..POLICIES)
        .map(|number| {
            let root = directory.path().join(format!("root-{number}"));
            std::fs::create_dir(&root)?;
            sandbox(&json!({"type": "workspace-write", "cwd": root}))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let request = |number: usize| (file.as_str(), Some(&policies[number % POLICIES]));
    client.read_files(DEPTH, ALTERNATING, request, BYTES)?;
    let threads = usage::threads(server.pid())?;
    Ok(vec![
        Row::new(
            "sandboxed readFile of 4 KiB, 32 deep",
            Unit::PerSecond,
            per_second(&sandboxed_times),
        )
        .limit(limit)
        .target(Target::RatioAtLeast(0.5)),
        Row::new("threads after 10,000 reads under 100 policies", Unit::Count, threads as f64)
            .target(Target::AtMost(MAX_THREADS)),
    ])
}

/// Creates a workspace outside the directory for temporary files. Every sandbox of a workspace may
/// write there, so a workspace inside it would be granted twice.
pub(super) fn workspace() -> anyhow::Result<TempDir> {
    let parent = "/var/tmp";
    tempfile::tempdir_in(parent).with_context(|| format!("cannot create a directory in {parent}"))
}

pub(super) fn sandbox(object: &serde_json::Value) -> anyhow::Result<SandboxRequest> {
    Ok(SandboxRequest(to_raw_value(object)?))
}
