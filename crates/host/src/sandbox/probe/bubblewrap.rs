//! Finds bubblewrap and tests whether it can do what a sandbox needs on this machine.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::Stdio;

use super::finding::{Failure, WITH_NETWORK, WITH_PROC, WITH_ROUTES};
use super::trial::TIMEOUT_SECONDS;
use super::{INSIDE_NETWORK_ARG, PROBE_ARG};

/// The only paths at which bubblewrap is searched for. `PATH` is not searched: a request could have
/// put a program into one of its directories, and bubblewrap itself runs outside every sandbox.
const PLACES: [&str; 4] =
    ["/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap", "/run/current-system/sw/bin/bwrap"];

/// Optional abilities, and the options that test them.
const EXTRAS: [(&str, &[&str]); 2] =
    [(WITH_PROC, &["--proc", "/proc"]), (WITH_NETWORK, &["--unshare-net"])];

/// With these options, a process inside bubblewrap can route every address to a gate.
const WITH_CAPABILITIES: &[&str] =
    &["--unshare-net", "--cap-add", "CAP_NET_ADMIN", "--cap-add", "CAP_NET_BIND_SERVICE"];

/// Returns the path, the version and the working extras of bubblewrap. Fails unless only root can
/// change bubblewrap, and it can create namespaces and a read-only mount and run a program in them.
pub(super) fn attempt() -> Result<String, Failure> {
    let Some(place) = PLACES.iter().find(|place| Path::new(place).exists()) else {
        return Err(Failure::NotInstalled);
    };
    use_it(place).map_err(Failure::Refused)
}

fn use_it(place: &str) -> Result<String, String> {
    check_owner(Path::new(place))?;
    let version = run(place, &[])?;
    let all: Vec<_> = EXTRAS.iter().flat_map(|(_, options)| *options).copied().collect();
    let all_work = run(place, &all).is_ok();
    let working = EXTRAS.iter().filter(|(_, options)| all_work || run(place, options).is_ok());
    let words = [place, &version].into_iter().chain(working.map(|(name, _)| *name));
    let words = words.chain(leads_to_gate(place).then_some(WITH_ROUTES));
    Ok(words.collect::<Vec<_>>().join(" "))
}

/// Whether this executable can use a managed network inside bubblewrap.
fn leads_to_gate(place: &str) -> bool {
    let Ok(executable) = std::env::current_exe() else { return false };
    let Some(executable) = executable.to_str() else { return false };
    let program = [executable, PROBE_ARG, INSIDE_NETWORK_ARG];
    run_for(TIMEOUT_SECONDS, place, WITH_CAPABILITIES, &program).is_ok()
}

fn run(place: &str, options: &[&str]) -> Result<String, String> {
    // Runs bubblewrap inside bubblewrap: it is the one program that certainly exists.
    run_for(TIMEOUT_SECONDS, place, options, &[place, "--version"])
}

fn run_for(
    timeout_seconds: u32,
    place: &str,
    options: &[&str],
    program: &[&str],
) -> Result<String, String> {
    #[expect(clippy::disallowed_methods, reason = "this is where the host starts programs")]
    let mut command = std::process::Command::new(place);
    // SAFETY: plain system calls, allowed between fork and exec. The alarm survives the exec. The
    // signal is reset because the parent may have ignored it.
    unsafe {
        command.pre_exec(move || {
            libc::signal(libc::SIGALRM, libc::SIG_DFL);
            libc::alarm(timeout_seconds);
            Ok(())
        });
    }
    if !rustix::process::geteuid().is_root() {
        command.arg("--unshare-user");
    }
    let output = command
        .args(["--unshare-pid", "--unshare-ipc", "--die-with-parent"])
        .args(["--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev"])
        .args(options)
        .arg("--")
        .args(program)
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run {place}: {error}"))?;
    if output.status.signal() == Some(libc::SIGALRM) {
        return Err(format!("{place}: timed out after {timeout_seconds} s"));
    }
    if !output.status.success() {
        return Err(format!("{place}: {} ({})", first_line(&output.stderr), output.status));
    }
    let version = first_line(&output.stdout).replace("bubblewrap ", "");
    Ok(version.replace(' ', "-"))
}

/// Requires that only root can write to the program: it runs outside every sandbox.
fn check_owner(place: &Path) -> Result<(), String> {
    let metadata = fs::metadata(place)
        .map_err(|error| format!("cannot examine {}: {error}", place.display()))?;
    let trustworthy = metadata.is_file() && metadata.uid() == 0 && metadata.mode() & 0o022 == 0;
    if trustworthy {
        Ok(())
    } else {
        Err(format!("{} is not a file that only root can change", place.display()))
    }
}

fn first_line(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).lines().next().unwrap_or("no output").to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_bubblewrap_that_hangs_times_out() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("bwrap");
        fs::write(&place, "#!/bin/sh\nexec sleep 1000000\n").unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).unwrap();
        let error = run_for(1, place.to_str().unwrap(), &[], &["true"]).unwrap_err();
        assert!(error.ends_with("timed out after 1 s"), "{error}");
    }
}
