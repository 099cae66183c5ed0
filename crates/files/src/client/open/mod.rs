//! Reads a file of a server in parts, without storing it.
//!
//! `reading` decides. A thread drives it with its connection; the reader takes verified leaves from it.

mod known;
mod reading;
mod whole;

use super::connection::Connection;
use super::exchange::{Connector, Exchange, Operation, Turn, WaitLimit};
use super::stream::Worker;
use crate::digest::Digest;
use crate::error::Error;
use crate::path::RelPath;
use crate::protocol::assembler::Inbound;
use crate::root::Timestamp;
use crate::transfer::WINDOW_BYTES_FIRST;
use crate::transfer::reconnects::Reconnects;
pub use known::KnownFile;
pub(super) use known::{leaves, look_up, read};
use reading::{Info, Reading};
use std::fmt;
use std::io::{self, BufRead, Read, Seek, SeekFrom};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use towpath_blocking::CancelToken;
use towpath_sockets::Waker;
pub use whole::EachFile;
pub(super) use whole::read_whole;

/// A file of a server, as a reader: [`Read`], [`BufRead`] and [`Seek`].
///
/// Every byte is verified: leaves of 1 MiB (larger ones in files over 1 TiB) are fetched as a whole and compared with values that merge to the
/// file's digest. After a seek the leaf at that place is fetched alone; the further one reads on from there, the more is fetched ahead, 8 MiB
/// at most. Beside these, 32 bytes are held for each leaf.
///
/// A lost connection is made again. If the file changes on the server, reading fails with [`ErrorCode::Changed`](crate::protocol::ErrorCode).
/// The errors of the methods have an [`Error`] as their source. After an error, open the file again.
pub struct RemoteFile {
    shared: Arc<Shared>,
    info: Info,
    waker: Waker,
    _worker: Worker<()>,
    position: u64,
    /// The leaf that was read last, and its offset.
    leaf: Vec<u8>,
    leaf_offset: u64,
}

/// State shared by the thread and the reader.
struct Shared {
    state: Mutex<State>,
    /// The state has changed for the reader.
    changed: Condvar,
}

struct State {
    reading: Reading,
    /// Why the thread has ended.
    ended: Option<Error>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of the thread is no reason for another one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is something, or the thread has ended.
    fn wait<T>(&self, mut look: impl FnMut(&mut Reading) -> Option<T>) -> Result<T, Error> {
        let mut state = self.lock();
        loop {
            if let Some(found) = look(&mut state.reading) {
                return Ok(found);
            }
            if let Some(error) = &state.ended {
                return Err(error.clone());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Ends the wait of the reader, however the thread ends.
struct EndGuard(Arc<Shared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.lock().ended.get_or_insert(Error::Local("the thread that reads has ended".to_owned()));
        self.0.changed.notify_all();
    }
}

impl RemoteFile {
    pub(super) fn open(connector: &Connector, path: &RelPath, cancel: CancelToken) -> Result<Self, Error> {
        let reading = Reading::new(path.clone(), WINDOW_BYTES_FIRST);
        let state = Mutex::new(State { reading, ended: None });
        let shared = Arc::new(Shared { state, changed: Condvar::new() });
        let exchange = connector.exchange(&cancel)?;
        let waker = exchange.waker();
        let end = EndGuard(Arc::clone(&shared));
        let worker = Worker::start(cancel, move |_| run(exchange, &end))?;
        let info = shared.wait(|reading| reading.info())?;
        Ok(RemoteFile { shared, info, waker, _worker: worker, position: 0, leaf: Vec::new(), leaf_offset: 0 })
    }

    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.info.size
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.info.size == 0
    }

    /// The BLAKE3 digest of the whole file.
    pub fn digest(&self) -> Digest {
        self.info.digest
    }

    /// Time of the last change of its content.
    pub fn modified(&self) -> Timestamp {
        self.info.modified
    }

    /// The part of the leaf at the position that is here.
    fn here(&self) -> &[u8] {
        let skipped = self.position.checked_sub(self.leaf_offset).and_then(|skipped| usize::try_from(skipped).ok());
        skipped.and_then(|skipped| self.leaf.get(skipped..)).unwrap_or_default()
    }
}

impl BufRead for RemoteFile {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.here().is_empty() && self.position < self.info.size {
            let leaf = self.info.leaves.index_at(self.position);
            let found = self.shared.lock().reading.take(leaf);
            // The thread has space again, or another place to read at.
            self.waker.wake();
            self.leaf = match found {
                Some(found) => found,
                None => {
                    let found = self.shared.wait(|reading| reading.take(leaf))?;
                    self.waker.wake();
                    found
                }
            };
            self.leaf_offset = leaf * self.info.leaves.leaf_bytes();
        }
        Ok(self.here())
    }

    fn consume(&mut self, count: usize) {
        self.position += count as u64;
    }
}

impl Read for RemoteFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(into)?;
        self.consume(count);
        Ok(count)
    }
}

