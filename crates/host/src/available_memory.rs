//! Estimates the memory available to this process.

use std::fs;
use std::path::Path;

/// Returns the smallest of the machine's available memory and the memory limits of this process's
/// control groups. `None` if the system reports none of them.
#[must_use]
pub fn available_memory() -> Option<u64> {
    available(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
}

fn available(proc: &Path, cgroups: &Path) -> Option<u64> {
    let machine = fs::read_to_string(proc.join("meminfo")).ok().and_then(|text| left(&text));
    let groups = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| group_limit(line, cgroups));
    limits.chain(machine).min()
}

fn left(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// Returns the lowest memory limit of the group in a line of `/proc/self/cgroup` and of its
/// parents. The line is `0::/path` in version 2 and `NUMBER:CONTROLLERS:/path` in version 1.
fn group_limit(line: &str, cgroups: &Path) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (root, file) = match controllers {
        "" => (cgroups.to_owned(), "memory.max"),
        _ if controllers.split(',').any(|controller| controller == "memory") => {
            (cgroups.join("memory"), "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let group = root.join(path.trim_start_matches('/'));
    let groups = group.ancestors().take_while(|group| group.starts_with(&root));
    let limit = |group: &Path| fs::read_to_string(group.join(file)).ok()?.trim().parse().ok();
    groups.filter_map(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn the_lowest_limit_applies() {
        let directory = tempfile::tempdir().unwrap();
        let (proc, cgroups) = (directory.path().join("proc"), directory.path().join("cgroup"));
        assert_eq!(available(&proc, &cgroups), None);
        write(&proc.join("meminfo"), "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n");
        assert_eq!(available(&proc, &cgroups), Some(4000 << 10));
        write(&proc.join("self/cgroup"), "4:cpu,memory:/docker/x\n0::/user/service\n");
        assert_eq!(available(&proc, &cgroups), Some(4000 << 10));
        write(&cgroups.join("user/service/memory.max"), "max\n");
        write(&cgroups.join("user/memory.max"), "3000000\n");
        assert_eq!(available(&proc, &cgroups), Some(3_000_000));
        write(&cgroups.join("memory/docker/x/memory.limit_in_bytes"), "2000000\n");
        assert_eq!(available(&proc, &cgroups), Some(2_000_000));
        write(&cgroups.join("user/service/memory.max"), "1000000\n");
        assert_eq!(available(&proc, &cgroups), Some(1_000_000));
    }

    #[test]
    fn this_machine_reports_its_memory() {
        assert!(available_memory().is_some_and(|bytes| bytes > 0));
    }
}
