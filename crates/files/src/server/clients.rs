//! All clients: their sessions, and the jobs that run for them.

use super::jobs::load::Piece;
use super::jobs::pool::{Done, ForListing, Outcome, Pool, Requester};
use super::open_file::OpenFile;
use super::quota::Quotas;
use super::session::{Job, News, Outgoing, Session, Ticket};
use super::snapshot::RootSnapshot;
use super::{Failure, RECEIPTS};
use crate::digest::FileKey;
use crate::path::Escaped;
use crate::protocol::control::{ConfirmedFile, Request};
use crate::protocol::envelope::{Opening, opening};
use crate::protocol::plain::PlainRequest;
use crate::protocol::{Dialect, ErrorCode, WireError};
use bytes::Bytes;
use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use towpath_quota::FairQueue;
use towpath_sockets::PeerId;

/// One connected client.
struct Client {
    session: Session<OpenFile>,
    address: String,
    /// Keeps its jobs' turns apart from those of others.
    key: u64,
    /// Jobs that stop when this is set, by their requests.
    given_up: HashMap<Ticket, Arc<AtomicBool>>,
    /// Listings between two pages.
    listings: HashMap<Ticket, Box<super::jobs::list::Listing>>,
    quotas: Quotas,
    /// What its requests see that are under way.
    view: Arc<RootSnapshot>,
}

/// A file that is being hashed, and who waits for it.
struct Hashing {
    /// Which run this is: one that was given up may still report.
    run: u64,
    waiting: Vec<(PeerId, Ticket, u32)>,
    given_up: Arc<AtomicBool>,
    /// Open as long as the run has not begun and is wanted.
    file: Arc<Mutex<Option<OpenFile>>>,
}

/// All clients by peer.
pub(super) struct Clients {
    clients: HashMap<PeerId, Client>,
    pool: Pool,
    hashing: HashMap<FileKey, Hashing>,
    quotas: Quotas,
    /// Clients for which a file could not be opened, as too many are open.
    awaiting_files: FairQueue<PeerId, ()>,
    next_key: u64,
    next_run: u64,
}

impl Clients {
    /// `open_files_max` as in [`ServerOptions`](super::ServerOptions).
    pub(super) fn new(pool: Pool, open_files_max: usize) -> Clients {
        Clients {
            clients: HashMap::new(),
            pool,
            hashing: HashMap::new(),
            quotas: Quotas::new(open_files_max),
            awaiting_files: FairQueue::default(),
            next_key: 0,
            next_run: 0,
        }
    }

    pub(super) fn connected(&mut self, peer: PeerId, address: String) {
        tracing::info!(%address, "connected");
        self.next_key += 1;
        let quotas = self.quotas.client();
        let client = Client {
            session: Session::new(quotas.clone()),
            address,
            key: self.next_key,
            given_up: HashMap::new(),
            listings: HashMap::new(),
            quotas,
            view: Arc::default(),
        };
        self.clients.insert(peer, client);
    }

    /// Frees all that a client had.
    pub(super) fn gone(&mut self, peer: PeerId, reason: &str) {
        let Some(mut client) = self.clients.remove(&peer) else { return };
        // It may have said something just before, and is served only after all that was read.
        while let Some(job) = client.session.next_job() {
            if let Job::Tell(news) = job {
                log_news(&client.address, &news);
            }
        }
        tracing::info!(address = %client.address, %reason, "gone");
        client.given_up.values().for_each(|flag| flag.store(true, Ordering::Relaxed));
        self.awaiting_files.remove(peer);
        self.stop_waiting(|of, _| of == peer);
        self.pool.forget(client.key, None);
    }

