//! Where servers of one user remember what their sandboxes could write.
//!
//! The directory for state outlives a reboot, as symlinks do that a sandbox left behind. Where it
//! cannot be used, the runtime directories serve. The server chooses among them.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::runtime_file::{our_uid, runtime_directories};

const FILE: &str = "sandbox-roots";
const VARIABLE: &str = "XDG_STATE_HOME";

pub(crate) fn write_history_files() -> Vec<PathBuf> {
    let state = state_directories(std::env::var_os(VARIABLE), std::env::home_dir(), our_uid());
    state.into_iter().chain(runtime_directories()).map(|directory| directory.join(FILE)).collect()
}

/// With the variable and without, as servers of this user may be started either way. `su` and `sudo`
/// may leave the variables of another user behind, where nothing of this user belongs.
fn state_directories(xdg: Option<OsString>, home: Option<PathBuf>, uid: u32) -> Vec<PathBuf> {
    let is_ours = |path: &PathBuf| {
        let existing = path.ancestors().find_map(|above| rustix::fs::stat(above).ok());
        path.is_absolute() && existing.is_some_and(|stat| stat.st_uid == uid)
    };
    let from_variable = xdg.map(PathBuf::from).filter(is_ours);
    let home = home.filter(|home| home.is_dir() && is_ours(home));
    let from_home = home.map(|home| home.join(".local/state"));
    from_variable.into_iter().chain(from_home).map(|state| state.join("exec-server")).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn it_is_in_what_belongs_to_the_user() {
        let uid = our_uid();
        let ours = tempfile::tempdir().unwrap();
        let (xdg, home) = (ours.path().join("xdg"), ours.path().to_owned());
        let (in_xdg, in_home) = (xdg.join("exec-server"), home.join(".local/state/exec-server"));
        let found = |xdg: Option<&Path>, home: Option<&Path>, uid| {
            state_directories(xdg.map(Into::into), home.map(Into::into), uid)
        };
        assert_eq!(found(Some(&xdg), Some(&home), uid), [&*in_xdg, &in_home]);
        assert_eq!(found(Some(&xdg), None, uid), [&*in_xdg]);
        for other in [None, Some(Path::new("relative")), Some(Path::new(""))] {
            assert_eq!(found(other, Some(&home), uid), [&*in_home]);
        }
        let nothing: [PathBuf; 0] = [];
        assert_eq!(found(None, Some(&home.join("missing")), uid), nothing);
        assert_eq!(found(Some(&xdg), Some(&home), 4_000_000), nothing);
    }
}
