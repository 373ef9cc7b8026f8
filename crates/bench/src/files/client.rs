//! The client of both servers: sends, receives, decodes, counts.

use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::request::Request;
use crate::client::unexpected;
use crate::socket::Socket;

#[derive(Debug)]
pub(super) struct FilesClient {
    socket: Socket,
    dialect: Dialect,
    last_request: u64,
    request: Vec<u8>,
    decoded: Vec<u8>,
}

/// The kind of server at the other end.
#[derive(Debug, Clone, Copy)]
pub(super) enum Dialect {
    Ours,
    Minimal,
}

/// The parts of a response that measurements check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Answer {
    pub(super) decoded_bytes: usize,
    pub(super) size: Option<u64>,
    pub(super) entries: usize,
    pub(super) matches: Option<u64>,
}

impl FilesClient {
    pub(super) fn new(socket: Socket, dialect: Dialect) -> Self {
        Self { socket, dialect, last_request: 0, request: Vec::new(), decoded: Vec::new() }
    }

    pub(super) fn call(&mut self, request: Request<'_>) -> anyhow::Result<Answer> {
        self.send(request)?;
        self.receive()
    }

    /// Sends the given requests and keeps `depth` of them in flight. Responses may arrive in any
    /// order.
    pub(super) fn pipeline<'a>(
        &mut self,
        depth: usize,
        count: usize,
        mut request: impl FnMut(usize) -> Request<'a>,
        mut check: impl FnMut(Answer) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut sent = 0;
        for answered in 0..count {
            while sent < count && sent - answered < depth {
                self.send(request(sent))?;
                sent += 1;
            }
            check(self.receive()?)?;
        }
        Ok(())
    }

    fn send(&mut self, request: Request<'_>) -> anyhow::Result<()> {
        self.last_request += 1;
        self.request.clear();
        match self.dialect {
            Dialect::Ours => request.write_json(self.last_request, &mut self.request),
            Dialect::Minimal => request.write_plain(self.last_request, &mut self.request),
        }
        self.socket.send(&self.request).context("cannot send a request")
    }

    /// Returns the next response; notifications are skipped.
    fn receive(&mut self) -> anyhow::Result<Answer> {
        loop {
            let text = self.socket.receive_message()?;
            let message: Message<'_> =
                serde_json::from_slice(text).with_context(|| unexpected(text))?;
            if let Some(error) = message.error {
                bail!("the server refused a request: {error}");
            }
            let Some(result) = message.result else { continue };
            self.decoded.clear();
            if let Some(base64) = result.data_base64.or(result.chunk) {
                base64_simd::STANDARD
                    .decode_append(base64, &mut self.decoded)
                    .context("the server sent invalid base64")?;
            }
            return Ok(Answer {
                decoded_bytes: self.decoded.len(),
                size: result.size,
                entries: result.entries.len(),
                matches: result.matches,
            });
        }
    }
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    result: Option<Outcome<'a>>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outcome<'a> {
    /// Not checked for UTF-8, because the base64 decoder rejects invalid bytes.
    data_base64: Option<&'a [u8]>,
    chunk: Option<&'a [u8]>,
    size: Option<u64>,
    #[serde(borrow, default)]
    entries: Vec<Entry<'a>>,
    matches: Option<u64>,
}

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(rename = "path")]
    _path: &'a str,
    #[serde(rename = "kind")]
    _kind: &'a str,
}
