//! Limits enforced by the kernel, in virtual machines with cgroup v2: one that delegates a cgroup
//! to an ordinary user (it runs `tests/guest/init`), and one with systemd, whose user manager gives
//! the server a scope (`tests/guest/in-scope`).

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use exec_server_test_support::skipped;
use serde_json::{Value, json};

use crate::support::{PROGRAM, command, run_command};

const QEMU: &str = "qemu-system-x86_64";
const BUSYBOX: &str = "/bin/busybox";

/// Programs and files of Debian's packages systemd and dbus-daemon. Only the second guest has them.
const SYSTEMD_PROGRAMS: [&str; 4] = [
    "/usr/lib/systemd/systemd",
    "/usr/bin/systemd-run",
    "/usr/bin/systemctl",
    "/usr/bin/dbus-daemon",
];
const SYSTEMD_FILES: [&str; 11] = [
    "/usr/share/dbus-1/system.conf",
    "/usr/share/dbus-1/system.d/org.freedesktop.systemd1.conf",
    "/usr/lib/systemd/user/basic.target",
    "/usr/lib/systemd/user/default.target",
    "/usr/lib/systemd/user/sockets.target",
    "/usr/lib/systemd/user/timers.target",
    "/usr/lib/systemd/user/paths.target",
    "/usr/lib/systemd/user/shutdown.target",
    "/usr/lib/systemd/user/exit.target",
    "/usr/lib/systemd/user/systemd-exit.service",
    "/usr/lib/systemd/user/app.slice",
];
const UNITS: [&str; 5] =
    ["dbus.service", "dbus.socket", "guest.service", "guest.target", "user@1000.service"];

#[test]
fn the_kernel_enforces_limits_in_a_delegated_cgroup() {
    let kernel = match machine() {
        Ok(kernel) => kernel,
        Err(missing) => return skipped(format!("limits in cgroups need a guest: {missing}")),
    };
    let mut archive = Archive::of_guest();
    archive.add(Path::new("/init"), &guest_file("init"));
    let results = Results::of(&kernel, archive, "");
    let result = |name| results.get(name);
    assert_eq!(result("end"), "ok");
    // The server is in its own leaf, and has removed the leaf that a killed server left behind.
    assert_eq!((result("abandoned"), result("server_group")), ("0", "0::/box/exec-server"));
    assert_eq!(result("doctor"), "tier cgroup");
    assert_eq!(result("group"), "1");
    assert_eq!(result("score"), "200");
    results.expect_limits_to_hold();
    assert_eq!(result("killed"), "0");
}

#[test]
fn the_kernel_enforces_limits_in_a_scope_of_the_user_manager() {
    let missing = SYSTEMD_PROGRAMS.iter().chain(&SYSTEMD_FILES).find(|it| !Path::new(it).exists());
    let kernel = match (machine(), missing) {
        (Ok(kernel), None) => kernel,
        (Err(missing), _) => return skipped(format!("tier systemd needs a guest: {missing}")),
        (_, Some(missing)) => {
            return skipped(format!(
                "tier systemd: {missing} is missing (Debian: apt-get install systemd dbus-daemon)"
            ));
        }
    };
    let results = Results::of(
        &kernel,
        archive_with_systemd(),
        "rdinit=/usr/lib/systemd/systemd systemd.unit=guest.target \
         systemd.unified_cgroup_hierarchy=1",
    );
    let result = |name| results.get(name);
    assert_eq!(result("end"), "ok");
    // The server and programs without limits stay in the cgroup of the session.
    assert_eq!(result("server_group"), "/first.service");
    let group = "manager/app.slice/RUN/process-PID";
    assert_eq!(result("group"), group);
    for name in ["status", "doctor"] {
        assert_eq!(result(name), "tier systemd", "{name}");
    }
    assert_eq!(result("answer"), r#""limits":{"tier":"systemd","pids":9}"#);
    // The spawner has an empty environment and the descriptors 0 to 3.
    assert!(result("spawner").starts_with("exec-server: spawner __spawner __in-scope 0 0 1 2 3"));
    results.expect_limits_to_hold();
    assert_eq!((result("stopped"), result("again")), ("0 0", group));
    assert_eq!(result("killed"), "0");
    assert_eq!(result("without"), "weaker tier rlimit");
    assert_eq!(result("refused"), "this server has tier \"rlimit\"");
}

fn archive_with_systemd() -> Archive {
    let mut archive = Archive::of_guest();
    for program in SYSTEMD_PROGRAMS {
        archive.add_program(Path::new(program), Path::new(program));
    }
    for file in SYSTEMD_FILES {
        archive.add(Path::new(file), Path::new(file));
    }
    for unit in UNITS {
        let place = Path::new("/etc/systemd/system").join(unit);
        archive.add(&place, &guest_file("systemd").join(unit));
    }
    for file in ["passwd", "group"] {
        archive.add(&Path::new("/etc").join(file), &guest_file("systemd").join(file));
    }
    archive.add(Path::new("/in-scope"), &guest_file("in-scope"));
    archive
}

fn guest_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guest").join(name)
}

