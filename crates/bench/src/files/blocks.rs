//! Measures reading and writing in blocks, for files that are too large for one message.

use anyhow::ensure;
use exec_server_protocol::MAX_BLOCK_BYTES;

use super::MINIMAL_SERVER;
use super::client::FilesClient;
use super::fixture::{Fixture, noise};
use super::request::Request;
use super::sides::{Sides, Timings};
use crate::Scale;
use crate::report::{Limit, Row, Unit};

const BLOCK: u64 = MAX_BLOCK_BYTES as u64;
const DEPTH: usize = 4;

pub(crate) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let fixture = Fixture::new()?;
    let block = noise(MAX_BLOCK_BYTES);
    let bytes = scale.stream_bytes;
    let path = fixture.long_file("read", &block, bytes / BLOCK)?;
    let mut sides = Sides::start()?;
    let reading = sides.time(scale.rounds, |client| read(client, &path, bytes))?;
    std::fs::remove_file(&path)?;

    let path = fixture.path_of("write");
    let mut sides = Sides::start()?;
    // At most three rounds, because each one waits for the disk.
    let rounds = scale.rounds.min(3);
    let writing = sides.time(rounds, |client| write(client, &path, &block, bytes))?;
    let len = std::fs::metadata(&path)?.len();
    ensure!(len == bytes, "{path} has {len} of {bytes} bytes");

    let row = |what, timings: &Timings, is| {
        let per_second = |seconds: f64| bytes as f64 / seconds;
        let limit = Limit { value: per_second(timings.limit.median()), is };
        let name = format!("{} MiB {what} in blocks", bytes >> 20);
        Row::new(&name, Unit::BytesPerSecond, per_second(timings.ours.median())).limit(limit)
    };
    Ok(vec![
        row("read", &reading, MINIMAL_SERVER),
        row("written", &writing, "minimal loopback server, synced and renamed too"),
    ])
}

fn read(client: &mut FilesClient, path: &str, bytes: u64) -> anyhow::Result<()> {
    client.call(Request::Open { path })?;
    let mut received = 0;
    client.pipeline(
        DEPTH,
        (bytes / BLOCK) as usize,
        |number| Request::ReadBlock { offset: number as u64 * BLOCK, len: MAX_BLOCK_BYTES },
        |answer| {
            received += answer.decoded_bytes as u64;
            Ok(())
        },
    )?;
    ensure!(received == bytes, "received {received} of {bytes} bytes of {path}");
    client.call(Request::Close)?;
    Ok(())
}

fn write(client: &mut FilesClient, path: &str, block: &[u8], bytes: u64) -> anyhow::Result<()> {
    client.call(Request::Create { path })?;
    client.pipeline(
        DEPTH,
        (bytes / BLOCK) as usize,
        |number| Request::WriteBlock { offset: number as u64 * BLOCK, chunk: block },
        |_| Ok(()),
    )?;
    client.call(Request::Close)?;
    Ok(())
}
