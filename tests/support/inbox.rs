//! How clients put the events of a process in order: as the protocol intends, and as some deployed
//! clients do.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Client, decoded};

/// The events of a process so far, in order and without a gap.
#[derive(Debug, Default)]
pub(crate) struct Transcript {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) pty: Vec<u8>,
    /// Number of the last event.
    pub(crate) seq: u64,
    pub(crate) exited: bool,
    pub(crate) exit_code: Option<i64>,
    pub(crate) signal: Option<i64>,
    pub(crate) closed: bool,
}

impl Transcript {
    fn take(&mut self, event: Event) {
        assert!(!self.closed, "close is the last event");
        self.seq += 1;
        match event {
            Event::Output { stream, bytes } => match stream.as_str() {
                "stdout" => self.stdout.extend_from_slice(&bytes),
                "stderr" => self.stderr.extend_from_slice(&bytes),
                "pty" => self.pty.extend_from_slice(&bytes),
                other => panic!("unknown stream {other}"),
            },
            Event::Exited { code, signal } => {
                assert!(!self.exited, "a process exits once");
                self.exited = true;
                self.exit_code = code;
                self.signal = signal;
            }
            Event::Closed => {
                assert!(self.exited, "exit comes before close");
                self.closed = true;
            }
        }
    }

    /// Returns the output of all streams, one stream after another: for processes that write to one
    /// only.
    pub(crate) fn output(&self) -> Vec<u8> {
        [self.stdout.as_slice(), &self.stderr, &self.pty].concat()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.output()).expect("the output is text")
    }
}

#[derive(Debug)]
enum Event {
    Output { stream: String, bytes: Vec<u8> },
    Exited { code: Option<i64>, signal: Option<i64> },
    Closed,
}

impl Event {
    fn read(notification: &Value) -> (u64, Self) {
        let params = &notification["params"];
        let (seq, dropped) = (&params["seq"], params.get("droppedBytes"));
        assert_eq!(dropped, None, "nothing may be lost before {seq}");
        let event = match notification["method"].as_str().unwrap() {
            "process/output" => Self::Output {
                stream: params["stream"].as_str().unwrap().to_owned(),
                bytes: decoded(&params["chunk"]),
            },
            "process/exited" => Self::Exited {
                code: params["exitCode"].as_i64(),
                signal: params["signal"].as_i64(),
            },
            "process/closed" => Self::Closed,
            other => panic!("unexpected notification {other}"),
        };
        (params["seq"].as_u64().unwrap(), event)
    }

    fn size(&self) -> usize {
        match self {
            Self::Output { bytes, .. } => bytes.len(),
            Self::Exited { .. } | Self::Closed => 0,
        }
    }
}

pub(crate) trait Inbox {
    fn process(&self) -> &str;
    /// Takes a notification. Returns whether it was new.
    fn take(&mut self, notification: &Value) -> bool;
    fn transcript(&self) -> &Transcript;
    /// Returns the client's params of `initialize`.
    fn handshake(&self) -> Value;
    /// Called after a resume.
    fn catch_up(&mut self, client: &mut Client);
    /// Called from time to time.
    fn confirm(&mut self, client: &mut Client);
}

/// Confirms received events, and ignores events that are sent again.
pub(crate) struct AckingInbox {
    process: String,
    transcript: Transcript,
}

impl AckingInbox {
    pub(crate) fn new(process: &str) -> Self {
        Self { process: process.to_owned(), transcript: Transcript::default() }
    }

    pub(crate) fn into_transcript(self) -> Transcript {
        self.transcript
    }
}

impl Inbox for AckingInbox {
    fn process(&self) -> &str {
        &self.process
    }

    fn take(&mut self, notification: &Value) -> bool {
        let (seq, event) = Event::read(notification);
        if seq <= self.transcript.seq {
            return false;
        }
        assert_eq!(seq, self.transcript.seq + 1, "{} has a gap", self.process);
        self.transcript.take(event);
        true
    }

    fn transcript(&self) -> &Transcript {
        &self.transcript
    }

    fn handshake(&self) -> Value {
        json!({"acks": true})
    }

    fn catch_up(&mut self, _client: &mut Client) {}

    fn confirm(&mut self, client: &mut Client) {
        let params = json!({"processId": self.process, "seq": self.transcript.seq});
        client.notify("process/ack", params);
    }
}

/// Behaves like some deployed clients: never confirms, reads missed events once after a resume,
/// keeps events that arrive ahead of missing ones in a small window, and fails if one stays
/// missing.
pub(crate) struct OldStyleInbox {
    process: String,
    transcript: Transcript,
    early: BTreeMap<u64, Event>,
}

const WINDOW_EVENTS: usize = 256;
const WINDOW_BYTES: usize = 1 << 20;

impl OldStyleInbox {
    pub(crate) fn new(process: &str) -> Self {
        Self {
            process: process.to_owned(),
            transcript: Transcript::default(),
            early: BTreeMap::new(),
        }
    }

    fn insert(&mut self, seq: u64, event: Event) {
        if seq > self.transcript.seq {
            self.early.insert(seq, event);
        }
    }

    fn publish(&mut self) {
        while let Some(event) = self.early.remove(&(self.transcript.seq + 1)) {
            self.transcript.take(event);
        }
        let bytes: usize = self.early.values().map(Event::size).sum();
        let events = self.early.len();
        assert!(
            events <= WINDOW_EVENTS && bytes <= WINDOW_BYTES,
            "{events} events of {bytes} bytes came early"
        );
    }

    /// Inserts exit and close if a response to `process/read` covers them: their numbers are the
    /// holes in it.
    fn insert_end(&mut self, read: &Value) {
        let next = read["nextSeq"].as_u64().unwrap();
        let is_hole = |seq: &u64| !self.early.contains_key(seq);
        let holes: Vec<u64> = (self.transcript.seq + 1..next).filter(is_hole).collect();
        let exit =
            Event::Exited { code: read["exitCode"].as_i64(), signal: read["signal"].as_i64() };
        match holes.as_slice() {
            [] => {}
            [last] if self.transcript.exited => self.insert(*last, Event::Closed),
            [only] => self.insert(*only, exit),
            [earlier, last] => {
                self.insert(*earlier, exit);
                self.insert(*last, Event::Closed);
            }
            holes => panic!("holes after a resume: {holes:?}"),
        }
    }
}

impl Inbox for OldStyleInbox {
    fn process(&self) -> &str {
        &self.process
    }

    fn take(&mut self, notification: &Value) -> bool {
        let (seq, event) = Event::read(notification);
        let is_news = seq > self.transcript.seq;
        self.insert(seq, event);
        self.publish();
        is_news
    }

    fn transcript(&self) -> &Transcript {
        &self.transcript
    }

    fn handshake(&self) -> Value {
        json!({})
    }

    fn catch_up(&mut self, client: &mut Client) {
        let params = json!({"processId": self.process, "afterSeq": self.transcript.seq});
        let read = client.call("process/read", params);
        assert_eq!(read.get("droppedBytes"), None, "nothing may be lost");
        let next = read["nextSeq"].as_u64().unwrap();
        for chunk in read["chunks"].as_array().unwrap() {
            let stream = chunk["stream"].as_str().unwrap().to_owned();
            let event = Event::Output { stream, bytes: decoded(&chunk["chunk"]) };
            self.insert(chunk["seq"].as_u64().unwrap(), event);
        }
        self.insert_end(&read);
        self.publish();
        assert_eq!(self.transcript.seq + 1, next, "everything before nextSeq was returned");
    }

    fn confirm(&mut self, _client: &mut Client) {}
}
