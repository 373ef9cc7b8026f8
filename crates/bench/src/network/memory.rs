//! Measures the memory of many processes with managed networks, in the server and in the kernel.

use super::Workspace;
use crate::Scale;
use crate::client::{Client, Surroundings};
use crate::endpoint::Nagle;
use crate::footprint::settled_bytes;
use crate::pair::Pair;
use crate::program::Program;
use crate::report::{Row, Target, Unit};
use crate::server::BenchServer;
use crate::usage::kernel_bytes;

/// Longer than any measurement. The program ends with its server.
const SLEEP_SECONDS: u32 = 3600;
const MAX_SERVER_BYTES: f64 = 100.0 * (1 << 20) as f64;
const LIMIT_IS: &str = "as many sandboxed processes without network rules";

pub(crate) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let workspace = Workspace::new("packages.example.org")?;
    let count = scale.managed_processes;
    // Both crowds run to the end, so that no memory is released during a measurement.
    let sandboxed = Crowd::start(count, workspace.sandboxed())?;
    let managed = Crowd::start(count, workspace.managed())?;
    let row = |name: &str, growth: fn(&Crowd) -> f64| {
        let growth = Pair { ours: growth(&managed), limit: growth(&sandboxed) };
        growth.row(&format!("{count} managed processes at once, {name}"), Unit::Bytes, LIMIT_IS)
    };
    Ok(vec![
        row("resident in the server", |crowd| crowd.server_bytes)
            .target(Target::AtMost(MAX_SERVER_BYTES)),
        row("memory of the kernel", |crowd| crowd.kernel_bytes),
    ])
}

/// Processes that run at once, and the growth of memory that they caused.
struct Crowd {
    server_bytes: f64,
    kernel_bytes: f64,
    _client: Client,
    _server: BenchServer,
}

impl Crowd {
    fn start(count: usize, surroundings: Surroundings<'_>) -> anyhow::Result<Self> {
        let server = BenchServer::start()?;
        let mut client = Client::connect(&server, Nagle::Off)?;
        // The first process makes the server start everything that it starts lazily.
        client.run_in(&Program::nothing(), surroundings)?;
        let measure = || anyhow::Ok([settled_bytes(server.pid())?, kernel_bytes()?]);
        let before = measure()?;
        let sleep = Program::new("/bin/sleep").args([SLEEP_SECONDS.to_string()]);
        for _ in 0..count {
            client.start_and_wait(&sleep, surroundings)?;
        }
        let after = measure()?;
        let [server_bytes, kernel_bytes] =
            std::array::from_fn(|index| after[index] as f64 - before[index] as f64);
        Ok(Self { server_bytes, kernel_bytes, _client: client, _server: server })
    }
}
