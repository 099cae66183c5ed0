//! Bounded pools of what streamed bodies are read into: buffers, and pipes of the kernel. An empty pool is back-pressure: reading
//! waits until something comes back.

use crate::options::HubOptions;
use crate::pipe::{Pipe, Piped};
use crate::waker::Waker;
use bytes::Bytes;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Octets of a buffer: half of the usual second-level cache, so that whoever hashes or writes it finds the data still there. With
/// half as much a receiver is 4 % slower, with twice as much no faster.
pub(crate) const BUFFER_BYTES: usize = 512 * 1024;

/// A buffer.
pub(crate) type Buffer = Box<[u8]>;

/// Both pools of a hub.
pub(crate) struct Pools {
    pub(crate) buffers: Pool<Buffer>,
    pub(crate) pipes: Pool<Pipe>,
    /// Bodies over this go through pipes.
    pub(crate) pipe_over_bytes: Option<u64>,
}

impl Pools {
    pub(crate) fn new(options: &HubOptions, waker: &Waker) -> Pools {
        let buffer = || Ok(vec![0; BUFFER_BYTES].into_boxed_slice());
        Pools {
            buffers: Pool::new(options.body_buffers, buffer, waker.clone()),
            pipes: Pool::new(options.body_pipes, Pipe::new, waker.clone()),
            pipe_over_bytes: options.pipe_over_bytes,
        }
    }
}

struct Shared<T> {
    free: Vec<T>,
    unmade: usize,
    starving: bool,
}

/// A pool; clones share it.
pub(crate) struct Pool<T> {
    shared: Arc<Mutex<Shared<T>>>,
    make: fn() -> io::Result<T>,
    waker: Waker,
}

impl<T> Clone for Pool<T> {
    fn clone(&self) -> Self {
        Pool { shared: Arc::clone(&self.shared), make: self.make, waker: self.waker.clone() }
    }
}

impl<T> Pool<T> {
    fn new(most: usize, make: fn() -> io::Result<T>, waker: Waker) -> Pool<T> {
        let shared = Shared { free: Vec::new(), unmade: most.max(1), starving: false };
        Pool { shared: Arc::new(Mutex::new(shared)), make, waker }
    }

    /// One of them, or `None` if all are in use: then the hub is woken when one comes back. An error if one more can't be made.
    pub(crate) fn take(&self) -> io::Result<Option<T>> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(free) = shared.free.pop() {
            return Ok(Some(free));
        }
        if shared.unmade == 0 {
            shared.starving = true;
            return Ok(None);
        }
        let made = (self.make)()?;
        shared.unmade -= 1;
        Ok(Some(made))
    }

    /// Gives one back.
    pub(crate) fn put(&self, free: T) {
        self.returned(Some(free));
    }

    /// One that was taken won't come back: another may be made.
    pub(crate) fn lost(&self) {
        self.returned(None);
    }

    fn returned(&self, free: Option<T>) {
        let starving = {
            let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
            match free {
                Some(free) => shared.free.push(free),
                None => shared.unmade += 1,
            }
            std::mem::take(&mut shared.starving)
        };
        if starving {
            self.waker.wake();
        }
    }
}

impl Pool<Buffer> {
    /// The first `length` octets of a buffer as `Bytes` that give it back when they are dropped.
    pub(crate) fn lend(&self, buffer: Buffer, length: usize) -> Bytes {
        Bytes::from_owner(Lent { buffer: Some(buffer), length, pool: self.clone() })
    }
}

impl Pool<Pipe> {
    /// What is in a pipe, which comes back when that has been taken out.
    pub(crate) fn lend(&self, pipe: Pipe, length: usize) -> Piped {
        Piped::new(pipe, length, self.clone())
    }
}

struct Lent {
    buffer: Option<Buffer>,
    length: usize,
    pool: Pool<Buffer>,
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
