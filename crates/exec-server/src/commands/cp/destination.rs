//! Determines the destination of a source by the rules of cp(1).

use std::ffi::OsStr;

use exec_server_protocol::{FsMetadata, PathUri};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Destination {
    /// Into this existing directory.
    Into(PathUri),
    /// Over an existing name that is not a directory.
    Over(PathUri),
    /// Under a new name.
    As {
        path: PathUri,
        /// Whether the path ends with a slash.
        is_for_directories: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum DestinationError {
    #[error("is not a directory, so only one source can be copied there")]
    SeveralSources,
    #[error("does not exist; create the directory first, or copy only one source")]
    MissingForSeveral,
    #[error("is not a directory; omit the slash")]
    NotADirectory,
    #[error("is not a directory, and cannot be replaced by a directory")]
    File,
    #[error("does not exist; create the directory first, or omit the slash")]
    Missing,
}

impl Destination {
    /// Classifies the destination `path`. `found` describes the file or directory there.
    pub(super) fn of(
        path: PathUri,
        has_slash: bool,
        found: Option<&FsMetadata>,
        sources: usize,
    ) -> Result<Self, DestinationError> {
        match found {
            Some(found) if found.is_directory => Ok(Self::Into(path)),
            Some(_) if sources > 1 => Err(DestinationError::SeveralSources),
            None if sources > 1 => Err(DestinationError::MissingForSeveral),
            Some(_) if has_slash => Err(DestinationError::NotADirectory),
            Some(_) => Ok(Self::Over(path)),
            None => Ok(Self::As { path, is_for_directories: has_slash }),
        }
    }

    /// Returns the path of the copy of a source. A source without a name, such as `.`, stands for
    /// its content.
    pub(super) fn path_of(
        &self,
        name: Option<&OsStr>,
        is_directory: bool,
    ) -> Result<PathUri, DestinationError> {
        match self {
            Self::Into(directory) => Ok(match name {
                Some(name) => {
                    let path = directory.as_path().join(name);
                    PathUri::from_path(path).expect("a name below an absolute path")
                }
                None => directory.clone(),
            }),
            Self::Over(_) if is_directory => Err(DestinationError::File),
            Self::As { is_for_directories: true, .. } if !is_directory => {
                Err(DestinationError::Missing)
            }
            Self::Over(path) | Self::As { path, .. } => Ok(path.clone()),
        }
    }

    pub(super) fn path(&self) -> &PathUri {
        match self {
            Self::Into(path) | Self::Over(path) | Self::As { path, .. } => path,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: bool = true;
    const FILE: bool = false;

    fn found(is_directory: bool) -> FsMetadata {
        FsMetadata {
            is_directory,
            is_file: !is_directory,
            is_symlink: false,
            size: 0,
            created_at_ms: 0,
            modified_at_ms: 0,
            mode: None,
            special: None,
        }
    }

    /// `source` is named `x`, and the destination is `/d`.
    fn path(
        there: Option<bool>,
        has_slash: bool,
        source: bool,
    ) -> Result<String, DestinationError> {
        let there = there.map(found);
        let destination = Destination::of("/d".parse().unwrap(), has_slash, there.as_ref(), 1)?;
        let path = destination.path_of(Some(OsStr::new("x")), source)?;
        Ok(path.as_path().display().to_string())
    }

    #[test]
    fn sources_are_copied_into_a_directory() {
        for has_slash in [false, true] {
            for source in [DIRECTORY, FILE] {
                assert_eq!(path(Some(DIRECTORY), has_slash, source).unwrap(), "/d/x");
            }
        }
        let into = Destination::Into("/d".parse().unwrap());
        assert_eq!(into.path_of(None, DIRECTORY), Ok("/d".parse().unwrap()));
        for (there, error) in [
            (None, DestinationError::MissingForSeveral),
            (Some(found(FILE)), DestinationError::SeveralSources),
        ] {
            let several = Destination::of("/d".parse().unwrap(), false, there.as_ref(), 2);
            assert_eq!(several, Err(error));
        }
    }

    #[test]
    fn a_destination_that_is_not_a_directory_is_the_name_of_the_copy() {
        assert_eq!(path(None, false, FILE).unwrap(), "/d");
        assert_eq!(path(None, false, DIRECTORY).unwrap(), "/d");
        assert_eq!(path(None, true, DIRECTORY).unwrap(), "/d");
        assert_eq!(path(None, true, FILE), Err(DestinationError::Missing));
        assert_eq!(path(Some(FILE), false, FILE).unwrap(), "/d");
        assert_eq!(path(Some(FILE), true, FILE), Err(DestinationError::NotADirectory));
        assert_eq!(path(Some(FILE), false, DIRECTORY), Err(DestinationError::File));
    }
}
