//! Large bodies on their way to files, and the room that they have there.

use super::BrokerOptions;
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use towpath_journal::spool::{BodyOf, NoRoom, Spool, SpoolQuota, UnderWay, Writing};
use towpath_requests::numbered::Status;
use towpath_sockets::{PeerId, Waker};

/// How often the log says that there is no room.
const SAID_EVERY: Duration = Duration::from_secs(10);

/// What a body that has begun still has to send is counted as long as it comes at least so fast, after a moment to begin.
const PACE_BYTES_PER_S: u64 = 256 * 1024;
const PACE_BEGINS_AFTER: Duration = Duration::from_millis(250);

/// When a client may come again with a body for which there was no room. All of it comes again then.
const RETRY_MS: u32 = 1_000;

/// Why a large body isn't here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// It couldn't be written.
    Unwritten,
    /// It wasn't written.
    NoRoom(NoRoom),
    /// It has several frames, which are held in memory, and more bytes than may be.
    TooLarge,
}

impl Lost {
    pub fn reason(self) -> &'static str {
        match self {
            Lost::Unwritten => "the broker can't write a large body to its disk",
            Lost::NoRoom(NoRoom::Now) => {
                "large bodies have all the room on the broker's disk, or all the files, that they may have"
            }
            Lost::NoRoom(NoRoom::Ever) => "larger than all the room that such bodies may have on the broker's disk",
            Lost::TooLarge => "a body of several frames has more than 64 MiB",
        }
    }

    /// How a request is refused, and when it may come again.
    pub fn of_request(self) -> (Status, u32) {
        match self {
            Lost::Unwritten => (Status::NO_STORAGE, RETRY_MS),
            Lost::NoRoom(NoRoom::Now) => (Status::UNAVAILABLE, RETRY_MS),
            Lost::NoRoom(NoRoom::Ever) | Lost::TooLarge => (Status::TOO_LARGE, 0),
        }
    }

    /// How a request ends of which this was the reply. To keep its worker waiting for room could last for ever: what has the room
    /// may be waiting for this worker.
    pub fn of_reply(self) -> Status {
        match self {
            Lost::Unwritten | Lost::NoRoom(NoRoom::Now) => Status::NO_STORAGE,
            Lost::NoRoom(NoRoom::Ever) | Lost::TooLarge => Status::TOO_LARGE,
        }
    }
}

/// A body on its way to a file. Dropped before it is finished, it was in vain.
#[derive(Debug)]
pub(super) struct Ticket {
    body: UnderWay,
    kind: BodyOf,
    room: Arc<SpoolQuota>,
    coming: Arc<Coming>,
}

/// How far a body has come.
#[derive(Debug)]
struct Coming {
    length: u64,
    come: AtomicU64,
    since: Instant,
}

impl Coming {
    /// How much more it is going to need, if it is on its way at all.
    fn expected(&self) -> u64 {
        let come = self.come.load(Ordering::Relaxed);
        let paced_ms = self.since.elapsed().saturating_sub(PACE_BEGINS_AFTER).as_millis() as u64;
        if come >= paced_ms * PACE_BYTES_PER_S / 1000 { self.length - come.min(self.length) } else { 0 }
    }
}

impl Ticket {
    /// By which [`Writing::next_finished`] names it.
    pub fn number(&self) -> u64 {
        self.body.number()
    }

    /// Takes some bytes, if there is room for them.
    pub fn write(&self, bytes: Bytes) -> Result<(), NoRoom> {
        let length = bytes.len() as u64;
        let permit = self.room.try_acquire(self.kind, length)?;
        self.coming.come.fetch_add(length, Ordering::Relaxed);
        self.body.write(bytes, Some(permit));
        Ok(())
    }

    pub fn finish(&self) {
        self.body.finish();
    }
}

/// What is on its way to files, for whom, and who waits for room.
pub(super) struct Spooling {
    pub writing: Writing,
    /// Where bodies are, for people.
    pub directory: PathBuf,
    /// Whose bodies go to files.
    pub awaited: HashMap<u64, PeerId>,
    /// Stock clients that wait for room, in this order.
    pub queue: VecDeque<PeerId>,
    room: Arc<SpoolQuota>,
    /// What is on its way.
    coming: Vec<Weak<Coming>>,
    said: Option<Instant>,
}

/// Where large bodies are.
pub(super) fn directory(options: &BrokerOptions) -> PathBuf {
    let of_journal = || options.journal.as_ref().map(|journal| journal.join("spool"));
    options.spool.clone().or_else(of_journal).unwrap_or_else(towpath_journal::default_spool_folder)
}

