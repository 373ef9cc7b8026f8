//! cgroup v2: the server's own group, with one leaf below it for each limited tree.
//!
//! ```text
//! own/               delegated to the server, with memory, pids and cpu enabled for its children
//! own/exec-server/   the server, the spawner, keepers, and programs whose trees have no limits
//! own/process-4711/  the tree of the keeper with that pid
//! ```
//!
//! A cgroup that enables controllers for its children cannot hold processes itself, so the server
//! moves into a leaf. [`Delegated::take`] does that in the server before it starts other processes.
//! Each [`Leaf`] belongs to a keeper. A server without a delegated group starts a second spawner in
//! a scope of the user's service manager; that spawner takes the scope's group in the same way.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Limit, Limits, LimitsHit, TreeUse};

const CONTROLLERS: [&str; 3] = ["memory", "pids", "cpu"];
const SERVER_LEAF: &str = "exec-server";
const LEAF_PREFIX: &str = "process-";
/// In microseconds; the kernel's default.
const CPU_PERIOD: u64 = 100_000;
/// The kernel rejects larger numbers.
const MOST_PIDS: u64 = 4_194_303;
/// Attempts to remove a leaf while its last process is exiting.
const REMOVALS: u32 = 20;

/// A cgroup in which keepers create their leaves. The server, or its spawner in a scope, has taken
/// it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::process) struct Delegated {
    base: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub(in crate::process) enum NoCgroup {
    #[error("found no mounted cgroup v2 that contains this process")]
    NotMounted,
    #[error("the server is in the root cgroup, which cannot be delegated")]
    Root,
    #[error("cgroup {} lacks the controller {missing}", path.display())]
    Controller { path: PathBuf, missing: &'static str },
    #[error("cgroup {} contains processes other than the server", path.display())]
    Shared { path: PathBuf },
    #[error("cannot modify cgroup {}: {source}", path.display())]
    Denied { path: PathBuf, source: io::Error },
}

impl Delegated {
    /// Makes the cgroup of this process the parent of leaves. Call it before this process starts
    /// other processes.
    pub(in crate::process) fn take() -> Result<Self, NoCgroup> {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
        let own = own_group(&groups, &mounts).ok_or(NoCgroup::NotMounted)?;
        // Already in a leaf `exec-server`: this is a second launcher of one server, or a server in
        // a program that another server started without limits.
        if own.file_name() == Some(OsStr::new(SERVER_LEAF))
            && let Some(base) = own.parent()
            && missing_controller(&base.join("cgroup.subtree_control")).is_none()
        {
            let delegated = Self { base: base.to_owned() };
            delegated.try_out()?;
            return Ok(delegated);
        }
        if !own.join("cgroup.type").exists() {
            return Err(NoCgroup::Root);
        }
        if let Some(missing) = missing_controller(&own.join("cgroup.controllers")) {
            return Err(NoCgroup::Controller { path: own, missing });
        }
        let delegated = Self { base: own };
        delegated.move_server()?;
        delegated.remove_abandoned_leaves();
        delegated.try_out()?;
        Ok(delegated)
    }

    pub(in crate::process) fn path(&self) -> &Path {
        &self.base
    }

    fn move_server(&self) -> Result<(), NoCgroup> {
        let base = &self.base;
        let own = std::process::id().to_string();
        let denied = |source| NoCgroup::Denied { path: base.clone(), source };
        let processes = fs::read_to_string(base.join("cgroup.procs")).map_err(denied)?;
        if processes.lines().any(|pid| pid != own) {
            return Err(NoCgroup::Shared { path: base.clone() });
        }
        let leaf = base.join(SERVER_LEAF);
        match fs::create_dir(&leaf) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(denied(error));
            }
            _ => {}
        }
        let enabled: Vec<_> = CONTROLLERS.iter().map(|name| format!("+{name}")).collect();
        let moved = fs::write(leaf.join("cgroup.procs"), &own)
            .and_then(|()| fs::write(base.join("cgroup.subtree_control"), enabled.join(" ")));
        moved.map_err(|error| {
            let _ = fs::write(base.join("cgroup.procs"), &own);
            let _ = fs::remove_dir(&leaf);
            denied(error)
        })
    }

    /// Removes leaves of a server that was killed along with its keepers. Leaves in use cannot be
    /// removed.
    fn remove_abandoned_leaves(&self) {
        for entry in fs::read_dir(&self.base).into_iter().flatten().flatten() {
            if entry.file_name().as_bytes().starts_with(LEAF_PREFIX.as_bytes()) {
                let _ = remove_tree(&entry.path());
            }
        }
    }

    /// Creates a leaf as a test.
    fn try_out(&self) -> Result<(), NoCgroup> {
        let limits = Limits {
            memory_bytes: Some(1 << 30),
            pids: Some(100),
            cpu_thousandths: Some(1000),
            ..Limits::default()
        };
        let tried = Leaf::create(&self.base, &limits).map(drop);
        tried.map_err(|source| NoCgroup::Denied { path: self.base.clone(), source })
    }
}

