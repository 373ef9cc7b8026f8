//! Measures files of 1 KiB, a typical size of small source files: one request after another, and 32
//! in flight.

use anyhow::ensure;

use super::MINIMAL_SERVER;
use super::client::Answer;
use super::fixture::{Fixture, noise};
use super::request::Request;
use super::sides::Sides;
use crate::Scale;
use crate::report::{Limit, Row, Target, Unit};

const BYTES: usize = 1 << 10;
const DEPTH: usize = 32;
/// More than the requests in flight, so that few of them use the same file.
const FILES: usize = 128;
/// Requests that are timed together when many are in flight.
const SLICE: usize = 500;

pub(crate) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let fixture = Fixture::new()?;
    let content = noise(BYTES);
    let paths = (0..FILES)
        .map(|number| fixture.file(&format!("file-{number}"), &content))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let path_of = |number: usize| paths[number % FILES].as_str();
    let requests = scale.file_requests;

    let mut rows = measure_one(
        "getMetadata",
        requests,
        |number| Request::Metadata { path: path_of(number) },
        |answer| answer.size == Some(BYTES as u64),
    )?;
    rows.extend(measure_one(
        "readFile of 1 KiB",
        requests,
        |number| Request::ReadFile { path: path_of(number) },
        |answer| answer.decoded_bytes == BYTES,
    )?);
    rows.extend(measure_one(
        "writeFile of 1 KiB",
        requests,
        |number| Request::WriteFile { path: path_of(number), content: &content },
        |_| true,
    )?);
    Ok(rows)
}

fn measure_one<'a>(
    name: &str,
    requests: usize,
    request: impl Fn(usize) -> Request<'a>,
    is_right: impl Fn(&Answer) -> bool,
) -> anyhow::Result<Vec<Row>> {
    let check = |answer: &Answer| {
        ensure!(is_right(answer), "wrong response to {name}: {answer:?}");
        Ok(())
    };
    let mut sides = Sides::start()?;
    let mut number = 0;
    let single = sides.time(requests / 10, |client| {
        number += 1;
        check(&client.call(request(number))?)
    })?;
    let deep = sides.time(requests.div_ceil(SLICE), |client| {
        client.pipeline(DEPTH, SLICE, &request, |answer| check(&answer))
    })?;

    let limit = |value| Limit { value, is: MINIMAL_SERVER };
    let per_second = |seconds: f64| SLICE as f64 / seconds;
    Ok(vec![
        Row::new(&format!("{name}, p50"), Unit::Seconds, single.ours.median())
            .limit(limit(single.limit.median())),
        Row::new(&format!("{name}, {DEPTH} deep"), Unit::PerSecond, per_second(deep.ours.median()))
            .limit(limit(per_second(deep.limit.median())))
            .target(Target::RatioAtLeast(0.4)),
    ])
}
