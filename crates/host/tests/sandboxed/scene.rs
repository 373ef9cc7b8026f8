//! A workspace with files that a sandboxed program must not access.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use exec_server_host::process::launch::{Command, ExitRecord, Launcher};
use exec_server_host::sandbox::{Access, EntryPath, GateRequest, GateSockets, Plan};

use super::super::support::confinement::Confinement;
use super::super::support::{Running, shell};

/// Contains `.git/hooks/`, `secret.pem`, `denied/` with files and directories, and `sub/nested/`,
/// but no `.agents` and no `.codex`.
pub(crate) struct Scene {
    pub(crate) launcher: Launcher,
    pub(crate) confinement: Confinement,
    directory: tempfile::TempDir,
}

impl Scene {
    pub(crate) fn new(confinement: Confinement) -> Self {
        let launcher = Launcher::with_spawner(std::env::current_exe().unwrap()).unwrap();
        let scene = Self { launcher, confinement, directory: tempfile::tempdir().unwrap() };
        for directory in [".git/hooks", "denied/again/deep", "denied/below", "sub/nested"] {
            fs::create_dir_all(scene.path(directory)).unwrap();
        }
        for file in [".git/config", "secret.pem", "denied/file", "denied/again/deep/file"] {
            fs::write(scene.path(file), "original\n").unwrap();
        }
        fs::write(scene.path("denied/one"), "original\n").unwrap();
        scene
    }

    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Returns a plan in which everything is readable and the workspace is writable, except as
    /// `entries` say.
    pub(crate) fn plan(&self, entries: &[(&str, Access)]) -> Arc<Plan> {
        let mut all = vec![(EntryPath::Root, Access::Read)];
        all.push((EntryPath::Path(self.root().into()), Access::Write));
        all.extend(
            entries.iter().map(|(name, access)| (EntryPath::Path(self.path(name)), *access)),
        );
        Arc::new(self.confinement.plan(self.root(), all))
    }

    /// Like [`plan`](Self::plan) without exceptions, with a network that leads to `sockets`.
    pub(crate) fn managed_plan(&self, sockets: &GateSockets) -> Plan {
        let entries = vec![
            (EntryPath::Root, Access::Read),
            (EntryPath::Path(self.root().into()), Access::Write),
        ];
        let gate = GateRequest { sockets: sockets.clone(), ..GateRequest::default() };
        self.confinement.plan_with_gate(self.root(), entries, Some(&gate))
    }

    /// Like [`plan`](Self::plan), with paths that match `pattern` denied.
    pub(crate) fn plan_without(&self, pattern: &str) -> Arc<Plan> {
        let entries = vec![
            (EntryPath::Root, Access::Read),
            (EntryPath::Path(self.root().into()), Access::Write),
            (EntryPath::Glob(pattern.to_owned()), Access::Deny),
        ];
        Arc::new(self.confinement.plan(self.root(), entries))
    }

    pub(crate) fn command(&self, plan: &Arc<Plan>, script: &str) -> Command {
        let sandbox = Some(Arc::clone(plan));
        Command { cwd: self.root().into(), sandbox, ..shell(&format!("exec 2>&1\n{script}")) }
    }

    pub(crate) async fn start(&self, plan: &Arc<Plan>, script: &str) -> Running {
        Running::start(&self.launcher, self.command(plan, script)).await
    }

    /// Runs the script to its end and waits for the processes that it leaves behind.
    pub(crate) async fn run(&self, plan: &Arc<Plan>, script: &str) -> (String, ExitRecord) {
        let mut running = self.start(plan, script).await;
        let (output, exit) = running.output().await;
        running.emptied().await;
        (output, exit)
    }

    pub(crate) async fn all_fail(&self, plan: &Arc<Plan>, attempts: &[&str]) {
        for attempt in attempts {
            let (output, exit) = self.run(plan, attempt).await;
            assert_ne!(exit.code, 0, "{:?}: {attempt} succeeded: {output}", self.confinement);
        }
    }

    pub(crate) async fn all_succeed(&self, plan: &Arc<Plan>, attempts: &[&str]) {
        for attempt in attempts {
            let (output, exit) = self.run(plan, attempt).await;
            assert_eq!(exit.code, 0, "{:?}: {attempt} failed: {output}", self.confinement);
        }
    }
}
