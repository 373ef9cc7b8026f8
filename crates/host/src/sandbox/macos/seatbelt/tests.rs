//! Profiles as text. Reviewers should read the files in `golden/`.

use std::path::PathBuf;

use super::profile;
use crate::sandbox::policy::fake::FakeNames;
use crate::sandbox::policy::{
    Access, DeclaredFiles, DeclaredPolicy, Entry, EntryPath, Network, Policy, PolicyContext,
};

fn policy(network: Network, entries: &[(EntryPath, Access)]) -> Policy {
    let entries = entries.iter().map(|(path, access)| Entry {
        path: path.clone(),
        access: *access,
        skip_missing: false,
    });
    let declared = DeclaredPolicy {
        files: DeclaredFiles::Restricted { entries: entries.collect(), glob_scan_max_depth: None },
        network,
    };
    let cwd = PathBuf::from("/Users/ann/app");
    let around = PolicyContext {
        workspace_roots: vec![cwd.clone()],
        cwd: Some(cwd),
        tmpdir: Some("/private/var/folders/t".into()),
        ..PolicyContext::default()
    };
    let names = FakeNames::default()
        .directory("/Users/ann/app/.git")
        .directory("/Users/ann/app/vendor")
        .directory("/private/var/folders/t")
        .directory("/usr/lib")
        .directory("/private/tmp")
        .symlink("/tmp", "/private/tmp");
    Policy::resolve(&declared, &around, &names).unwrap()
}

fn path(path: &str) -> EntryPath {
    EntryPath::Path(path.into())
}

const WORKSPACE: EntryPath = EntryPath::ProjectRoots { subpath: None };

#[test]
fn a_read_only_policy_has_the_golden_profile() {
    let policy = policy(Network::Restricted, &[(EntryPath::Root, Access::Read)]);
    assert_eq!(profile(&policy), include_str!("golden/read_only.sb"));
}

#[test]
fn a_writable_workspace_has_the_golden_profile() {
    let entries = [
        (EntryPath::Root, Access::Read),
        (WORKSPACE, Access::Write),
        (EntryPath::Tmpdir, Access::Write),
        (EntryPath::SlashTmp, Access::Write),
    ];
    let policy = policy(Network::Restricted, &entries);
    assert_eq!(profile(&policy), include_str!("golden/workspace_write.sb"));
}

#[test]
fn carve_outs_and_regrants_have_the_golden_profile() {
    let entries = [
        (path("/usr/lib"), Access::Read),
        (WORKSPACE, Access::Write),
        (path("/Users/ann/app/vendor/private"), Access::Deny),
        (path("/Users/ann/app/vendor/private/shared"), Access::Read),
        (path("/Users/ann/app/vendor/private/shared/out"), Access::Write),
        (EntryPath::Glob("**/*.pem".into()), Access::Deny),
        (EntryPath::Glob("keys/{a,b}?".into()), Access::Deny),
    ];
    let policy = policy(Network::Enabled, &entries);
    assert_eq!(profile(&policy), include_str!("golden/carve_outs.sb"));
}

#[test]
fn an_inexpressible_glob_denies_everything_below_its_base() {
    let entries =
        [(WORKSPACE, Access::Write), (EntryPath::Glob("{a/**,b}/c".into()), Access::Deny)];
    let text = profile(&policy(Network::Restricted, &entries));
    assert_eq!(text.matches("(require-not (subpath \"/Users/ann/app\"))").count(), 2, "{text}");
}

#[test]
fn all_files_without_network_have_the_golden_profile() {
    let policy = Policy::unrestricted(Network::Restricted);
    assert_eq!(profile(&policy), include_str!("golden/all_files.sb"));
}

#[test]
fn an_empty_policy_allows_no_file() {
    let text = profile(&policy(Network::Restricted, &[]));
    assert_eq!(text, super::basics::ALWAYS);
}

#[test]
fn quotes_in_a_path_are_escaped() {
    let hostile = "/Users/ann/\")) (allow default) (\"\\";
    let policy = policy(Network::Restricted, &[(path(hostile), Access::Read)]);
    let quoted = r#"(subpath "/Users/ann/\")) (allow default) (\"\\")"#;
    assert!(profile(&policy).contains(quoted), "{}", profile(&policy));
}

#[test]
fn an_inexpressible_path_is_not_granted() {
    let entries = [
        (path("/Users/ann/line\nbreak"), Access::Read),
        (WORKSPACE, Access::Write),
        (path("/Users/ann/app/vendor/line\nbreak"), Access::Deny),
    ];
    let text = profile(&policy(Network::Restricted, &entries));
    assert!(!text.contains("break"));
    assert!(text.contains("(require-not (subpath \"/Users/ann/app/vendor\"))"), "{text}");
}
