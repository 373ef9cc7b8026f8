//! One large buffer that is used again. Memory that is fresh from the system costs as much to touch as a file costs to
//! decode; whoever writes files of many megabytes pays it once.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// Smaller ones come from the allocator, which keeps them itself.
const WORTH_KEEPING: usize = 1 << 20;

static SPARE: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// An empty buffer for so many bytes.
pub(crate) fn buffer(bytes: usize) -> Vec<u8> {
    let mut buffer = match bytes >= WORTH_KEEPING {
        true => std::mem::take(&mut *lock()),
        false => Vec::new(),
    };
    buffer.reserve_exact(bytes);
    buffer
}

/// Keeps the memory of bytes that nobody else has, for the next who needs much.
pub fn recycle(bytes: Bytes) {
    let Ok(bytes) = bytes.try_into_mut() else { return };
    let mut buffer = Vec::from(bytes);
    if buffer.capacity() >= WORTH_KEEPING {
        buffer.clear();
        let older = std::mem::replace(&mut *lock(), buffer);
        drop(older);
    }
}

/// Gives it back to the system: nothing large has come for a while.
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
    fn a_large_buffer_is_used_again_unless_somebody_has_it() {
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
