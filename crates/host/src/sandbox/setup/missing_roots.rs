//! Creates missing writable roots before the protected names in them are covered.
//!
//! A plan covers names in a missing root only if the process itself could create the root, so this
//! grants nothing new.

use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;

use crate::sandbox::kernel::open_real::open_real;
use crate::sandbox::plan::{Cover, Mount};

const DIRECTORY: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Creates every missing directory above the path of a cover. If a directory cannot be created, the
/// cover moves up to it. The placeholder code then determines whether the process could create that
/// directory, and if so puts a placeholder there.
pub(crate) fn make(mounts: &mut [Mount]) {
    for mount in mounts {
        if let Mount::Cover(cover @ Cover { missing: true, .. }) = mount
            && let Err(Unmade { path }) = make_above(&cover.path)
        {
            cover.path = path;
        }
    }
}

struct Unmade {
    path: PathBuf,
}

fn make_above(path: &Path) -> Result<(), Unmade> {
    let mut missing = Vec::new();
    let mut parent = None;
    for above in path.ancestors().skip(1) {
        match open_real(above, DIRECTORY) {
            Ok(directory) => {
                parent = Some(directory);
                break;
            }
            Err(Errno::NOENT) => missing.push(above),
            // Later steps that need the directory report the same error.
            Err(_) => return Ok(()),
        }
    }
    let Some(mut parent) = parent else { return Ok(()) };
    for directory in missing.into_iter().rev() {
        let Some(name) = directory.file_name() else { return Ok(()) };
        match mkdirat(&parent, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(_) => return Err(Unmade { path: directory.to_owned() }),
        }
        match openat(&parent, name, DIRECTORY, Mode::empty()) {
            Ok(made) => parent = made,
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}
