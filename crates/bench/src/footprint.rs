//! Measures the memory of an idle server, and what each idle session adds to it.

use std::thread;
use std::time::Duration;

use anyhow::Context as _;

use super::Scale;
use super::client::Client;
use super::endpoint::Nagle;
use super::report::{Row, Target, Unit};
use super::server::BenchServer;
use super::usage;

const MIB: f64 = (1 << 20) as f64;
const KIB: f64 = 1024.0;

/// Memory counts as settled when this many consecutive samples equal the previous one.
const EQUAL_LOOKS: usize = 10;
const MAX_LOOKS: usize = 300;
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);

pub(super) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let server = BenchServer::start()?;
    // The first connection makes the server start everything that it starts lazily.
    drop(Client::connect(&server, Nagle::Off)?);
    let idle = settled_bytes(server.pid())?;
    let children = usage::children(server.pid())?;
    let spawner = *children.first().context("the server has no spawner")?;
    let spawner = settled_bytes(spawner)?;

    let sessions: Vec<_> = (0..scale.sessions)
        .map(|_| Client::connect(&server, Nagle::Off))
        .collect::<anyhow::Result<_>>()?;
    let with_sessions = settled_bytes(server.pid())?;
    let each = with_sessions.saturating_sub(idle) as f64 / sessions.len() as f64;

    Ok(vec![
        Row::new("idle server, resident", Unit::Bytes, idle as f64)
            .target(Target::AtMost(10.0 * MIB)),
        Row::new("its spawner, resident", Unit::Bytes, spawner as f64),
        Row::new(&format!("one of {} idle sessions", sessions.len()), Unit::Bytes, each)
            .target(Target::AtMost(32.0 * KIB)),
    ])
}

/// Samples the resident memory until it no longer changes, or a maximum number of times.
pub(super) fn settled_bytes(pid: u32) -> anyhow::Result<u64> {
    let mut last = usage::resident_bytes(pid)?;
    let mut equal = 0;
    for _ in 0..MAX_LOOKS {
        #[expect(clippy::disallowed_methods, reason = "no event reports that memory has settled")]
        thread::sleep(BETWEEN_LOOKS);
        let now = usage::resident_bytes(pid)?;
        equal = if now == last { equal + 1 } else { 0 };
        if equal == EQUAL_LOOKS {
            break;
        }
        last = now;
    }
    Ok(last)
}