    /// Takes a message of a client.
    pub(super) fn message(&mut self, peer: PeerId, frames: &[Bytes]) {
        let Some(client) = self.clients.get_mut(&peer) else { return };
        let Opening::Envelope(envelope) = opening(frames) else { return };
        let (envelope, frames) = frames.split_at_checked(envelope).unwrap_or((frames, &[]));
        // Copied: a slice would keep alive what it was read with, for as long as the request waits.
        let envelope: Vec<Bytes> = envelope.iter().map(|frame| Bytes::copy_from_slice(frame)).collect();
        match frames.first().and_then(|first| Dialect::of(first)) {
            Some(Dialect::Plain) => {
                let request = PlainRequest::decode(frames);
                log_plain(&client.address, &request);
                client.session.plain_request(envelope, request);
            }
            Some(Dialect::Control) => {
                let json = frames.get(1).ok_or_else(|| WireError::bad("a control message has a second frame, of JSON"));
                let request = json.and_then(|json| Request::decode(json));
                log_request(&client.address, &request);
                if client.session.is_idle() {
                    client.view = Arc::default();
                }
                client.session.request(envelope, request);
            }
            Some(Dialect::Data) | None => {
                tracing::warn!(address = %client.address, "refused: a message of no known dialect");
                client.session.request(envelope, Err(WireError::bad("a message begins with TOW1 or fetch")));
            }
        }
    }

    /// A piece of a file has left the socket.
    pub(super) fn sent(&mut self, peer: PeerId, slot: u64, whole: bool) {
        let Some(client) = self.clients.get_mut(&peer) else { return };
        let result = match client.session.file_in_socket(slot) {
            Some(_) if !whole => Err(Failure::changed("the file shrank while it was sent")),
            // On a local file system, as all that sendfile is given: looking at it waits for nothing.
            Some(source) => source.check(),
            None => Ok(()),
        };
        client.session.sent(slot, result);
    }

    /// Takes what came of a job. The peers whose sessions may have something to send now.
    pub(super) fn done(&mut self, done: Done) -> Vec<PeerId> {
        let Done { peer, ticket, outcome } = done;
        if let Outcome::Hashed { key, run, result } = outcome {
            if self.hashing.get(&key).is_none_or(|hashing| hashing.run != run) {
                return Vec::new();
            }
            let waiting = self.hashing.remove(&key).map(|hashing| hashing.waiting).unwrap_or_default();
            for (peer, ticket, n) in &waiting {
                if let Some(client) = self.clients.get_mut(peer) {
                    client.session.hashed(*ticket, *n, result.clone());
                }
            }
            return waiting.into_iter().map(|(peer, ..)| peer).collect();
        }
        let Some(client) = self.clients.get_mut(&peer) else { return Vec::new() };
        let session = &mut client.session;
        match outcome {
            Outcome::Prepared(files) => session.prepared(ticket, files),
            Outcome::Loaded(slot, result) => session.loaded(ticket, slot, result),
            Outcome::LookedAt(n, result) => session.looked_at(ticket, n, result),
            Outcome::Leaves(result) => session.leaves(ticket, result),
            Outcome::Opened(result) => session.opened(result),
            Outcome::Listed(result) => {
                let page = result.map(|(page, listing)| {
                    if page.more && client.given_up.contains_key(&ticket) {
                        client.listings.insert(ticket, listing);
                    }
                    page
                });
                session.listed(ticket, page);
            }
            Outcome::Hashed { .. } => {}
        }
        vec![peer]
    }

    /// Starts what a session wants done, until it wants nothing more. `take_back` tells the socket to.
    pub(super) fn start_jobs(&mut self, peer: PeerId, mut take_back: impl FnMut(Ticket) -> usize) {
        while let Some(job) = self.clients.get_mut(&peer).and_then(|client| client.session.next_job()) {
            self.start(peer, job, &mut take_back);
        }
    }

