//! Policies and hosts, and what comes of them.

use std::cell::Cell;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use super::{Cover, CoverKind, LandlockRules, Mount, Plan, PlanError, Regrant, Tier};
use crate::sandbox::capabilities::Capabilities;
use crate::sandbox::mechanism::Mechanism;
use crate::sandbox::policy::fake::FakeNames;
use crate::sandbox::policy::{
    Access, DeclaredFiles, DeclaredPolicy, Entry, EntryPath, Grant, Hold, NameKind, Names, Network,
    Policy, Surroundings, TooMuch,
};
use crate::sandbox::seccomp::{self, Attributes, Neighbours};

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
    let around = Surroundings {
        workspace_roots: vec![cwd.clone()],
        cwd: Some(cwd),
        ..Surroundings::default()
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

/// A directory always has carve-outs.
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

#[test]
fn the_tier_follows_from_policy_and_host() {
    let bubblewrap = || Tier::Bubblewrap("/usr/bin/bwrap".into());
    let table = [
        ("read only", read_only(), everything(), Tier::Direct),
        ("read only, no namespaces", read_only(), without_isolation(), Tier::Direct),
        ("read only, ABI 6", read_only(), with_abi(6, without_isolation()), Tier::Direct),
        ("read only, ABI 5", read_only(), with_abi(5, everything()), Tier::Namespaces),
        ("read only, ABI 3", read_only(), with_abi(3, everything()), Tier::Namespaces),
        ("read only, ABI 1", read_only(), with_abi(1, everything()), Tier::Namespaces),
        (
            "read only, ABI 5, bubblewrap",
            read_only(),
            with_abi(5, without_namespaces()),
            bubblewrap(),
        ),
        ("workspace", workspace(), everything(), Tier::Namespaces),
        ("workspace, ABI 1", workspace(), with_abi(1, everything()), Tier::Namespaces),
        ("workspace, bubblewrap", workspace(), without_namespaces(), bubblewrap()),
        ("one file", one_writable_file(), everything(), Tier::Namespaces),
        ("one file, bubblewrap", one_writable_file(), without_namespaces(), bubblewrap()),
        ("one file, neither", one_writable_file(), without_isolation(), Tier::Direct),
        ("minimal", minimal(), everything(), Tier::Namespaces),
        ("minimal, old /proc", minimal(), with_old_proc(), Tier::Direct),
        ("minimal, neither", minimal(), without_isolation(), Tier::Direct),
        ("all files", all_files(), without_isolation(), Tier::Direct),
        ("all files, ABI 5", all_files(), with_abi(5, everything()), Tier::Namespaces),
        ("all files, ABI 0", all_files(), with_abi(0, everything()), Tier::Namespaces),
        (
            "all files, ABI 0, bubblewrap",
            all_files(),
            with_abi(0, without_namespaces()),
            bubblewrap(),
        ),
    ];
    for (case, policy, has, tier) in table {
        let plan = plan(&policy, &has).unwrap_or_else(|error| panic!("{case}: {error}"));
        assert_eq!(plan.tier, tier, "{case}");
        let without_mounts = tier == Tier::Direct || !policy.restricts_files();
        assert_eq!(plan.mounts.is_empty(), without_mounts, "{case}");
    }
}

#[test]
fn refusals_say_what_is_missing_and_how_to_get_it() {
    let no_isolation = "which takes user namespaces (not usable on this host) or bubblewrap (not usable on this host); to get it: \
         `apt-get install bubblewrap`, or let this user create user namespaces; `exec-server doctor` says what is in the way";
    assert_eq!(
        refusal(&workspace(), &without_isolation()),
        format!(
            "the policy protects /home/ann/app/.agents inside of what it grants, {no_isolation}"
        )
    );
    let no_scopes = |abi| {
        format!("Landlock of this kernel (ABI {abi}) does not keep signals inside, {no_isolation}")
    };
    for abi in [1, 3, 5] {
        assert_eq!(refusal(&read_only(), &with_abi(abi, without_isolation())), no_scopes(abi));
        assert_eq!(refusal(&all_files(), &with_abi(abi, without_isolation())), no_scopes(abi));
    }
    assert_eq!(refusal(&all_files(), &with_abi(0, without_isolation())), no_scopes(0));
    let no_landlock = "the policy restricts files, which takes Landlock (not usable on this host); to get it: Linux 5.13 or later (6.12 for all of it) with \
         `landlock` listed in /sys/kernel/security/lsm (boot parameter `lsm=landlock,...`); in a container, one whose seccomp profile \
         allows landlock_create_ruleset (Docker 23 or later)";
    for policy in [read_only(), workspace()] {
        assert_eq!(refusal(&policy, &with_abi(0, everything())), no_landlock);
    }
    let no_seccomp = "every sandbox denies dangerous system calls, which takes seccomp (not usable on this host); to get it: a kernel with \
         CONFIG_SECCOMP_FILTER; in a container, one whose own profile allows seccomp";
    let unfiltered = Capabilities { seccomp: false, ..everything() };
    for policy in [read_only(), workspace(), Policy::unrestricted(Network::Restricted)] {
        assert_eq!(refusal(&policy, &unfiltered), no_seccomp);
    }
    assert_eq!(refusal(&read_only(), &Capabilities::default()), no_seccomp);
}

#[test]
fn what_was_turned_off_is_not_called_missing() {
    let off = |turned_off: &[Mechanism], has: Capabilities| Capabilities {
        turned_off: turned_off.to_vec(),
        ..has
    };
    let no_landlock = off(&[Mechanism::Landlock], with_abi(0, everything()));
    assert_eq!(
        refusal(&read_only(), &no_landlock),
        "the policy restricts files, which takes Landlock (turned off by EXEC_SERVER_SANDBOX_WITHOUT)"
    );
    let neither = [Mechanism::UserNamespace, Mechanism::Bubblewrap];
    assert_eq!(
        refusal(&workspace(), &off(&neither, without_isolation())),
        "the policy protects /home/ann/app/.agents inside of what it grants, which takes user namespaces (turned off by \
         EXEC_SERVER_SANDBOX_WITHOUT) or bubblewrap (turned off by EXEC_SERVER_SANDBOX_WITHOUT)"
    );
    let one = refusal(&workspace(), &off(&neither[..1], without_isolation()));
    assert!(one.contains("bubblewrap (not usable on this host); to get it"), "{one}");
}

#[test]
fn what_is_enforced_is_what_is_claimed() {
    let enforcement = plan(&workspace(), &everything()).unwrap().enforcement();
    assert_eq!(enforcement.landlock, Some(7));
    assert!(enforcement.seccomp && enforcement.pid_namespace && enforcement.network_namespace);
    assert!(!enforcement.bubblewrap && !enforcement.seatbelt);

    let enforcement = plan(&read_only(), &with_abi(6, without_isolation())).unwrap().enforcement();
    assert_eq!(enforcement.landlock, Some(6));
    assert!(enforcement.seccomp && !enforcement.pid_namespace && !enforcement.network_namespace);

    let enforcement = plan(&workspace(), &without_namespaces()).unwrap().enforcement();
    assert!(enforcement.bubblewrap && enforcement.pid_namespace && !enforcement.network_namespace);

    let enforcement = plan(&all_files(), &with_abi(5, everything())).unwrap().enforcement();
    assert_eq!((enforcement.landlock, enforcement.seccomp), (Some(5), true));
    assert!(enforcement.pid_namespace && enforcement.network_namespace);
    let enforcement = plan(&all_files(), &with_abi(0, everything())).unwrap().enforcement();
    assert_eq!((enforcement.landlock, enforcement.pid_namespace), (None, true));
}

#[test]
fn a_network_namespace_is_only_for_the_network() {
    let online = policy_of(&names(), Network::Enabled, &[READ_ALL, WORKSPACE]);
    let plan = plan(&online, &everything()).unwrap();
    assert!(!plan.new_network_namespace);
    let expected = seccomp::program(Network::Enabled, Attributes::Changeable, Neighbours::Absent);
    assert_eq!(plan.seccomp, expected);
}

#[test]
fn attributes_are_frozen_where_nothing_else_protects_them() {
    let filter = |policy: &Policy, has: &Capabilities| plan(policy, has).unwrap().seccomp;
    let program =
        |attributes, neighbours| seccomp::program(Network::Restricted, attributes, neighbours);
    let frozen = program(Attributes::Frozen, Neighbours::InReach);
    let changeable = program(Attributes::Changeable, Neighbours::InReach);
    let isolated = program(Attributes::Changeable, Neighbours::Absent);
    assert_eq!(filter(&read_only(), &everything()), frozen);
    assert_eq!(filter(&workspace(), &everything()), isolated);
    assert_eq!(filter(&workspace(), &without_namespaces()), isolated);
    assert_eq!(filter(&one_writable_file(), &without_isolation()), changeable);
    assert_eq!(filter(&Policy::unrestricted(Network::Restricted), &everything()), changeable);
}

#[test]
fn signals_stay_inside_even_if_files_are_not_restricted() {
    let rules = |abi| plan(&all_files(), &with_abi(abi, everything())).unwrap().landlock;
    assert_eq!(rules(7), Some(LandlockRules { abi: 7, grants: None, listed: vec![] }));
    // Without scopes it takes a PID namespace, and a domain for what that does not keep apart.
    let grants = Some(vec![Grant { path: "/".into(), access: Access::Write }]);
    assert_eq!(rules(5), Some(LandlockRules { abi: 5, grants, listed: vec![] }));
    assert_eq!(rules(0), None);
}

#[test]
fn seatbelt_takes_the_place_of_everything_else() {
    let macos = Capabilities { seatbelt: true, ..Capabilities::default() };
    let plan = plan(&workspace(), &macos).unwrap();
    assert!(matches!(&plan.tier, Tier::Seatbelt(profile) if profile.contains("(deny default)")));
    assert!(plan.enforcement().seatbelt && !plan.enforcement().seccomp);
    assert!(plan.landlock.is_none() && plan.mounts.is_empty());
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

#[test]
fn an_ordinary_workspace() {
    let expected = [
        cover("/", CoverKind::ReadOnly),
        fresh("/dev/shm"),
        regrant("/home/ann/app", Access::Write),
        placeholder("/home/ann/app/.agents", CoverKind::ReadOnly),
        placeholder("/home/ann/app/.codex", CoverKind::ReadOnly),
        cover("/home/ann/app/.git", CoverKind::ReadOnly),
    ];
    assert_eq!(mounts(&names(), &[READ_ALL, WORKSPACE]), expected);
}

#[test]
fn covers_and_what_is_given_again_alternate() {
    let names = names()
        .directory("/home/ann/app/src/private/shared/out")
        .file("/home/ann/app/src/private/shared/key");
    let entries = [
        READ_ALL,
        WORKSPACE,
        (path("/home/ann/app/src/private"), Access::Deny),
        (path("/home/ann/app/src/private/shared"), Access::Read),
        (path("/home/ann/app/src/private/shared/key"), Access::Deny),
        (path("/home/ann/app/src/private/shared/out"), Access::Write),
    ];
    let at_source: Vec<_> = mounts(&names, &entries)
        .into_iter()
        .filter(|mount| mount.path().starts_with("/home/ann/app/src"))
        .collect();
    let out = "/home/ann/app/src/private/shared/out";
    let expected = [
        // Renamed, it would take the cover with it.
        regrant("/home/ann/app/src", Access::Write),
        cover("/home/ann/app/src/private", CoverKind::Hidden),
        regrant("/home/ann/app/src/private/shared", Access::Read),
        hidden_file("/home/ann/app/src/private/shared/key"),
        regrant(out, Access::Write),
        placeholder(&format!("{out}/.agents"), CoverKind::ReadOnly),
        placeholder(&format!("{out}/.codex"), CoverKind::ReadOnly),
        placeholder(&format!("{out}/.git"), CoverKind::ReadOnly),
    ];
    assert_eq!(at_source, expected);
}

#[test]
fn what_is_missing_is_covered_only_where_it_could_be_made() {
    let entries = [
        READ_ALL,
        WORKSPACE,
        (path("/home/ann/.ssh"), Access::Deny),
        (path("/home/ann/app/a/b/secret"), Access::Deny),
        (path("/home/ann/app/a/c"), Access::Read),
    ];
    let mounts = mounts(&names(), &entries);
    assert!(mounts.contains(&placeholder("/home/ann/app/a", CoverKind::Hidden)));
    assert!(!mounts.iter().any(|mount| mount.path().starts_with("/home/ann/.ssh")));
    let below = |mount: &Mount| mount.path().parent().is_some_and(|above| above.ends_with("app/a"));
    assert!(!mounts.iter().any(below), "{mounts:#?}");
}

/// What is protected in it would otherwise stand in its place.
#[test]
fn a_writable_root_that_does_not_exist_is_made_where_it_could_be() {
    let out = "/home/ann/app/build/out";
    let entries = [
        READ_ALL,
        WORKSPACE,
        (path(out), Access::Write),
        (path(&format!("{out}/secret/key")), Access::Deny),
        (path("/home/ann/elsewhere"), Access::Write),
    ];
    let is_about = |mount: &Mount, place: &str| mount.path().starts_with(place);
    let made = mounts(&names(), &entries);
    assert!(!made.iter().any(|mount| is_about(mount, "/home/ann/elsewhere")), "{made:#?}");
    let at_build: Vec<_> =
        made.into_iter().filter(|mount| is_about(mount, "/home/ann/app/build")).collect();
    let expected = [
        regrant("/home/ann/app/build", Access::Write),
        regrant(out, Access::Write),
        placeholder(&format!("{out}/.agents"), CoverKind::ReadOnly),
        placeholder(&format!("{out}/.codex"), CoverKind::ReadOnly),
        placeholder(&format!("{out}/.git"), CoverKind::ReadOnly),
        placeholder(&format!("{out}/secret"), CoverKind::Hidden),
    ];
    assert_eq!(at_build, expected);

    let kept = (path("/home/ann/app/build"), Access::Read);
    let read_only = mounts(&names(), &[READ_ALL, WORKSPACE, kept, (path(out), Access::Write)]);
    assert!(read_only.contains(&placeholder("/home/ann/app/build", CoverKind::ReadOnly)));
}

/// Whoever wrote the file may not make directories with it.
#[test]
fn what_a_git_file_names_is_not_made() {
    let names = names().file_with("/home/ann/app/tree/.git", b"gitdir: ../gone/.git/modules/tree");
    let tree = (path("/home/ann/app/tree"), Access::Write);
    let mounts = mounts(&names, &[READ_ALL, WORKSPACE, tree]);
    assert!(
        mounts.contains(&placeholder("/home/ann/app/gone", CoverKind::ReadOnly)),
        "{mounts:#?}"
    );
}

/// Otherwise a process removes it and makes a directory with what is denied.
#[test]
fn a_file_in_the_way_of_what_is_missing_stays() {
    let names = names().file("/home/ann/app/a").file("/home/ann/b");
    let entries = [
        READ_ALL,
        WORKSPACE,
        (path("/home/ann/app/a/secret"), Access::Deny),
        (path("/home/ann/b/secret"), Access::Deny),
    ];
    let mounts = mounts(&names, &entries);
    let stays = Cover {
        path: "/home/ann/app/a".into(),
        kind: CoverKind::ReadOnly,
        is_directory: false,
        missing: false,
    };
    assert!(mounts.contains(&Mount::Cover(stays)), "{mounts:#?}");
    assert!(!mounts.iter().any(|mount| mount.path().starts_with("/home/ann/b")));
}

#[test]
fn a_writable_root_has_no_cover_of_everything() {
    let entries = [(EntryPath::Root, Access::Write), (path("/home/ann/app/src"), Access::Read)];
    let mounts = mounts(&names(), &entries);
    assert!(!mounts.iter().any(|mount| mount.path() == Path::new("/")));
    let expected = [
        regrant("/home", Access::Write),
        regrant("/home/ann", Access::Write),
        regrant("/home/ann/app", Access::Write),
        cover("/home/ann/app/src", CoverKind::ReadOnly),
    ];
    assert!(expected.iter().all(|mount| mounts.contains(mount)), "{mounts:#?}");
}

#[test]
fn devices_need_no_mount_unless_their_directory_is_hidden() {
    let is_null = |mount: &Mount| mount.path() == Path::new("/dev/null");
    assert!(!mounts(&names(), &[READ_ALL, WORKSPACE]).iter().any(is_null));
    let entries =
        [READ_ALL, WORKSPACE, (path("/dev"), Access::Deny), (path("/dev/null"), Access::Write)];
    let hidden = mounts(&names(), &entries);
    assert!(hidden.iter().any(is_null), "{hidden:#?}");
}

fn grants_of(policy: &Policy, has: &Capabilities) -> LandlockRules {
    plan(policy, has).unwrap().landlock.unwrap()
}

fn granted(rules: &LandlockRules, path: &str) -> Option<Access> {
    let grants = rules.grants.as_ref().unwrap();
    grants.iter().find(|grant| grant.path == Path::new(path)).map(|grant| grant.access)
}

#[test]
fn to_read_everything_is_not_to_read_devices() {
    for has in [everything(), without_isolation()] {
        let rules = grants_of(&read_only(), &has);
        for directory in ["/home", "/tmp", "/usr"] {
            assert_eq!(granted(&rules, directory), Some(Access::Read), "{directory}");
        }
        assert_eq!(granted(&rules, "/dev/null"), Some(Access::Write));
        assert_eq!(granted(&rules, "/dev/random"), Some(Access::Read));
        for nothing in ["/", "/dev", "/dev/vda", "/dev/pts", "/dev/shm"] {
            assert_eq!(granted(&rules, nothing), None, "{nothing}");
        }
        assert_eq!(rules.listed, [Path::new("/")]);
    }
}

#[test]
fn what_is_granted_by_name_comes_only_once_and_links_and_denials_not_at_all() {
    let names = names().symlink("/bin", "/usr/bin").directory("/secret").file("/note");
    let entries = [READ_ALL, (path("/tmp"), Access::Write), (path("/secret"), Access::Deny)];
    let policy = policy_of(&names, Network::Restricted, &entries);
    let rules = Plan::new(&policy, &everything(), &names).unwrap().landlock.unwrap();
    let of_tmp = rules.grants.iter().flatten().filter(|grant| grant.path == Path::new("/tmp"));
    assert_eq!(of_tmp.map(|grant| grant.access).collect::<Vec<_>>(), [Access::Write]);
    assert_eq!(granted(&rules, "/note"), Some(Access::Read));
    assert_eq!(granted(&rules, "/bin"), None);
    assert_eq!(granted(&rules, "/secret"), None);
}

#[test]
fn a_device_that_an_entry_names_is_granted() {
    let with = |entry| policy_of(&names(), Network::Restricted, &[READ_ALL, WORKSPACE, entry]);
    let rules = grants_of(&with((path("/dev/vda"), Access::Write)), &everything());
    assert_eq!(granted(&rules, "/dev/vda"), Some(Access::Write));
    let policy = policy_of(&names(), Network::Restricted, &[(path("/dev"), Access::Read)]);
    assert_eq!(granted(&grants_of(&policy, &everything()), "/dev"), Some(Access::Read));
}

/// Needs mounts: something in it is only to be read.
fn all_but_source() -> Policy {
    let entries = [(EntryPath::Root, Access::Write), (path("/home/ann/app/src"), Access::Read)];
    policy_of(&names(), Network::Restricted, &entries)
}

#[test]
fn to_write_everything_is_not_to_use_devices() {
    let one = |path: &str, access| {
        Mount::Regrant(Regrant { path: path.into(), access, is_directory: false })
    };
    let of_devices = |policy: &Policy| -> Vec<_> {
        let mounts = plan(policy, &everything()).unwrap().mounts;
        mounts.into_iter().filter(|mount| mount.path().starts_with("/dev")).collect()
    };
    let expected = [
        cover("/dev", CoverKind::NoDevices),
        one("/dev/null", Access::Write),
        one("/dev/random", Access::Read),
        fresh("/dev/shm"),
    ];
    assert_eq!(of_devices(&all_but_source()), expected);
    let rules = grants_of(&all_but_source(), &everything());
    assert_eq!((granted(&rules, "/"), rules.listed), (Some(Access::Write), vec![]));

    let write_all = (EntryPath::Root, Access::Write);
    let entries = [write_all.clone(), (path("/dev"), Access::Read)];
    let readable = policy_of(&names(), Network::Restricted, &entries);
    assert_eq!(of_devices(&readable)[0], cover("/dev", CoverKind::NoDevices));
    let entries = [write_all, (path("/dev"), Access::Deny)];
    let denied = policy_of(&names(), Network::Restricted, &entries);
    assert_eq!(of_devices(&denied), [cover("/dev", CoverKind::Hidden)]);
}

#[test]
fn memory_and_terminals_are_its_own_unless_the_policy_speaks_of_them() {
    let own = |entries: &[(EntryPath, Access)], has: &Capabilities| {
        let entries = [entries, &[WORKSPACE]].concat();
        let plan = plan(&policy_of(&names(), Network::Restricted, &entries), has).unwrap();
        let memory = plan.mounts.contains(&fresh("/dev/shm"));
        let rules = plan.landlock.unwrap();
        assert!(!memory || granted(&rules, "/dev/shm") == Some(Access::Write));
        (memory, plan.own_terminals)
    };
    assert_eq!(own(&[READ_ALL], &everything()), (true, true));
    assert_eq!(own(&[READ_ALL], &without_namespaces()), (true, false));
    assert_eq!(own(&[], &everything()), (false, false));
    for (entry, expected) in [
        ((path("/dev"), Access::Deny), (false, false)),
        ((path("/dev/shm"), Access::Deny), (false, true)),
        ((path("/dev/shm"), Access::Write), (false, true)),
        ((path("/dev/shm/one"), Access::Write), (false, true)),
        ((path("/dev/pts"), Access::Deny), (true, false)),
        ((EntryPath::Glob("/dev/s*".into()), Access::Deny), (false, true)),
    ] {
        assert_eq!(own(&[READ_ALL, entry.clone()], &everything()), expected, "{entry:?}");
    }
}

#[test]
fn nothing_is_hidden_in_what_is_its_own() {
    let names = names().file("/dev/shm/a.pem");
    let glob = (EntryPath::Glob("/dev/**/*.pem".into()), Access::Deny);
    let mounts = mounts(&names, &[READ_ALL, WORKSPACE, glob]);
    assert!(mounts.contains(&fresh("/dev/shm")));
    assert!(!mounts.iter().any(|mount| mount.path().starts_with("/dev/shm/a.pem")));
}

/// Names of which one directory has an unusual listing.
struct Odd<F> {
    names: FakeNames,
    directory: &'static str,
    listing: F,
}

impl<F: Fn() -> io::Result<Vec<(OsString, NameKind)>>> Names for Odd<F> {
    fn kind(&self, path: &Path) -> io::Result<NameKind> {
        self.names.kind(path)
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        self.names.read_link(path)
    }

    fn list(&self, directory: &Path, max: usize) -> io::Result<Vec<(OsString, NameKind)>> {
        if directory == Path::new(self.directory) {
            let mut listed = (self.listing)()?;
            listed.truncate(max);
            Ok(listed)
        } else {
            self.names.list(directory, max)
        }
    }

    fn read_start(&self, file: &Path, max: usize) -> io::Result<Vec<u8>> {
        self.names.read_start(file, max)
    }

    fn hold(&self, path: &Path) -> io::Result<Hold> {
        self.names.hold(path)
    }

    fn is_changeable(&self, directory: &Path) -> io::Result<bool> {
        self.names.is_changeable(directory)
    }
}

#[test]
fn what_globs_deny_is_hidden_where_it_is_now() {
    let names = names()
        .file("/home/ann/app/a.pem")
        .file("/home/ann/app/src/keys/b.pem")
        .directory("/home/ann/app/src/c.pem/d.pem")
        .file("/home/ann/app/1/2/3/4/too_deep.pem")
        .symlink("/home/ann/app/src/link.pem", "/home/ann/app/a.pem")
        .file("/home/ann/other.pem");
    let glob = (EntryPath::Glob("**/*.pem".into()), Access::Deny);
    let hidden: Vec<_> = mounts(&names, &[READ_ALL, WORKSPACE, glob])
        .into_iter()
        .filter(|mount| {
            let hides = [CoverKind::Hidden, CoverKind::HiddenLink];
            matches!(mount, Mount::Cover(cover) if hides.contains(&cover.kind))
        })
        .collect();
    let expected = [
        hidden_file("/home/ann/app/a.pem"),
        cover("/home/ann/app/src/c.pem", CoverKind::Hidden),
        hidden_file("/home/ann/app/src/keys/b.pem"),
        hidden_link("/home/ann/app/src/link.pem"),
    ];
    assert_eq!(hidden, expected);
}

fn hidden_link(path: &str) -> Mount {
    let (path, kind) = (path.into(), CoverKind::HiddenLink);
    Mount::Cover(Cover { path, kind, is_directory: false, missing: false })
}

/// It cannot cover a symlink itself.
#[test]
fn bubblewrap_hides_what_a_denied_link_leads_to() {
    let names = names()
        .file("/home/ann/keys/real.key")
        .directory("/home/ann/store")
        .symlink("/home/ann/app/a.pem", "../keys/real.key")
        .symlink("/home/ann/app/b.pem", "../store")
        .symlink("/home/ann/app/c.pem", "nowhere")
        .symlink("/home/ann/app/d.pem", "d.pem");
    let glob = (EntryPath::Glob("**/*.pem".into()), Access::Deny);
    let policy = policy_of(&names, Network::Restricted, &[READ_ALL, WORKSPACE, glob]);
    let mounts = Plan::new(&policy, &without_namespaces(), &names).unwrap().mounts;
    assert!(mounts.contains(&hidden_file("/home/ann/keys/real.key")));
    assert!(mounts.contains(&cover("/home/ann/store", CoverKind::Hidden)));
    assert!(!mounts.iter().any(|mount| mount.path().extension().is_some_and(|it| it == "pem")));
}

/// Renamed, a directory would take what is hidden with it, to where the pattern does not match.
#[test]
fn the_way_to_what_globs_deny_is_pinned() {
    let names = names().file("/home/ann/app/src/secrets/id.key").file("/home/ann/other/id.key");
    let glob = |pattern: &str| (EntryPath::Glob(pattern.into()), Access::Deny);
    let entries = [READ_ALL, WORKSPACE, glob("**/secrets/*.key"), glob("/home/ann/other/*")];
    let mounts = mounts(&names, &entries);
    let below = |directory: &str| -> Vec<_> {
        mounts.iter().filter(|mount| mount.path().starts_with(directory)).cloned().collect()
    };
    let expected = [
        regrant("/home/ann/app/src", Access::Write),
        regrant("/home/ann/app/src/secrets", Access::Write),
        hidden_file("/home/ann/app/src/secrets/id.key"),
    ];
    assert_eq!(below("/home/ann/app/src"), expected);
    // Where nothing can be written nothing can be renamed.
    assert_eq!(below("/home/ann/other"), [hidden_file("/home/ann/other/id.key")]);
}

#[test]
fn too_many_mounts_are_an_error() {
    let names =
        (0..10_000).fold(names(), |names, n| names.file(format!("/home/ann/app/src/{n}.pem")));
    let glob = (EntryPath::Glob("src/*.pem".into()), Access::Deny);
    let policy = policy_of(&names, Network::Restricted, &[READ_ALL, WORKSPACE, glob]);
    let error = Plan::new(&policy, &everything(), &names).unwrap_err();
    assert!(matches!(error, PlanError::TooManyMounts { limit: 10_000 }), "{error}");
}

/// It takes at most 9,000 words, and some are needed for other things.
#[test]
fn bubblewrap_is_told_no_more_than_it_listens_to() {
    let names = (0..1_600).fold(names(), |names, n| {
        names
            .directory(format!("/home/ann/app/{n:04}/secret"))
            .file(format!("/home/ann/app/{n:04}/key"))
    });
    let plan = |pattern: &str, has: &Capabilities| {
        let glob = (EntryPath::Glob(pattern.into()), Access::Deny);
        let policy = policy_of(&names, Network::Restricted, &[READ_ALL, WORKSPACE, glob]);
        Plan::new(&policy, has, &names)
    };
    // Each with the directory above it.
    for (pattern, words) in [("*/secret", 9), ("*/key", 6)] {
        let error = plan(pattern, &without_namespaces()).unwrap_err();
        let PlanError::TooManyMounts { limit } = error else { panic!("{pattern}: {error}") };
        assert!((9_000 / words * 2 - 20..9_000 / words * 2).contains(&limit), "{pattern}: {limit}");
        assert!(plan(pattern, &everything()).is_ok(), "{pattern}");
    }
    assert!(plan("0[0-8]*/secret", &without_namespaces()).is_ok());
}

#[test]
fn what_the_system_said_is_said() {
    let names = names().forbidden("/home/ann/app/secret");
    let denied = (path("/home/ann/app/secret"), Access::Deny);
    let entries = [READ_ALL, WORKSPACE, denied];
    let policy = policy_of(&self::names(), Network::Restricted, &entries);
    let text = Plan::new(&policy, &everything(), &names).unwrap_err().to_string();
    assert!(text.ends_with("is: permission denied"), "{text}");
}

#[test]
fn bubblewrap_needs_proc() {
    let names = names().directory("/proc");
    let denied = (path("/proc"), Access::Deny);
    let policy = policy_of(&names, Network::Restricted, &[READ_ALL, WORKSPACE, denied]);
    assert!(Plan::new(&policy, &everything(), &names).is_ok());
    let error = Plan::new(&policy, &without_namespaces(), &names).unwrap_err();
    assert!(matches!(error, PlanError::HiddenProc), "{error}");
}

#[test]
fn what_vanishes_while_it_is_searched_is_searched_for_again() {
    let glob = (EntryPath::Glob("**/*.pem".into()), Access::Deny);
    let plan_with = |gone: usize, listing: fn() -> io::Result<Vec<(OsString, NameKind)>>| {
        let names = names().file("/home/ann/app/src/a.pem");
        let policy = policy_of(&names, Network::Restricted, &[READ_ALL, WORKSPACE, glob.clone()]);
        let looked = Cell::new(0);
        let here = names.list("/home/ann/app/src".as_ref(), usize::MAX).unwrap();
        let listing = || {
            looked.set(looked.get() + 1);
            if looked.get() <= gone { listing() } else { Ok(here.clone()) }
        };
        let names = Odd { names, directory: "/home/ann/app/src", listing };
        Plan::new(&policy, &everything(), &names)
    };
    let directory = || Err(io::ErrorKind::NotFound.into());
    let name_in_it = || Ok(vec![("renamed".into(), NameKind::Missing)]);
    for listing in [directory, name_in_it] {
        let mounts = plan_with(7, listing).unwrap().mounts;
        assert!(mounts.contains(&hidden_file("/home/ann/app/src/a.pem")), "{mounts:#?}");
        let error = plan_with(8, listing).unwrap_err();
        assert!(matches!(error, PlanError::Unsteady { .. }), "{error}");
    }
}

#[test]
fn a_glob_may_start_where_nothing_is() {
    let glob = (EntryPath::Glob("/home/ann/app/missing/*.pem".into()), Access::Deny);
    assert!(
        plan(&policy_of(&names(), Network::Restricted, &[READ_ALL, glob]), &everything()).is_ok()
    );
}

#[test]
fn comparing_names_with_patterns_has_an_end() {
    let listing = || {
        let name = |n| format!("{n}{}", "a".repeat(200));
        Ok((0..20_000).map(|n| (name(n).into(), NameKind::File)).collect())
    };
    let names = Odd { names: names(), directory: "/home/ann/app/src", listing };
    let globs = |count: usize| -> Vec<_> {
        let pattern = |n| EntryPath::Glob(format!("src/{n}*{}b", "a".repeat(500)));
        (0..count).map(|n| (pattern(n), Access::Deny)).chain([READ_ALL]).collect()
    };
    let plan = |count| {
        let policy = policy_of(&names.names, Network::Restricted, &globs(count));
        Plan::new(&policy, &everything(), &names)
    };
    assert!(plan(0).is_ok());
    let error = plan(10).unwrap_err();
    let of_steps = matches!(error, PlanError::TooMuchToScan { limit: TooMuch::Steps { .. }, .. });
    assert!(of_steps, "{error}");
}

#[test]
fn a_glob_alone_makes_namespaces_necessary_only_if_it_matches() {
    let glob = (EntryPath::Glob("*.pem".into()), Access::Deny);
    let policy = policy_of(&names(), Network::Restricted, &[READ_ALL, glob]);
    assert_eq!(plan(&policy, &without_isolation()).unwrap().tier, Tier::Direct);
    let names = names().file("/home/ann/app/a.pem");
    let refused = Plan::new(&policy, &without_isolation(), &names).unwrap_err().to_string();
    assert!(refused.starts_with("the policy protects /home/ann/app/a.pem"), "{refused}");
}

#[test]
fn a_directory_that_cannot_be_searched_for_matches_is_hidden_as_a_whole() {
    let names = names().directory("/home/ann/app/locked");
    let listing = || Err(io::ErrorKind::PermissionDenied.into());
    let names = Odd { names, directory: "/home/ann/app/locked", listing };
    let glob = (EntryPath::Glob("**/*.pem".into()), Access::Deny);
    let policy = policy_of(&names.names, Network::Restricted, &[READ_ALL, WORKSPACE, glob]);
    let mounts = Plan::new(&policy, &everything(), &names).unwrap().mounts;
    assert!(mounts.contains(&cover("/home/ann/app/locked", CoverKind::Hidden)), "{mounts:#?}");
}

#[test]
fn what_a_glob_denies_landlock_does_not_grant() {
    let names = names().directory("/home/ann/app/x.pem/sub");
    let entries = [
        WORKSPACE,
        (path("/home/ann/app/src"), Access::Deny),
        (path("/home/ann/app/src/y.pem"), Access::Write),
        (EntryPath::Glob("**/*.pem".into()), Access::Deny),
    ];
    let policy = policy_of(&names, Network::Restricted, &entries);
    let plan = Plan::new(&policy, &everything(), &names).unwrap();
    let grants = plan.landlock.unwrap().grants.unwrap();
    assert!(grants.iter().any(|grant| grant.path == Path::new("/home/ann/app")));
    assert!(!grants.iter().any(|grant| grant.path.ends_with("y.pem")), "{grants:?}");
}

#[test]
fn a_tree_too_big_to_look_through_is_an_error() {
    let listing = || Ok((0..200_001).map(|n| (n.to_string().into(), NameKind::File)).collect());
    let names = Odd { names: names(), directory: "/home/ann/app/src", listing };
    let glob = (EntryPath::Glob("**/*.pem".into()), Access::Deny);
    let policy = policy_of(&names.names, Network::Restricted, &[READ_ALL, glob]);
    let error = Plan::new(&policy, &everything(), &names).unwrap_err();
    let limit = TooMuch::Names { max: 200_000 };
    assert!(matches!(error, PlanError::TooMuchToScan { limit: found, .. } if found == limit));
}

#[test]
fn what_became_a_symlink_since_is_an_error() {
    let names = names().symlink("/home/ann/app/.git", "/home/ann/app/src");
    let error = Plan::new(&workspace(), &everything(), &names).unwrap_err();
    assert!(matches!(error, PlanError::Symlink { .. }), "{error}");
}

#[test]
fn what_nobody_can_look_at_needs_no_cover_unless_its_surroundings_can_be_changed() {
    let names = names().forbidden("/root/.ssh").forbidden("/home/ann/app/locked");
    let outside = [READ_ALL, WORKSPACE, (path("/root/.ssh"), Access::Deny)];
    let policy = policy_of(&self::names(), Network::Restricted, &outside);
    let mounts = Plan::new(&policy, &everything(), &names).unwrap().mounts;
    assert!(!mounts.iter().any(|mount| mount.path().starts_with("/root")));

    let inside = [READ_ALL, WORKSPACE, (path("/home/ann/app/locked"), Access::Deny)];
    let policy = policy_of(&self::names(), Network::Restricted, &inside);
    let error = Plan::new(&policy, &everything(), &names).unwrap_err();
    assert!(matches!(error, PlanError::Unknown { .. }), "{error}");
}

fn varied_plans() -> Vec<Plan> {
    let names = names().directory("/home/ann/app/src/private/shared").file("/home/ann/app/a.pem");
    let entries = [
        READ_ALL,
        WORKSPACE,
        (path("/home/ann/app/src/private"), Access::Deny),
        (path("/home/ann/app/src/private/shared"), Access::Read),
        (EntryPath::Glob("*.pem".into()), Access::Deny),
    ];
    let policy = policy_of(&names, Network::Enabled, &entries);
    let all_files = Policy::unrestricted(Network::Restricted);
    let macos = Capabilities { seatbelt: true, ..Capabilities::default() };
    [
        (&policy, everything()),
        (&policy, without_namespaces()),
        (&policy, macos),
        (&all_but_source(), everything()),
        (&all_files, everything()),
        (&all_files, with_abi(0, everything())),
        (&read_only(), everything()),
    ]
    .map(|(policy, has)| Plan::new(policy, &has, &names).unwrap())
    .into()
}

#[test]
fn a_plan_arrives_as_it_was_sent() {
    for plan in varied_plans() {
        assert_eq!(Plan::decode(&plan.encode()), Some(plan));
    }
    let mut odd = varied_plans().remove(0);
    let name = OsString::from_vec(vec![b'/', 0xff, 0, b'\n']);
    let grants = vec![Grant { path: name.into(), access: Access::Read }];
    odd.landlock =
        Some(LandlockRules { abi: u32::MAX, grants: Some(grants), listed: vec!["/".into()] });
    assert_eq!(Plan::decode(&odd.encode()), Some(odd));
}

#[test]
fn anything_but_a_whole_plan_is_refused() {
    for plan in varied_plans() {
        let bytes = plan.encode();
        for len in 0..bytes.len() {
            assert_eq!(Plan::decode(&bytes[..len]), None, "accepted {len} of {}", bytes.len());
        }
        assert_eq!(Plan::decode(&[bytes.as_slice(), &[0]].concat()), None);
    }
    assert_eq!(Plan::decode(&[9]), None);
}

#[test]
fn a_claimed_length_allocates_nothing() {
    let claimed = [&[1][..], &u32::MAX.to_ne_bytes()].concat();
    assert_eq!(Plan::decode(&claimed), None);
}
