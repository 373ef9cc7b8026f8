//! Full disks, and clients whose unread output needs disk space.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::load::Load;
use super::place::Disk;
use super::site::Site;
use crate::support::{AckingInbox, Client, Inbox as _, eventually, shell};

/// The last number that a process prints: 1.9 MiB of text in all.
const LAST: usize = 300_000;
/// More output than the buffers of sockets and pipes hold.
const HELD_BYTES: f64 = 500_000.0;

/// Lets clients read only after their output has been spilled.
pub(super) fn lag(site: &Site, load: &Load, count: usize) {
    let clients = SlowClient::start(site, count);
    eventually("output is on disk", || {
        site.server_metrics().of("exec_server_spilled_bytes") > HELD_BYTES
    });
    load.wait_for_streams();
    clients.into_iter().for_each(SlowClient::read_everything);
}

/// Like `lag`, but with a full disk: processes block, and no output is lost.
pub(super) fn lag_without_room(site: &Site, load: &Load, count: usize) {
    let full = FullDisk::new(site, Disk::Spill);
    let clients = SlowClient::start(site, count);
    eventually("output is in memory", || {
        site.server_metrics().of("exec_server_retained_bytes") > HELD_BYTES
    });
    load.wait_for_streams();
    // Output also arrives while the disk is full.
    let mut clients = clients.into_iter();
    clients.next().unwrap().read_everything();
    drop(full);
    clients.for_each(SlowClient::read_everything);
}

/// Fills the disk of the audit log: the server makes no change that it cannot record. A running
/// process continues, and its output can be read.
pub(super) fn fill_the_disk_of_the_audit_log(site: &Site) {
    if !site.place.has_world() {
        return;
    }
    let mut client = site.client();
    let mut slow = SlowClient::start(site, 1);
    let full = FullDisk::new(site, Disk::Log);
    refuse_to_start(&mut client, &site.place.path("home"));
    slow.remove(0).read_everything();
    client.call("environment/status", json!({}));
    drop(full);
    assert_eq!(client.run(&shell("recorded", "echo fine")).text(), "fine\n");
}

/// Starts programs until one is refused. The first ones may still start: the last disk block of the
/// audit log may have room for a few records.
fn refuse_to_start(client: &mut Client, directory: &Path) {
    let mut attempts = 0..1000;
    let (witness, refused) = loop {
        let id = format!("attempt-{}", attempts.next().expect("the disk is full"));
        let witness = directory.join(&id);
        let start = shell(&id, &format!("touch {}", witness.display()));
        match client.try_call("process/start", start.params()) {
            Ok(_) => drop(client.finish_process(&id)),
            Err(refused) => break (witness, refused),
        }
        std::fs::remove_file(witness).unwrap();
    };
    assert_eq!(refused.kind.as_deref(), Some("auditFailed"), "{refused:?}");
    assert!(!witness.exists(), "the refused program was started");
}

/// A completely full disk, if the place has disks that can be filled. Dropping this frees it.
struct FullDisk {
    ballast: Option<PathBuf>,
}

impl FullDisk {
    fn new(site: &Site, disk: Disk) -> Self {
        if !site.place.has_world() {
            return Self { ballast: None };
        }
        let ballast = site.place.seen_on_disk(disk, "ballast");
        let mut file = File::create(&ballast).unwrap();
        while file.write(&[0; 1 << 16]).is_ok() {}
        // The failed write may have left room in the last page.
        let mut file = OpenOptions::new().append(true).open(&ballast).unwrap();
        while file.write(&[0]).is_ok() {}
        Self { ballast: Some(ballast) }
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        if let Some(ballast) = &self.ballast {
            std::fs::remove_file(ballast).unwrap();
        }
    }
}

/// A client that has started a process that prints numbers, and has read nothing yet.
struct SlowClient(Client);

impl SlowClient {
    fn start(site: &Site, count: usize) -> Vec<Self> {
        let start = || {
            let mut client = site.client_with(AckingInbox::new("numbers").handshake());
            client.start(&shell("numbers", &format!("seq {LAST}; exit 7")));
            Self(client)
        };
        (0..count).map(|_| start()).collect()
    }

    /// Reads and confirms all output: without disk space, a process blocks until its output is
    /// confirmed.
    fn read_everything(mut self) {
        let mut inbox = AckingInbox::new("numbers");
        while !inbox.transcript().closed {
            let event = self.0.event_of("numbers");
            inbox.take(&event);
            inbox.confirm(&mut self.0);
        }
        let transcript = inbox.into_transcript();
        assert_eq!(transcript.exit_code, Some(7));
        let text = transcript.text();
        let mut expected = 0;
        for (line, number) in text.lines().zip(1..) {
            assert_eq!(line, number.to_string(), "a number was lost or repeated");
            expected = number;
        }
        assert_eq!(expected, LAST, "a number is missing at the end");
    }
}