    fn start(&mut self, peer: PeerId, job: Job<OpenFile>, take_back: &mut impl FnMut(Ticket) -> usize) {
        let Some(client) = self.clients.get_mut(&peer) else { return };
        let requester = |ticket| Requester { peer, ticket, key: client.key };
        let pool = &mut self.pool;
        match job {
            Job::Prepare { ticket, request, from, open_max } => {
                pool.prepare(requester(ticket), Arc::clone(&client.view), request, from, open_max);
            }
            Job::Open { ticket, path } => {
                if let Some(result) = pool.open(requester(ticket), path.as_deref()) {
                    client.session.opened(result);
                }
            }
            Job::Load { ticket, slot, file, offset, length, how } => {
                let piece = Piece { requester: requester(ticket), slot, source: file, offset, length, how };
                if let Some(result) = pool.load(piece) {
                    client.session.loaded(ticket, slot, result);
                }
            }
            Job::Look { ticket, n, file, from } => pool.look(requester(ticket), n, file, from),
            Job::Hash { ticket, n, file } => {
                let waiter = (peer, ticket, n);
                let key = FileKey::from(&file.stat);
                if let Some(hashing) = self.hashing.get_mut(&key) {
                    hashing.waiting.push(waiter);
                    return;
                }
                let given_up = Arc::new(AtomicBool::new(false));
                self.next_run += 1;
                let run = self.next_run;
                let device = file.stat.device;
                let file = Arc::new(Mutex::new(Some(file)));
                pool.hash(requester(ticket), key, device, run, Arc::clone(&file), Arc::clone(&given_up));
                self.hashing.insert(key, Hashing { run, waiting: vec![waiter], given_up, file });
            }
            Job::List { ticket, request } => {
                let requester = requester(ticket);
                pool.list(requester, request, client.for_listing(ticket));
            }
            Job::ListMore { ticket } => {
                if let Some(listing) = client.listings.remove(&ticket) {
                    let requester = requester(ticket);
                    pool.list_more(requester, listing, client.for_listing(ticket));
                }
            }
            Job::Leaves { ticket, request } => {
                pool.leaves(requester(ticket), Arc::clone(&client.view), request, client.flag(ticket));
            }
            Job::Tell(news) => log_news(&client.address, &news),
            Job::Release { ticket, take_back: wants_back } => {
                client.listings.remove(&ticket);
                if let Some(flag) = client.given_up.remove(&ticket) {
                    flag.store(true, Ordering::Relaxed);
                }
                if wants_back {
                    pool.forget(client.key, Some(ticket));
                    client.session.taken_back(ticket, take_back(ticket));
                }
                self.stop_waiting(|of, waits| of == peer && waits == ticket);
            }
        }
    }

    /// Goes on with what waited for memory. [`Pool::copy_on`] says when.
    pub(super) fn copy_on(&mut self) {
        self.pool.copy_on();
    }

    /// To be called when a client was served: remembers whether a file of it waits for others to be closed.
    pub(super) fn served(&mut self, peer: PeerId) {
        if self.clients.get_mut(&peer).is_some_and(|client| client.session.take_waits_for_files())
            && !self.awaiting_files.contains(peer)
        {
            self.awaiting_files.push(peer, ());
        }
    }

    /// The peers that are to be served again, as files of theirs have waited and may be opened now.
    pub(super) fn may_open(&mut self) -> BTreeSet<PeerId> {
        // Each of them takes something, or has no need any more: so this is asked again, and none is served for nothing.
        (0..self.quotas.open_files.available())
            .map_while(|_| self.awaiting_files.pop_next())
            .map(|(peer, ())| peer)
            .collect()
    }

    /// What to send to a client next, if the socket has room.
    pub(super) fn next_message(&mut self, peer: PeerId) -> Option<Outgoing<OpenFile>> {
        self.clients.get_mut(&peer)?.session.next_message()
    }

    /// Whether a session wants something done.
    pub(super) fn has_jobs(&self, peer: PeerId) -> bool {
        self.clients.get(&peer).is_some_and(|client| client.session.has_jobs())
    }

    /// See [`Session::still_queued`].
    pub(super) fn still_queued(&mut self, peer: PeerId, messages: usize) {
        if let Some(client) = self.clients.get_mut(&peer) {
            client.session.still_queued(messages);
        }
    }

