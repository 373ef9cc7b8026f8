//! What is asked of unified exec, and what it answers.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use exec_server_client::ExecServerError;
use exec_server_protocol::{EnvPolicy, EnvironmentInfo, PathUri, SandboxRequest, StartParams};

/// A command to run.
#[derive(Debug, Clone)]
pub struct ExecCommand {
    pub line: CommandLine,
    /// The environment's own directory when left out.
    pub cwd: Option<PathUri>,
    /// On top of what `env_policy` lets through.
    pub env: BTreeMap<String, String>,
    pub env_policy: EnvPolicy,
    pub sandbox: Option<SandboxRequest>,
    /// A terminal, which can be written to. Without one the standard input is empty.
    pub tty: bool,
    /// How long to wait for the end before the answer says that it still runs.
    pub yield_time: Duration,
    /// The most that the answer shows, in bytes.
    pub max_output: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandLine {
    Argv(Vec<String>),
    /// For the shell of the environment.
    Shell(String),
}

/// Names a command in later calls. Small, and never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessHandleId(pub u64);

/// What is known when a call returns.
#[derive(Debug, Clone)]
pub struct ExecCommandOutput {
    /// What was written since the last call, as text, with a line in place of what is left out.
    pub output: String,
    /// Exactly how much is left out.
    pub omitted_bytes: u64,
    /// How long this call took.
    pub wall_time: Duration,
    /// There once the command has ended.
    pub exit_code: Option<i32>,
    /// There while it runs.
    pub running_id: Option<ProcessHandleId>,
}

/// Why a call was not carried out.
#[derive(Debug, Clone, thiserror::Error)]
pub enum UnifiedExecError {
    #[error("no process {id} is known; {}", KnownHandles(.known))]
    UnknownProcess { id: ProcessHandleId, known: Vec<ProcessHandleId> },
    #[error("process {id} takes no input; start the command with a terminal to write to it")]
    NoInput { id: ProcessHandleId },
    #[error("process {id} does not read its input; a part of it may have been written")]
    InputNotRead { id: ProcessHandleId },
    #[error("all {max} places for processes are taken by commands that are just being started")]
    TooManyStarts { max: usize },
    /// The environment did not do it, or lost the process.
    #[error(transparent)]
    Environment(#[from] ExecServerError),
}

impl ExecCommand {
    /// With ten seconds to end and 64 KiB to show.
    #[must_use]
    pub fn new(line: CommandLine) -> Self {
        Self {
            line,
            cwd: None,
            env: BTreeMap::new(),
            env_policy: EnvPolicy::default(),
            sandbox: None,
            tty: false,
            yield_time: Duration::from_secs(10),
            max_output: 64 << 10,
        }
    }

    #[must_use]
    pub fn shell(script: impl Into<String>) -> Self {
        Self::new(CommandLine::Shell(script.into()))
    }

    #[must_use]
    pub fn argv(argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::new(CommandLine::Argv(argv.into_iter().map(Into::into).collect()))
    }

    pub(super) fn into_start(self, process_id: String, info: &EnvironmentInfo) -> StartParams {
        let argv = match self.line {
            CommandLine::Argv(argv) => argv,
            CommandLine::Shell(script) => vec![info.shell.path.clone(), "-c".to_owned(), script],
        };
        let cwd = self.cwd.unwrap_or_else(|| info.cwd.clone());
        StartParams {
            env: self.env,
            env_policy: Some(self.env_policy),
            sandbox: self.sandbox,
            tty: self.tty,
            // A command that reads must find the end of its input, not wait for somebody who does not know.
            pipe_stdin: false,
            ..StartParams::new(process_id, argv, cwd)
        }
    }
}

impl fmt::Display for ProcessHandleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

struct KnownHandles<'a>(&'a [ProcessHandleId]);

impl fmt::Display for KnownHandles<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, rest)) = self.0.split_first() else { return f.write_str("there is none") };
        write!(f, "known are {first}")?;
        rest.iter().try_for_each(|id| write!(f, ", {id}"))
    }
}
