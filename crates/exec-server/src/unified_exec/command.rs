//! The parameters and results of unified exec.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use exec_server_client::ExecServerError;
use exec_server_protocol::{EnvPolicy, EnvironmentInfo, PathUri, SandboxRequest, StartParams};

/// A command to run.
#[derive(Debug, Clone)]
pub struct ExecCommand {
    pub line: CommandLine,
    /// Default: the environment's working directory.
    pub cwd: Option<PathUri>,
    /// Added to the variables that `env_policy` passes.
    pub env: BTreeMap<String, String>,
    pub env_policy: EnvPolicy,
    pub sandbox: Option<SandboxRequest>,
    /// Whether to use a terminal, which accepts input. Without one, standard input is empty.
    pub tty: bool,
    /// How long the call waits for the command to end, clamped to the range of
    /// [`UnifiedExecLimits`](super::UnifiedExecLimits). After that the call returns, and the
    /// command continues.
    pub yield_time: Duration,
    /// The maximum size of the returned output, in bytes, without the line that replaces omitted
    /// bytes.
    pub max_output: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CommandLine {
    Argv(Vec<String>),
    /// Run by the environment's shell.
    Shell(String),
}

/// Identifies a command in later calls. Small, and never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessHandleId(pub u64);

/// The state of a command when a call returns.
#[derive(Debug, Clone)]
pub struct ExecCommandOutput {
    /// The output since the last call, as text, with a line in place of omitted bytes.
    pub output: String,
    /// The exact number of omitted bytes.
    pub omitted_bytes: u64,
    /// The duration of this call.
    pub wall_time: Duration,
    /// Set once the command has ended.
    pub exit_code: Option<i32>,
    /// Set while the command runs.
    pub running_id: Option<ProcessHandleId>,
}

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum UnifiedExecError {
    #[error("unknown process {id}; {}", KnownHandles(.known))]
    UnknownProcess { id: ProcessHandleId, known: Vec<ProcessHandleId> },
    #[error("process {id} takes no input; start the command with a terminal to write to it")]
    NoInput { id: ProcessHandleId },
    #[error("process {id} takes no more input: its terminal is closed")]
    InputClosed { id: ProcessHandleId },
    #[error(
        "process {id} did not accept all input within the yield time; a part may have been written"
    )]
    InputNotRead { id: ProcessHandleId },
    #[error("{max} commands are already being started; wait for one of them")]
    TooManyStarts { max: usize },
    /// The environment cannot be reached, refused the call, or lost the process.
    #[error(transparent)]
    Environment(#[from] ExecServerError),
}

impl ExecCommand {
    /// Creates a command with a yield time of ten seconds and at most 64 KiB of output.
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
            // Without a terminal, a command that reads its input gets end of file, instead of
            // waiting forever for input.
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
        let Some((first, rest)) = self.0.split_first() else {
            return f.write_str("no process is known");
        };
        write!(f, "known processes: {first}")?;
        rest.iter().try_for_each(|id| write!(f, ", {id}"))
    }
}
