//! The limits that the kernel keeps for each process.

use super::Limits;

/// A keeper that looks at the whole tree is more exact, so this comes a little later.
const CPU_SLACK_SECONDS: u64 = 1;

/// Lowers the limits of the calling process for good. Never raises one.
///
/// Only system calls on plain values: it may be called between fork and exec.
pub(in crate::process) fn lower_own(limits: &Limits) -> Result<(), i32> {
    let cpu_seconds = limits.cpu_time.map(|time| {
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        seconds.saturating_add(CPU_SLACK_SECONDS)
    });
    lower(libc::RLIMIT_CPU, cpu_seconds, cpu_seconds.map(|seconds| seconds.saturating_add(1)))?;
    lower(libc::RLIMIT_FSIZE, limits.file_size_bytes, limits.file_size_bytes)?;
    lower(libc::RLIMIT_CORE, limits.core_size_bytes, limits.core_size_bytes)?;
    // Last: what comes after the exec is the program's.
    lower(libc::RLIMIT_NOFILE, limits.open_files, limits.open_files)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
type Resource = libc::c_int;

fn lower(resource: Resource, soft: Option<u64>, hard: Option<u64>) -> Result<(), i32> {
    let (Some(soft), Some(hard)) = (soft, hard) else { return Ok(()) };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a local that outlives the call.
    if unsafe { libc::getrlimit(resource, &raw mut limit) } == -1 {
        return Err(last_errno());
    }
    limit.rlim_cur = limit.rlim_cur.min(soft);
    limit.rlim_max = limit.rlim_max.min(hard);
    // SAFETY: as above.
    if unsafe { libc::setrlimit(resource, &raw const limit) } == -1 {
        return Err(last_errno());
    }
    Ok(())
}

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
