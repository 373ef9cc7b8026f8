//! Reads the kernel's figures about a process (memory, threads, CPU time, children) and about the
//! machine (memory of the kernel, load).

use std::fs;

use anyhow::Context as _;

pub(super) fn resident_bytes(pid: u32) -> anyhow::Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    parse_resident(&status).with_context(|| format!("{path} does not contain resident memory"))
}

pub(super) fn threads(pid: u32) -> anyhow::Result<usize> {
    let path = format!("/proc/{pid}/task");
    Ok(fs::read_dir(&path).with_context(|| format!("cannot list {path}"))?.count())
}

/// Returns the user and system time of all threads, without those of children.
pub(super) fn cpu_seconds(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let ticks = parse_stat(&stat).map(|stat| stat.cpu_ticks);
    let ticks = ticks.with_context(|| format!("{path} does not contain CPU times"))?;
    Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// Returns the user and system time of the calling thread.
pub(super) fn thread_cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

pub(super) fn children(parent: u32) -> anyhow::Result<Vec<u32>> {
    let mut children = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot list /proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process that has ended since it was listed is skipped.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        if parse_stat(&stat).is_some_and(|stat| stat.parent == parent) {
            children.push(pid);
        }
    }
    Ok(children)
}

/// Returns the kernel memory that cannot be reclaimed: slabs and per-CPU areas.
pub(super) fn kernel_bytes() -> anyhow::Result<u64> {
    let path = "/proc/meminfo";
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    parse_kernel(&text).with_context(|| format!("{path} does not contain the kernel's memory"))
}

/// Returns the load average of the whole machine over the last minute.
pub(super) fn load() -> Option<f64> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

struct Stat {
    parent: u32,
    cpu_ticks: u64,
}

fn parse_stat(text: &str) -> Option<Stat> {
    // The name in parentheses may itself contain spaces and parentheses.
    let (_, after_name) = text.rsplit_once(')')?;
    let fields: Vec<&str> = after_name.split_ascii_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Stat { parent: number(1)?.try_into().ok()?, cpu_ticks: number(11)? + number(12)? })
}

fn parse_kernel(text: &str) -> Option<u64> {
    Some(parse_bytes(text, "SUnreclaim:")? + parse_bytes(text, "Percpu:")?)
}

fn parse_resident(status: &str) -> Option<u64> {
    parse_bytes(status, "VmRSS:")
}

fn parse_bytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_are_parsed() {
        let stat = "7 (a) b (c) S 3 7 7 0 -1 4194304 1 2 3 4 250 50 9 9 20 0 1 0 100 0 0";
        let stat = parse_stat(stat).unwrap();
        assert_eq!((stat.parent, stat.cpu_ticks), (3, 300));
        assert!(parse_stat("7 (short) S 3").is_none());
    }

    #[test]
    fn resident_memory_is_in_bytes() {
        assert_eq!(parse_resident("Name:\tx\nVmRSS:\t    12 kB\n"), Some(12 << 10));
        assert_eq!(parse_resident("Name:\tkernel thread\n"), None);
    }

    #[test]
    fn kernel_memory_counts_only_what_cannot_be_reclaimed() {
        let text = "Slab:  7 kB\nSUnreclaim:   4 kB\nPercpu:  2 kB\n";
        assert_eq!(parse_kernel(text), Some(6 << 10));
        assert_eq!(parse_kernel("SUnreclaim: 9 kB\n"), None);
    }
}
