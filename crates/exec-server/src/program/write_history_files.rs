//! The files in which servers of one user record the directories that their sandboxes could write.
//!
//! The state directory survives a reboot, like the symlinks that a sandbox may leave behind.
//! Servers may start with different variables, so the state directory below the home directory in
//! the system's user database is included too. The runtime directories are included for servers
//! without a usable state directory, as in a container.

use std::ffi::OsString;
use std::path::PathBuf;

use exec_server_host::home_directory_of;

use crate::target::runtime_file::{own_uid, runtime_directories};

/// The variable with the only directory to use, for tests and for images that must not be changed.
pub(crate) const HISTORY_VARIABLE: &str = "EXEC_SERVER_SANDBOX_HISTORY";
const FILE: &str = "sandbox-roots";
const STATE_VARIABLE: &str = "XDG_STATE_HOME";

pub(crate) fn write_history_files() -> Vec<PathBuf> {
    let only = std::env::var_os(HISTORY_VARIABLE).filter(|value| !value.is_empty());
    let directories = only.map_or_else(usual_directories, |only| vec![PathBuf::from(only)]);
    directories.into_iter().map(|directory| directory.join(FILE)).collect()
}

fn usual_directories() -> Vec<PathBuf> {
    let mut directories = own_state_directories();
    directories.extend(runtime_directories());
    directories
}

/// Returns the directories for this user's persistent state, the preferred one first.
pub(crate) fn own_state_directories() -> Vec<PathBuf> {
    let uid = own_uid();
    let homes = [std::env::home_dir(), home_directory_of(uid)];
    state_directories(std::env::var_os(STATE_VARIABLE), homes, uid)
}

/// Selects the state directories. `su` and `sudo` may leave the variables of another user behind;
/// directories of other users are not used.
fn state_directories(xdg: Option<OsString>, homes: [Option<PathBuf>; 2], uid: u32) -> Vec<PathBuf> {
    let belongs_to_user = |path: &PathBuf| {
        let existing = path.ancestors().find_map(|above| rustix::fs::stat(above).ok());
        path.is_absolute() && existing.is_some_and(|stat| stat.st_uid == uid)
    };
    let from_variable = xdg.map(PathBuf::from).filter(belongs_to_user);
    let homes = homes.into_iter().flatten().filter(|home| home.is_dir() && belongs_to_user(home));
    let from_homes = homes.map(|home| home.join(".local/state"));
    let mut directories = Vec::new();
    for state in from_variable.into_iter().chain(from_homes) {
        let directory = state.join("exec-server");
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    directories
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn only_directories_of_the_user_are_used() {
        let uid = own_uid();
        let ours = tempfile::tempdir().unwrap();
        let (xdg, home, real) = (ours.path().join("xdg"), ours.path(), ours.path().join("real"));
        std::fs::create_dir(&real).unwrap();
        let in_xdg = xdg.join("exec-server");
        let [in_home, in_real] = [home, &real].map(|home| home.join(".local/state/exec-server"));
        let found = |xdg: Option<&Path>, home: Option<&Path>, real: Option<&Path>, uid| {
            state_directories(xdg.map(Into::into), [home, real].map(|it| it.map(Into::into)), uid)
        };
        let all = found(Some(&xdg), Some(home), Some(&real), uid);
        assert_eq!(all, [&*in_xdg, &in_home, &in_real]);
        assert_eq!(found(Some(&xdg), Some(&real), Some(&real), uid), [&*in_xdg, &in_real]);
        assert_eq!(found(Some(&xdg), None, None, uid), [&*in_xdg]);
        for other in [None, Some(Path::new("relative")), Some(Path::new(""))] {
            assert_eq!(found(other, Some(home), Some(&real), uid), [&*in_home, &in_real]);
        }
        let nothing: [PathBuf; 0] = [];
        let missing = home.join("missing");
        assert_eq!(found(None, Some(&missing), Some(&missing), uid), nothing);
        assert_eq!(found(Some(&xdg), Some(home), Some(&real), 4_000_000), nothing);
    }

    #[test]
    fn the_home_directory_of_the_user_database_is_included() {
        let Some(home) = home_directory_of(own_uid()).filter(|home| home.is_dir()) else { return };
        let of_home = home.join(".local/state/exec-server");
        let directories = usual_directories();
        let owner = rustix::fs::stat(&home).unwrap().st_uid;
        assert_eq!(directories.contains(&of_home), owner == own_uid(), "{directories:?}");
        // Servers with no other directory in common share this one.
        assert!(directories.contains(runtime_directories().last().unwrap()), "{directories:?}");
    }
}
