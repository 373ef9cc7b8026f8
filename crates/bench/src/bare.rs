//! The machine's own limit: the same work without a server.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};

use anyhow::{Context as _, ensure};
use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;

use super::program::{KilledOnDrop, Program};

/// Spawns the program and waits, without any pipe.
pub(super) fn run(program: &Program) -> anyhow::Result<()> {
    let mut child = program.command().spawn().with_context(|| cannot_start(program))?;
    check(program, &mut child)
}

pub(super) fn run_with_pipes(program: &Program) -> anyhow::Result<()> {
    let output = program.command().stdout(Stdio::piped()).stderr(Stdio::piped()).output();
    let output = output.with_context(|| cannot_start(program))?;
    ensure!(
        output.status.success(),
        "{} exited with {} in the baseline run, which bypasses the server: {}",
        program.argv()[0],
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

#[derive(Debug, Clone, Copy)]
pub(super) struct PipeReader {
    /// The pipe's capacity; `None` is the system's default.
    pub(super) pipe_bytes: Option<usize>,
    pub(super) read_bytes: usize,
}

impl PipeReader {
    /// All are tried, because the best one differs between machines.
    pub(super) const ALL: [Self; 4] = [
        Self { pipe_bytes: None, read_bytes: 64 << 10 },
        Self { pipe_bytes: Some(256 << 10), read_bytes: 128 << 10 },
        Self { pipe_bytes: Some(1 << 20), read_bytes: 64 << 10 },
        Self { pipe_bytes: Some(1 << 20), read_bytes: 256 << 10 },
    ];

    /// Returns the size of the program's output.
    pub(super) fn run(self, program: &Program) -> anyhow::Result<u64> {
        let child = program.command().stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| cannot_start(program))?;
        let mut stdout = child.stdout.take().context("the child has no stdout")?;
        #[cfg(target_os = "linux")]
        if let Some(bytes) = self.pipe_bytes {
            // The kernel refuses this to users who already have many large pipes. The pipe then
            // keeps the default capacity.
            let _ = rustix::pipe::fcntl_setpipe_size(&stdout, bytes);
        }
        let mut buffer = vec![0; self.read_bytes];
        let mut total = 0;
        loop {
            match stdout.read(&mut buffer)? {
                0 => break,
                count => total += count as u64,
            }
        }
        check(program, &mut child)?;
        Ok(total)
    }
}

/// A program on a terminal, and the master end of that terminal.
#[derive(Debug)]
pub(super) struct Terminal {
    master: File,
    _child: KilledOnDrop,
}

impl Terminal {
    pub(super) fn run(program: &Program) -> anyhow::Result<Self> {
        let (master, terminal) = open_pty().context("cannot open a terminal")?;
        let child = program
            .command()
            .stdin(terminal.try_clone()?)
            .stdout(terminal.try_clone()?)
            .stderr(terminal)
            .spawn()
            .with_context(|| cannot_start(program))?;
        Ok(Self { master: File::from(master), _child: KilledOnDrop(child) })
    }

    pub(super) fn write(&mut self, byte: u8) -> io::Result<()> {
        self.master.write_all(&[byte])
    }

    pub(super) fn read(&mut self) -> io::Result<u8> {
        let mut byte = [0];
        self.master.read_exact(&mut byte)?;
        Ok(byte[0])
    }
}

fn open_pty() -> io::Result<(OwnedFd, OwnedFd)> {
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
    rustix::io::fcntl_setfd(&master, rustix::io::FdFlags::CLOEXEC)?;
    rustix::pty::grantpt(&master)?;
    rustix::pty::unlockpt(&master)?;
    let name = rustix::pty::ptsname(&master, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let terminal = rustix::fs::open(name, flags, Mode::empty())?;
    Ok((master, terminal))
}

fn check(program: &Program, child: &mut Child) -> anyhow::Result<()> {
    let status = child.wait()?;
    ensure!(
        status.success(),
        "{} exited with {status} in the baseline run, which bypasses the server",
        program.argv()[0]
    );
    Ok(())
}

fn cannot_start(program: &Program) -> String {
    format!("cannot start {}", program.argv()[0])
}
