//! Special paths, and the devices of every policy.

use super::*;
use crate::sandbox::policy::HostNames;
use crate::sandbox::policy::essentials::{DEVICES, MINIMAL};

fn devices() -> FakeNames {
    DEVICES.iter().fold(FakeNames::default(), |names, (path, _)| names.file(path))
}

#[test]
fn root_stands_for_the_whole_file_system() {
    asked(&["read root"]).gives(&[("/", Read), ("/etc/passwd", Read)]);
    asked(&["write root"]).gives(&[("/", Write), ("/etc/passwd", Write), ("/.git", Read)]);
    asked(&["deny root", "read /src"]).gives(&[("/", Deny), ("/etc", Deny), ("/src", Read)]);
}

#[test]
fn project_roots_are_the_workspace_roots() {
    asked(&["write project_roots"]).workspace("/a").workspace("/b").cwd("/a/sub").gives(&[
        ("/a", Write),
        ("/a/sub", Write),
        ("/b/c", Write),
        ("/", Deny),
    ]);
}

#[test]
fn without_workspace_roots_there_are_no_project_roots() {
    asked(&["write project_roots", "read project_roots/docs", "read /src"]).cwd("/a").gives(&[
        ("/a", Deny),
        ("/a/b", Deny),
        ("/a/docs", Deny),
        ("/src", Read),
    ]);
    let error = asked(&["read root", "deny project_roots"]).cwd("/a").error();
    assert!(matches!(error, PolicyError::NothingToDeny { .. }), "{error}");
}

#[test]
fn the_working_directory_may_be_granted() {
    asked(&["write cwd"]).cwd("/a").workspace("/b").gives(&[("/a/b", Write), ("/b", Deny)]);
    asked(&["write cwd", "read /src"]).gives(&[("/", Deny), ("/src", Read)]);
}

#[test]
fn a_subpath_is_taken_below_each_project_root() {
    asked(&["read project_roots", "write project_roots/out", "deny project_roots/keys/private"])
        .workspace("/a")
        .workspace("/b")
        .gives(&[
            ("/a", Read),
            ("/a/out/x", Write),
            ("/b/out", Write),
            ("/b/keys", Read),
            ("/b/keys/private", Deny),
        ]);
}

#[test]
fn a_subpath_cannot_leave_its_project_root() {
    for subpath in ["../b", "a/../../b", ".."] {
        let line = format!("write project_roots/{subpath}");
        let error = asked(&[&line]).workspace("/a").error();
        assert!(matches!(error, PolicyError::Subpath { .. }), "{subpath}: {error}");
    }
    let mut absolute = asked(&[]).workspace("/a");
    absolute.entries.push(Entry {
        path: EntryPath::ProjectRoots { subpath: Some("/etc".into()) },
        access: Write,
        skip_missing: false,
    });
    assert!(matches!(absolute.error(), PolicyError::Subpath { .. }));
}

#[test]
fn an_unknown_path_grants_nothing_and_cannot_be_denied() {
    asked(&["write project_roots", "write tmpdir", "read /src"])
        .gives(&[("/", Deny), ("/src", Read)]);
    asked(&["write tmpdir"]).tmpdir("").gives(&[("/", Deny)]);
    for line in ["deny project_roots", "deny project_roots/keys", "deny tmpdir"] {
        let error = asked(&[line]).error();
        assert!(matches!(error, PolicyError::NothingToDeny { .. }), "{line}: {error}");
    }
}

#[test]
fn temporary_directories_are_tmpdir_and_slash_tmp() {
    let both = ["write tmpdir", "write slash_tmp"];
    asked(&both).tmpdir("/var/tmp/me").gives(&[
        ("/var/tmp/me/a", Write),
        ("/var/tmp", Deny),
        ("/tmp", Write),
        ("/tmp/.git", Read),
    ]);
    let error = asked(&both).tmpdir("tmp").error();
    assert!(matches!(error, PolicyError::Relative { .. }), "{error}");
}

#[test]
fn minimal_is_the_existing_part_of_a_fixed_list() {
    let names = devices()
        .directory("/usr/lib")
        .symlink("/lib", "usr/lib")
        .directory("/etc/ssl/private")
        .directory("/etc/ssl/certs")
        .directory("/proc/1");
    let asked = asked(&["read minimal"]).on(names);
    asked.gives(&[
        ("/usr/bin/env", Read),
        ("/usr/lib/libc.so", Read),
        ("/proc", Read),
        ("/proc/1/maps", Read),
        ("/dev/null", Write),
        ("/dev/urandom", Read),
        ("/etc", Deny),
        ("/etc/shadow", Deny),
        ("/etc/ssl/certs/a.pem", Read),
        ("/etc/ssl/private/a.pem", Deny),
        ("/lib64/ld.so", Deny),
        ("/home", Deny),
    ]);
    let policy = asked.policy();
    assert!(policy.leads_to_grant(Path::new("/lib")), "a link to a granted path");
    assert!(!policy.leads_to_grant(Path::new("/lib64")), "it does not exist");
}

#[test]
fn unreadable_paths_are_left_out_of_minimal() {
    let names = FakeNames::default().forbidden("/etc/pki").directory("/usr");
    asked(&["read minimal"]).on(names.clone()).gives(&[("/usr", Read), ("/etc/pki", Deny)]);
    let error = asked(&["deny minimal"]).on(names).error();
    assert!(matches!(error, PolicyError::Unreadable { .. }), "{error}");
}