/// The cgroup of one tree. Dropping it removes the cgroup.
#[derive(Debug)]
pub(in crate::process) struct Leaf {
    path: PathBuf,
    directory: OwnedFd,
}

impl Leaf {
    pub(in crate::process) fn create(base: &Path, limits: &Limits) -> io::Result<Self> {
        let path = base.join(format!("{LEAF_PREFIX}{}", std::process::id()));
        // A killed keeper with the same pid may have left its leaf.
        let _ = remove_tree(&path);
        fs::create_dir(&path)?;
        let directory = match fs::File::open(&path) {
            Ok(directory) => directory.into(),
            Err(error) => {
                let _ = fs::remove_dir(&path);
                return Err(error);
            }
        };
        let leaf = Self { path, directory };
        leaf.set(limits)?;
        Ok(leaf)
    }

    fn set(&self, limits: &Limits) -> io::Result<()> {
        if let Some(bytes) = limits.memory_bytes {
            self.write("memory.max", &bytes.min(i64::MAX.cast_unsigned()).to_string())?;
            self.write("memory.oom.group", "1")?;
            // Swap would bypass the memory limit. Some kernels lack the file.
            match self.write("memory.swap.max", "0") {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        if let Some(pids) = limits.pids.filter(|pids| *pids <= MOST_PIDS) {
            self.write("pids.max", &pids.to_string())?;
        }
        if let Some(thousandths) = limits.cpu_thousandths {
            let quota = u64::from(thousandths) * CPU_PERIOD / 1000;
            self.write("cpu.max", &format!("{quota} {CPU_PERIOD}"))?;
        }
        Ok(())
    }

    /// Kills every process in the cgroup at once. Has no effect on kernels before 5.14.
    pub(in crate::process) fn kill(&self) {
        let _ = self.write("cgroup.kill", "1");
    }

    pub(in crate::process) fn usage(&self) -> TreeUse {
        let memory = |name| self.read(name)?.trim().parse().ok();
        let peak_memory_bytes =
            memory("memory.peak").or_else(|| memory("memory.current")).unwrap_or(0);
        let micros = self.counter("cpu.stat", "usage_usec").unwrap_or(0);
        TreeUse { peak_memory_bytes, cpu: Duration::from_micros(micros) }
    }

    pub(in crate::process) fn hit(&self) -> LimitsHit {
        let mut hit = LimitsHit::default();
        let has = |file, name| self.counter(file, name).is_some_and(|count| count > 0);
        if has("memory.events", "oom_kill") || has("memory.events", "oom_group_kill") {
            hit.add(Limit::Memory);
        }
        if has("pids.events", "max") {
            hit.add(Limit::Pids);
        }
        hit
    }

    fn counter(&self, file: &str, name: &str) -> Option<u64> {
        counter(&self.read(file)?, name)
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path.join(name)).ok()
    }

    fn write(&self, name: &str, text: &str) -> io::Result<()> {
        fs::OpenOptions::new()
            .write(true)
            .open(self.path.join(name))
            .and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes()))
    }
}

