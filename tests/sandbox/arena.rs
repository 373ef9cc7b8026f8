//! Runs attempts against a server of a given user with given sandbox mechanisms.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::attempts::{Attempt, Goal};
use super::neighbours::Neighbours;
use super::scene::Scene;
use super::{
    Refusal, User, directory_outside_of_tmp, entry_path, ordinary_workspace, profile, programs,
    refused, uri,
};
use crate::support::machine::{self, descendants, is_root};
use crate::support::{AckingInbox, Client, Inbox as _, Server, Start, eventually, program};

/// The mechanisms that enforce the policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tier {
    /// Landlock and seccomp. They suffice for policies that make nothing writable and have no
    /// carve-outs.
    Direct,
    Namespaces,
    Bubblewrap,
}

pub(super) struct Arena {
    directory: TempDir,
    client: Client,
    server: Server,
    neighbours: Neighbours,
    pub(super) user: User,
    pub(super) tier: Tier,
    scenes: usize,
}

#[derive(Debug)]
pub(super) struct Ending {
    pub(super) verdict: Verdict,
    /// The output of the program.
    pub(super) said: String,
    /// Signs of an escape, whatever the verdict: forbidden changes and connections, or a dead
    /// victim. Also mechanisms other than those of the tier. Always empty without a sandbox.
    pub(super) damage: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Escaped,
    Blocked,
    /// The attempt needs a writable workspace, and this one is not writable.
    Unprepared,
    /// The attempt cannot work on this machine or as this user, or must not be tried.
    Impossible,
    /// The attempt did not run as intended.
    Mistaken,
}

impl Verdict {
    fn of(exit_code: Option<i64>, said: &str) -> Self {
        const KILLED_BY_SIGSYS: i64 = 128 + 31;
        const SAID_ELSEWHERE: i64 = 43;
        match exit_code {
            Some(0) => Self::Escaped,
            Some(42 | KILLED_BY_SIGSYS) => Self::Blocked,
            Some(44) => Self::Unprepared,
            Some(77) => Self::Impossible,
            Some(SAID_ELSEWHERE) if said.starts_with("escaped") => Self::Escaped,
            Some(SAID_ELSEWHERE) if said.starts_with("blocked") => Self::Blocked,
            _ => Self::Mistaken,
        }
    }
}

impl Arena {
    pub(super) fn new(user: User, tier: Tier) -> Self {
        let without = if tier == Tier::Bubblewrap { "namespaces" } else { "" };
        Self::build(user, tier, without, &[])
    }

    pub(super) fn at_socket(user: User, tier: Tier, socket: &Path) -> Self {
        let url = format!("unix://{}", socket.display());
        Self::build(user, tier, "", &["--listen", &url])
    }

    /// Creates an arena whose server also serves other users and so does not check the user of a
    /// connection.
    pub(super) fn for_all_users(user: User, tier: Tier) -> Self {
        Self::build(user, tier, "", &["--allow-other-users", "true"])
    }

    /// Creates an arena without these mechanisms. Only policies that need no mounts can be
    /// enforced.
    pub(super) fn without(user: User, mechanisms: &str) -> Self {
        Self::build(user, Tier::Direct, mechanisms, &[])
    }

