//! `exec-server mkdir`: creates directories.

use exec_server_protocol::FsCreateDirectoryParams;

use super::failures::Failures;
use super::servers::{Located, Servers};
use super::wording::without_path;
use crate::cli::files::Mkdir;
use crate::program::exit_code::ExitStatus;
use crate::target::remote_path::ServerPath;

pub(super) async fn run(servers: &Servers<'_>, mkdir: &Mkdir) -> anyhow::Result<ExitStatus> {
    let mut failures = Failures::default();
    for path in &mkdir.paths {
        if let Err(error) = create(servers, path, mkdir.parents).await {
            failures.tell(&path.written, &error);
        }
    }
    Ok(failures.status())
}

async fn create(servers: &Servers<'_>, path: &ServerPath, parents: bool) -> anyhow::Result<()> {
    let Located { client, path } = servers.locate(path).await?;
    let params = FsCreateDirectoryParams {
        path: path.clone(),
        recursive: Some(parents),
        follow_symlinks: None,
        sandbox: None,
    };
    let created = client.fs_create_directory(params).await;
    created.map_err(|error| without_path(&path, error))?;
    Ok(())
}
