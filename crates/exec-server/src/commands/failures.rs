//! Errors of a command that works on several files: one line per file, and a common exit code.

use std::path::Path;

use super::wording::one_line;
use crate::program::exit_code::ExitStatus;
use crate::program::say;
use crate::terminal::escaped;

#[derive(Debug, Default)]
pub(super) struct Failures {
    any: bool,
}

impl Failures {
    pub(super) fn tell(&mut self, path: impl AsRef<Path>, error: &anyhow::Error) {
        self.any = true;
        say(&line(path, error));
    }

    pub(super) fn status(&self) -> ExitStatus {
        if self.any { ExitStatus::FAILURE } else { ExitStatus::SUCCESS }
    }
}

/// Formats an error with the path as the user wrote it. Servers include absolute paths in their
/// errors; those are not repeated.
pub(super) fn line(path: impl AsRef<Path>, error: &anyhow::Error) -> String {
    let (path, cause) = (escaped(path), one_line(error));
    let is_named = path.starts_with('/') && cause.contains(&path);
    // Two colons in a row would look like a typo in the program.
    let path = if path.ends_with(':') { format!("'{path}'") } else { path };
    if is_named || path.is_empty() { cause } else { format!("{path}: {cause}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_appears_only_once() {
        let error = anyhow::anyhow!("cannot open /a/b: no");
        assert_eq!(line("/a/b", &error), "cannot open /a/b: no");
        assert_eq!(line("box:/a/b", &error), "box:/a/b: cannot open /a/b: no");
        assert_eq!(line("box:", &anyhow::anyhow!("no")), "'box:': no");
        assert_eq!(line("a", &anyhow::anyhow!("is a directory")), "a: is a directory");
    }
}
