//! `exec-server logs`: prints the retained output of a process, and follows new output.

use std::collections::VecDeque;
use std::io::{self, Write as _};

use anyhow::Context as _;
use bytes::Bytes;
use exec_server_client::{ExecProcessEvent, ExecServerClient};
use exec_server_protocol::OutputStream;
use serde_json::json;

use super::listing::Listed;
use crate::cli::client::Logs;
use crate::foreground::{OutputError, Outputs};
use crate::program::exit_code::ExitStatus;
use crate::terminal::json_line;

pub(crate) async fn run(
    client: &ExecServerClient,
    listed: &Listed,
    logs: &Logs,
) -> anyhow::Result<ExitStatus> {
    let newest = listed.process.next_seq.saturating_sub(1);
    let last = if logs.follow { u64::MAX } else { newest };
    let after = already_seen(listed, logs)?;
    if after >= last {
        return Ok(ExitStatus::SUCCESS);
    }
    let session = &listed.session.session_id;
    let process = client
        .observe(session, listed.name(), (after > 0).then_some(after))
        .await
        .with_context(|| format!("cannot read the output of {:?}", listed.name()))?;
    let mut events = process.subscribe_events();
    let mut printer = Printer {
        outputs: Outputs::open(),
        json: logs.json,
        tail: logs.tail.filter(|_| after < newest).map(Tail::new),
    };
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            error = printer.outputs.failed() => return Err(error.into()),
        };
        let Some(event) = event else { break };
        let seq = match &event {
            ExecProcessEvent::Output(output) => Some(output.seq),
            ExecProcessEvent::Exited(exit) => Some(exit.seq),
            ExecProcessEvent::Closed { seq } => Some(*seq),
            ExecProcessEvent::Gap { .. } => None,
            ExecProcessEvent::Failed(error) => {
                anyhow::bail!("cannot read the output of {:?}: {error}", listed.name())
            }
        };
        if seq.is_some_and(|seq| seq > last) {
            break;
        }
        printer.take(event, seq.is_some_and(|seq| seq >= newest)).await?;
        if seq == Some(last) {
            break;
        }
    }
    printer.finish().await?;
    Ok(ExitStatus::SUCCESS)
}

/// Returns the sequence number of the last event to skip; 0 if there is none.
fn already_seen(listed: &Listed, logs: &Logs) -> anyhow::Result<u64> {
    if logs.tail == Some(0) {
        return Ok(listed.process.next_seq.saturating_sub(1));
    }
    if logs.since.is_none() {
        return Ok(0);
    }
    let first = listed.process.first_seq_within;
    let first =
        first.context("--since: the server does not report output times; update the server")?;
    Ok(first.saturating_sub(1))
}

struct Printer {
    outputs: Outputs,
    json: bool,
    /// With `--tail`: present until the output that was retained at the start has been read.
    tail: Option<Tail>,
}

impl Printer {
    /// `is_newest`: the event completes the output that was retained at the start.
    async fn take(&mut self, event: ExecProcessEvent, is_newest: bool) -> Result<(), OutputError> {
        if let Some(tail) = &mut self.tail {
            match event {
                ExecProcessEvent::Output(output) => {
                    tail.push(output.stream, output.chunk.into_bytes());
                }
                ExecProcessEvent::Gap { dropped_bytes } => tail.forget_before_gap(dropped_bytes),
                _ => {}
            }
            return if is_newest { self.release_tail().await } else { Ok(()) };
        }
        if self.json {
            return self.outputs.write(OutputStream::Stdout, as_json(&event).into()).await;
        }
        print(event, &mut self.outputs).await
    }

    async fn release_tail(&mut self) -> Result<(), OutputError> {
        let Some(tail) = self.tail.take() else { return Ok(()) };
        if let Some(dropped_bytes) = tail.gap_within() {
            print(ExecProcessEvent::Gap { dropped_bytes }, &mut self.outputs).await?;
        }
        for (stream, bytes) in tail.lines() {
            self.outputs.write(stream, bytes).await?;
        }
        Ok(())
    }

    async fn finish(mut self) -> Result<(), OutputError> {
        self.release_tail().await?;
        self.outputs.finish().await
    }
}

/// The last lines of both streams, interleaved as they arrived.
#[derive(Debug)]
struct Tail {
    wanted: usize,
    chunks: VecDeque<(OutputStream, Bytes)>,
    /// The number of newlines in all chunks, and in the first chunk.
    newlines: (usize, usize),
    /// The number of bytes lost in gaps before the chunks.
    gap: u64,
}

impl Tail {
    fn new(wanted: usize) -> Self {
        Self { wanted, chunks: VecDeque::new(), newlines: (0, 0), gap: 0 }
    }

    fn push(&mut self, stream: OutputStream, bytes: Bytes) {
        let added = newlines_in(&bytes);
        self.newlines.0 += added;
        if self.chunks.is_empty() {
            self.newlines.1 = added;
        }
        self.chunks.push_back((stream, bytes));
        while self.newlines.0 - self.newlines.1 > self.wanted {
            self.chunks.pop_front();
            self.newlines.0 -= self.newlines.1;
            self.newlines.1 = self.chunks.front().map_or(0, |(_, first)| newlines_in(first));
        }
    }

    /// Discards the lines before a gap: output that came after them is lost.
    fn forget_before_gap(&mut self, dropped_bytes: u64) {
        *self = Self { gap: self.gap + dropped_bytes, ..Self::new(self.wanted) };
    }

