use std::fs::OpenOptions;

use crate::Scratch;

/// A gate for a shell script: `read x < path` waits until it is opened.
#[derive(Debug)]
pub struct Gate {
    directory: Scratch,
}

impl Gate {
    #[expect(clippy::new_without_default, reason = "it makes a file")]
    #[must_use]
    pub fn new() -> Self {
        let directory = Scratch::new();
        directory.fifo("gate");
        Self { directory }
    }

    #[must_use]
    pub fn path(&self) -> String {
        self.directory.path("gate").into_os_string().into_string().unwrap()
    }

    /// Waits for a reader, and releases it.
    pub fn open(&self) {
        drop(OpenOptions::new().write(true).open(self.path()).unwrap());
    }
}
