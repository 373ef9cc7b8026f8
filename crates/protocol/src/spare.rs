//! Reuse of one large buffer. Touching fresh memory costs as much as decoding a file into it; with
//! the spare buffer, the receiver of many large files pays that cost once.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// Minimum capacity of a buffer to keep. The allocator itself reuses smaller ones.
const WORTH_KEEPING: usize = 1 << 20;

static SPARE: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Returns an empty buffer with capacity for `bytes`.
pub(crate) fn buffer(bytes: usize) -> Vec<u8> {
    let mut buffer = match bytes >= WORTH_KEEPING {
        true => std::mem::take(&mut *lock()),
        false => Vec::new(),
    };
    buffer.reserve_exact(bytes);
    buffer
}

/// Keeps the memory of `bytes` for the next large buffer, if no other reference exists.
pub fn recycle(bytes: Bytes) {
    let Ok(bytes) = bytes.try_into_mut() else { return };
    let mut buffer = Vec::from(bytes);
    if buffer.capacity() >= WORTH_KEEPING {
        buffer.clear();
        let older = std::mem::replace(&mut *lock(), buffer);
        drop(older);
    }
}

/// Returns the spare memory to the system. Called when no large message has arrived for a while.
pub fn release_spare() {
    let spare = std::mem::take(&mut *lock());
    drop(spare);
}

fn lock() -> std::sync::MutexGuard<'static, Vec<u8>> {
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_is_reused_unless_it_is_shared() {
        let mut large = buffer(2 * WORTH_KEEPING);
        large.push(7);
        let place = large.as_ptr();
        let bytes = Bytes::from(large);
        let held = bytes.clone();
        recycle(bytes);
        let other = buffer(WORTH_KEEPING);
        assert_ne!(other.as_ptr(), place);
        recycle(held);
        let again = buffer(WORTH_KEEPING);
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
    }
}
