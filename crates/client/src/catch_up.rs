//! Turns a `process/read` response into events with sequence numbers.
//!
//! The response numbers its chunks, but reports exit and close only as flags. Exit and close take
//! the numbers that are missing from the sequence.

use exec_server_protocol::{ErrorKind, ReadResponse, RpcError};

use crate::mirror::{MirrorEvent, Offer, ProcessMirror};
use crate::{ExecServerError, Violation};

/// Appends to `mirror` the events of the response to a `process/read` with `afterSeq` = `after`.
/// Fails if the sequence numbers are invalid, or if output is missing and the mirror allows no
/// gaps.
pub(crate) fn apply(
    mirror: &ProcessMirror,
    after: u64,
    response: ReadResponse,
) -> Result<(), ExecServerError> {
    check_numbers(mirror, &response)?;
    let known_exit = mirror.exit();
    let mut exit = match (&known_exit, response.exit_code) {
        (None, Some(exit_code)) if response.exited => Some(MirrorEvent::Exited {
            exit_code,
            sandbox_denied: response.sandbox_denied,
            denied: response.denied.clone(),
            details: response.exit.clone().map(Box::new),
        }),
        _ => None,
    };
    let mut expected = after.saturating_add(1);
    if response.dropped_bytes > 0 {
        expected = after_gap(&response, exit.is_some()).max(expected);
        // The server counts all output that it dropped after `after`. Some of it may have arrived
        // since the request, and is not missing.
        let missing = response.dropped_bytes.saturating_sub(mirror.output_bytes_after(after));
        mirror.skip_to(expected, missing)?;
    }
    let is_known_exit = |seq| known_exit.as_ref().is_some_and(|exit| exit.seq == seq);
    for chunk in response.chunks {
        while expected < chunk.seq {
            if is_known_exit(expected) {
                expected += 1;
            } else if let Some(event) = exit.take() {
                mirror.offer(expected, event);
                expected += 1;
            } else {
                // The size is unknown: an older server does not report it.
                mirror.skip_to(chunk.seq, 0)?;
                expected = chunk.seq;
            }
        }
        let event = MirrorEvent::Output { stream: chunk.stream, chunk: chunk.chunk.into_bytes() };
        if mirror.offer(chunk.seq, event) == Offer::Full {
            return Ok(()); // The rest is read when the mirror has room.
        }
        expected = chunk.seq + 1;
    }
    while expected < response.next_seq {
        if is_known_exit(expected) {
            expected += 1;
        } else if let Some(event) = exit.take() {
            mirror.offer(expected, event);
            expected += 1;
        } else if response.closed {
            mirror.offer(expected, MirrorEvent::Closed);
            break;
        } else {
            mirror.skip_to(response.next_seq, 0)?;
            break;
        }
    }
    if let Some(failure) = response.failure {
        mirror.fail(ExecServerError::Server(
            RpcError::internal(failure).with_kind(ErrorKind::ProcessLost),
        ));
    }
    Ok(())
}

/// Sequence numbers stay below this. No real process reaches it, and sums with larger numbers could
/// overflow.
pub(crate) const MAX_SEQ: u64 = u64::MAX / 2;

fn check_numbers(mirror: &ProcessMirror, response: &ReadResponse) -> Result<(), ExecServerError> {
    let in_order = response.chunks.is_sorted_by(|a, b| a.seq < b.seq);
    let first = response.chunks.first().map_or(1, |chunk| chunk.seq);
    let last = response.chunks.last().map_or(1, |chunk| chunk.seq);
    if first > 0 && in_order && last < MAX_SEQ && response.next_seq < MAX_SEQ {
        return Ok(());
    }
    Err(Violation::Numbers { process_id: mirror.process_id().to_owned() }.into())
}

