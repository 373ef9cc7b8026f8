//! Streams over links that are cut and lose packets, through a rendezvous that is killed: no data
//! is lost or repeated.

use std::path::{Path, PathBuf};
use std::process::Command;

use exec_server_test_support::skipped;
use rustix::process::Signal;

use super::networks::{ADDRESS, Host, Networks, PORT};
use crate::support::numbered_lines::{Echoing, Printing, numbered_lines_until};
use crate::support::relay::{ENVIRONMENT_ID, wait_until_online};
use crate::support::rendezvous::create_token;
use crate::support::{Choices, PROGRAM, Running, eventually};

/// Cuts of each of the three links.
const CUTS: u32 = 5;
/// The rendezvous is killed and restarted after this many rounds.
const ROUNDS_PER_RESTART: u32 = 4;

#[test]
fn cuts_of_every_link_lose_and_repeat_no_data() {
    run(CUTS);
}

#[test]
#[ignore = "soak: 300 cuts of each link, run by `just soak-counts`"]
fn soak_cuts_of_every_link_lose_and_repeat_no_data() {
    run(300);
}

fn run(cuts: u32) {
    let networks = match Networks::new() {
        Ok(networks) => networks,
        Err(reason) => return skipped(format!("network namespaces: {reason}")),
    };
    let scratch = tempfile::tempdir().unwrap();
    let mut site = Site::start(&networks, scratch.path());
    let stop = scratch.path().join("stop");
    let script = numbered_lines_until(&stop);
    let printing = Printing::start(site.client(Host::FirstClient, &["sh", "-c", &script]));
    let echoing = Echoing::start(site.client(Host::SecondClient, &["cat"]));
    // Waits until both clients have their streams: a failed first connection would not be retried.
    wait_for_progress(&printing, &echoing, [0, 0]);
    let mut choices = Choices::new(u64::from(cuts));
    for round in 0..cuts {
        if round == cuts / 2 {
            for host in Host::ALL {
                if let Err(reason) = networks.lose_packets(host, 2) {
                    skipped(format!("lossy links: {reason}"));
                }
            }
        }
        for host in Host::ALL {
            let seen = [printing.seen(), echoing.seen()];
            networks.cut(host);
            if choices.below(4) == 0 {
                // A second cut at once, during the recovery from the first.
                networks.cut(Host::ALL[choices.below(3) as usize]);
            }
            wait_for_progress(&printing, &echoing, seen);
        }
        if round % ROUNDS_PER_RESTART == ROUNDS_PER_RESTART - 1 {
            let seen = [printing.seen(), echoing.seen()];
            site.restart_rendezvous();
            wait_for_progress(&printing, &echoing, seen);
        }
    }
    std::fs::write(&stop, "").unwrap();
    echoing.finish();
    printing.finish();
}

fn wait_for_progress(printing: &Printing, echoing: &Echoing, seen: [u64; 2]) {
    eventually("both clients continue", || {
        printing.seen() > seen[0] + 10 && echoing.seen() > seen[1] + 10
    });
}

/// A rendezvous and an environment, each on its own host.
struct Site<'a> {
    networks: &'a Networks,
    directory: &'a Path,
    rendezvous: Running,
    _environment: Running,
}

impl<'a> Site<'a> {
    fn start(networks: &'a Networks, directory: &'a Path) -> Self {
        let data = directory.join("data");
        let mut rendezvous = start_rendezvous(networks, &data);
        let line = rendezvous.error_line();
        let fingerprint = line.trim_end().rsplit(' ').next().unwrap().to_owned();
        for role in ["environment", "harness"] {
            std::fs::write(directory.join(role), create_token(&data, role)).unwrap();
        }
        let url = format!("https://{ADDRESS}:{PORT}");
        let mut program = networks.on(Host::Environment, PROGRAM);
        program
            .args(["--remote", &url, "--environment-id", ENVIRONMENT_ID])
            .args(["--remote-tls-fingerprint", &fingerprint, "--remote-token-file"])
            .arg(directory.join("environment"));
        let mut environment = Running::start(program);
        wait_until_online(&mut environment);
        let entry = format!(
            "[[environments]]\nid = {ENVIRONMENT_ID:?}\nremote = {url:?}\n\
             environment_id = {ENVIRONMENT_ID:?}\ntoken_file = \"harness\"\n\
             tls_fingerprint = {fingerprint:?}\n"
        );
        std::fs::write(environments_file(directory), entry).unwrap();
        Self { networks, directory, rendezvous, _environment: environment }
    }

    /// Kills the rendezvous and starts it with the same data.
    fn restart_rendezvous(&mut self) {
        // `ip netns exec` executes the program, so its pid is that of the rendezvous.
        self.rendezvous.signal(Signal::KILL);
        // Its port and its store are free only after its end.
        eventually("the rendezvous has ended", || self.rendezvous.has_ended());
        self.rendezvous = start_rendezvous(self.networks, &self.directory.join("data"));
    }

    fn client(&self, host: Host, program: &[&str]) -> Command {
        let mut command = self.networks.on(host, PROGRAM);
        command.args(["run", "--on", ENVIRONMENT_ID, "--"]).args(program);
        command.env("EXEC_SERVER_ENVIRONMENTS", environments_file(self.directory));
        command
    }
}

fn environments_file(directory: &Path) -> PathBuf {
    directory.join("environments.toml")
}

fn start_rendezvous(networks: &Networks, data: &Path) -> Running {
    let mut program = networks.in_the_middle(PROGRAM);
    program
        .args(["rendezvous", "--listen", &format!("https://0.0.0.0:{PORT}"), "--tls-self-signed"])
        .args(["--public-url", &format!("https://{ADDRESS}:{PORT}"), "--data"])
        .arg(data);
    let mut rendezvous = Running::start(program);
    assert!(rendezvous.line().starts_with("https://"), "the rendezvous listens");
    rendezvous
}
