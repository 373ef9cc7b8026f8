//! A command line that the benchmark runs both through the server and directly. All commands of the
//! benchmark are created here.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::Context as _;

/// A program that runs with an empty environment, so that it does the same through the server and
/// directly.
#[derive(Debug, Clone)]
pub(super) struct Program {
    argv: Vec<String>,
}

impl Program {
    pub(super) fn new(executable: &str) -> Self {
        Self { argv: vec![executable.to_owned()] }
    }

    pub(super) fn nothing() -> Self {
        Self::new("/bin/true")
    }

    /// Returns this executable in a hidden mode, with `mode` as the first argument.
    pub(super) fn this(mode: &str) -> anyhow::Result<Self> {
        let executable = std::env::current_exe()?;
        let executable = executable.to_str().context("the path of this program is not UTF-8")?;
        Ok(Self::new(executable).args([mode.to_owned()]))
    }

    pub(super) fn args(mut self, arguments: impl IntoIterator<Item = String>) -> Self {
        self.argv.extend(arguments);
        self
    }

    pub(super) fn argv(&self) -> &[String] {
        &self.argv
    }

    /// Returns the command that runs the program directly, without input or output.
    pub(super) fn command(&self) -> Command {
        let mut command = command(Path::new(&self.argv[0]));
        command.args(&self.argv[1..]);
        command
    }
}

/// Returns a command with an empty environment, and with /dev/null as all standard streams.
#[expect(
    clippy::disallowed_methods,
    reason = "the direct side of a comparison, and the benchmark's own servers"
)]
pub(super) fn command(executable: &Path) -> Command {
    let mut command = Command::new(executable);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[derive(Debug)]
pub(super) struct KilledOnDrop(pub(super) Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // Errors are ignored: the child may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
