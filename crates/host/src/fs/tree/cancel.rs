//! Lets a caller cancel a long file operation.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fs::error::FsError;

/// Set by the caller and checked regularly by the work. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct CancelFlag(Arc<AtomicBool>);

impl CancelFlag {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn never() -> Self {
        Self::new()
    }

    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails once cancellation is requested. `path` is the subject of the work.
    pub(in crate::fs) fn check(&self, path: &Path) -> Result<(), FsError> {
        if self.is_requested() {
            return Err(Self::abandoned(path));
        }
        Ok(())
    }

    pub(in crate::fs) fn abandoned(path: &Path) -> FsError {
        let why = "was not processed to the end: the caller no longer waits for the result";
        FsError::Unsuitable { path: path.to_owned(), why }
    }
}

impl From<Arc<AtomicBool>> for CancelFlag {
    fn from(requested: Arc<AtomicBool>) -> Self {
        Self(requested)
    }
}