    fn build(user: User, tier: Tier, without: &str, arguments: &[&str]) -> Self {
        let directory = directory_outside_of_tmp();
        let root = directory.path();
        for name in ["server", "programs"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        // Other users may be unable to access the target directory.
        copy_programs(&programs::compiled(), &root.join("programs"));
        let builder = user.server(&root.join("server")).arguments(arguments);
        let server = builder.variable("EXEC_SERVER_SANDBOX_WITHOUT", without).start();
        let client = server.client();
        let neighbours = Neighbours::new();
        Self { directory, client, server, neighbours, user, tier, scenes: 0 }
    }

    /// Runs an attempt without a sandbox.
    pub(super) fn control(&mut self, attempt: Attempt) -> Ending {
        let scene = self.new_scene();
        let (ending, _) = self.run(attempt, &scene, None);
        ending
    }

    /// Runs an attempt in a sandbox and checks everything that it must not change.
    pub(super) fn confined(&mut self, attempt: Attempt) -> Ending {
        let scene = self.new_scene();
        let sandbox = self.policy(attempt, &scene);
        let (mut ending, victim_lives) = self.run(attempt, &scene, Some(sandbox));
        if !victim_lives {
            ending.damage.push("the victim is dead".to_owned());
        }
        ending
    }

    /// Requests an attempt in a sandbox that cannot be enforced.
    pub(super) fn refused(&mut self, attempt: Attempt) -> Refusal {
        let scene = self.new_scene();
        let sandbox = self.policy(attempt, &scene);
        let start = self.start_of(attempt, &scene).with("sandbox", sandbox);
        let before = scene.protected();
        let refusal = refused(&mut self.client, "process/start", start.params());
        assert_eq!(before.differences(&scene.protected()), [] as [String; 0]);
        assert!(!scene.has_new_protected_names());
        refusal
    }

    fn policy(&self, attempt: Attempt, scene: &Scene) -> Value {
        let cwd = scene.path(workspace_of(attempt.goal));
        let network = if attempt.with_network { "enabled" } else { "restricted" };
        match attempt.goal {
            Goal::Outside if self.tier == Tier::Direct => {
                json!({"type": "read-only", "network_access": attempt.with_network})
            }
            Goal::Outside | Goal::CarveOut => {
                let mut policy = ordinary_workspace();
                policy["network_access"] = attempt.with_network.into();
                policy
            }
            Goal::CarveOutFromAbove => {
                let mut policy = ordinary_workspace();
                policy["writable_roots"] = json!([scene.path("wide")]);
                policy
            }
            Goal::Denied => {
                let pattern = json!({"type": "glob_pattern", "pattern": "**/*.pem"});
                let entries = [
                    (entry_path(&cwd), "write"),
                    (entry_path(&cwd.join("denied")), "deny"),
                    (entry_path(&cwd.join("directory/secret")), "deny"),
                    (pattern, "deny"),
                ];
                profile(&cwd, &entries, network)
            }
        }
    }

    fn new_scene(&mut self) -> Scene {
        self.scenes += 1;
        Scene::build(self.directory.path().join(self.scenes.to_string()), self.user)
    }

    /// Returns a start without a sandbox, and without the variables that name the victim and the
    /// spawner.
    fn start_of(&self, attempt: Attempt, scene: &Scene) -> Start {
        let executable = self.program(attempt.name);
        let id = format!("{}-{}", attempt.name, self.scenes);
        let mut start = program(&id, &[executable.to_str().unwrap()])
            .with("cwd", uri(&scene.path(workspace_of(attempt.goal))))
            .with("tty", attempt.at_a_terminal)
            .variable("OUTSIDE", scene.path("outside").to_str().unwrap())
            .variable("UPPER", scene.path("wide/upper").to_str().unwrap())
            .variable("SETUID_COPY", self.program("setuid_copy").to_str().unwrap())
            .variable("SERVER", &self.server.pid().to_string())
            .variable("SERVER_PORT", self.server.url().rsplit(':').next().unwrap())
            .variable("SERVER_SOCKET", self.server.url().trim_start_matches("unix://"));
        for (name, value) in self.neighbours.variables() {
            start = start.variable(name, &value);
        }
        start
    }

    fn run(&mut self, attempt: Attempt, scene: &Scene, sandbox: Option<Value>) -> (Ending, bool) {
        let victim = self.start_victim(attempt, scene);
        let spawner = self.spawner().to_string();
        let mut start = self.start_of(attempt, scene).variable("SPAWNER", &spawner);
        for (name, value) in &victim.facts {
            start = start.variable(name, value);
        }
        let confined = sandbox.is_some();
        if let Some(sandbox) = sandbox {
            start = start.with("sandbox", sandbox);
        }
        let before = scene.protected();
        self.neighbours.visits();
        let ending = match self.client.try_call("process/start", start.params()) {
            Err(refusal) => Ending {
                verdict: Verdict::Mistaken,
                said: format!("not started: {refusal:?}"),
                damage: Vec::new(),
            },
            Ok(started) => {
                let transcript = self.client.finish_process(start.id());
                let said = String::from_utf8_lossy(&transcript.output()).trim().to_owned();
                let mut verdict = Verdict::of(transcript.exit_code, &said);
                let mut damage = Vec::new();
                if confined {
                    damage = before.differences(&scene.protected());
                    let visits = self.neighbours.visits();
                    if visits > 0 {
                        damage.push(format!("{visits} visits over the network"));
                    }
                    // Placeholders are removed after the last process has exited.
                    eventually("placeholders are removed", || !scene.has_new_protected_names());
                    if !self.is_this_tier(attempt, &started) {
                        verdict = Verdict::Mistaken;
                        damage.push(format!("unexpected mechanisms: {started}"));
                    }
                }
                Ending { verdict, said, damage }
            }
        };
        let victim_lives = self.client.terminate(&victim.id);
        self.client.call("process/wait", json!({"processId": victim.id}));
        (ending, victim_lives)
    }

    fn is_this_tier(&self, attempt: Attempt, started: &Value) -> bool {
        let enforcement = &started["enforcement"];
        let namespaces = self.tier == Tier::Namespaces
            || (attempt.goal.needs_mounts() && self.tier != Tier::Bubblewrap);
        started["sandboxType"] == "linuxSeccomp"
            && enforcement["seccomp"] == true
            && enforcement["landlock"].as_u64() > Some(0)
            && enforcement["bubblewrap"] == (self.tier == Tier::Bubblewrap)
            && (self.tier == Tier::Bubblewrap || enforcement["pidNamespace"] == namespaces)
    }

    fn start_victim(&mut self, attempt: Attempt, scene: &Scene) -> Victim {
        let executable = self.program("victim");
        let id = format!("victim-{}", self.scenes);
        let start = program(&id, &[executable.to_str().unwrap()])
            .with("cwd", uri(&scene.path(workspace_of(attempt.goal))))
            .variable("OUTSIDE", scene.path("outside").to_str().unwrap());
        self.client.start(&start);
        let mut inbox = AckingInbox::new(&id);
        self.client.wait_for_output(&mut inbox, "\n");
        let said = inbox.transcript().text();
        let facts = VICTIM_FACTS.iter().zip(said.split_whitespace());
        Victim { id, facts: facts.map(|(name, value)| (*name, value.to_owned())).collect() }
    }

    fn spawner(&self) -> u32 {
        let server = self.server.pid();
        let children = descendants(server).into_iter();
        children
            .filter(|pid| machine::living_parent(*pid) == Some(server))
            .min()
            .expect("the spawner has started the victim")
    }

    fn program(&self, name: &str) -> PathBuf {
        self.directory.path().join("programs").join(name)
    }
}

struct Victim {
    id: String,
    /// Environment variables for an attempt.
    facts: Vec<(&'static str, String)>,
}

/// The facts that a victim prints, in this order.
const VICTIM_FACTS: [&str; 6] = [
    "VICTIM",
    "VICTIM_ADDRESS",
    "VICTIM_DESCRIPTOR",
    "VICTIM_SEGMENT",
    "VICTIM_TERMINAL",
    "VICTIM_SHARED_MEMORY",
];

fn workspace_of(goal: Goal) -> &'static str {
    match goal {
        Goal::CarveOutFromAbove => "wide/upper/workspace",
        Goal::Outside | Goal::CarveOut | Goal::Denied => "workspace",
    }
}

fn copy_programs(from: &Path, to: &Path) {
    for name in programs::names().iter().map(String::as_str).chain(["victim"]) {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
    let copy = to.join("setuid_copy");
    fs::copy(from.join("by_setuid_program"), &copy).unwrap();
    if is_root() {
        // A user other than those that run the attempts.
        let daemon = Some(1);
        chown(&copy, daemon, daemon).unwrap();
        fs::set_permissions(copy, Permissions::from_mode(0o4755)).unwrap();
    }
}
