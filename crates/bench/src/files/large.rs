//! Measures files of 32 MiB in one message.

use anyhow::ensure;

use super::MINIMAL_SERVER;
use super::fixture::{Fixture, noise};
use super::request::Request;
use super::sides::{Sides, Timings};
use crate::Scale;
use crate::report::{Limit, Row, Target, Unit};

const BYTES: usize = 32 << 20;

pub(crate) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let fixture = Fixture::new()?;
    let content = noise(BYTES);
    let path = fixture.file("read", &content)?;
    let mut sides = Sides::start()?;
    let reading = sides.time(scale.large_files, |client| {
        let answer = client.call(Request::ReadFile { path: &path })?;
        ensure!(
            answer.decoded_bytes == BYTES,
            "expected {BYTES} decoded bytes from readFile, received {answer:?}"
        );
        Ok(())
    })?;

    let path = fixture.path_of("write");
    let mut sides = Sides::start()?;
    let writing = sides.time(scale.large_files, |client| {
        client.call(Request::WriteFile { path: &path, content: &content }).map(drop)
    })?;
    let len = std::fs::metadata(&path)?.len();
    ensure!(len == BYTES as u64, "{path} has {len} of {BYTES} bytes");

    let row = |name, timings: &Timings| {
        let per_second = |seconds: f64| BYTES as f64 / seconds;
        let limit = Limit { value: per_second(timings.limit.median()), is: MINIMAL_SERVER };
        Row::new(name, Unit::BytesPerSecond, per_second(timings.ours.median()))
            .limit(limit)
            .target(Target::RatioAtLeast(0.6))
    };
    Ok(vec![row("readFile of 32 MiB", &reading), row("writeFile of 32 MiB", &writing)])
}
