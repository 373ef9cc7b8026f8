//! Plans for combinations of policies and hosts.

mod codec;
mod devices;
mod globs;
mod mechanisms;
mod mounts;
mod network;

use std::path::{Path, PathBuf};

use super::{Cover, CoverKind, LandlockRules, Mount, Plan, PlanError, Regrant};
use crate::sandbox::policy::fake::FakeNames;
use crate::sandbox::policy::{
    Access, DeclaredFiles, DeclaredPolicy, Entry, EntryPath, Network, Policy, PolicyContext,
};
use crate::sandbox::report::capabilities::Capabilities;

fn names() -> FakeNames {
    FakeNames::default()
        .directory("/home/ann/app/.git")
        .directory("/home/ann/app/src")
        .file("/home/ann/notes")
        .directory("/tmp")
        .directory("/usr/bin")
        .file("/dev/null")
        .file("/dev/random")
        .file("/dev/vda")
        .directory("/dev/pts")
        .directory("/dev/shm")
}

fn policy_of(names: &FakeNames, network: Network, entries: &[(EntryPath, Access)]) -> Policy {
    let entries = entries.iter().map(|(path, access)| Entry {
        path: path.clone(),
        access: *access,
        skip_missing: false,
    });
    let files =
        DeclaredFiles::Restricted { entries: entries.collect(), glob_scan_max_depth: Some(4) };
    let cwd = PathBuf::from("/home/ann/app");
    let around = PolicyContext {
        workspace_roots: vec![cwd.clone()],
        cwd: Some(cwd),
        ..PolicyContext::default()
    };
    Policy::resolve(&DeclaredPolicy { files, network }, &around, names).unwrap()
}

fn path(path: &str) -> EntryPath {
    EntryPath::Path(path.into())
}

const READ_ALL: (EntryPath, Access) = (EntryPath::Root, Access::Read);
const WORKSPACE: (EntryPath, Access) = (EntryPath::ProjectRoots { subpath: None }, Access::Write);

fn read_only() -> Policy {
    policy_of(&names(), Network::Restricted, &[READ_ALL])
}

fn workspace() -> Policy {
    policy_of(&names(), Network::Restricted, &[READ_ALL, WORKSPACE])
}

/// A policy with write access but without carve-outs, which a writable directory always has.
fn one_writable_file() -> Policy {
    policy_of(&names(), Network::Restricted, &[READ_ALL, (path("/home/ann/notes"), Access::Write)])
}

fn minimal() -> Policy {
    let names = names().directory("/proc");
    policy_of(&names, Network::Restricted, &[(EntryPath::Minimal, Access::Read)])
}

fn all_files() -> Policy {
    Policy::unrestricted(Network::Restricted)
}

fn everything() -> Capabilities {
    Capabilities {
        landlock_abi: 7,
        seccomp: true,
        user_namespace: true,
        network_namespace: true,
        managed_network: true,
        fresh_proc: true,
        bubblewrap: Some("/usr/bin/bwrap".into()),
        seatbelt: false,
        turned_off: Vec::new(),
    }
}

fn without_namespaces() -> Capabilities {
    let (user_namespace, network_namespace, fresh_proc) = (false, false, false);
    Capabilities { user_namespace, network_namespace, fresh_proc, ..everything() }
}

fn with_old_proc() -> Capabilities {
    Capabilities { fresh_proc: false, ..everything() }
}

fn without_isolation() -> Capabilities {
    Capabilities { bubblewrap: None, ..without_namespaces() }
}

fn with_abi(landlock_abi: u32, others: Capabilities) -> Capabilities {
    Capabilities { landlock_abi, ..others }
}

fn plan(policy: &Policy, has: &Capabilities) -> Result<Plan, PlanError> {
    Plan::new(policy, has, &names())
}

fn refusal(policy: &Policy, has: &Capabilities) -> String {
    plan(policy, has).unwrap_err().to_string()
}

fn cover(path: &str, kind: CoverKind) -> Mount {
    Mount::Cover(Cover { path: path.into(), kind, is_directory: true, missing: false })
}

fn hidden_file(path: &str) -> Mount {
    let (path, kind) = (path.into(), CoverKind::Hidden);
    Mount::Cover(Cover { path, kind, is_directory: false, missing: false })
}

fn placeholder(path: &str, kind: CoverKind) -> Mount {
    Mount::Cover(Cover { path: path.into(), kind, is_directory: true, missing: true })
}

fn regrant(path: &str, access: Access) -> Mount {
    Mount::Regrant(Regrant { path: path.into(), access, is_directory: true })
}

fn fresh(path: &str) -> Mount {
    Mount::Fresh(path.into())
}

fn mounts(names: &FakeNames, entries: &[(EntryPath, Access)]) -> Vec<Mount> {
    let policy = policy_of(names, Network::Restricted, entries);
    Plan::new(&policy, &everything(), names).unwrap().mounts
}

fn grants_of(policy: &Policy, has: &Capabilities) -> LandlockRules {
    plan(policy, has).unwrap().landlock.unwrap()
}

fn granted(rules: &LandlockRules, path: &str) -> Option<Access> {
    let grants = rules.grants.as_ref().unwrap();
    grants.iter().find(|grant| grant.path == Path::new(path)).map(|grant| grant.access)
}

/// A policy that needs mounts: everything is writable except one directory.
fn all_but_source() -> Policy {
    let entries = [(EntryPath::Root, Access::Write), (path("/home/ann/app/src"), Access::Read)];
    policy_of(&names(), Network::Restricted, &entries)
}

fn hidden_link(path: &str) -> Mount {
    let (path, kind) = (path.into(), CoverKind::HiddenLink);
    Mount::Cover(Cover { path, kind, is_directory: false, missing: false })
}
