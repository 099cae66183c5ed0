//! A bounded pool of buffers that streamed bodies are read into. An empty pool is back-pressure: reading waits until a buffer comes
//! back.

use crate::waker::Waker;
use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_buffers::PageBuffer;

/// Bytes of a buffer: half of the usual second-level cache, so that whoever hashes or writes it finds the data still there. With
/// half as much a receiver is 4 % slower, with twice as much no faster.
pub(crate) const BUFFER_BYTES: usize = 512 * 1024;

struct Shared {
    free: Vec<PageBuffer>,
    unmade: usize,
    starving: bool,
}

/// A pool; clones share it.
#[derive(Clone)]
pub(crate) struct Pool {
    shared: Arc<Mutex<Shared>>,
    waker: Waker,
}

impl Pool {
    pub(crate) fn new(most: usize, waker: Waker) -> Pool {
        let shared = Shared { free: Vec::new(), unmade: most.max(1), starving: false };
        Pool { shared: Arc::new(Mutex::new(shared)), waker }
    }

    /// A buffer, or `None` if all are in use: then the hub is woken when one comes back.
    pub(crate) fn take(&self) -> Option<PageBuffer> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = shared.free.pop() {
            return Some(free);
        }
        if shared.unmade == 0 {
            shared.starving = true;
            return None;
        }
        shared.unmade -= 1;
        Some(PageBuffer::zeroed(BUFFER_BYTES))
    }

    /// Gives one back.
    pub(crate) fn put(&self, free: PageBuffer) {
        let starving = {
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.free.push(free);
            std::mem::take(&mut shared.starving)
        };
        if starving {
            self.waker.wake();
        }
    }

    /// The first `length` bytes of a buffer as `Bytes` that give it back when they are dropped.
    pub(crate) fn lend(&self, buffer: PageBuffer, length: usize) -> Bytes {
        Bytes::from_owner(Lent { buffer: Some(buffer), length, pool: self.clone() })
    }
}

struct Lent {
    buffer: Option<PageBuffer>,
    length: usize,
    pool: Pool,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_deref().and_then(|buffer| buffer.get(..self.length)).unwrap_or_default()
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.pool.put(buffer);
        }
    }
}
