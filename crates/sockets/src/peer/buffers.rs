//! A bounded pool of buffers for streamed bodies. An empty pool is back-pressure: reading waits until a buffer comes back.

use crate::waker::Waker;
use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};
use towpath_buffers::{PageBuffer, buffer_bytes};

struct Shared {
    free: Vec<PageBuffer>,
    unallocated: usize,
    is_awaited: bool,
}

/// A pool. Clones share it.
#[derive(Clone)]
pub(crate) struct Pool {
    shared: Arc<Mutex<Shared>>,
    buffer_bytes: usize,
    waker: Waker,
}

impl Pool {
    /// A pool of buffers of the size that suits the processor, together at most this large: at least one.
    pub(crate) fn new(bytes_max: usize, waker: Waker) -> Pool {
        let buffer_bytes = buffer_bytes();
        let unallocated = (bytes_max / buffer_bytes).max(1);
        tracing::debug!(buffers = unallocated, buffer_bytes, "buffers for bodies");
        let shared = Shared { free: Vec::new(), unallocated, is_awaited: false };
        Pool { shared: Arc::new(Mutex::new(shared)), buffer_bytes, waker }
    }

    /// Bytes of a full buffer.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    /// A buffer, or `None` if all are in use: then the hub is woken when one comes back.
    pub(crate) fn take_buffer(&self) -> Option<PageBuffer> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = shared.free.pop() {
            return Some(free);
        }
        if shared.unallocated == 0 {
            shared.is_awaited = true;
            return None;
        }
        shared.unallocated -= 1;
        Some(PageBuffer::zeroed(self.buffer_bytes))
    }

    /// Gives one back.
    pub(crate) fn return_buffer(&self, free: PageBuffer) {
        let is_awaited = {
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.free.push(free);
            std::mem::take(&mut shared.is_awaited)
        };
        if is_awaited {
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
            self.pool.return_buffer(buffer);
        }
    }
}