    /// See [`Session::is_congested`].
    pub(super) fn is_congested(&self, peer: PeerId) -> bool {
        self.clients.get(&peer).is_some_and(|client| client.session.is_congested())
    }

    /// Nobody is hashed for in vain.
    fn stop_waiting(&mut self, stops: impl Fn(PeerId, Ticket) -> bool) {
        self.hashing.retain(|_, hashing| {
            hashing.waiting.retain(|(peer, ticket, _)| !stops(*peer, *ticket));
            let goes_on = !hashing.waiting.is_empty();
            if !goes_on {
                hashing.given_up.store(true, Ordering::Relaxed);
                hashing.file.lock().unwrap_or_else(PoisonError::into_inner).take();
            }
            goes_on
        });
    }
}

impl Client {
    fn flag(&mut self, ticket: Ticket) -> Arc<AtomicBool> {
        Arc::clone(self.given_up.entry(ticket).or_default())
    }

    fn for_listing(&mut self, ticket: Ticket) -> ForListing {
        let given_up = self.flag(ticket);
        ForListing { view: Arc::clone(&self.view), names: Arc::clone(&self.quotas.list_names), given_up }
    }
}

fn log_request(address: &str, request: &Result<Request, WireError>) {
    match request {
        Ok(Request::Fetch(fetch)) => {
            let first = fetch.files.first().map(|file| Escaped(file.path.as_bytes()).to_string()).unwrap_or_default();
            tracing::info!(%address, id = fetch.id, files = fetch.files.len(), %first, "fetch");
        }
        Ok(Request::List(list)) => tracing::info!(%address, id = list.id, recursive = list.recursive, "list"),
        Ok(Request::Cancel { id }) => tracing::info!(%address, id, "cancel"),
        Ok(_) => {}
        Err(error) => tracing::warn!(%address, id = error.id, reason = %error, "refused"),
    }
}

fn log_plain(address: &str, request: &Result<PlainRequest, WireError>) {
    match request {
        Ok(PlainRequest { path, range: None }) => {
            let path = Escaped(path.as_deref().unwrap_or_default()).to_string();
            tracing::info!(%address, %path, "plain fetch");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%address, reason = %error, "refused"),
    }
}

/// One file is told with its digest; of many each only to those who want details: a line a file would cost the event thread
/// more than sending it.
fn log_confirmed(address: &str, files: &[ConfirmedFile]) {
    let digest_of = |file: &ConfirmedFile| file.digest.map_or_else(|| "unverified".into(), |digest| digest.to_string());
    match files {
        [] => {}
        [file] => {
            let (path, digest) = (Escaped(file.path.as_bytes()), digest_of(file));
            tracing::info!(target: RECEIPTS, durable = file.durable, "confirmed {path} {digest} by {address}");
        }
        [first, ..] => {
            let path = Escaped(first.path.as_bytes());
            tracing::info!(target: RECEIPTS, durable = first.durable, "confirmed {} files from {path} on by {address}", files.len());
            if tracing::enabled!(tracing::Level::DEBUG) {
                for file in files {
                    let (path, digest) = (Escaped(file.path.as_bytes()), digest_of(file));
                    tracing::debug!(durable = file.durable, "confirmed {path} {digest} by {address}");
                }
            }
        }
    }
}

fn log_news(address: &str, news: &News) {
    match news {
        News::Confirmed(confirm) => log_confirmed(address, &confirm.files),
        News::Void { path, failure } => {
            let path = Escaped(path.as_bytes());
            tracing::warn!(%address, %path, code = %failure.code, reason = %failure.message, "void");
        }
        // The limit that is reached is told once for all of them.
        News::Refused { count, path, failure } if failure.code == ErrorCode::Busy => {
            let path = Escaped(path.as_bytes());
            tracing::debug!(%address, files = count, %path, reason = %failure.message, "busy");
        }
        News::Refused { count, path, failure } => {
            let path = Escaped(path.as_bytes());
            tracing::info!(%address, files = count, %path, code = %failure.code, reason = %failure.message, "refused");
        }
    }
}
