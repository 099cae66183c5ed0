//! Versions of files, read by ranges on the callers' threads.

use super::reading::{Info, Reading, leaves_announced};
use crate::client::connection::Connection;
use crate::client::exchange::{Connector, Operation, Turn, WaitLimit};
use crate::digest::{Digest, Digested, Leaf, LeafSize};
use crate::error::Error;
use crate::limits::{CHUNK_BYTES_DEFAULT, FETCH_FILES_MAX};
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::{
    DigestReply, DigestWish, ErrorReply, FetchFile, FetchRequest, FileAnswer, FileMetadata, FilesReply, Reply, Request,
};
use crate::root::Timestamp;
use crate::transfer::reconnects::Reconnects;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use towpath_blocking::CancelToken;

/// The number of the only request on a connection.
const ID: u32 = 1;
/// How long values of leaves are waited for. The server may have to hash the file again, and goes on when it is asked again.
const LEAVES_TIME: Duration = Duration::from_secs(20);

/// A version of a file of a server, from [`FileClient::look_up`](crate::client::FileClient::look_up). Clones share the values of its leaves: 32
/// bytes for each MiB of a file that was read.
#[derive(Clone, Debug)]
pub struct KnownFile {
    path: RelPath,
    pub(super) info: Info,
    mode: u32,
    digested: Arc<Mutex<Option<Arc<Digested>>>>,
}

impl KnownFile {
    fn new(path: &RelPath, of: &FileMetadata, (digest, leaf_bytes): (Digest, u64)) -> Result<KnownFile, Error> {
        let leaves = leaves_announced(leaf_bytes, of.size)?;
        let info = Info { size: of.size, modified: of.mtime, digest, leaves };
        Ok(KnownFile { path: path.clone(), info, mode: of.mode, digested: Arc::default() })
    }

    /// Its path on the server.
    pub fn path(&self) -> &RelPath {
        &self.path
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.info.size
    }

    /// Time of the last change of its content.
    pub fn modified(&self) -> Timestamp {
        self.info.modified
    }

    /// Permission bits.
    pub fn mode(&self) -> u32 {
        self.mode
    }

    /// The BLAKE3 digest of the whole file.
    pub fn digest(&self) -> Digest {
        self.info.digest
    }

    /// Whether it is the same version of the same file.
    pub fn is_same(&self, other: &KnownFile) -> bool {
        (&self.path, self.info, self.mode) == (&other.path, other.info, other.mode)
    }

    /// Bytes of memory of the values of its leaves, once it was read.
    pub fn leaves_bytes(&self) -> u64 {
        self.info.leaves.count() * size_of::<Leaf>() as u64
    }
}

pub(in crate::client) fn look_up(
    connector: &Connector,
    paths: &[RelPath],
    limit: Duration,
    cancel: &CancelToken,
) -> Result<Vec<Option<Result<KnownFile, Error>>>, Error> {
    if paths.is_empty() || paths.len() > FETCH_FILES_MAX {
        return Err(Error::Local(format!("{} files at a time; 1 to {FETCH_FILES_MAX} can be asked for", paths.len())));
    }
    let (ends, began) = (Instant::now() + limit, vec![None; paths.len()]);
    let found = paths.iter().map(|_| None).collect();
    let mut look = LookUp { paths, ends, found, began, is_answered: false, is_over: false };
    let mut exchange = connector.exchange(cancel)?;
    match exchange.run(&mut look) {
        Ok(true) => connector.keep(exchange, &Ok(())),
        Ok(false) if look.is_answered => exchange.close(),
        ended => {
            exchange.close();
            ended?;
            return Err(Error::Stalled { seconds: limit.as_secs(), connected: false });
        }
    }
    Ok(look.found)
}

/// A fetch of no bytes of some files.
struct LookUp<'a> {
    paths: &'a [RelPath],
    ends: Instant,
    found: Vec<Option<Result<KnownFile, Error>>>,
    /// Metadata of files whose digest isn't known.
    began: Vec<Option<FileMetadata>>,
    /// The server has said something about them.
    is_answered: bool,
    is_over: bool,
}

impl LookUp<'_> {
    fn take(&mut self, n: u32, file: impl FnOnce(&RelPath) -> Result<KnownFile, Error>) -> Result<(), Error> {
        let at = n as usize;
        match (self.found.get_mut(at), self.paths.get(at)) {
            (Some(found), Some(path)) if found.is_none() => {
                *found = Some(file(path));
                Ok(())
            }
            _ => Error::protocol("an answer about a file that wasn't asked for"),
        }
    }

    fn answer(&mut self, answer: FileAnswer) -> Result<(), Error> {
        match answer {
            FileAnswer::Metadata(of) => match of.digest {
                Some(digest) => self.take(of.n, |path| KnownFile::new(path, &of, (digest, of.leaf_bytes))),
                None => match self.began.get_mut(of.n as usize) {
                    Some(began) => {
                        *began = Some(of);
                        Ok(())
                    }
                    None => Error::protocol("metadata of a file that wasn't asked for"),
                },
            },
            FileAnswer::Error { n, code, message } => self.take(n, |_| Err(Error::Refused { code, message })),
            FileAnswer::Same { .. } => Error::protocol("`same` for a file that wasn't compared"),
        }
    }

    fn digest(&mut self, DigestReply { n, digest, leaf_bytes, .. }: DigestReply) -> Result<(), Error> {
        match self.began.get_mut(n as usize).and_then(Option::take) {
            Some(of) => self.take(n, |path| KnownFile::new(path, &of, (digest, leaf_bytes))),
            None => Error::protocol("a digest of a file that wasn't asked for"),
        }
    }
}

