//! The location of a configuration file: a named file, or the user's default one.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Named(PathBuf),
    Customary(PathBuf),
}

impl Location {
    /// Returns the named file, or else the default file of this name.
    pub(crate) fn new(
        named: Option<PathBuf>,
        name: &str,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Option<Self> {
        if let Some(path) = named {
            return Some(Self::Named(path));
        }
        // The XDG specification requires programs to ignore relative paths.
        let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let directory = absolute("XDG_CONFIG_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".config")))?;
        Some(Self::Customary(directory.join("exec-server").join(name)))
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Named(path) | Self::Customary(path) => path,
        }
    }

    /// Only the default file may be missing.
    pub(crate) fn read(&self) -> io::Result<Option<String>> {
        use io::ErrorKind::{NotADirectory, NotFound};
        match std::fs::read_to_string(self.path()) {
            Err(error)
                if matches!(self, Self::Customary(_))
                    && matches!(error.kind(), NotFound | NotADirectory) =>
            {
                Ok(None)
            }
            read => read.map(Some),
        }
    }
}
