//! The paths that every sandbox hides because they hold secrets of the server.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Returns the secret files, and those of their directories that only the owner may enter. To hide
/// the file alone is not enough: the mount that covers it disappears when another file takes its
/// name. A directory that contains one of the used paths does not hold secrets alone, so it is not
/// hidden.
pub(super) fn hidden_places(secrets: &[PathBuf], used: &[PathBuf]) -> Vec<PathBuf> {
    let is_used = |directory: &Path| used.iter().any(|used| used.starts_with(directory));
    let mut hidden = Vec::new();
    for secret in secrets {
        hidden.push(secret.clone());
        let names = [Some(secret.clone()), secret.canonicalize().ok()];
        for directory in names.iter().flatten().filter_map(|name| name.parent()) {
            if is_private(directory) && !is_used(directory) {
                hidden.push(directory.to_owned());
            }
        }
    }
    hidden
}

fn is_private(directory: &Path) -> bool {
    directory.metadata().is_ok_and(|metadata| metadata.mode() & 0o077 == 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_private_directory_is_hidden_with_its_secret() {
        let scratch = tempfile::tempdir().unwrap();
        let [private, open] = ["private", "open"].map(|name| scratch.path().join(name));
        for (directory, mode) in [(&private, 0o700), (&open, 0o755)] {
            std::fs::create_dir(directory).unwrap();
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(directory, permissions).unwrap();
            std::fs::write(directory.join("secret"), "s").unwrap();
        }
        let in_open = open.join("secret");
        assert_eq!(hidden_places(std::slice::from_ref(&in_open), &[]), [in_open]);
        let in_private = private.join("secret");
        let hidden = hidden_places(std::slice::from_ref(&in_private), &[]);
        assert!(hidden.contains(&in_private) && hidden.contains(&private));
        // The link is in a public directory, and its target in a private one.
        let link = open.join("link");
        std::os::unix::fs::symlink(&in_private, &link).unwrap();
        let hidden = hidden_places(std::slice::from_ref(&link), &[]);
        assert!(hidden.contains(&private.canonicalize().unwrap()) && !hidden.contains(&open));
        let work = private.join("work");
        let hidden = hidden_places(std::slice::from_ref(&in_private), &[work]);
        assert_eq!(hidden, [in_private]);
    }
}