    /// Returns the gap, unless enough lines follow it.
    fn gap_within(&self) -> Option<u64> {
        (self.gap > 0 && self.newlines.0 < self.wanted).then_some(self.gap)
    }

    fn lines(mut self) -> VecDeque<(OutputStream, Bytes)> {
        let is_ended = self.chunks.back().is_some_and(|(_, last)| last.ends_with(b"\n"));
        // Counts from the end to the newline before the first wanted line.
        let mut left = self.wanted.saturating_add(usize::from(is_ended));
        for index in (0..self.chunks.len()).rev() {
            let bytes = &mut self.chunks[index].1;
            for at in memchr::memrchr_iter(b'\n', &bytes.clone()) {
                left -= 1;
                if left == 0 {
                    *bytes = bytes.slice(at + 1..);
                    self.chunks.drain(..index);
                    return self.chunks;
                }
            }
        }
        self.chunks
    }
}

fn newlines_in(bytes: &[u8]) -> usize {
    memchr::memchr_iter(b'\n', bytes).count()
}

async fn print(event: ExecProcessEvent, outputs: &mut Outputs) -> Result<(), OutputError> {
    match event {
        ExecProcessEvent::Output(output) => {
            outputs.write(output.stream, output.chunk.into_bytes()).await
        }
        // An older server does not report the size.
        ExecProcessEvent::Gap { dropped_bytes: 0 } => {
            Ok(writeln!(io::stderr(), "[output left out]")?)
        }
        ExecProcessEvent::Gap { dropped_bytes } => {
            Ok(writeln!(io::stderr(), "[{dropped_bytes} bytes left out]")?)
        }
        ExecProcessEvent::Exited(_)
        | ExecProcessEvent::Closed { .. }
        | ExecProcessEvent::Failed(_) => Ok(()),
    }
}

/// Formats an event as one line of JSON, with the names of the protocol.
fn as_json(event: &ExecProcessEvent) -> String {
    let object = match event {
        ExecProcessEvent::Output(output) => json!({
            "event": "output", "seq": output.seq, "stream": output.stream, "chunk": output.chunk,
        }),
        ExecProcessEvent::Gap { dropped_bytes } => {
            json!({"event": "gap", "droppedBytes": dropped_bytes})
        }
        ExecProcessEvent::Exited(exit) => {
            let mut object =
                json!({"event": "exited", "seq": exit.seq, "exitCode": exit.exit_code});
            if let Some(details) =
                exit.details.as_ref().filter(|details| !details.limits_hit.is_empty())
            {
                object["limitsHit"] = json!(details.limits_hit);
            }
            object
        }
        ExecProcessEvent::Closed { seq } => json!({"event": "closed", "seq": seq}),
        ExecProcessEvent::Failed(error) => json!({"event": "failed", "reason": error.to_string()}),
    };
    json_line(&object)
}

#[cfg(test)]
mod tests {
    use exec_server_protocol::{Base64Bytes, OutputChunk};

    use super::*;

    fn last_lines(wanted: usize, chunks: &[&'static str]) -> String {
        let mut tail = Tail::new(wanted);
        for chunk in chunks {
            tail.push(OutputStream::Stdout, Bytes::from_static(chunk.as_bytes()));
        }
        let lines = tail.lines().into_iter().flat_map(|(_, bytes)| bytes.to_vec());
        String::from_utf8(lines.collect()).unwrap()
    }

    #[test]
    fn a_gap_is_reported_unless_enough_lines_follow_it() {
        let mut tail = Tail::new(2);
        let push =
            |tail: &mut Tail, text| tail.push(OutputStream::Stdout, Bytes::from_static(text));
        push(&mut tail, b"before\n");
        tail.forget_before_gap(7);
        push(&mut tail, b"one\n");
        assert_eq!(tail.gap_within(), Some(7));
        push(&mut tail, b"two\n");
        assert_eq!(tail.gap_within(), None);
        assert_eq!(tail.lines().len(), 2);
    }

    #[test]
    fn the_last_lines_are_found_across_chunks() {
        for chunks in [&["a\nb\nc\n"][..], &["a", "\n", "b\n", "c", "\n"], &["a\nb", "\nc\n"]] {
            assert_eq!(last_lines(2, chunks), "b\nc\n");
            assert_eq!(last_lines(1, chunks), "c\n");
            assert_eq!(last_lines(3, chunks), "a\nb\nc\n");
            assert_eq!(last_lines(9, chunks), "a\nb\nc\n");
            assert_eq!(last_lines(usize::MAX, chunks), "a\nb\nc\n");
        }
        assert_eq!(last_lines(1, &["a\nb"]), "b", "an unterminated line counts");
        assert_eq!(last_lines(2, &["a\nb\nc"]), "b\nc");
        assert_eq!(last_lines(1, &[]), "");
        let many: Vec<&str> = std::iter::repeat_n("x\n", 10_000).collect();
        assert_eq!(last_lines(3, &many), "x\nx\nx\n");
    }

    #[test]
    fn events_are_json_lines() {
        let chunk = Base64Bytes::from("hi\n");
        let output = OutputChunk { seq: 1, stream: OutputStream::Stderr, chunk };
        let line = as_json(&ExecProcessEvent::Output(output));
        assert_eq!(line.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        let expected = json!({"event": "output", "seq": 1, "stream": "stderr", "chunk": "aGkK"});
        assert_eq!(value, expected);
    }
}
