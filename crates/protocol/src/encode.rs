//! Encoding of messages.

use std::io::Write as _;

use serde::Serialize;
use serde_json::value::RawValue;

use crate::{
    ExecOutputDeltaNotification, NotificationParams, OutputNotification, OutputStream, RequestId,
    RpcError,
};

#[must_use]
pub fn request(id: &RequestId, method: &str, params: &RawValue) -> Vec<u8> {
    #[derive(Serialize)]
    struct Request<'a> {
        id: &'a RequestId,
        method: &'a str,
        params: &'a RawValue,
    }
    serde_json::to_vec(&Request { id, method, params }).expect("a request has only string keys")
}

pub fn response<T: Serialize>(id: &RequestId, result: &T) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(Serialize)]
    struct Response<'a, T> {
        id: &'a RequestId,
        result: &'a T,
    }
    serde_json::to_vec(&Response { id, result })
}

/// Encodes a successful response whose result has `bytes` as base64 in `member`, followed by
/// `more`: further members as JSON text with a leading comma, or nothing.
#[must_use]
pub fn bytes_response(id: &RequestId, member: &str, bytes: &[u8], more: &str) -> Vec<u8> {
    let mut response = Base64ResponseWriter::new(id, member, bytes.len());
    response.append(bytes);
    response.finish(more)
}

/// Like [`bytes_response`], for bytes that arrive in pieces. Files make large responses, so their
/// base64 is written straight into the response.
#[derive(Debug)]
pub struct Base64ResponseWriter {
    text: Vec<u8>,
}

impl Base64ResponseWriter {
    /// Every piece but the last must have a length that is a multiple of [`Self::UNIT`], so that no
    /// base64 padding appears between pieces.
    pub const UNIT: usize = 3;

    #[must_use]
    pub fn new(id: &RequestId, member: &str, expected_bytes: usize) -> Self {
        let id = serde_json::to_string(id).expect("an id is a string or a number");
        let around = id.len() + member.len() + 64;
        let encoded = base64_simd::STANDARD.encoded_length(expected_bytes);
        let mut text = Vec::with_capacity(around + encoded);
        append(&mut text, format_args!(r#"{{"id":{id},"result":{{"{member}":""#));
        Self { text }
    }

    pub fn append(&mut self, piece: &[u8]) {
        base64_simd::STANDARD.encode_append(piece, &mut self.text);
    }

    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "the text is never empty: it begins with the id"
    )]
    pub fn len(&self) -> usize {
        self.text.len()
    }

    #[must_use]
    pub fn finish(mut self, more: &str) -> Vec<u8> {
        append(&mut self.text, format_args!("\"{more}}}}}"));
        self.text
    }
}

#[must_use]
pub fn error_response(id: &RequestId, error: &RpcError) -> Vec<u8> {
    #[derive(Serialize)]
    struct Failure<'a> {
        id: &'a RequestId,
        error: &'a RpcError,
    }
    serde_json::to_vec(&Failure { id, error }).expect("ids and errors have only string keys")
}

#[must_use]
pub fn notification<T: NotificationParams>(params: &T) -> Vec<u8> {
    #[derive(Serialize)]
    struct Notification<'a, T> {
        method: &'a str,
        params: &'a T,
    }
    serde_json::to_vec(&Notification { method: T::NAME, params })
        .expect("notification params have only string keys")
}

/// The constant prefix of a process's output notifications, encoded once.
///
/// Output is not serialised through serde: its text is written straight into the socket buffer, so
/// that the base64 encoding is the only copy of a chunk.
#[derive(Debug, Clone)]
pub struct NotificationHeader {
    text: Box<str>,
    sequenced: bool,
}