/// Returns the kernel of the guest, or what is missing to run it.
fn machine() -> Result<PathBuf, String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("its kernel runs only on x86_64".to_owned());
    }
    let is_program = |name: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
    };
    for (program, package) in [(QEMU, "qemu-system-x86"), ("ldd", "libc-bin")] {
        if !is_program(program) {
            return Err(format!("{program} is missing (Debian: apt-get install {package})"));
        }
    }
    if !Path::new(BUSYBOX).is_file() {
        return Err("busybox is missing (Debian: apt-get install busybox-static)".to_owned());
    }
    // target/PROFILE/deps/TEST
    let test = std::env::current_exe().unwrap();
    let directory = test.ancestors().nth(3).unwrap().join("guest-kernel/boot");
    let files = fs::read_dir(&directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let kernel = files.into_iter().find(|path| path.to_string_lossy().contains("vmlinuz"));
    kernel
        .ok_or_else(|| format!("no kernel in {} (scripts/test puts it there)", directory.display()))
}

/// The lines `RESULT NAME VALUE` of a guest.
#[derive(Debug)]
struct Results(HashMap<String, String>);

impl Results {
    fn of(kernel: &Path, archive: Archive, options: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let initramfs = directory.path().join("initramfs");
        fs::write(&initramfs, archive.finish()).unwrap();
        let mut qemu = command(QEMU);
        qemu.args(["-nodefaults", "-nographic", "-no-reboot", "-serial", "stdio", "-m", "1024"])
            .args(["-smp", "2", "-accel", "tcg"])
            .args(["-append", &format!("console=ttyS0 quiet panic=-1 {options}")])
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(&initramfs);
        let outcome = run_command(qemu);
        // The firmware prints escape sequences before the first line.
        let results = outcome.stdout.lines().filter_map(|line| line.split_once("RESULT "));
        let pairs = results.map(|(_, result)| result.split_once(' ').unwrap_or((result, "")));
        let results: HashMap<_, _> =
            pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect();
        assert!(results.contains_key("end"), "{}\n{}", outcome.stdout, outcome.stderr);
        Self(results)
    }

    fn get(&self, name: &str) -> &str {
        self.0.get(name).unwrap_or_else(|| panic!("no result {name:?} in {self:#?}"))
    }

    /// Checks the results of `limits_hold` in `tests/guest/common`.
    fn expect_limits_to_hold(&self) {
        assert_eq!(self.get("required"), "strict");
        assert_eq!(self.get("values"), "67108864 1 20 20000 100000");
        assert_eq!(self.get("sandboxed"), "1 kept");
        for (name, limit) in [("memory", "memory"), ("pids", "pids"), ("cpu", "cpuTime")] {
            let (served, exit) = self.get(name).split_once(' ').unwrap();
            assert_eq!(served, "served");
            let exit: Value = serde_json::from_str(exit.trim_start_matches(|c| c != '{')).unwrap();
            assert_eq!(exit["limitsHit"], json!([limit]), "{exit}");
            assert_eq!(self.get(&format!("{name}_leaves")), "0");
        }
        assert_eq!(self.get("survivors"), "0");
    }
}

/// A cpio archive in the format of an initramfs.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    names: BTreeSet<PathBuf>,
}

impl Archive {
    /// Returns an archive of the program, its libraries, busybox and the shared script.
    fn of_guest() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let stripped = scratch.path().join("exec-server");
        let mut strip = command("strip");
        strip.arg("-o").arg(&stripped).arg(PROGRAM);
        if strip.status().map_or(true, |status| !status.success()) {
            fs::copy(PROGRAM, &stripped).unwrap();
        }
        let mut archive = Self::default();
        archive.add(Path::new("/common"), &guest_file("common"));
        archive.add(Path::new("/bin/busybox"), Path::new(BUSYBOX));
        archive.add_program(Path::new("/bin/exec-server"), &stripped);
        archive
    }

    fn add_program(&mut self, name: &Path, file: &Path) {
        self.add(name, file);
        let mut ldd = command("ldd");
        ldd.arg(file);
        for word in run_command(ldd).stdout.split_whitespace().filter(|word| word.starts_with('/'))
        {
            self.add(Path::new(word), Path::new(word));
        }
    }

    fn add(&mut self, name: &Path, file: &Path) {
        const DIRECTORY: u32 = 0o040_755;
        if !self.names.insert(name.to_owned()) {
            return;
        }
        let mut above: Vec<_> = name.ancestors().skip(1).collect();
        above.pop();
        for directory in above.into_iter().rev() {
            if self.names.insert(directory.to_owned()) {
                self.entry(&directory.to_string_lossy(), DIRECTORY, &[]);
            }
        }
        let mode = 0o100_000 | fs::metadata(file).unwrap().permissions().mode();
        self.entry(&name.to_string_lossy(), mode, &fs::read(file).unwrap());
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        let name = name.trim_start_matches('/');
        let number = u32::try_from(self.bytes.len()).unwrap();
        let len = u32::try_from(content.len()).unwrap();
        let name_len = u32::try_from(name.len() + 1).unwrap();
        let fields = [number, mode, 0, 0, 1, 0, len, 0, 0, 0, 0, name_len, 0];
        let mut header = "070701".to_owned();
        for field in fields {
            write!(header, "{field:08x}").unwrap();
        }
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }
}
