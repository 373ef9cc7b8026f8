//! A terminal: tests press keys and read the screen.

use std::ffi::OsStr;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::program::{PROGRAM, command, run_command};
use super::{Server, eventually};

/// After this time, a key is pressed again.
const PRESSED_AGAIN: Duration = Duration::from_secs(5);

/// A shell in a window of a separate tmux server.
pub(crate) struct Tmux {
    directory: TempDir,
}

impl Tmux {
    /// Starts a shell that finds the program as `$X`, and the server as its user's commands do.
    pub(crate) fn start(server: &Server) -> Self {
        Self::start_with("XDG_RUNTIME_DIR", server.runtime_directory())
    }

    /// Starts a shell that finds the program as `$X` and has one more variable.
    pub(crate) fn start_with(name: &str, value: impl AsRef<OsStr>) -> Self {
        let tmux = Self { directory: tempfile::tempdir().unwrap() };
        let mut start =
            tmux.command(&["-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "30"]);
        start
            .arg("exec env PS1='outer> ' bash --norc --noprofile")
            .env("X", PROGRAM)
            .env(name, value);
        let started = run_command(start);
        assert_eq!(started.code, Some(0), "tmux cannot open a session: {}", started.stderr);
        tmux.wait_for("outer>");
        tmux
    }

    pub(crate) fn line(&self, text: &str) {
        self.keys(&["-l", text]);
        self.keys(&["Enter"]);
    }

    /// Presses keys, named as in `tmux send-keys`.
    pub(crate) fn keys(&self, keys: &[&str]) {
        self.run(&[&["send-keys"], keys].concat());
    }

    pub(crate) fn resize(&self, cols: u16, rows: u16) {
        self.run(&["resize-window", "-x", &cols.to_string(), "-y", &rows.to_string()]);
    }

    /// Waits until this text is on the screen or in the scrollback.
    pub(crate) fn wait_for(&self, text: &str) {
        let shown = std::panic::catch_unwind(|| {
            eventually(&format!("{text:?} is on the screen"), || self.screen().contains(text));
        });
        assert!(shown.is_ok(), "the screen shows:\n{}", self.screen());
    }

    /// Presses a key repeatedly until this text is on the screen: a busy program may drop keys.
    pub(crate) fn press_until(&self, key: &str, text: &str) {
        let mut pressed: Option<Instant> = None;
        let shown = std::panic::catch_unwind(move || {
            eventually(&format!("{text:?} is on the screen after {key}"), || {
                if pressed.is_none_or(|pressed| pressed.elapsed() > PRESSED_AGAIN) {
                    self.keys(&[key]);
                    pressed = Some(Instant::now());
                }
                self.screen().contains(text)
            });
        });
        assert!(shown.is_ok(), "the screen shows:\n{}", self.screen());
    }

    pub(crate) fn screen(&self) -> String {
        self.run(&["capture-pane", "-p", "-S", "-"])
    }

    pub(crate) fn coloured_screen(&self) -> String {
        self.run(&["capture-pane", "-p", "-e", "-S", "-"])
    }

    fn run(&self, arguments: &[&str]) -> String {
        let outcome = run_command(self.command(arguments));
        assert_eq!(outcome.code, Some(0), "{arguments:?}: {}", outcome.stderr);
        outcome.stdout
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut tmux = command("tmux");
        tmux.arg("-S").arg(self.directory.path().join("socket")).args(arguments);
        // The terminal that runs the tests must not affect them.
        tmux.env_remove("TMUX").env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
        tmux
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = run_command(self.command(&["kill-server"]));
    }
}
