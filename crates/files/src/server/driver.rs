//! The thread that owns the sockets.

use super::clients::Clients;
use super::handle::{Control, Handle};
use super::jobs::{Done, Pool};
use super::open_file::OpenFile;
use super::quota::small_files::SmallFiles;
use super::session::{IfShort, Outgoing, Part, Ticket};
use super::snapshot::RootWatch;
use super::storage::{PageCache, Storage};
use crate::digest::DigestCache;
use crate::limits::CONTROL_BYTES_MAX;
use crate::root::RootError;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::Receiver;
use towpath_sockets::SocketType;
use towpath_sockets::{
    Authenticator, Endpoint, Event, FileRange, Frame, Hub, HubOptions, Message, PeerId, SendError, SocketError,
};

/// A client's control message and its envelope: one frame near the limit, and a few short ones.
const MESSAGE_BYTES_MAX: u64 = CONTROL_BYTES_MAX as u64 + 4096;
const MESSAGE_FRAMES_MAX: usize = 16;
/// What waits in memory for one client's socket. Bodies of large files aren't in memory.
const SEND_QUEUE_BYTES: usize = 2 << 20;
/// Requests are small, and each is answered at more length than it was asked: a client that asks without reading the answers is
/// paused after so many bytes of requests.
const READ_TURN_BYTES: usize = 16 << 10;
/// Bytes of requests that have begun and not ended, of all clients.
const UNFINISHED_BYTES_MAX: usize = 128 << 20;
const DIGEST_CACHE_BYTES: usize = 64 << 20;
const SMALL_FILES_BYTES: usize = 64 << 20;

/// What is served, where, and how.
#[non_exhaustive]
pub struct ServerOptions {
    /// A directory, or one file. A request that begins sees what the path leads to then: another directory may be renamed to it, or a
    /// link be switched. As long as it leads nowhere, what was there before is served.
    pub root: PathBuf,
    /// Where to listen. Port 0 picks a free one; [`Server::endpoints`] tells.
    pub endpoints: Vec<Endpoint>,
    /// Of the socket: mechanism, heartbeats, limits on connections. Its type and the limits on messages are set by the server.
    pub hub: HubOptions,
    /// Asked for each client if the mechanism is PLAIN. None admits nobody.
    pub authenticator: Option<Authenticator>,
    /// Memory for remembered digests, in bytes.
    pub digest_cache_bytes: usize,
    /// Where digests are remembered over restarts. None: only as long as the server runs.
    pub digest_file: Option<PathBuf>,
    /// Large files that fetches of all clients may have open at a time; each client may have one in any case. By default half of the
    /// descriptors that the process may have: the others are for connections.
    pub open_files_max: usize,
    /// Memory for small files that were read and not sent yet, of all clients, in bytes.
    pub small_files_bytes: usize,
}

impl ServerOptions {
    /// The defaults, for a directory or one file. Endpoints are still to be added.
    pub fn new(root: impl Into<PathBuf>) -> ServerOptions {
        let mut hub = HubOptions::new(SocketType::Router);
        hub.send_queue_bytes = SEND_QUEUE_BYTES;
        hub.read_budget_bytes = READ_TURN_BYTES;
        hub.reassembly_bytes_max = UNFINISHED_BYTES_MAX;
        ServerOptions {
            root: root.into(),
            endpoints: Vec::new(),
            hub,
            authenticator: None,
            digest_cache_bytes: DIGEST_CACHE_BYTES,
            digest_file: None,
            open_files_max: half_of_descriptors(),
            small_files_bytes: SMALL_FILES_BYTES,
        }
    }

    /// Listens there as well.
    #[must_use]
    pub fn listen(mut self, endpoint: Endpoint) -> ServerOptions {
        self.endpoints.push(endpoint);
        self
    }
}

