//! The audit log of a soak, read one rotated file at a time.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;

use serde_json::Value;

use super::site::Metrics;

#[derive(Default)]
pub(super) struct AuditLog {
    /// The last renamed log. The server may have written to it even after the renaming.
    rotated: Option<PathBuf>,
    /// Processes that have started and not ended, by session and name.
    running: BTreeSet<(String, String)>,
    /// Processes whose exit is recorded before their start.
    ended_early: BTreeSet<(String, String)>,
    starts: u64,
    exits: u64,
    /// Lines truncated by a full disk.
    torn: u64,
}

impl AuditLog {
    /// Notes a rotated log, and reads the one that was rotated before.
    pub(super) fn rotate(&mut self, old: PathBuf) {
        self.take_rotated();
        self.rotated = Some(old);
    }

    /// Reads the last rotated log and removes it. The server no longer writes to it.
    pub(super) fn take_rotated(&mut self) {
        let Some(old) = self.rotated.take() else { return };
        for line in BufReader::new(std::fs::File::open(&old).unwrap()).lines() {
            match serde_json::from_str(&line.unwrap()) {
                Ok(record) => self.take(&record),
                Err(_) => self.torn += 1,
            }
        }
        std::fs::remove_file(old).unwrap();
    }

    fn take(&mut self, record: &Value) {
        assert!(record["time"].is_string() && record["outcome"].is_string(), "{record}");
        let text = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
        let process = || (text("session"), text("process"));
        match record["event"].as_str().expect("every record has an event") {
            "start" if record["outcome"] == "ok" => {
                self.starts += 1;
                assert!(record["command"].is_array(), "{record}");
                if !self.ended_early.remove(&process()) {
                    assert!(self.running.insert(process()), "started twice: {record}");
                }
            }
            "exit" => {
                self.exits += 1;
                if !self.running.remove(&process()) {
                    assert!(self.ended_early.insert(process()), "ended twice: {record}");
                }
            }
            _ => {}
        }
    }

    /// Checks, once all processes have ended, that every start has an exit. `exits` is the number
    /// of exits that the server has counted. Records may be missing if the server could not write
    /// them.
    pub(super) fn check(&self, exits: f64, metrics: &Metrics) {
        let failures = metrics.of("exec_server_audit_failures_total");
        let missing = (self.running.len() + self.ended_early.len()) as f64;
        super::say(&format!(
            "audit log: {} starts, {} exits, {missing} of them unpaired, {} lines truncated, \
             {failures} records that could not be written",
            self.starts, self.exits, self.torn
        ));
        assert!(missing <= failures, "incomplete: {:?} {:?}", self.running, self.ended_early);
        assert!(self.torn as f64 <= failures, "lines are truncated");
        assert!(exits - self.exits as f64 <= failures && exits >= self.exits as f64, "{exits}");
    }
}