impl AsFd for Leaf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Drop for Leaf {
    #[expect(
        clippy::disallowed_methods,
        reason = "no event reports that a zombie has left its cgroup"
    )]
    fn drop(&mut self) {
        for _ in 0..REMOVALS {
            match remove_tree(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                _ => return,
            }
        }
    }
}

/// Removes the cgroup and any cgroups that a program created below it.
fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {}
        done => return done,
    }
    for entry in fs::read_dir(path)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

/// Returns the value of a `NAME VALUE` line.
fn counter(text: &str, name: &str) -> Option<u64> {
    let value = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
    text.lines().find_map(value)
}

fn missing_controller(file: &Path) -> Option<&'static str> {
    let listed = fs::read_to_string(file).unwrap_or_default();
    let is_missing = |name: &&&str| !listed.split_whitespace().any(|listed| listed == **name);
    CONTROLLERS.iter().find(is_missing).copied()
}

/// The directory of this process's cgroup, from `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn own_group(groups: &str, mounts: &[u8]) -> Option<PathBuf> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let (root, mount_point) = mounts.split(|byte| *byte == b'\n').find_map(|line| {
        let text = std::str::from_utf8(line).ok()?;
        let (mount, file_system) = text.split_once(" - ")?;
        let mut fields = mount.split(' ');
        let (root, mount_point) = (fields.nth(3)?, fields.next()?);
        let is_cgroup2 = file_system.split(' ').next() == Some("cgroup2");
        // A space in the path would be escaped; such mount points are not supported.
        (is_cgroup2 && !mount_point.contains('\\')).then_some((root, mount_point))
    })?;
    let below = Path::new(group).strip_prefix(root).ok()?;
    // A group outside the cgroup namespace is shown with `..`.
    let is_inside = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    is_inside.then(|| Path::new(mount_point).join(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
    const UNIFIED: &str =
        "33 24 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const BELOW: &str = "33 24 0:28 /pod/a /sys/fs/cgroup rw - cgroup2 cgroup rw\n";

    fn found(groups: &str, mounts: &str) -> Option<PathBuf> {
        own_group(groups, mounts.as_bytes())
    }

    #[test]
    fn the_cgroup_of_this_process_is_found_below_its_mount() {
        let path = |text: &str| Some(PathBuf::from(text));
        let service = "0::/system.slice/x.service\n";
        assert_eq!(found(service, UNIFIED), path("/sys/fs/cgroup/system.slice/x.service"));
        assert_eq!(found("9:pids:/\n0::/\n", HYBRID), path("/sys/fs/cgroup/unified"));
        assert_eq!(found("0::/pod/a/b\n", BELOW), path("/sys/fs/cgroup/b"));
        assert_eq!(found("0::/pod/b\n", BELOW), None);
        assert_eq!(found("0::/../x\n", UNIFIED), None);
        assert_eq!(found("9:pids:/\n", HYBRID), None);
        assert_eq!(found(service, "garbage\n\n - \n"), None);
    }

    #[test]
    fn counters_are_found_by_their_whole_name() {
        let events = "low 0\noom 3\noom_kill 1\noom_group_kill 0\n";
        assert_eq!(counter(events, "oom_kill"), Some(1));
        assert_eq!(counter(events, "oom"), Some(3));
        assert_eq!(counter(events, "kill"), None);
        assert_eq!(counter("max x\n", "max"), None);
    }

    #[test]
    fn the_first_missing_controller_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("cgroup.controllers");
        assert_eq!(missing_controller(&file), Some("memory"));
        fs::write(&file, "cpuset cpu io memory pids\n").unwrap();
        assert_eq!(missing_controller(&file), None);
        fs::write(&file, "cpuset memory pidsx\n").unwrap();
        assert_eq!(missing_controller(&file), Some("pids"));
    }
}
