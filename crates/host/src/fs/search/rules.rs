//! Ignore files: `.ignore`, `.gitignore` and `.git/info/exclude`, in this order of precedence, the
//! nearest directory first. Git's global ignore file is not read: it would be that of the user who
//! runs the server.
//!
//! The syntax is that of crate `ignore`. Its walker is not used, because it opens ignore files of
//! any kind and reads all of them: a FIFO named `.ignore` would block a thread forever, and a link
//! to `/dev/zero` would exhaust memory.

use std::ffi::CStr;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::io::Errno;

use super::visible::{Obstacle, open_regular};
use crate::fs::confinement::RequiredAccess;
use crate::fs::path::resolve::{self, Symlinks};

/// Size limit on one ignore file, far above realistic sizes. Compiling this much may take 100 MiB
/// and a fifth of a second.
pub(super) const MAX_FILE_BYTES: usize = 64 << 10;
/// Size limit on all ignore files in force at one place.
pub(super) const MAX_BYTES: usize = 4 * MAX_FILE_BYTES;

/// The rules of one directory. They apply below it.
#[derive(Debug)]
pub(super) struct Rules {
    matcher: Gitignore,
    bytes: usize,
}

/// The name of an unusable ignore file, and the reason.
type Bad = (&'static str, Obstacle);

impl Rules {
    pub(super) fn none() -> Self {
        Self { matcher: Gitignore::empty(), bytes: 0 }
    }

    /// Reads the rules of a directory. `has` tells which names the directory has, so directories
    /// without ignore files take no system calls. `others` are already in force and count towards
    /// the size limit.
    pub(super) fn of<'a>(
        directory: BorrowedFd<'_>,
        path: &Path,
        has: impl Fn(&CStr) -> bool,
        others: impl Iterator<Item = &'a Self>,
    ) -> (Self, Vec<Bad>) {
        let mut reading = Reading {
            builder: GitignoreBuilder::new(path),
            bytes: 0,
            room: MAX_BYTES.saturating_sub(others.map(|rules| rules.bytes).sum()),
            bad: Vec::new(),
        };
        // In ascending precedence: the last matching rule wins.
        if has(c".git")
            && let Ok(info) =
                resolve::directory_below(directory, Path::new(".git/info"), Symlinks::Refuse)
        {
            reading.add(info.as_fd(), c"exclude", ".git/info/exclude");
        }
        if has(c".gitignore") {
            reading.add(directory, c".gitignore", ".gitignore");
        }
        if has(c".ignore") {
            reading.add(directory, c".ignore", ".ignore");
        }
        reading.finish()
    }

    /// Whether to ignore the path. `None` if no rule matches.
    pub(super) fn judge(&self, path: &Path, is_directory: bool) -> Option<bool> {
        match self.matcher.matched(path, is_directory) {
            Match::None => None,
            Match::Ignore(_) => Some(true),
            Match::Whitelist(_) => Some(false),
        }
    }
}

/// Returns the rules of the directories above `root`, nearest first, up to the top of its
/// repository. Outside a repository, the rules of parent directories do not apply.
pub(super) fn above(root: &Path) -> Vec<Rules> {
    let is_top =
        |directory: &Path| resolve::own_node(&directory.join(".git"), RequiredAccess::Read).is_ok();
    let Some(top) = root.ancestors().find(|directory| is_top(directory)) else {
        return Vec::new();
    };
    let mut above: Vec<Rules> = Vec::new();
    for path in root.ancestors().skip(1).take_while(|directory| directory.starts_with(top)) {
        if let Ok(directory) = resolve::directory(path, Symlinks::Refuse) {
            let (rules, _) = Rules::of(directory.as_fd(), path, |_| true, above.iter());
            above.push(rules);
        }
    }
    above
}

struct Reading {
    builder: GitignoreBuilder,
    bytes: usize,
    room: usize,
    bad: Vec<Bad>,
}

impl Reading {
    /// Skips invalid lines, as git does.
    fn add(&mut self, directory: BorrowedFd<'_>, name: &CStr, shown: &'static str) {
        match read(directory, name, self.room.min(MAX_FILE_BYTES)) {
            Ok(text) => {
                self.room = self.room.saturating_sub(text.len());
                self.bytes += text.len();
                for line in text.trim_start_matches('\u{feff}').lines() {
                    let _ = self.builder.add_line(None, line);
                }
            }
            Err(Obstacle::Os(Errno::NOENT)) => {}
            Err(obstacle) => self.bad.push((shown, obstacle)),
        }
    }

    fn finish(mut self) -> (Rules, Vec<Bad>) {
        match self.builder.build() {
            Ok(matcher) => (Rules { matcher, bytes: self.bytes }, self.bad),
            Err(_) => {
                self.bad.push((".gitignore", Obstacle::TooManyRules));
                (Rules::none(), self.bad)
            }
        }
    }
}

fn read(directory: BorrowedFd<'_>, name: &CStr, max: usize) -> Result<String, Obstacle> {
    // Like git, follows no symlinks here.
    let Some(file) = open_regular(directory, name)? else {
        return Ok(String::new());
    };
    let mut bytes = Vec::new();
    File::from(file)
        .take(max as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    if bytes.len() > max {
        return Err(Obstacle::TooManyRules);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
