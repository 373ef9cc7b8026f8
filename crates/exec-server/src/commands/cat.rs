//! `exec-server cat`: prints the content of files, byte for byte.

use std::io;

use bytes::BytesMut;
use exec_server_client::ExecServerError;
use exec_server_protocol::{FsOpenParams, MAX_BLOCK_BYTES, OutputStream, PathUri};
use tokio::io::AsyncReadExt as _;

use super::failures::Failures;
use super::servers::{Located, Servers};
use super::wording::without_path;
use crate::cli::files::Cat;
use crate::environment::{ExecutorFileSystem, FileReader};
use crate::foreground::{OutputError, Outputs};
use crate::program::exit_code::ExitStatus;
use crate::target::remote_path::ServerPath;

/// The maximum number of connection losses without a byte read in between.
const MAX_LOSSES: usize = 5;

pub(super) async fn run(servers: &Servers<'_>, cat: &Cat) -> anyhow::Result<ExitStatus> {
    let mut outputs = Outputs::open();
    let mut failures = Failures::default();
    for path in &cat.paths {
        match print(servers, path, &mut outputs).await {
            Ok(()) => {}
            Err(error) if error.is::<OutputError>() => return Err(error),
            Err(error) => failures.tell(&path.written, &error),
        }
    }
    outputs.finish().await?;
    Ok(failures.status())
}

async fn print(
    servers: &Servers<'_>,
    path: &ServerPath,
    outputs: &mut Outputs,
) -> anyhow::Result<()> {
    let Located { client, path } = servers.locate(path).await?;
    let mut reader = open(&client, &path).await?;
    let (mut place, mut losses) = (0, 0);
    loop {
        let mut block = BytesMut::with_capacity(MAX_BLOCK_BYTES / 4);
        let read = tokio::select! {
            read = reader.read_buf(&mut block) => read,
            error = outputs.failed() => return Err(error.into()),
        };
        match read {
            Ok(0) => return Ok(()),
            Ok(read) => (place, losses) = (place + read as u64, 0),
            // A handle ends with its connection; the file may still exist.
            Err(error) if is_interruption(&error) && losses < MAX_LOSSES => {
                losses += 1;
                reader = open_again(&client, &path, &reader).await?.starting_at(place);
                continue;
            }
            Err(error) => return Err(error.into()),
        }
        outputs.write(OutputStream::Stdout, block.freeze()).await?;
    }
}

async fn open(files: &dyn ExecutorFileSystem, path: &PathUri) -> anyhow::Result<FileReader> {
    let params = FsOpenParams {
        path: path.clone(),
        handle_id: String::new(),
        follow_symlinks: None,
        details: true,
        sandbox: None,
    };
    let reader = files.read_file_stream(params).await;
    Ok(reader.map_err(|error| without_path(path, error))?)
}

async fn open_again(
    files: &dyn ExecutorFileSystem,
    path: &PathUri,
    before: &FileReader,
) -> anyhow::Result<FileReader> {
    let reader = open(files, path).await?;
    if reader.metadata() != before.metadata() {
        anyhow::bail!(
            "has changed since it was opened, so its content cannot be continued after the lost \
             connection; run the command again"
        );
    }
    Ok(reader)
}

fn is_interruption(error: &io::Error) -> bool {
    let source = error.get_ref().and_then(|source| source.downcast_ref());
    matches!(source, Some(ExecServerError::Interrupted { .. }))
}
