//! Short jobs, each with one correct result.

use std::path::PathBuf;

use super::site::{DIRECT, RELAYED, Site};
use crate::support::{Choices, Outcome, random_file, run_command};

/// Large enough to be copied in several messages.
const FILE_BYTES: usize = 300_000;
/// The exit code of `exec-server` if it fails itself.
const FAILED: Option<i32> = Some(125);

pub(super) struct Job {
    kind: Kind,
    client: Client,
    choices: Choices,
    /// Used by this job alone.
    directory: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A program with a chosen exit code, over TLS.
    Run,
    /// A sandboxed program, through the relay.
    Sandboxed,
    /// A file is uploaded and downloaded again.
    Copy,
    /// A program that may reach only one of two hosts.
    Fetch,
}

pub(super) enum Done {
    Right,
    /// The command reported a failure.
    Failed(String),
}

struct Client {
    enter: Vec<String>,
    environments: PathBuf,
}

impl Job {
    pub(super) fn all(site: &Site) -> Vec<Self> {
        let mut kinds = vec![Kind::Run, Kind::Sandboxed, Kind::Copy];
        if site.place.has_world() {
            kinds.push(Kind::Fetch);
        }
        kinds.into_iter().map(|kind| Self::new(kind, site)).collect()
    }

    fn new(kind: Kind, site: &Site) -> Self {
        let directory = site.place.path("home").join(format!("{kind:?}"));
        if !directory.exists() {
            std::fs::create_dir(&directory).unwrap();
            site.place.give_away(&directory);
        }
        Self { kind, client: Client::of(site), choices: Choices::new(kind as u64), directory }
    }

    pub(super) fn name(&self) -> &'static str {
        match self.kind {
            Kind::Run => "runs",
            Kind::Sandboxed => "sandboxed runs",
            Kind::Copy => "copies",
            Kind::Fetch => "fetches",
        }
    }

    /// Does the job once. Panics if the result is wrong.
    pub(super) fn run(&mut self) -> Done {
        match self.kind {
            Kind::Run => self.run_program(),
            Kind::Sandboxed => self.run_sandboxed(),
            Kind::Copy => self.copy(),
            Kind::Fetch => self.fetch(),
        }
    }

    fn run_program(&mut self) -> Done {
        // Below 100, because higher codes may be those of `exec-server` itself.
        let (word, code) = (self.choices.next(), self.choices.below(100) as i32);
        let script = format!("echo {word}; exit {code}");
        let outcome = self.client.run(&["run", "-n", "--on", DIRECT, "--", "sh", "-c", &script]);
        judge(&outcome, &format!("{word}\n"), Some(code))
    }

    fn run_sandboxed(&mut self) -> Done {
        let word = self.choices.next();
        let outside = self.directory.join("outside");
        let script = format!("echo {word}; touch {} 2> /dev/null && echo wrote", outside.display());
        let sandbox = ["run", "-n", "--on", RELAYED, "--sandbox", "read-only", "--"];
        let outcome = self.client.run(&[&sandbox[..], &["sh", "-c", &script]].concat());
        assert!(!outside.exists(), "the program escaped from its sandbox");
        judge(&outcome, &format!("{word}\n"), Some(1))
    }

    fn copy(&mut self) -> Done {
        let len = FILE_BYTES + self.choices.below(FILE_BYTES as u64) as usize;
        let content = tempfile::tempdir().unwrap();
        let file = random_file(content.path(), len);
        let (there, back) = (self.directory.join("copy"), content.path().join("back"));
        let remote = format!("{DIRECT}:{}", there.display());
        let [file, back] = [&file, &back].map(|path| path.to_str().unwrap());
        for way in [[file, &remote], [&remote, back]] {
            let outcome = self.client.run(&["cp", "-q", way[0], way[1]]);
            if outcome.code != Some(0) {
                return Done::Failed(outcome.stderr);
            }
        }
        let [sent, received] = [file, back].map(|path| std::fs::read(path).unwrap());
        assert!(sent == received, "the copy of {len} bytes differs");
        Done::Right
    }

    fn fetch(&mut self) -> Done {
        let ask = "printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && grep reached <&3";
        let script = format!(
            "(exec 3<> /dev/tcp/other.test/80 && echo leaked) 2> /dev/null
             exec 3<> /dev/tcp/allowed.test/80 && {ask}"
        );
        let rules = ["run", "-n", "--on", DIRECT, "--allow-host", "allowed.test", "--"];
        let outcome = self.client.run(&[&rules[..], &["bash", "-c", &script]].concat());
        assert!(!outcome.stdout.contains("leaked"), "a denied host was reached");
        // A server without descriptors cannot reach the host, and the program fails.
        match outcome.stdout.as_str() {
            "reached\n" if outcome.code == Some(0) => Done::Right,
            _ => Done::Failed(format!("{outcome:?}")),
        }
    }
}

impl Client {
    fn of(site: &Site) -> Self {
        let command = site.command(&[]);
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let enter = words.map(|word| word.to_str().unwrap().to_owned()).collect();
        Self { enter, environments: site.place.path("environments.toml") }
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        let mut command = crate::support::command(&self.enter[0]);
        command.args(&self.enter[1..]).args(arguments);
        command.env("EXEC_SERVER_ENVIRONMENTS", &self.environments);
        run_command(command)
    }
}

/// Judges a result: a command either reports the whole output and the exit code of its program, or
/// its own failure.
fn judge(outcome: &Outcome, output: &str, code: Option<i32>) -> Done {
    let Outcome { code: exit, stdout, .. } = outcome;
    match *exit == FAILED {
        true if output.starts_with(stdout.as_str()) => Done::Failed(outcome.stderr.clone()),
        false if (stdout.as_str(), *exit) == (output, code) => Done::Right,
        _ => panic!("{outcome:?} instead of {output:?} and {code:?}"),
    }
}