/// Returns the number at which the events continue after a declared gap.
///
/// If the exit lies within the gap, no later number is left for it. The events then continue with
/// the exit, at the last number of the gap.
fn after_gap(response: &ReadResponse, exit_is_news: bool) -> u64 {
    let Some(first) = response.chunks.first().map(|chunk| chunk.seq) else {
        let at_the_end = u64::from(exit_is_news) + u64::from(response.closed);
        return response.next_seq.saturating_sub(at_the_end);
    };
    let numbers = response.next_seq.saturating_sub(first);
    let closed = u64::from(response.closed);
    let has_place = numbers.saturating_sub(closed) > response.chunks.len() as u64;
    if exit_is_news && !has_place { first - 1 } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::GapPolicy;
    use exec_server_protocol::{OutputChunk, OutputStream};

    fn response(seqs: &[u64], next_seq: u64) -> ReadResponse {
        let chunks = seqs.iter().map(|&seq| OutputChunk {
            seq,
            stream: OutputStream::Stdout,
            chunk: vec![b'0' + (seq % 10) as u8].into(),
        });
        ReadResponse {
            chunks: chunks.collect(),
            next_seq,
            exited: false,
            exit_code: None,
            closed: false,
            failure: None,
            sandbox_denied: false,
            denied: None,
            dropped_bytes: 0,
            exit: None,
        }
    }

    fn exited(seqs: &[u64], next_seq: u64, closed: bool) -> ReadResponse {
        ReadResponse { exited: true, exit_code: Some(4), closed, ..response(seqs, next_seq) }
    }

    fn ending(mirror: &ProcessMirror) -> (Option<u64>, bool) {
        (mirror.exit().map(|exit| exit.seq), mirror.is_over())
    }

    #[test]
    fn new_chunks_are_appended_and_known_ones_ignored() {
        let mirror = ProcessMirror::new("p", GapPolicy::Fatal);
        apply(&mirror, 0, response(&[1, 2], 3)).unwrap();
        apply(&mirror, 1, response(&[2, 3], 4)).unwrap();
        assert_eq!(mirror.next_seq(), 4);
        assert_eq!(mirror.read(0, u64::MAX).unwrap().chunks.len(), 3);
    }

    #[test]
    fn exit_and_close_take_the_missing_numbers() {
        for (chunks, next, closed, exit_at) in [
            (&[1, 2][..], 4, false, 3),
            (&[1, 2][..], 5, true, 3),
            (&[1, 3][..], 4, false, 2),
            (&[1, 3][..], 5, true, 2),
            (&[][..], 3, true, 1),
        ] {
            let mirror = ProcessMirror::new("p", GapPolicy::Fatal);
            apply(&mirror, 0, exited(chunks, next, closed)).unwrap();
            assert_eq!(ending(&mirror), (Some(exit_at), closed), "{chunks:?} {next}");
            assert_eq!(mirror.next_seq(), next);
        }
    }

    #[test]
    fn an_exit_beyond_a_truncated_response_waits_for_the_next() {
        let mirror = ProcessMirror::new("p", GapPolicy::Fatal);
        apply(&mirror, 0, exited(&[1, 2], 3, true)).unwrap();
        assert_eq!(ending(&mirror), (None, false));
        apply(&mirror, 2, exited(&[3], 6, true)).unwrap();
        assert_eq!(ending(&mirror), (Some(4), true));
    }

    #[test]
    fn an_exit_from_a_notification_keeps_its_number() {
        let mirror = ProcessMirror::new("p", GapPolicy::Fatal);
        apply(&mirror, 0, exited(&[1], 3, false)).unwrap();
        apply(&mirror, 0, exited(&[1, 3], 5, true)).unwrap();
        assert_eq!(ending(&mirror), (Some(2), true));
    }

    #[test]
    fn missing_output_is_fatal_unless_gaps_are_allowed() {
        let gap = |chunks, next| ReadResponse { dropped_bytes: 9, ..response(chunks, next) };
        let strict = ProcessMirror::new("p", GapPolicy::Fatal);
        assert!(matches!(
            apply(&strict, 0, gap(&[5], 6)),
            Err(ExecServerError::Gap { dropped_bytes: 9, .. })
        ));
        assert!(
            apply(&strict, 0, response(&[5], 6)).is_err(),
            "a gap of unknown size is fatal, too"
        );
        let late = ProcessMirror::new("p", GapPolicy::Declared);
        apply(&late, 0, gap(&[5], 6)).unwrap();
        assert_eq!(late.next_seq(), 6);
    }

    #[test]
    fn output_that_arrived_since_the_request_is_not_part_of_the_gap() {
        let mirror = ProcessMirror::new("p", GapPolicy::Declared);
        apply(&mirror, 0, response(&[1, 2], 3)).unwrap();
        apply(&mirror, 1, ReadResponse { dropped_bytes: 9, ..response(&[5], 6) }).unwrap();
        // Two chunks of one byte, the gap, and another chunk of one byte.
        assert_eq!(mirror.output_bytes_after(0), 2 + 8 + 1);
    }

    #[test]
    fn impossible_numbers_are_a_protocol_violation() {
        for (chunks, next_seq) in
            [(&[][..], u64::MAX), (&[0][..], 1), (&[u64::MAX][..], 2), (&[3, 2][..], 4)]
        {
            let late = ProcessMirror::new("p", GapPolicy::Declared);
            let lie = ReadResponse { closed: true, dropped_bytes: 1, ..response(chunks, next_seq) };
            let error = apply(&late, 0, lie).unwrap_err();
            assert!(matches!(error, ExecServerError::ProtocolViolation(_)), "{error}");
        }
        // A distant number must not cause a loop over all numbers before it.
        let late = ProcessMirror::new("p", GapPolicy::Declared);
        apply(&late, 0, response(&[], MAX_SEQ - 1)).unwrap();
        assert_eq!(late.next_seq(), MAX_SEQ - 1);
    }

    #[test]
    fn an_exit_within_a_gap_is_not_lost() {
        let gap = |response| ReadResponse { dropped_bytes: 9, ..response };
        for (response, exit_at) in [
            (gap(exited(&[7, 8], 10, true)), 6),
            (gap(exited(&[7, 8], 11, true)), 9),
            (gap(exited(&[7, 9], 11, true)), 8),
            (gap(exited(&[], 11, true)), 9),
        ] {
            let late = ProcessMirror::new("p", GapPolicy::Declared);
            let next = response.next_seq;
            apply(&late, 0, response).unwrap();
            assert_eq!(ending(&late), (Some(exit_at), true));
            assert_eq!(late.next_seq(), next);
        }
    }
}
