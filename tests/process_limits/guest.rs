//! Limits that the kernel keeps, in a virtual machine: cgroup v2 with all controllers, delegated to an
//! ordinary user. `tests/guest/init` is what runs there.

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

#[test]
fn the_kernel_keeps_limits_in_a_delegated_cgroup() {
    let kernel = match machine() {
        Ok(kernel) => kernel,
        Err(missing) => return skipped(format!("limits in cgroups need a guest: {missing}")),
    };
    let results = boot(&kernel);
    let result = |name: &str| {
        let found = results.get(name);
        found.unwrap_or_else(|| panic!("no result {name:?} in {results:#?}")).as_str()
    };
    assert_eq!(result("end"), "ok");
    // The server is in a leaf of its own, and what a killed one has left is gone.
    assert_eq!((result("abandoned"), result("server_group")), ("0", "0::/box/exec-server"));
    assert_eq!(result("doctor"), "tier cgroup");
    assert_eq!(result("required"), "strict");
    assert_eq!(result("group"), "1");
    assert_eq!(result("values"), "67108864 1 20 20000 100000");
    assert_eq!(result("score"), "200");
    assert_eq!(result("sandboxed"), "1 kept");
    for (name, limit) in [("memory", "memory"), ("pids", "pids"), ("cpu", "cpuTime")] {
        let (served, exit) = result(name).split_once(' ').unwrap();
        assert_eq!(served, "served");
        let exit: Value = serde_json::from_str(exit.trim_start_matches(|c| c != '{')).unwrap();
        assert_eq!(exit["limitsHit"], json!([limit]), "{exit}");
        assert_eq!(result(&format!("{name}_leaves")), "0");
    }
    assert_eq!((result("survivors"), result("killed")), ("0", "0"));
}

/// The kernel of the guest, if there is all that it needs; otherwise what is missing.
fn machine() -> Result<PathBuf, String> {
    if !cfg!(target_arch = "x86_64") {
        return Err("the kernel is one for x86_64".to_owned());
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

fn boot(kernel: &Path) -> HashMap<String, String> {
    let directory = tempfile::tempdir().unwrap();
    let archive = directory.path().join("initramfs");
    fs::write(&archive, initramfs(directory.path())).unwrap();
    let mut qemu = command(QEMU);
    qemu.args(["-nodefaults", "-nographic", "-no-reboot", "-serial", "stdio", "-m", "1024"])
        .args(["-smp", "2", "-accel", "tcg"])
        .args(["-append", "console=ttyS0 quiet panic=-1"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(&archive);
    let outcome = run_command(qemu);
    // The firmware leaves escapes before the first line.
    let results = outcome.stdout.lines().filter_map(|line| line.split_once("RESULT "));
    let pairs = results.map(|(_, result)| result.split_once(' ').unwrap_or((result, "")));
    let results: HashMap<_, _> =
        pairs.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect();
    assert!(results.contains_key("end"), "{}\n{}", outcome.stdout, outcome.stderr);
    results
}

/// The program, its libraries, busybox and the script that runs there.
fn initramfs(scratch: &Path) -> Vec<u8> {
    let stripped = scratch.join("exec-server");
    let mut strip = command("strip");
    strip.arg("-o").arg(&stripped).arg(PROGRAM);
    if strip.status().map_or(true, |status| !status.success()) {
        fs::copy(PROGRAM, &stripped).unwrap();
    }
    let init = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guest/init");
    let mut archive = Archive::default();
    archive.add(Path::new("/init"), &init);
    archive.add(Path::new("/bin/busybox"), Path::new(BUSYBOX));
    archive.add(Path::new("/bin/exec-server"), &stripped);
    let mut ldd = command("ldd");
    ldd.arg(PROGRAM);
    for word in run_command(ldd).stdout.split_whitespace().filter(|word| word.starts_with('/')) {
        archive.add(Path::new(word), Path::new(word));
    }
    archive.finish()
}

/// A cpio archive in the form that the kernel unpacks.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    directories: BTreeSet<PathBuf>,
}

impl Archive {
    fn add(&mut self, name: &Path, file: &Path) {
        const DIRECTORY: u32 = 0o040_755;
        let mut above: Vec<_> = name.ancestors().skip(1).collect();
        above.pop();
        for directory in above.into_iter().rev() {
            if self.directories.insert(directory.to_owned()) {
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