/// Why a server could not start or go on. All of them are of this side.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// What is to be served can't be opened.
    #[error("cannot serve {path}: {source}")]
    Root {
        /// As it was given.
        path: PathBuf,
        /// Why.
        source: RootError,
    },
    /// The file of remembered digests can't be used.
    #[error("cannot remember digests in {path}: {source}")]
    DigestFile {
        /// As it was given.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The system gives it no threads.
    #[error("cannot start the server's threads: {0} (ulimit -u, pids.max?)")]
    Threads(#[source] std::io::Error),
    /// Of the sockets.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// A file server: bound by [`Server::bind`], and served by [`Server::run`] on the caller's thread.
pub struct Server {
    hub: Hub,
    endpoints: Vec<Endpoint>,
    clients: Clients,
    done: Receiver<Done>,
    authenticator: Option<Authenticator>,
    control: Control,
}

impl Server {
    /// Opens what is served and listens. Clients can connect from now on; they are answered once it runs.
    pub fn bind(options: ServerOptions) -> Result<Server, ServeError> {
        Server::bind_with(options, Box::new(PageCache))
    }

    pub(super) fn bind_with(options: ServerOptions, storage: Box<dyn Storage>) -> Result<Server, ServeError> {
        let ServerOptions { root: path, endpoints, mut hub, authenticator, .. } = options;
        let root = RootWatch::open(&path).map_err(|source| ServeError::Root { path, source })?;
        hub.socket_type = SocketType::Router;
        hub.max_message_bytes = MESSAGE_BYTES_MAX;
        hub.max_frames = MESSAGE_FRAMES_MAX;
        hub.stream_over_bytes = None;
        let mut hub = Hub::new(hub)?;
        let endpoints = endpoints.iter().map(|endpoint| hub.bind(endpoint)).collect::<Result<_, _>>()?;
        let waker = hub.waker();
        let cache = match &options.digest_file {
            None => DigestCache::new(options.digest_cache_bytes),
            Some(file) => DigestCache::with_file(options.digest_cache_bytes, file)
                .map_err(|source| ServeError::DigestFile { path: file.clone(), source })?,
        };
        let small_files = SmallFiles::new(options.small_files_bytes);
        let (pool, done) = Pool::new(root, cache, small_files, storage, waker.clone()).map_err(ServeError::Threads)?;
        let clients = Clients::new(pool, options.open_files_max);
        let control = Control::new(waker);
        Ok(Server { hub, endpoints, clients, done, authenticator, control })
    }

    /// Where it listens, with the real ports.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// Controls it from other threads.
    pub fn handle(&self) -> Handle {
        self.control.handle()
    }

    /// Serves until it is shut down.
    pub fn run(mut self) -> Result<(), ServeError> {
        // A turn's work is done for each peer once, however many of its pieces left or jobs ended meanwhile.
        let mut touched = BTreeSet::new();
        while !self.control.is_shutdown {
            self.hub.poll(None)?;
            while let Some(event) = self.hub.next_event() {
                touched.extend(self.take(event));
            }
            while let Ok(done) = self.done.try_recv() {
                self.clients.done(done, &mut touched);
            }
            self.clients.start_copies();
            self.control.turn(&mut self.hub, &self.clients);
            loop {
                touched.append(&mut self.clients.may_open());
                if touched.is_empty() {
                    break;
                }
                while let Some(peer) = touched.pop_first() {
                    self.serve(peer);
                }
            }
        }
        Ok(())
    }

    /// Takes an event in. The peer that may now have something to be done or sent.
    fn take(&mut self, event: Event) -> Option<PeerId> {
        match event {
            Event::Ready { peer } => {
                if let Some(info) = self.hub.peer(peer) {
                    self.clients.connected(info);
                }
                None
            }
            Event::Authenticate { peer, credentials } => {
                let allowed =
                    self.authenticator.as_ref().is_some_and(|authenticator| authenticator.allows(&credentials));
                self.hub.authenticate(peer, allowed);
                None
            }
            Event::Message { peer, frames, .. } => {
                self.clients.message(peer, &frames);
                Some(peer)
            }
            Event::Writable { peer } => Some(peer),
            Event::FileSent { peer, tag, whole } => {
                self.clients.sent(peer, tag, whole);
                Some(peer)
            }
            Event::Gone { peer, reason } => {
                self.clients.gone(peer, &reason);
                None
            }
            // The hub's log says so.
            Event::Failed { .. } => None,
            // It is paused while something waits to be sent to it, and sending finds out.
            Event::HungUp { .. } => None,
            // Nothing is streamed to a server.
            Event::BodyStart { peer, .. } | Event::BodyData { peer, .. } | Event::BodyEnd { peer, .. } => {
                self.hub.disconnect(peer, "a frame over the limit");
                None
            }
            _ => None,
        }
    }

    /// Starts what is to be done for a peer, and queues for it what its credit, its pipeline and its socket take.
    fn serve(&mut self, peer: PeerId) {
        let Server { hub, clients, .. } = self;
        clients.still_queued(peer, hub.queued(peer).messages);
        loop {
            clients.act(peer, |ticket| hub.remove_queued(peer, ticket.0));
            if !hub.is_writable(peer) {
                break;
            }
            let Some(outgoing) = clients.next_message(peer) else {
                // With nothing to send yet, new credit may have given something to do.
                if clients.has_actions(peer) {
                    continue;
                }
                break;
            };
            match hub.send(peer, message(outgoing)) {
                Ok(()) => {}
                // The event that says so is on its way.
                Err(SendError::Gone(_)) => break,
                // It said that it had room. A message must not be lost, so the connection is.
                Err(SendError::Full(_)) => {
                    hub.disconnect(peer, "its queue is full");
                    break;
                }
            }
        }
        clients.served(peer);
        hub.pause_reading(peer, clients.is_congested(peer));
    }
}

fn half_of_descriptors() -> usize {
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    most.and_then(|most| usize::try_from(most / 2).ok()).unwrap_or(usize::MAX)
}

fn message(outgoing: Outgoing<OpenFile>) -> Message {
    let Outgoing { ticket, parts } = outgoing;
    let frame = |part: Part<OpenFile>| match part {
        Part::Bytes(bytes) => Frame::Bytes(bytes),
        Part::File { file, offset, length, slot, if_short } => {
            debug_assert!(file.is_local, "sendfile may wait for ever");
            let range = FileRange::new(file.file, offset, length).tagged(slot).assume_cached();
            match if_short {
                IfShort::Pad => range.into(),
                IfShort::Close => range.close_if_short().into(),
            }
        }
    };
    let message: Message = parts.into_iter().map(frame).collect();
    message.tagged(ticket.map_or(0, |Ticket(number)| number))
}