impl Operation for LookUp<'_> {
    /// Whether all was answered, so that nothing is open on the connection.
    type Outcome = bool;

    fn turn(&mut self, _connection: &mut Connection, now: Instant) -> Result<Turn<bool>, Error> {
        Ok(match self.ends.saturating_duration_since(now) {
            _ if self.is_over => Turn::Over(true),
            Duration::ZERO => Turn::Over(false),
            left => Turn::Wait(left),
        })
    }

    fn connected(&mut self, connection: &mut Connection, _now: Instant) -> Result<(), Error> {
        self.found.iter_mut().for_each(|found| *found = None);
        self.began.iter_mut().for_each(|began| *began = None);
        let files =
            self.paths.iter().map(|path| FetchFile { path: path.into(), ranges: Some(Vec::new()), unless: None });
        connection.send(&Request::Fetch(FetchRequest {
            id: ID,
            chunk_bytes: CHUNK_BYTES_DEFAULT,
            compress: None,
            digest: DigestWish::Later,
            credit_bytes: 0,
            files: files.collect(),
        }));
        Ok(())
    }

    fn inbound(&mut self, inbound: Inbound, _connection: &mut Connection, _now: Instant) -> Result<bool, Error> {
        let Inbound::Control { json, .. } = inbound else {
            return Error::protocol("data, although none was requested");
        };
        match Reply::decode(&json)? {
            Reply::Files(FilesReply { id: ID, files }) => {
                self.is_answered = true;
                files.into_iter().try_for_each(|answer| self.answer(answer))?;
            }
            Reply::Digest(digest) if digest.id == ID => self.digest(digest)?,
            Reply::Void(void) if void.id == ID => {
                let (code, message) = (void.code, void.message);
                self.take(void.n, |_| Err(Error::Refused { code, message }))?;
            }
            Reply::Done { id: ID } => {
                if self.found.iter().any(Option::is_none) {
                    return Error::protocol("the answers ended before all of them were there");
                }
                self.is_over = true;
            }
            Reply::Error(ErrorReply { code, message, .. }) => return Err(Error::Refused { code, message }),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn wait_limit(&self) -> WaitLimit {
        // Files may have to be hashed, and it has a limit of its own.
        WaitLimit::WhileAlive
    }
}

pub(in crate::client) fn leaves(
    connector: &Connector,
    file: &KnownFile,
    cancel: &CancelToken,
) -> Result<Arc<Digested>, Error> {
    let Info { digest, leaves, .. } = file.info;
    if leaves.count() == 1 {
        return Ok(Arc::new(Digested { digest, leaf_size: leaves, leaves: Box::new([digest.0]) }));
    }
    // Others wait for those that are being asked for.
    let mut known = file.digested.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = &*known {
        return Ok(Arc::clone(known));
    }
    let ends = Instant::now() + LEAVES_TIME;
    let mut values = Values { driven: Driven::new(Reading::of_values(file.path.clone(), file.info)), ends };
    connector.run(&mut values, cancel)?;
    let leaves_of = values.driven.reading.into_values().into();
    let digested = Arc::new(Digested { digest, leaf_size: leaves, leaves: leaves_of });
    *known = Some(Arc::clone(&digested));
    Ok(digested)
}

pub(in crate::client) fn read(
    connector: &Connector,
    file: &KnownFile,
    range: Range<u64>,
    take: &mut dyn FnMut(&[u8]) -> bool,
    cancel: &CancelToken,
) -> Result<(), Error> {
    let range = range.start..range.end.min(file.info.size);
    if range.is_empty() {
        return Ok(());
    }
    let (digested, leaves) = (self::leaves(connector, file, cancel)?, file.info.leaves);
    let wanted = leaves.index_at(range.start)..leaves.index_at(range.end - 1) + 1;
    let at = |leaf: u64| usize::try_from(leaf).unwrap_or(usize::MAX);
    let values = digested.leaves.get(at(wanted.start)..at(wanted.end)).unwrap_or_default();
    let reading = Reading::of_leaves(file.path.clone(), file.info, wanted.clone(), values);
    let mut parts = Parts { driven: Driven::new(reading), leaves, next: wanted.start, end: wanted.end, range, take };
    let mut exchange = connector.exchange(cancel)?;
    match exchange.run(&mut parts) {
        Ok(true) => connector.keep(exchange, &Ok(())),
        ended => {
            exchange.close();
            ended?;
        }
    }
    Ok(())
}

/// A reading, driven on the caller's thread.
struct Driven {
    reading: Reading,
    is_connected: bool,
    reconnects: Reconnects,
}

impl Driven {
    fn new(reading: Reading) -> Driven {
        Driven { reading, is_connected: false, reconnects: Reconnects::default() }
    }

    fn send(&mut self, connection: &mut Connection, now: Instant) {
        while self.is_connected
            && let Some(request) = self.reading.next_request(now)
        {
            connection.send(&request);
        }
    }

    /// Sends, and says how long to wait for an event.
    fn turn<T>(&mut self, connection: &mut Connection, now: Instant) -> Turn<T> {
        self.send(connection, now);
        Turn::Wait(self.reading.retry_at().map_or(Duration::MAX, |at| at.saturating_duration_since(now)))
    }

    fn connected(&mut self, connection: &mut Connection, now: Instant) {
        self.is_connected = true;
        self.reading.connected();
        self.send(connection, now);
    }

    fn lost(&mut self) -> Result<bool, Error> {
        self.is_connected = false;
        self.reading.lost();
        match self.reconnects.lost_at(self.reading.received()) {
            Some(times) => Err(Error::Breaking { times }),
            None => Ok(true),
        }
    }
}

/// The values of a file's leaves, until they are there.
struct Values {
    driven: Driven,
    ends: Instant,
}

impl Operation for Values {
    type Outcome = ();

    fn turn(&mut self, connection: &mut Connection, now: Instant) -> Result<Turn<()>, Error> {
        if self.driven.reading.info().is_some() {
            return Ok(Turn::Over(()));
        }
        let left = self.ends.saturating_duration_since(now);
        match self.driven.turn(connection, now) {
            _ if left.is_zero() => {
                let message = "the server is hashing the file".to_owned();
                Err(Error::Refused { code: ErrorCode::Busy, message })
            }
            Turn::Wait(wait) => Ok(Turn::Wait(wait.min(left))),
            over @ Turn::Over(()) => Ok(over),
        }
    }

    fn connected(&mut self, connection: &mut Connection, now: Instant) -> Result<(), Error> {
        self.driven.connected(connection, now);
        Ok(())
    }

    fn lost(&mut self, _reason: &str) -> Result<bool, Error> {
        self.driven.lost()
    }

    fn inbound(&mut self, inbound: Inbound, _connection: &mut Connection, now: Instant) -> Result<bool, Error> {
        self.driven.reading.inbound(inbound, now)
    }

    fn wait_limit(&self) -> WaitLimit {
        // It may have to be hashed, if the server was started again.
        WaitLimit::WhileAlive
    }

    fn failed(&mut self, error: Error) -> Result<(), Error> {
        Err(self.driven.reading.stalled(error))
    }
}

/// Some leaves, and the range of their bytes that is wanted.
struct Parts<'a> {
    driven: Driven,
    leaves: LeafSize,
    next: u64,
    end: u64,
    range: Range<u64>,
    take: &'a mut dyn FnMut(&[u8]) -> bool,
}