impl NotificationHeader {
    /// Header of `process/output`. An observer's notifications also name the session.
    #[must_use]
    pub fn output(process_id: &str, observed_session: Option<&str>) -> Self {
        let mut text = format!(
            r#"{{"method":"{}","params":{{"processId":{}"#,
            OutputNotification::NAME,
            json_string(process_id)
        );
        if let Some(session) = observed_session {
            text.push_str(r#","sessionId":"#);
            text.push_str(&json_string(session));
        }
        text.push_str(r#","seq":"#);
        Self { text: text.into(), sequenced: true }
    }

    /// Header of `command/exec/outputDelta`, which has no sequence numbers.
    #[must_use]
    pub fn legacy_output(process_id: &str) -> Self {
        let text = format!(
            r#"{{"method":"{}","params":{{"processId":{},"stream":"#,
            ExecOutputDeltaNotification::NAME,
            json_string(process_id)
        );
        Self { text: text.into(), sequenced: false }
    }

    /// The exact length of the message that [`Self::write`] appends for the same arguments.
    #[must_use]
    pub fn len(&self, seq: u64, stream: OutputStream, chunk_len: usize, dropped: u64) -> usize {
        let stream = self.stream_name(stream).len() + 2;
        let numbering = if self.sequenced { decimal_len(seq) + r#","stream":"#.len() } else { 0 };
        let dropped =
            if dropped > 0 { r#","droppedBytes":"#.len() + decimal_len(dropped) } else { 0 };
        self.text.len()
            + numbering
            + stream
            + r#","chunk":""#.len()
            + base64_simd::STANDARD.encoded_length(chunk_len)
            + "\"".len()
            + dropped
            + "}}".len()
    }

    /// Appends the complete notification. `dropped` is the size of the gap just before the chunk.
    pub fn write(
        &self,
        buffer: &mut Vec<u8>,
        seq: u64,
        stream: OutputStream,
        chunk: &[u8],
        dropped: u64,
    ) {
        buffer.extend_from_slice(self.text.as_bytes());
        if self.sequenced {
            append(buffer, format_args!("{seq},\"stream\":"));
        }
        append(buffer, format_args!("\"{}\",\"chunk\":\"", self.stream_name(stream)));
        base64_simd::STANDARD.encode_append(chunk, buffer);
        buffer.push(b'"');
        if dropped > 0 {
            append(buffer, format_args!(",\"droppedBytes\":{dropped}"));
        }
        buffer.extend_from_slice(b"}}");
    }

    /// Returns the stream's name. The v0 notifications have no `pty`: in them, the stream of a
    /// terminal is `stdout`.
    fn stream_name(&self, stream: OutputStream) -> &'static str {
        match stream {
            OutputStream::Pty if !self.sequenced => "stdout",
            _ => stream.name(),
        }
    }
}

fn append(buffer: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    buffer.write_fmt(text).expect("writing to a Vec cannot fail");
}

fn json_string(text: &str) -> String {
    serde_json::to_string(text).expect("a string is always JSON")
}

fn decimal_len(number: u64) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Base64Bytes;

    #[test]
    fn written_output_matches_serde_and_the_announced_length() {
        for (seq, stream, chunk, dropped) in [
            (1, OutputStream::Stdout, &b""[..], 0),
            (9, OutputStream::Stderr, &b"a"[..], 1),
            (10, OutputStream::Pty, &b"ab"[..], 10),
            (u64::MAX, OutputStream::Stdout, &b"abc\xff"[..], u64::MAX),
        ] {
            for session in [None, Some("session-1")] {
                let header = NotificationHeader::output("p\"\n1", session);
                let mut text = Vec::new();
                header.write(&mut text, seq, stream, chunk, dropped);
                assert_eq!(text.len(), header.len(seq, stream, chunk.len(), dropped));
                let expected = notification(&OutputNotification {
                    process_id: "p\"\n1".into(),
                    session_id: session.map(str::to_owned),
                    seq,
                    stream,
                    chunk: Base64Bytes::from(chunk.to_vec()),
                    dropped_bytes: dropped,
                });
                assert_eq!(String::from_utf8(text).unwrap(), String::from_utf8(expected).unwrap());
            }
        }
    }

    #[test]
    fn a_bytes_response_matches_serde() {
        for id in [RequestId::Integer(-7), RequestId::String("a\"b".into())] {
            let result =
                crate::FsReadBlockResponse { chunk: b"ab\xff"[..].to_vec().into(), eof: true };
            let expected = response(&id, &result).unwrap();
            let written = bytes_response(&id, "chunk", b"ab\xff", ",\"eof\":true");
            assert_eq!(String::from_utf8(written).unwrap(), String::from_utf8(expected).unwrap());
        }
    }

    #[test]
    fn legacy_output_has_no_sequence_number_and_a_terminal_is_stdout() {
        let header = NotificationHeader::legacy_output("p");
        let mut text = Vec::new();
        header.write(&mut text, 3, OutputStream::Pty, b"hi", 0);
        assert_eq!(text.len(), header.len(3, OutputStream::Pty, 2, 0));
        assert_eq!(
            String::from_utf8(text).unwrap(),
            r#"{"method":"command/exec/outputDelta","params":{"processId":"p","stream":"stdout","chunk":"aGk="}}"#
        );
    }
}
