//! The audit log: one JSON object per line, to a file or to journald.
//!
//! A record is written before the call that writes it returns. A failure is counted, and told to the
//! caller, who may have to refuse what it was about to do.

mod file;
mod journal;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use serde::{Serialize, Serializer};

use file::AuditFile;
use journal::Journal;

/// Where systemd listens for log entries.
const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";
const JOURNAL: &str = "journald";

/// Of one text in a record. Longer ones are cut: a peer chooses many of them.
const MAX_TEXT_BYTES: usize = 4096;

/// Where records go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditTarget {
    File(PathBuf),
    /// The socket of journald.
    Journal(PathBuf),
}

impl FromStr for AuditTarget {
    type Err = String;

    /// `journald`, `journald:SOCKET`, or the absolute path of a file.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == JOURNAL => Ok(Self::Journal(JOURNAL_SOCKET.into())),
            Some((JOURNAL, socket)) if socket.starts_with('/') => Ok(Self::Journal(socket.into())),
            _ if text.starts_with('/') => Ok(Self::File(text.into())),
            _ => Err(format!("expected journald or an absolute path, found {text:?}")),
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
    sink: Mutex<Sink>,
    failures: AtomicU64,
}

#[derive(Debug)]
enum Sink {
    File(AuditFile),
    Journal(Journal),
}

impl AuditLog {
    pub fn open(target: AuditTarget) -> Result<Self, AuditError> {
        let sink = Sink::open(&target)?;
        Ok(Self { target, sink: Mutex::new(sink), failures: AtomicU64::new(0) })
    }

    /// Appends one record.
    pub fn write(&self, record: &impl Serialize) -> Result<(), AuditError> {
        let written = serde_json::to_vec(record).map_err(io::Error::from).and_then(|json| {
            let mut sink = self.sink.lock().expect("no code panics while it holds the log");
            match &mut *sink {
                Sink::File(file) => file.append(json),
                Sink::Journal(journal) => journal.send(&json),
            }
        });
        written.map_err(|source| {
            self.failures.fetch_add(1, Ordering::Relaxed);
            AuditError::Write { target: self.target.clone(), source }
        })
    }

    /// Opens the file again, which a rotation may have renamed. On failure the old one stays in use.
    pub fn reopen(&self) -> Result<(), AuditError> {
        let sink = Sink::open(&self.target)?;
        *self.sink.lock().expect("no code panics while it holds the log") = sink;
        Ok(())
    }

    /// Records that could not be written.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

impl Sink {
    fn open(target: &AuditTarget) -> Result<Self, AuditError> {
        let opened = match target {
            AuditTarget::File(path) => AuditFile::open(path).map(Self::File),
            AuditTarget::Journal(path) => Journal::connect(path).map(Self::Journal),
        };
        opened.map_err(|source| AuditError::Open { target: target.clone(), source })
    }
}

/// A moment, as records have it: RFC 3339 in UTC.
#[derive(Debug, Clone, Copy)]
pub struct Timestamp(pub SystemTime);

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_millis(self.0))
    }
}

/// A text of a peer, cut to what a record holds.
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
