//! A server that can get no more descriptors or threads for a while.

use serde_json::json;

use super::load::Load;
use super::site::Site;
use crate::support::{run_command, shell};

/// Fewer than the server has open.
const FEW_DESCRIPTORS: &str = "16";

/// Without descriptors, streams continue, new processes are refused, and other requests succeed.
pub(super) fn take_descriptors(site: &Site, load: &Load) {
    let mut client = site.client();
    let limit = Lowered::new(site, "nofile", FEW_DESCRIPTORS);
    let refused = client.refused("process/start", shell("refused", "true").params());
    assert!(refused.message.contains("open files"), "{refused:?}");
    client.call("environment/status", json!({}));
    load.wait_for_streams();
    drop(limit);
    assert_eq!(client.run(&shell("after", "echo fine")).text(), "fine\n");
}

/// Without new threads, streams continue. File requests need threads, which may already exist.
pub(super) fn take_threads(site: &Site, load: &Load) {
    let mut client = site.client();
    let limit = Lowered::new(site, "nproc", "1");
    for _ in 0..20 {
        let read = client.try_call("fs/readFile", json!({ "path": "file:///etc/hostname" }));
        if let Err(refused) = read {
            assert_eq!(refused.kind.as_deref(), Some("outOfResources"), "{refused:?}");
        }
    }
    load.wait_for_streams();
    drop(limit);
    client.call("fs/readFile", json!({ "path": "file:///etc/hostname" }));
}

/// A lowered limit of the running server. Dropping this restores it.
struct Lowered<'a> {
    site: &'a Site,
    name: &'static str,
    before: String,
}

impl<'a> Lowered<'a> {
    fn new(site: &'a Site, name: &'static str, soft: &str) -> Self {
        let columns = ["--noheadings", "--raw", "--output", "SOFT", &format!("--{name}")];
        let before = prlimit(site, &columns).trim().to_owned();
        let lowered = Self { site, name, before };
        lowered.set(soft);
        lowered
    }

    fn set(&self, soft: &str) {
        // Keeps the hard limit, so that the soft one can be raised again.
        prlimit(self.site, &[&format!("--{}={soft}:", self.name)]);
    }
}

impl Drop for Lowered<'_> {
    fn drop(&mut self) {
        self.set(&self.before);
    }
}

fn prlimit(site: &Site, arguments: &[&str]) -> String {
    let mut prlimit = site.place.command_of_user("prlimit");
    prlimit.arg(format!("--pid={}", site.server.pid())).args(arguments);
    let done = run_command(prlimit);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    done.stdout
}
