//! A response whose headers were received and whose body is still being received.

use std::fmt;

use bytes::{Bytes, BytesMut};
use reqwest::header::{HeaderMap, HeaderValue};

use super::deadline::Deadline;
use super::diagnosis;
use super::error::HttpError;

pub const MAX_CHUNK_BYTES: usize = 1 << 20;

pub struct Response {
    pub status: u16,
    /// Values that are not UTF-8 are read as Latin-1, the encoding of early HTTP.
    pub headers: Vec<(String, String)>,
    body: Body,
    deadline: Option<Deadline>,
}

enum Body {
    Open {
        answer: reqwest::Response,
        /// The remainder of a received piece that exceeded the chunk size.
        rest: Bytes,
    },
    /// Read to the end, or failed.
    Ended,
}

impl Response {
    pub(super) fn new(answer: reqwest::Response, deadline: Option<Deadline>) -> Self {
        Self {
            status: answer.status().as_u16(),
            headers: readable(answer.headers()),
            body: Body::Open { answer, rest: Bytes::new() },
            deadline,
        }
    }

    /// Reads the rest of the body, at most `max` bytes. A larger declared length is refused before
    /// reading.
    ///
    /// The request's timeout applies until the last byte.
    pub async fn bytes(self, max: usize) -> Result<Bytes, HttpError> {
        self.bytes_within(max, &mut |_| true).await
    }

    /// Like [`bytes`](Self::bytes), but fails with [`HttpError::NoRoom`] once `has_room` refuses
    /// the new size of the body.
    pub async fn bytes_within(
        mut self,
        max: usize,
        has_room: &mut (dyn FnMut(usize) -> bool + Send),
    ) -> Result<Bytes, HttpError> {
        if self.declared_length().is_some_and(|declared| declared > max as u64) {
            return Err(HttpError::BodyTooLarge { max });
        }
        let deadline = self.deadline;
        Deadline::bound(deadline, self.collect(max, has_room)).await
    }

    /// Reads the next chunk, which is at most [`MAX_CHUNK_BYTES`] long and never empty. Returns
    /// `None` at the end.
    ///
    /// Buffers are bounded, so a caller that does not read slows the sender down. The request's
    /// timeout does not apply: an event stream may stay silent for long. Cancel safe: dropping the
    /// future loses no data.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, HttpError> {
        let Body::Open { answer, rest } = &mut self.body else {
            return Ok(None);
        };
        while rest.is_empty() {
            match answer.chunk().await {
                Ok(Some(piece)) => *rest = piece,
                Ok(None) => {
                    self.body = Body::Ended;
                    return Ok(None);
                }
                Err(error) => {
                    self.body = Body::Ended;
                    return Err(diagnosis::of_body(&error));
                }
            }
        }
        Ok(Some(rest.split_to(rest.len().min(MAX_CHUNK_BYTES))))
    }

    /// Returns the length of the rest of the body if it is known. It is 0 for a response to HEAD,
    /// whatever its headers say.
    fn declared_length(&self) -> Option<u64> {
        match &self.body {
            Body::Open { answer, .. } => answer.content_length(),
            Body::Ended => Some(0),
        }
    }

    async fn collect(
        &mut self,
        max: usize,
        has_room: &mut (dyn FnMut(usize) -> bool + Send),
    ) -> Result<Bytes, HttpError> {
        let mut collected = BytesMut::new();
        while let Some(piece) = self.chunk().await? {
            if piece.len() > max - collected.len() {
                return Err(HttpError::BodyTooLarge { max });
            }
            if !has_room(collected.len() + piece.len()) {
                return Err(HttpError::NoRoom);
            }
            collected.extend_from_slice(&piece);
        }
        Ok(collected.freeze())
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response").field("status", &self.status).finish_non_exhaustive()
    }
}

fn readable(headers: &HeaderMap) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

fn text(value: &HeaderValue) -> String {
    match std::str::from_utf8(value.as_bytes()) {
        Ok(text) => text.to_owned(),
        Err(_) => value.as_bytes().iter().copied().map(char::from).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_values_are_utf8_or_else_latin1() {
        assert_eq!(text(&HeaderValue::from_bytes("Zoë".as_bytes()).unwrap()), "Zoë");
        assert_eq!(text(&HeaderValue::from_bytes(b"Zo\xeb").unwrap()), "Zoë");
    }
}
