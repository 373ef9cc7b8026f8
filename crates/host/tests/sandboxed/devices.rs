//! Access to `/dev`: essential devices, devices that the policy names, and private ones.

use std::fs::{self, OpenOptions};
use std::sync::Arc;

use exec_server_host::process::launch::{Command, Io, PtySize};
use exec_server_host::sandbox::{Access, EntryPath, Plan};
use exec_server_test_support::skipped;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::super::support::Running;
use super::Confinement;
use super::scene::Scene;

/// Devices that the test may be able to open. An ordinary user usually can open none of them.
const NOT_ESSENTIAL: [&str; 5] =
    ["/dev/fuse", "/dev/vda", "/dev/sda", "/dev/loop-control", "/dev/net/tun"];

fn ordinary(scene: &Scene) -> Arc<Plan> {
    Arc::new(scene.confinement.ordinary(scene.root()))
}

async fn at_a_terminal(scene: &Scene, plan: &Arc<Plan>, script: &str) -> String {
    let io = Io::Pty(PtySize { rows: 17, cols: 71 });
    let command = Command { io, ..scene.command(plan, script) };
    let mut running = Running::start(&scene.launcher, command).await;
    running.output().await.0
}

pub(crate) async fn terminals_of_others_are_out_of_reach(scene: &Scene) {
    let other = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&other).unwrap();
    unlockpt(&other).unwrap();
    let name = ptsname(&other, Vec::new()).unwrap().into_string().unwrap();
    OpenOptions::new().read(true).write(true).open(&name).unwrap();
    let plan = ordinary(scene);
    let attempts = [format!("exec 3< {name}"), format!("exec 3> {name}")];
    for attempt in &attempts {
        scene.all_fail(&plan, &[attempt]).await;
        let output = at_a_terminal(scene, &plan, &format!("{attempt}; echo opened")).await;
        assert!(!output.contains("opened"), "{attempt}: {output}");
    }
}

pub(crate) async fn a_program_can_reopen_its_own_terminal(scene: &Scene) {
    let script = "tty; stty size < $(tty); stty size < /proc/self/fd/0; stty size < /dev/tty
        stty size < /dev/stdin; echo by name > $(tty); echo by link > /dev/stdout; echo > /dev/null
        stty -echo < $(tty) && echo changed";
    let output = at_a_terminal(scene, &ordinary(scene), script).await;
    assert!(output.starts_with("/dev/pts/"), "{output}");
    assert_eq!(output.matches("17 71").count(), 4, "{output}");
    for expected in ["by name", "by link", "changed"] {
        assert!(output.contains(expected), "{output}");
    }
}

pub(crate) async fn essential_devices_work(scene: &Scene) {
    let plan = ordinary(scene);
    let attempts = [
        "echo x > /dev/null",
        "test $(head -c 4 /dev/zero | wc -c) = 4",
        "test $(head -c 4 /dev/random | wc -c) = 4",
        "test $(head -c 4 /dev/urandom | wc -c) = 4",
        "test \"$(echo x | cat /dev/stdin)\" = x",
        "test \"$(echo x | cat /dev/fd/0)\" = x",
        "ls / && ls /dev",
    ];
    scene.all_succeed(&plan, &attempts).await;
}

pub(crate) async fn other_devices_need_an_entry_in_the_policy(scene: &Scene) {
    let can_open = |path: &&str| OpenOptions::new().read(true).open(path).is_ok();
    let Some(device) = NOT_ESSENTIAL.into_iter().find(can_open) else {
        skipped(format_args!("this user can open none of {}", NOT_ESSENTIAL.join(", ")));
        return;
    };
    let open = format!("exec 3< {device}");
    scene.all_fail(&ordinary(scene), &[&open]).await;
    if scene.confinement == Confinement::Direct {
        return;
    }
    scene.all_fail(&scene.plan(&[("denied", Access::Deny)]), &[&open]).await;
    scene.all_succeed(&scene.plan(&[(device, Access::Write)]), &[&open]).await;
}

pub(crate) async fn write_access_to_everything_includes_no_other_devices(scene: &Scene) {
    if !rustix::process::geteuid().is_root() {
        skipped("only root can create the placeholders that write access to / needs");
        return;
    }
    let entries = vec![
        (EntryPath::Root, Access::Write),
        (EntryPath::Path(scene.path("denied")), Access::Deny),
    ];
    let plan = Arc::new(scene.confinement.plan(scene.root(), entries));
    let elsewhere = tempfile::tempdir().unwrap();
    let outside = elsewhere.path().join("file");
    let attempts = [
        &format!("echo x > {}", outside.display()),
        "echo x > /dev/null",
        "head -c 4 /dev/urandom",
        "echo x > /dev/shm/x && cat /dev/shm/x",
        "file=/new-$$; echo x > $file && rm $file",
    ];
    scene.all_succeed(&plan, &attempts).await;
    assert_eq!(fs::read_to_string(outside).unwrap(), "x\n");
    for device in NOT_ESSENTIAL {
        scene.all_fail(&plan, &[&format!("exec 3< {device}")]).await;
    }
    scene.all_fail(&plan, &["echo x > /dev/new", "mkdir /dev/new", "cat denied/file"]).await;
}

pub(crate) async fn shared_memory_is_private(scene: &Scene) {
    let outside = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    let name = outside.path().file_name().unwrap().to_str().unwrap();
    let plan = scene.plan(&[]);
    let script = format!("ls -A /dev/shm; echo x > /dev/shm/{name} && cat /dev/shm/{name}");
    let (output, exit) = scene.run(&plan, &script).await;
    assert_eq!((output.as_str(), exit.code), ("x\n", 0));
    assert_eq!(fs::read(outside.path()).unwrap(), b"");
    let (output, _) = scene.run(&plan, "stat -c %a /dev/shm; ls -A /dev/shm").await;
    assert_eq!(output, "1777\n");
    scene.all_fail(&scene.plan(&[("/dev/shm", Access::Deny)]), &["echo x > /dev/shm/x"]).await;
}

/// Bubblewrap cannot provide private terminals next to the existing devices.
pub(crate) async fn new_terminals_are_private(scene: &Scene) {
    let plan = scene.plan(&[]);
    if scene.run(&plan, "command -v script").await.1.code != 0 {
        skipped("the program `script` is not installed");
        return;
    }
    let (output, _) = scene.run(&plan, "ls /dev/pts; script -qec 'tty; stty size' /dev/null").await;
    assert!(output.starts_with("ptmx\n/dev/pts/0"), "{output}");
    let script = "exec 3<> /dev/ptmx && ls /dev/pts";
    let (output, _) = scene.run(&plan, script).await;
    assert_eq!(output, "0\nptmx\n");
    scene.all_fail(&scene.plan(&[("/dev/pts", Access::Deny)]), &["exec 3<> /dev/ptmx"]).await;
}