/// The place for large bodies, and the room that they have there, of which an earlier process has left so much in the journal.
pub(super) fn prepare(options: &BrokerOptions, kept: u64) -> io::Result<(Spool, Arc<SpoolQuota>)> {
    let directory = directory(options);
    let spool = Spool::new(&directory)?;
    if let Err(error) = spool.create()
        && !matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
    {
        // What is full may be less so when the first large body comes. That nothing can be written there is better said now.
        return Err(error);
    }
    let most = options.max_spool_bytes.map_or_else(|| SpoolQuota::half_of(&directory, kept), Ok)?;
    let files = SpoolQuota::half_of_files();
    tracing::info!(directory = %directory.display(), mib = most >> 20, kept_mib = kept >> 20, files, "room for large bodies");
    Ok((spool, SpoolQuota::new(most, files)))
}

impl Spooling {
    /// `sync`: see [`Writing::to`].
    pub fn start(spool: Spool, room: Arc<SpoolQuota>, sync: bool, waker: Waker) -> io::Result<Spooling> {
        let directory = spool.directory().to_owned();
        let writing = Writing::to(spool, sync, waker)?;
        let (awaited, queue) = (HashMap::new(), VecDeque::new());
        Ok(Spooling { writing, directory, awaited, queue, room, coming: Vec::new(), said: None })
    }

    /// A body begins to come. It does so if all of it will have room, with all others that are on their way.
    pub fn begin(&mut self, kind: BodyOf, length: u64) -> Result<Ticket, NoRoom> {
        self.coming.retain(|coming| coming.strong_count() > 0);
        let expected = self.coming.iter().filter_map(Weak::upgrade).map(|coming| coming.expected());
        let (taken, expected, most) = (self.room.taken(), expected.sum::<u64>(), self.room.most_of(kind));
        if length > most {
            return Err(NoRoom::Ever);
        }
        let is_full = taken.saturating_add(expected).saturating_add(length) > most;
        let file = if is_full { Err(NoRoom::Now) } else { self.room.try_acquire_file(kind) };
        let file = file.inspect_err(|_| {
            if self.said.is_none_or(|said| said.elapsed() >= SAID_EVERY) {
                self.said = Some(Instant::now());
                let files = self.room.files();
                tracing::warn!(?kind, length, taken, expected, most, files, "there is no room for a large body");
            }
        })?;
        let body = self.writing.begin(length, Some(file));
        let coming = Arc::new(Coming { length, come: AtomicU64::new(0), since: Instant::now() });
        self.coming.push(Arc::downgrade(&coming));
        Ok(Ticket { body, kind, room: self.room.clone(), coming })
    }

    /// The same behind those that wait.
    pub fn begin_in_turn(&mut self, kind: BodyOf, length: u64) -> Result<Ticket, NoRoom> {
        match self.queue.is_empty() || length > self.room.most_of(kind) {
            true => self.begin(kind, length),
            false => Err(NoRoom::Now),
        }
    }

    pub fn room(&self) -> &SpoolQuota {
        &self.room
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use towpath_sockets::{Hub, HubOptions, SocketType};

    #[test]
    fn bodies_leave_descriptors_to_others_and_requests_some_to_replies() {
        let folder = tempfile::tempdir().unwrap();
        let hub = Hub::new(HubOptions::new(SocketType::Router)).unwrap();
        let room = SpoolQuota::new(1 << 30, 8);
        let mut spooling = Spooling::start(Spool::new(folder.path()).unwrap(), room, false, hub.waker()).unwrap();
        let body = |spooling: &mut Spooling, kind| {
            let ticket = spooling.begin(kind, 4)?;
            ticket.write(Bytes::from_static(b"body"))?;
            ticket.finish();
            let start = Instant::now();
            let (_, body) = loop {
                if let Some(finished) = spooling.writing.next_finished() {
                    break finished;
                }
                assert!(start.elapsed() < Duration::from_secs(60), "it isn't written");
                std::thread::yield_now();
            };
            Ok::<_, NoRoom>(body.unwrap())
        };
        let mut bodies: Vec<_> = (0..6).map(|_| body(&mut spooling, BodyOf::Request).unwrap()).collect();
        assert_eq!(body(&mut spooling, BodyOf::Request).unwrap_err(), NoRoom::Now);
        // One that is on its way has its file already.
        let begun = spooling.begin(BodyOf::Reply, 4).unwrap();
        bodies.push(body(&mut spooling, BodyOf::Reply).unwrap());
        assert_eq!(body(&mut spooling, BodyOf::Reply).unwrap_err(), NoRoom::Now);
        assert_eq!(spooling.begin_in_turn(BodyOf::Request, 4).unwrap_err(), NoRoom::Now);
        bodies.truncate(5);
        bodies.push(body(&mut spooling, BodyOf::Reply).unwrap());
        drop(begun);
        drop(bodies);
        // The thread closes what was in vain.
        let start = Instant::now();
        while spooling.room().files() > 0 {
            assert!(start.elapsed() < Duration::from_secs(60), "{} files are open", spooling.room().files());
            std::thread::yield_now();
        }
        body(&mut spooling, BodyOf::Request).unwrap();
    }
}