impl Parts<'_> {
    /// Hands over the leaves that are there; false once no more are wanted.
    fn hand_over(&mut self) -> bool {
        while self.next < self.end
            && let Some(leaf) = self.driven.reading.take(self.next)
        {
            let begin = self.next * self.leaves.leaf_bytes();
            let within = |at: u64| usize::try_from(at.saturating_sub(begin)).unwrap_or(usize::MAX).min(leaf.len());
            let wanted = leaf.get(within(self.range.start)..within(self.range.end)).unwrap_or_default();
            self.next += 1;
            if !(self.take)(wanted) {
                return false;
            }
        }
        true
    }
}

impl Operation for Parts<'_> {
    /// Whether it came to its end, so that nothing is open on the connection.
    type Outcome = bool;

    fn turn(&mut self, connection: &mut Connection, now: Instant) -> Result<Turn<bool>, Error> {
        if !self.hand_over() {
            return Ok(Turn::Over(false));
        }
        let is_over = self.next == self.end && !self.driven.reading.is_waiting();
        Ok(if is_over { Turn::Over(true) } else { self.driven.turn(connection, now) })
    }

    fn connected(&mut self, connection: &mut Connection, now: Instant) -> Result<(), Error> {
        self.driven.connected(connection, now);
        Ok(())
    }

    fn lost(&mut self, _reason: &str) -> Result<bool, Error> {
        self.driven.lost()
    }

    fn inbound(&mut self, inbound: Inbound, _connection: &mut Connection, now: Instant) -> Result<bool, Error> {
        self.driven.reading.inbound(inbound, now)
    }

    fn wait_limit(&self) -> WaitLimit {
        WaitLimit::Extra(Duration::ZERO)
    }

    fn failed(&mut self, error: Error) -> Result<(), Error> {
        Err(self.driven.reading.stalled(error))
    }
}
