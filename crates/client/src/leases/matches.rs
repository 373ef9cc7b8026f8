//! Search results that have not been taken yet.

use std::collections::VecDeque;

use exec_server_protocol::{Method, SearchMatch};

use super::inbox::Queue;
use crate::ExecServerError;

/// Maximum number of waiting batches from a server in the same program, which then waits for room.
const MAX_WAITING_BATCHES: usize = 4;
/// Maximum size of waiting results. A server ends a search long before that.
const MAX_WAITING_BYTES: usize = 64 << 20;

#[derive(Debug, Default)]
pub(crate) struct Matches {
    waiting: VecDeque<(usize, Vec<SearchMatch>)>,
    bytes: usize,
}

impl Matches {
    /// `text_len` is the length of the params that carried the results, as JSON text.
    pub(crate) fn add(
        &mut self,
        text_len: usize,
        results: Vec<SearchMatch>,
    ) -> Result<(), ExecServerError> {
        if self.bytes + text_len > MAX_WAITING_BYTES {
            let method = Method::FsSearch.name();
            return Err(ExecServerError::NotConsumed { method, limit: MAX_WAITING_BYTES });
        }
        if !results.is_empty() {
            self.bytes += text_len;
            self.waiting.push_back((text_len, results));
        }
        Ok(())
    }
}

impl Queue for Matches {
    type Item = Vec<SearchMatch>;

    fn pop(&mut self) -> Option<Vec<SearchMatch>> {
        let (text_len, results) = self.waiting.pop_front()?;
        self.bytes -= text_len;
        Some(results)
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn is_full(&self) -> bool {
        self.waiting.len() >= MAX_WAITING_BATCHES
    }
}
