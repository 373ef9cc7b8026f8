//! `exec-server rm`: removes files, and directories with `--recursive`.

use exec_server_protocol::{FsGetMetadataParams, FsRemoveParams};

use super::failures::Failures;
use super::servers::{Located, Servers};
use super::wording::without_path;
use crate::cli::files::Rm;
use crate::program::exit_code::ExitStatus;
use crate::target::remote_path::ServerPath;

pub(super) async fn run(
    servers: &Servers<'_>,
    Rm { paths, recursive, force, .. }: &Rm,
) -> anyhow::Result<ExitStatus> {
    let mut failures = Failures::default();
    for path in paths {
        if let Err(error) = remove(servers, path, *recursive, *force).await {
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
    let Located { client, path } = servers.locate(path).await?;
    if !recursive {
        // The server would remove an empty directory; rm(1) does not.
        let params =
            FsGetMetadataParams { path: path.clone(), follow_symlinks: None, sandbox: None };
        let found = client.fs_get_metadata(params).await;
        let is_directory = found.is_ok_and(|found| found.is_directory && !found.is_symlink);
        anyhow::ensure!(!is_directory, "is a directory; use -r to remove it and its contents");
    }
    let params = FsRemoveParams {
        path: path.clone(),
        recursive: Some(recursive),
        force: Some(force),
        follow_symlinks: None,
        sandbox: None,
    };
    let removed = client.fs_remove(params).await;
    removed.map_err(|error| without_path(&path, error))?;
    Ok(())
}
