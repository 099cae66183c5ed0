//! A bounded pool of buffers for streamed bodies. An empty pool is back-pressure: reading waits until one comes back.

use crate::waker::Waker;
use bytes::Bytes;
use std::sync::{Arc, Mutex, PoisonError};

/// Octets of a buffer. Writes of 64 to 256 KiB suit ext4 best, and hashing finds the data still in the cache.
pub(crate) const BUFFER_BYTES: usize = 256 * 1024;

struct Shared {
    free: Vec<Box<[u8]>>,
    unmade: usize,
    starving: bool,
}

/// The pool; clones share it.
#[derive(Clone)]
pub(crate) struct BufferPool {
    shared: Arc<Mutex<Shared>>,
    waker: Waker,
}

impl BufferPool {
    pub(crate) fn new(buffers: usize, waker: Waker) -> BufferPool {
        let shared = Shared { free: Vec::new(), unmade: buffers.max(1), starving: false };
        BufferPool { shared: Arc::new(Mutex::new(shared)), waker }
    }

    /// A buffer, or `None` if all are in use: then the hub is woken when one comes back.
    pub(crate) fn take(&self) -> Option<Box<[u8]>> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(buffer) = shared.free.pop() {
            return Some(buffer);
        }
        if shared.unmade == 0 {
            shared.starving = true;
            return None;
        }
        shared.unmade -= 1;
        Some(vec![0; BUFFER_BYTES].into_boxed_slice())
    }

    /// Gives a buffer back.
    pub(crate) fn put(&self, buffer: Box<[u8]>) {
        let starving = {
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            shared.free.push(buffer);
            std::mem::take(&mut shared.starving)
        };
        if starving {
            self.waker.wake();
        }
    }

    /// The first `length` octets of a buffer as `Bytes` that give it back when they are dropped.
    pub(crate) fn lend(&self, buffer: Box<[u8]>, length: usize) -> Bytes {
        Bytes::from_owner(Lent { buffer: Some(buffer), length, pool: self.clone() })
    }
}

struct Lent {
    buffer: Option<Box<[u8]>>,
    length: usize,
    pool: BufferPool,
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
