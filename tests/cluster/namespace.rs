//! A network namespace with loopback that can drop packets of some addresses or ports.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::support::command;

/// A network namespace, removed on drop.
pub(super) struct Namespace {
    name: String,
}

/// Runs work on a thread in this namespace, or in that of the test.
pub(super) fn inside<T: Send>(namespace: Option<&Namespace>, work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let working = scope.spawn(|| {
            if let Some(namespace) = namespace {
                namespace.enter();
            }
            work()
        });
        working.join().unwrap()
    })
}

impl Namespace {
    /// Creates a namespace. Returns the reason if this machine cannot.
    pub(super) fn new() -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("esc{}-{number}", std::process::id());
        run(ip(&["netns", "add", &name]))?;
        let namespace = Self { name };
        run(ip(&["-n", &namespace.name, "link", "set", "lo", "up"]))?;
        // Fail now if packets cannot be dropped.
        namespace.drop_packets("ip daddr 127.99.99.99")?;
        namespace.heal();
        Ok(namespace)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Moves this thread into the namespace. Threads that it starts inherit the namespace.
    pub(super) fn enter(&self) {
        let file = File::open(Path::new("/run/netns").join(&self.name)).unwrap();
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }

    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = ip(&["netns", "exec", &self.name]);
        command.arg(program);
        command
    }

    /// Drops all incoming packets that match one of these nftables expressions, one per line.
    pub(super) fn drop_packets(&self, matches: &str) -> Result<(), String> {
        let rules: String = matches
            .lines()
            .map(|rule| format!("add rule inet partition in {rule} drop\n"))
            .collect();
        let mut nft = self.command("nft");
        nft.arg(format!(
            "add table inet partition\n\
             add chain inet partition in {{ type filter hook input priority 0; }}\n{rules}"
        ));
        run(nft)
    }

    pub(super) fn heal(&self) {
        let mut nft = self.command("nft");
        nft.arg("delete table inet partition");
        run(nft).unwrap();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = run(ip(&["netns", "del", &self.name]));
    }
}

fn ip(arguments: &[&str]) -> Command {
    let mut ip = command("ip");
    ip.args(arguments);
    ip
}

fn run(mut command: Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}
