//! Limits that the kernel enforces per process.

use super::Limits;

/// The keeper limits the CPU time of the whole tree, and more exactly. So the rlimit for each
/// process allows a little more.
const CPU_SLACK_SECONDS: u64 = 1;

/// Permanently lowers the limits of the calling process. Never raises one.
///
/// Makes only system calls on plain values, so it may run between fork and exec.
pub(in crate::process) fn lower_own(limits: &Limits) -> Result<(), i32> {
    let cpu_seconds = limits.cpu_time.map(|time| {
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        seconds.saturating_add(CPU_SLACK_SECONDS)
    });
    lower(libc::RLIMIT_CPU, cpu_seconds, cpu_seconds.map(|seconds| seconds.saturating_add(1)))?;
    lower(libc::RLIMIT_FSIZE, limits.file_size_bytes, limits.file_size_bytes)?;
    lower(libc::RLIMIT_CORE, limits.core_size_bytes, limits.core_size_bytes)?;
    // Last, so that no earlier step can run out of descriptors.
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
