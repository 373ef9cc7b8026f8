//! Measures trees of files: a walk over many files, and a search through a lot of text.

use anyhow::ensure;

use super::MINIMAL_SERVER;
use super::fixture::{Fixture, Tree};
use super::request::Request;
use super::sides::Sides;
use crate::Scale;
use crate::report::{Limit, Row, Target, Unit};

const WALKED: Tree = Tree { directories: 200, files_each: 99 };
const SEARCHED: Tree = Tree { directories: 20, files_each: 80 };
const SEARCHED_FILE_BYTES: usize = 64 << 10;
const WANTED: &str = "needle";

pub(crate) fn measure_walk(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let fixture = Fixture::new()?;
    fixture.tree(WALKED, b"")?;
    let entries = WALKED.entries();
    let mut sides = Sides::start()?;
    let timings = sides.time(scale.trees, |client| {
        let answer = client.call(Request::Walk { path: fixture.path() })?;
        ensure!(answer.entries == entries, "received {} of {entries} entries", answer.entries);
        Ok(())
    })?;
    let per_second = |seconds: f64| entries as f64 / seconds;
    let row = Row::new(
        &format!("walk of {entries} entries"),
        Unit::PerSecond,
        per_second(timings.ours.median()),
    );
    let limit = Limit { value: per_second(timings.limit.median()), is: MINIMAL_SERVER };
    Ok(vec![row.limit(limit).target(Target::RatioAtLeast(0.6))])
}

/// Measures a search. The limit does less: it only finds the text, and handles neither lines nor
/// ignored files.
pub(crate) fn measure_search(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let fixture = Fixture::new()?;
    fixture.tree(SEARCHED, &searched_text())?;
    let files = SEARCHED.directories * SEARCHED.files_each;
    let mut sides = Sides::start()?;
    let timings = sides.time(scale.trees, |client| {
        let answer = client.call(Request::Search { path: fixture.path(), text: WANTED })?;
        ensure!(
            answer.matches == Some(files as u64),
            "expected {files} matches, received {answer:?}"
        );
        Ok(())
    })?;
    let bytes = files * SEARCHED_FILE_BYTES;
    let per_second = |seconds: f64| bytes as f64 / seconds;
    let row = Row::new(
        &format!("search through {} MiB", bytes >> 20),
        Unit::BytesPerSecond,
        per_second(timings.ours.median()),
    );
    let is = "every file read and scanned, one thread";
    Ok(vec![row.limit(Limit { value: per_second(timings.limit.median()), is })])
}

/// Returns lines of source code, with the searched text once in the middle.
fn searched_text() -> Vec<u8> {
    const LINE: &[u8] = b"    let answer = client.call(request)?;\n";
    let mut text: Vec<u8> = LINE.iter().copied().cycle().take(SEARCHED_FILE_BYTES).collect();
    let middle = SEARCHED_FILE_BYTES / 2;
    text[middle..middle + WANTED.len()].copy_from_slice(WANTED.as_bytes());
    text
}
