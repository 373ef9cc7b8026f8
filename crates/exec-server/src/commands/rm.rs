//! `exec-server rm`: removes files, and directories if asked to.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use exec_server_protocol::{FsGetMetadataParams, FsRemoveParams};

use super::failures::Failures;
use super::servers::{Located, Servers};
use crate::exit_code::ExitStatus;
use crate::remote_path::ServerPath;

pub(super) async fn run(
    servers: &Servers<'_>,
    paths: &[ServerPath],
    recursive: bool,
    force: bool,
) -> anyhow::Result<ExitStatus> {
    let mut failures = Failures::default();
    for path in paths {
        if let Err(error) = remove(servers, path, recursive, force).await {
            failures.tell(&path.written, &error);
        }
    }
    Ok(failures.status())
}

async fn remove(
    servers: &Servers<'_>,
    path: &ServerPath,
    recursive: bool,
    force: bool,
) -> anyhow::Result<()> {
    expect_name(&path.path)?;
    let Located { client, path } = servers.locate(path).await?;
    if !recursive {
        // The server would remove an empty one; rm(1) does not.
        let params =
            FsGetMetadataParams { path: path.clone(), follow_symlinks: None, sandbox: None };
        let found = client.fs_get_metadata(params).await;
        let is_directory = found.is_ok_and(|found| found.is_directory && !found.is_symlink);
        anyhow::ensure!(
            !is_directory,
            "is a directory; use -r to remove it with all that is in it"
        );
    }
    let params = FsRemoveParams {
        path,
        recursive: Some(recursive),
        force: Some(force),
        follow_symlinks: None,
        sandbox: None,
    };
    client.fs_remove(params).await?;
    Ok(())
}

/// What a path without a name stands for is easily not what its writer had in mind: `rm -r box:` is one slip away from
/// `rm -r box:x`.
fn expect_name(path: &Path) -> anyhow::Result<()> {
    let bytes = path.as_os_str().as_bytes();
    anyhow::ensure!(!bytes.is_empty(), "a path is missing after the colon");
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    match bytes[..end].rsplit(|byte| *byte == b'/').next() {
        None | Some(b"") => anyhow::bail!("the root directory is not removed"),
        Some(b"." | b"..") => anyhow::bail!("a path that ends with . or .. is not removed"),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_a_name_is_removed() {
        for path in ["", "/", "//", ".", "..", "./", "a/.", "a/..", "/a/..//"] {
            assert!(expect_name(Path::new(path)).is_err(), "{path}");
        }
        for path in ["a", "/a", "./a", "../a/", ".a", "...", "a/..b"] {
            assert!(expect_name(Path::new(path)).is_ok(), "{path}");
        }
    }
}
