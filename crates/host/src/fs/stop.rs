//! How work on a tree is told that nobody waits for it any more.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::FsError;

/// One side asks, the other looks now and then; all clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// For work that goes on to its end: nobody else has it.
    #[must_use]
    pub fn never() -> Self {
        Self::new()
    }

    /// From now on, and for good.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails once it is requested. `path` is what is worked on.
    pub(super) fn check(&self, path: &Path) -> Result<(), FsError> {
        if self.is_requested() {
            return Err(Self::abandoned(path));
        }
        Ok(())
    }

    pub(super) fn abandoned(path: &Path) -> FsError {
        let why = "was abandoned: nobody waits for the result any more";
        FsError::Unsuitable { path: path.to_owned(), why }
    }
}

impl From<Arc<AtomicBool>> for Stop {
    fn from(requested: Arc<AtomicBool>) -> Self {
        Self(requested)
    }
}