impl Seek for RemoteFile {
    /// Fetches nothing.
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
            SeekFrom::End(offset) => self.info.size.checked_add_signed(offset),
        };
        self.position =
            position.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a seek before the file"))?;
        Ok(self.position)
    }
}

impl fmt::Debug for RemoteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteFile").field("info", &self.info).field("position", &self.position).finish_non_exhaustive()
    }
}

fn run(mut exchange: Exchange, end: &EndGuard) {
    let mut driver = Driver { shared: &end.0, is_connected: false, reconnects: Reconnects::default() };
    let Err(error) = exchange.run(&mut driver);
    end.0.lock().ended = Some(error);
    end.0.changed.notify_all();
    exchange.close();
}

struct Driver<'a> {
    shared: &'a Shared,
    is_connected: bool,
    reconnects: Reconnects,
}

impl Driver<'_> {
    fn send(&self, connection: &mut Connection, now: Instant) {
        while self.is_connected
            && let Some(request) = self.shared.lock().reading.next_request(now)
        {
            connection.send(&request);
        }
    }
}

impl Operation for Driver<'_> {
    /// Ends only by an error.
    type Outcome = std::convert::Infallible;

    fn turn(&mut self, connection: &mut Connection, now: Instant) -> Result<Turn<Self::Outcome>, Error> {
        self.send(connection, now);
        let retry_at = self.shared.lock().reading.retry_at();
        Ok(Turn::Wait(retry_at.map_or(Duration::MAX, |at| at.saturating_duration_since(now))))
    }

    fn connected(&mut self, connection: &mut Connection, now: Instant) -> Result<(), Error> {
        self.is_connected = true;
        self.shared.lock().reading.connected();
        self.send(connection, now);
        Ok(())
    }

    fn lost(&mut self, _reason: &str) -> Result<bool, Error> {
        self.is_connected = false;
        let mut state = self.shared.lock();
        state.reading.lost();
        match self.reconnects.lost_at(state.reading.received()) {
            Some(times) => Err(Error::Breaking { times }),
            None => Ok(true),
        }
    }

    fn inbound(&mut self, inbound: Inbound, connection: &mut Connection, now: Instant) -> Result<bool, Error> {
        let is_progress = self.shared.lock().reading.inbound(inbound, now)?;
        self.shared.changed.notify_all();
        self.send(connection, now);
        Ok(is_progress)
    }

    fn wait_limit(&self) -> WaitLimit {
        let state = self.shared.lock();
        match state.reading.info() {
            // It may have to be hashed.
            None => WaitLimit::WhileAlive,
            Some(_) if state.reading.is_waiting() => WaitLimit::Extra(Duration::ZERO),
            // Until the reader goes on.
            Some(_) => WaitLimit::Unlimited,
        }
    }

    fn failed(&mut self, error: Error) -> Result<(), Error> {
        Err(self.shared.lock().reading.stalled(error))
    }
}
