//! Scans for the current matches of a glob.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::effort::{Effort, TooMuch};
use super::pattern::Pattern;
use super::{NameKind, Names};

/// Returns matching directories and files, without symlinks and without anything below a match. An
/// unreadable directory counts as empty.
pub(super) fn existing(
    names: &impl Names,
    base: &Path,
    pattern: &Pattern,
    max_depth: usize,
    effort: &mut Effort,
) -> Result<Vec<(PathBuf, NameKind)>, TooMuch> {
    let mut matches = Vec::new();
    let mut ahead = vec![(base.to_owned(), PathBuf::new(), 0)];
    while let Some((directory, way, depth)) = ahead.pop() {
        // Names in `/proc` come and go with processes, and no process's directory can be granted.
        if depth == max_depth || directory == Path::new("/proc") {
            continue;
        }
        let max = effort.names_to_list()?;
        for (name, kind) in names.list(&directory, max).unwrap_or_default() {
            let way = way.join(&name);
            let path = directory.join(&name);
            let bytes = way.as_os_str().as_bytes();
            effort.spend(pattern.symbols(), bytes.len())?;
            let is_match = pattern.matches(bytes);
            let leads_on = pattern.may_match_below(bytes);
            match kind {
                NameKind::Directory if !is_match && leads_on => {
                    ahead.push((path, way, depth + 1));
                }
                NameKind::Directory | NameKind::File if is_match => matches.push((path, kind)),
                _ => {}
            }
        }
    }
    Ok(matches)
}
