//! The audit log: one JSON object per line, to a file or to journald.
//!
//! One thread writes all records, so a hanging disk delays only callers that must not proceed
//! without their record. Failures are counted.

mod file;
mod journal;
mod refusal_lines;
mod writer;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};

pub use refusal_lines::{RefusalLine, RefusalLines};
use writer::Writer;

const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";
const JOURNAL: &str = "journald";

const MAX_TEXT_BYTES: usize = 4096;

/// How long a caller waits for its record or for a reopened log, and the shutdown for the last
/// records.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditTarget {
    File(PathBuf),
    /// The socket of journald.
    Journal(PathBuf),
}

impl FromStr for AuditTarget {
    type Err = String;

    /// Parses `journald`, `journald:SOCKET`, or the absolute path of a file.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == JOURNAL => Ok(Self::Journal(JOURNAL_SOCKET.into())),
            Some((JOURNAL, socket)) if socket.starts_with('/') => Ok(Self::Journal(socket.into())),
            Some((JOURNAL, _)) => Err(format!("the socket in {text:?} is not an absolute path")),
            _ if text.starts_with('/') => Ok(Self::File(text.into())),
            _ => Err(format!(
                "expected journald, journald:SOCKET or an absolute path, found {text:?}"
            )),
        }
    }
}

impl fmt::Display for AuditTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Journal(path) if path.as_os_str() == JOURNAL_SOCKET => f.write_str(JOURNAL),
            Self::Journal(path) => write!(f, "{JOURNAL}:{}", path.display()),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("cannot open the audit log {target}")]
    Open { target: AuditTarget, source: io::Error },
    #[error("cannot write to the audit log {target}")]
    Write { target: AuditTarget, source: io::Error },
}

#[derive(Debug)]
pub struct AuditLog {
    target: AuditTarget,
    writer: Writer,
}

impl AuditLog {
    pub fn open(target: AuditTarget) -> Result<Self, AuditError> {
        let writer = Writer::start(target.clone())?;
        Ok(Self { target, writer })
    }

    /// Passes one record to the writer without waiting for it. Lost records are counted.
    pub fn write(&self, record: &impl Serialize) {
        // The counter and the service's log report the failure.
        let _ = self.encode(record).and_then(|json| self.writer.write(json));
    }

    /// Returns when the record is written. If the log hangs, the call fails after two seconds, and
    /// later calls fail at once until the log is written again.
    pub fn write_and_wait(&self, record: &impl Serialize) -> Result<(), AuditError> {
        let json = self.encode(record);
        let written = json.and_then(|json| self.writer.write_and_wait(json, WRITE_TIMEOUT));
        written.map_err(|source| AuditError::Write { target: self.target.clone(), source })
    }

    /// Reopens the file, which a rotation may have renamed, or connects to journald again. On
    /// failure the old file or connection stays in use; if writing hangs, the log may still be
    /// reopened later.
    pub fn reopen(&self) -> Result<(), AuditError> {
        self.writer.reopen(WRITE_TIMEOUT).unwrap_or_else(|| {
            let source = io::Error::new(io::ErrorKind::TimedOut, "writing to it hangs");
            Err(AuditError::Open { target: self.target.clone(), source })
        })
    }

    /// Waits until all records so far are written or lost, but for no longer than two seconds.
    pub fn flush(&self) {
        if !self.writer.flush(WRITE_TIMEOUT) {
            tracing::error!(
                log = %self.target,
                "writing to the audit log hangs; the last records may be lost"
            );
        }
    }

    /// Returns the number of records that could not be written, or were not written in time.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.writer.failures()
    }

    #[must_use]
    pub fn waiting(&self) -> usize {
        self.writer.waiting()
    }

    fn encode(&self, record: &impl Serialize) -> io::Result<Vec<u8>> {
        serde_json::to_vec(record).map_err(|error| self.writer.lose(error.into()))
    }
}

/// A point in time, serialized as RFC 3339 in UTC.
#[derive(Debug, Clone, Copy)]
pub struct Timestamp(pub SystemTime);

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_millis(self.0))
    }
}

/// Truncates a peer's text for a record.
#[must_use]
pub fn short(text: &str) -> String {
    match text.len() {
        0..=MAX_TEXT_BYTES => text.to_owned(),
        len => {
            let end = text.floor_char_boundary(MAX_TEXT_BYTES);
            format!("{}… ({len} bytes)", &text[..end])
        }
    }
}

#[cfg(test)]
mod tests;
