//! `exec-server cat`: the content of files, byte for byte.

use bytes::BytesMut;
use exec_server_protocol::{FsOpenParams, MAX_BLOCK_BYTES, OutputStream};
use tokio::io::AsyncReadExt as _;

use super::failures::Failures;
use super::problem::Problem;
use super::servers::{Located, Servers};
use super::wording::without_path;
use crate::environment::{ExecutorFileSystem as _, RemoteFileSystem};
use crate::exit_code::ExitStatus;
use crate::foreground::Outputs;
use crate::remote_path::ServerPath;

pub(super) async fn run(servers: &Servers<'_>, paths: &[ServerPath]) -> anyhow::Result<ExitStatus> {
    let mut outputs = Outputs::open();
    let mut failures = Failures::default();
    for path in paths {
        match print(servers, path, &mut outputs).await {
            Ok(()) => {}
            Err(Problem::Work(error)) => failures.tell(&path.written, &error),
            Err(Problem::Output(error)) => return ExitStatus::of_write_error(error),
        }
    }
    match outputs.finish().await {
        Ok(()) => Ok(failures.status()),
        Err(error) => ExitStatus::of_write_error(error),
    }
}

async fn print(
    servers: &Servers<'_>,
    path: &ServerPath,
    outputs: &mut Outputs,
) -> Result<(), Problem> {
    let Located { client, path } = servers.locate(path).await?;
    let params = FsOpenParams {
        path: path.clone(),
        handle_id: String::new(),
        follow_symlinks: None,
        details: true,
        sandbox: None,
    };
    let reader = RemoteFileSystem::new(client).read_file_stream(params).await;
    let mut reader = reader.map_err(|error| without_path(&path, error))?;
    loop {
        let mut block = BytesMut::with_capacity(MAX_BLOCK_BYTES / 4);
        let read = tokio::select! {
            read = reader.read_buf(&mut block) => read?,
            error = outputs.failed() => return Err(Problem::Output(error)),
        };
        if read == 0 {
            return Ok(());
        }
        let written = outputs.write(OutputStream::Stdout, block.freeze()).await;
        written.map_err(Problem::Output)?;
    }
}