#[test]
fn minimal_of_this_machine_starts_programs_and_hides_the_rest() {
    let asked = asked(&["read minimal"]);
    let declared = DeclaredPolicy {
        files: DeclaredFiles::Restricted { entries: asked.entries, glob_scan_max_depth: None },
        network: Network::Restricted,
    };
    let policy = Policy::resolve(&declared, &PolicyContext::default(), &HostNames).unwrap();
    let shell = std::fs::canonicalize("/bin/sh").unwrap();
    assert_eq!(policy.access(&shell), Read);
    assert_eq!(policy.access(Path::new("/dev/null")), Write);
    for hidden in ["/", "/root", "/home", "/tmp", "/etc/shadow", "/etc/ssh", "/dev/mem", "/var"] {
        assert_eq!(policy.access(Path::new(hidden)), Deny, "{hidden}");
    }
    assert!(policy.carve_outs().is_empty());
}

#[test]
fn the_fixed_lists_contain_plain_paths() {
    for path in MINIMAL.iter().chain(DEVICES.iter().map(|(path, _)| path)) {
        let plain: PathBuf = Path::new(path).components().collect();
        assert_eq!(plain.to_str(), Some(*path));
        assert!(path.starts_with('/') && !path.contains(".."), "{path}");
    }
}

#[test]
fn a_policy_that_grants_anything_has_devices() {
    let expected: Vec<_> = DEVICES.to_vec();
    asked(&["read /src"]).on(devices()).gives(&expected);
    asked(&["read root"]).on(devices()).gives(&expected);
    asked(&["read /dev/null"]).on(devices()).gives(&expected);
    asked(&["read /src"]).on(devices()).gives(&[("/dev", Deny), ("/dev/pts/3", Deny)]);
}

#[test]
fn devices_are_not_writable_roots() {
    assert!(asked(&["read root"]).on(devices()).policy().carve_outs().is_empty());
}

#[test]
fn a_policy_that_grants_nothing_has_no_devices() {
    let none: Vec<_> = DEVICES.iter().map(|(path, _)| (*path, Deny)).collect();
    asked(&[]).on(devices()).gives(&none);
    asked(&["deny /src"]).on(devices()).gives(&none);
    assert!(asked(&[]).on(devices()).policy().rules().is_empty());
}

#[test]
fn a_device_can_be_denied() {
    let asked_for = |line| asked(&["read root", line]).on(devices());
    asked_for("deny /dev/tty").gives(&[("/dev/tty", Deny), ("/dev/null", Write)]);
    asked_for("deny /dev").gives(&[("/dev/null", Deny), ("/dev/pts/1", Deny)]);
    asked_for("deny glob /dev/t*").gives(&[("/dev/tty", Deny), ("/dev/null", Write)]);
}

#[test]
fn a_missing_device_is_not_granted() {
    asked(&["read /src"]).gives(&[("/dev/null", Deny)]);
}

#[test]
fn a_device_may_be_a_link_unless_it_is_replaceable() {
    let names = FakeNames::default()
        .file("/dev/mem/zero")
        .symlink("/dev/zero", "mem/zero")
        .file("/etc/shadow")
        .symlink("/dev/null", "/etc/shadow");
    let mut policy = asked(&["read /src"]).on(names.clone()).policy();
    assert_eq!(policy.access(Path::new("/dev/mem/zero")), Write);
    policy = asked(&["write /dev"]).on(names).policy();
    assert_eq!(policy.access(Path::new("/etc/shadow")), Deny);
}

#[test]
fn an_entry_below_one_process_in_proc_is_an_error() {
    let names = FakeNames::default()
        .file("/proc/cpuinfo")
        .directory("/proc/17/fd")
        .symlink("/proc/self", "17")
        .symlink("/proc/mounts", "self/mounts")
        .symlink("/dev/fd", "/proc/self/fd");
    asked(&["read /proc", "deny /proc/cpuinfo"])
        .on(names.clone())
        .gives(&[("/proc/cpuinfo", Deny), ("/proc/17/maps", Read)]);
    for path in ["/proc/self", "/proc/17/fd", "/proc/thread-self/fd", "/proc/mounts", "/dev/fd/0"] {
        for access in ["deny", "read", "write", "skip read"] {
            let error = asked(&[&format!("{access} {path}")]).on(names.clone()).error();
            assert!(matches!(error, PolicyError::OneProcess { .. }), "{access} {path}: {error}");
        }
    }
}

#[test]
fn an_unrestricted_policy_grants_everything() {
    let declared = DeclaredPolicy { files: DeclaredFiles::Unrestricted, network: Network::Enabled };
    let policy =
        Policy::resolve(&declared, &PolicyContext::default(), &FakeNames::default()).unwrap();
    assert_eq!(policy, Policy::unrestricted(Network::Enabled));
    assert_ne!(policy, Policy::unrestricted(Network::Restricted));
    assert!(!policy.restricts_files());
    assert_eq!(policy.access(Path::new("/src/.git")), Write);
    assert_eq!(policy.network(), Network::Enabled);
    assert!(asked(&["write root"]).policy().restricts_files());
}
