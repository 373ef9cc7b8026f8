//! Devices, terminals and shared memory.

use super::*;

#[test]
fn devices_need_no_mount_unless_their_directory_is_hidden() {
    let is_null = |mount: &Mount| mount.path() == Path::new("/dev/null");
    assert!(!mounts(&names(), &[READ_ALL, WORKSPACE]).iter().any(is_null));
    let entries =
        [READ_ALL, WORKSPACE, (path("/dev"), Access::Deny), (path("/dev/null"), Access::Write)];
    let hidden = mounts(&names(), &entries);
    assert!(hidden.iter().any(is_null), "{hidden:#?}");
}

#[test]
fn read_access_to_everything_excludes_devices() {
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
fn grants_by_name_are_unique_and_exclude_links_and_denied_paths() {
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

#[test]
fn write_access_to_everything_excludes_devices() {
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
fn shared_memory_and_terminals_are_private_unless_the_policy_names_them() {
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
fn nothing_is_hidden_in_private_directories() {
    let names = names().file("/dev/shm/a.pem");
    let glob = (EntryPath::Glob("/dev/**/*.pem".into()), Access::Deny);
    let mounts = mounts(&names, &[READ_ALL, WORKSPACE, glob]);
    assert!(mounts.contains(&fresh("/dev/shm")));
    assert!(!mounts.iter().any(|mount| mount.path().starts_with("/dev/shm/a.pem")));
}
