//! The event loop, which owns the sockets.

use super::catalogue_view::CatalogueView;
use super::clients::Clients;
use super::drain::{DRAINING, Drain};
use super::handle::{Control, Handle};
use super::jobs::{Done, Pool};
use super::kept_followers::KeptFollowers;
use super::lasting_id::lasting_id;
use super::open_file::OpenFile;
use super::operations::publishers::Publishers;
use super::push::{PushOptions, Pushes};
use super::quota::small_files::SmallFiles;
use super::rate::Rate;
use super::session::{IfShort, Outgoing, Part, Ticket};
use super::snapshot::{RootWatch, Served};
use super::source::Source;
use super::storage::{PageCache, Storage};
use super::versions::Versions;
use super::watch::{Polled, SharedCatalogue, State, StateError, Watch, WatchOptions};
use crate::catalogue::Catalogue;
use crate::digest::DigestCache;
use crate::limits::{CONTROL_BYTES_MAX, ENVELOPE_BYTES_MAX, ENVELOPE_FRAMES_MAX};
use crate::protocol::control::HolderName;
use crate::protocol::follow::{Epoch, ServerId};
use crate::protocol::{PROPERTY, PROPERTY_VALUE};
use crate::random::random;
use crate::relay::{Relay, Via};
use crate::root::{Links, Root, RootError, Secrets, make_private_dir};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, PoisonError};
use std::time::Instant;
use towpath_rules::Permissions;
use towpath_sockets::SocketType;
use towpath_sockets::{
    Authenticator, Endpoint, Event, Frame, Gate, Hub, HubOptions, Message, Metadata, PeerId, PeerInfo, SendError,
    SocketError, Tenant, check_openness,
};

/// Largest control message with its envelope: one frame near the limit, and a few short ones.
const MESSAGE_BYTES_MAX: u64 = (CONTROL_BYTES_MAX + ENVELOPE_BYTES_MAX) as u64 + 4096;
const MESSAGE_FRAMES_MAX: usize = ENVELOPE_FRAMES_MAX + 16;
/// Memory of a client's send queue. Bodies of large files aren't in memory.
const SEND_QUEUE_BYTES: usize = 2 << 20;
/// Bytes read from a client in one turn. Replies are larger than requests: a client that doesn't read them is paused after this much.
const READ_TURN_BYTES: usize = 16 << 10;
/// The same for a server that takes pushes, whose requests are larger than replies.
const PUSH_READ_TURN_BYTES: usize = 128 << 10;
/// Reassembly memory for requests of all clients.
const UNFINISHED_BYTES_MAX: usize = 128 << 20;
const DIGEST_CACHE_BYTES: usize = 64 << 20;
const SMALL_FILES_BYTES: usize = 64 << 20;

/// Why a client has to go that was admitted before.
pub(super) const NOT_ADMITTED: &str = "not admitted any more";

/// Options of a server.
#[non_exhaustive]
pub struct ServerOptions {
    /// A directory or one file. It may be replaced: another directory be renamed to the path, or a link be switched. Each request sees the root
    /// that the path leads to when it begins. While it leads nowhere, the previous root is served.
    pub root: PathBuf,
    /// Another source, which is served in place of the root. To watch it is to list all of it again and again. It can be pushed to if it is a [store](Source::store), and can't
    /// have versions or be a relay's.
    pub source: Option<Arc<dyn Source>>,
    /// Endpoints to listen on. Port 0 picks a free one: see [`Server::endpoints`].
    pub endpoints: Vec<Endpoint>,
    /// Options of the socket: mechanism, heartbeats, limits on connections. The server sets its type and the limits on messages.
    pub hub: HubOptions,
    /// Asked for each client if the mechanism is PLAIN or CURVE, and what each may do. None admits nobody then.
    pub authenticator: Option<Authenticator>,
    /// Whether other machines may connect though the mechanism is NULL; otherwise such an endpoint is refused. An authenticator still says what they may do.
    pub open_to_all: bool,
    /// Memory of the digest cache, in bytes.
    pub digest_cache_bytes: usize,
    /// File in which digests persist. None: they are kept in memory only.
    pub digest_file: Option<PathBuf>,
    /// Large files that fetches may have open, for all clients; each client may have one in any case. By default half of the process's
    /// descriptors: the others are for connections.
    pub open_files_max: usize,
    /// Memory of small files that were read and not sent yet, for all clients, in bytes.
    pub small_files_bytes: usize,
    /// Watch the directory, so that clients can follow it.
    pub watch: Option<WatchOptions>,
    /// Directory in which the sequence numbers of what is watched persist; it is made if there is none. None: each start begins a new
    /// epoch.
    pub state_directory: Option<PathBuf>,
    /// The number by which followers know this server. Without it the directory of the state has one; without that, there is none.
    pub server_id: Option<ServerId>,
    /// Names of the followers that are to be there. None: all that were there within seven days.
    pub followers: Option<BTreeSet<HolderName>>,
    /// Take files that clients push. None: none.
    pub push: Option<PushOptions>,
    /// Whether a follower feeds it, with the numbers of another server: [`Server::relay`].
    pub is_relay: bool,
    /// Of a relay: the directory of the versions that it passes on, and nothing else.
    pub relayed_versions: Option<PathBuf>,
    /// Files and directories with secrets, beside those of this server's own options: keys, passwords, rules. None may be below the root, and
    /// none is served, even if it gets there later.
    pub secrets: Vec<PathBuf>,
    /// Others that aren't served, which may be below the root.
    pub unserved: Vec<PathBuf>,
    /// Keeps clients out, whatever their credentials.
    pub gate: Option<Gate>,
    /// Whether everybody may publish versions, and not only clients that have logged in, or over ipc this process's user and root.
    pub accept_publish: bool,
    /// Bytes a second that all clients together are sent, on average; at least
    /// [`BYTES_PER_SECOND_MIN`](crate::transfer::BYTES_PER_SECOND_MIN).
    pub bytes_per_second: Option<u64>,
}

impl ServerOptions {
    /// The defaults for a directory or one file, without endpoints.
    pub fn new(root: impl Into<PathBuf>) -> ServerOptions {
        let mut hub = HubOptions::new(SocketType::Router);
        hub.send_queue_bytes = SEND_QUEUE_BYTES;
        hub.read_budget_bytes = READ_TURN_BYTES;
        hub.reassembly_bytes_max = UNFINISHED_BYTES_MAX;
        ServerOptions {
            root: root.into(),
            source: None,
            endpoints: Vec::new(),
            hub,
            authenticator: None,
            open_to_all: false,
            digest_cache_bytes: DIGEST_CACHE_BYTES,
            digest_file: None,
            open_files_max: half_of_descriptors(),
            small_files_bytes: SMALL_FILES_BYTES,
            watch: None,
            state_directory: None,
            server_id: None,
            followers: None,
            push: None,
            is_relay: false,
            relayed_versions: None,
            secrets: Vec::new(),
            unserved: Vec::new(),
            gate: None,
            accept_publish: false,
            bytes_per_second: None,
        }
    }

    /// The defaults for another source than a directory or a file of this machine.
    pub fn from_source(source: Arc<dyn Source>) -> ServerOptions {
        ServerOptions { source: Some(source), ..ServerOptions::new(PathBuf::new()) }
    }

    /// Fails if another source is to do what only a directory of this machine can.
    fn check_source(&self) -> Result<(), ServeError> {
        let takes_files = self.source.as_ref().is_some_and(|source| source.store().is_some());
        let has_staging = self.push.as_ref().is_some_and(|push| push.staging.is_some());
        let wanted = [
            ("pushed to", self.push.is_some() && !(takes_files && has_staging)),
            ("a relay's", self.is_relay || self.relayed_versions.is_some()),
        ];
        match wanted.into_iter().find(|(_, is_wanted)| *is_wanted && self.source.is_some()) {
            Some((what, _)) => Err(ServeError::NotLocal(what)),
            None => Ok(()),
        }
    }

    /// Fails if something secret is below the root: [`ServerOptions::secrets`], the file of digests, or the state.
    pub fn check_secrets(&self) -> Result<(), ServeError> {
        if self.source.is_some() {
            return Ok(());
        }
        match Secrets::first_below(self.secret_paths().map(PathBuf::as_path), &self.root) {
            Some(secret) => Err(ServeError::Secret { secret: secret.to_owned(), path: self.root.clone() }),
            None => Ok(()),
        }
    }

    fn secret_paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.secrets.iter().chain(&self.digest_file).chain(&self.state_directory)
    }

    /// Adds an endpoint to listen on.
    #[must_use]
    pub fn listen(mut self, endpoint: Endpoint) -> ServerOptions {
        self.endpoints.push(endpoint);
        self
    }
}

/// A server could not start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The root can't be opened.
    #[error("cannot serve {path}: {source}")]
    Root {
        /// As it was given.
        path: PathBuf,
        /// Why.
        source: RootError,
    },
    /// Another source was to be what only a directory of this machine can be.
    #[error("what is served can't be {0}: only a directory of this machine can")]
    NotLocal(&'static str),
    /// A file that isn't for others would be served.
    #[error("{}: those who may read what is there would get it too. Put it elsewhere", exposed(secret, path))]
    Secret {
        /// The file or directory.
        secret: PathBuf,
        /// The served path.
        path: PathBuf,
    },
    /// The file of digests can't be used.
    #[error("cannot remember digests in {path}: {source}")]
    DigestFile {
        /// As it was given.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The root can't be watched.
    #[error("cannot watch {path}: {reason}")]
    Watch {
        /// As it was given.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The stored sequence numbers can't be used.
    #[error("cannot keep sequence numbers in {path}: {reason}")]
    State {
        /// The directory as it was given.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// Pushes can't be taken.
    #[error("cannot take pushes into {path}: {reason}")]
    Push {
        /// The directory.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// Threads can't be started.
    #[error("cannot start the server's threads: {0} (ulimit -u, pids.max?)")]
    Threads(#[source] io::Error),
    /// An error of the sockets.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// Says where a secret is.
fn exposed(secret: &Path, served: &Path) -> String {
    match secret.canonicalize().is_ok_and(|secret| served.canonicalize().is_ok_and(|served| secret == served)) {
        true => format!("{} is what is served", secret.display()),
        false => format!("{} is below {}, which is served", secret.display(), served.display()),
    }
}

/// A file server. [`Server::bind`] makes it, and [`Server::run`] serves on the caller's thread.
pub struct Server {
    hub: Hub,
    endpoints: Vec<Endpoint>,
    clients: Clients,
    done: Receiver<Done>,
    authenticator: Option<Authenticator>,
    control: Control,
    published: Option<Arc<SharedCatalogue>>,
    versions: Option<Arc<Versions>>,
    is_relay: bool,
    rate: Option<Rate>,
    /// The thread that keeps followers across restarts.
    _kept: Option<KeptFollowers>,
    /// The threads that watch, until the server ends.
    _watch: Option<Watch>,
    _polled: Option<Polled>,
}

impl Server {
    /// Opens the root and listens. Clients can connect from now on and are served once [`Server::run`] is called.
    pub fn bind(options: ServerOptions) -> Result<Server, ServeError> {
        Server::bind_with(options, Box::new(PageCache))
    }

    pub(super) fn bind_with(options: ServerOptions, storage: Box<dyn Storage>) -> Result<Server, ServeError> {
        options.check_source()?;
        options.check_secrets()?;
        check_openness(&options.endpoints, &options.hub.mechanism, options.open_to_all)?;
        let secrets = Secrets::new(options.secret_paths().chain(&options.unserved).cloned().collect());
        let ServerOptions { root: path, source, endpoints, mut hub, authenticator, .. } = options;
        let unusable = |source| ServeError::Root { path: path.clone(), source };
        let served = match source {
            Some(source) => Served::Source(source),
            None => Served::Path(Arc::new(RootWatch::open(&path, secrets).map_err(unusable)?)),
        };
        let elsewhere = served.source();
        let polled = elsewhere.clone().filter(|_| options.watch.is_some());
        let via = served.source().and_then(|source| source.via()).unwrap_or_else(|| Arc::new(Via::drawn()));
        let root = served.path().cloned();
        if options.watch.is_some() && root.as_ref().is_some_and(|root| root.last().only_file().is_some()) {
            return Err(ServeError::Watch {
                path,
                reason: "it is a file; only a directory can be followed".to_owned(),
            });
        }
        hub.socket_type = SocketType::Router;
        hub.max_message_bytes = MESSAGE_BYTES_MAX;
        hub.max_frames = MESSAGE_FRAMES_MAX;
        hub.stream_over_bytes = None;
        hub.metadata = Metadata::new().with(PROPERTY, PROPERTY_VALUE);
        if options.push.is_some() {
            hub.read_budget_bytes = hub.read_budget_bytes.max(PUSH_READ_TURN_BYTES);
        }
        let mut hub = Hub::new(hub)?;
        hub.set_gate(options.gate.clone());
        let endpoints = endpoints.iter().map(|endpoint| hub.bind(endpoint)).collect::<Result<_, _>>()?;
        let waker = hub.waker();
        let cache = match &options.digest_file {
            None => DigestCache::new(options.digest_cache_bytes),
            Some(file) => DigestCache::with_file(options.digest_cache_bytes, file)
                .map_err(|source| ServeError::DigestFile { path: file.clone(), source })?,
        };
        let small_files = SmallFiles::new(options.small_files_bytes);
        let published = match (&options.watch, &options.state_directory) {
            (None, _) if options.relayed_versions.is_some() => {
                Some(SharedCatalogue::new(Catalogue::relayed_versions(), None, waker.clone()))
            }
            (None, _) if options.is_relay => Some(SharedCatalogue::new(Catalogue::relayed(), None, waker.clone())),
            (None, None) => None,
            // The program keeps things of its own there.
            (None, Some(directory)) => {
                let failed =
                    |error: io::Error| ServeError::State { path: directory.clone(), reason: error.to_string() };
                make_private_dir(directory).map_err(failed)?;
                None
            }
            (Some(_), None) => {
                let mut catalogue = Catalogue::new(Epoch(random()));
                catalogue.server = options.server_id;
                Some(SharedCatalogue::new(catalogue, None, waker.clone()))
            }
            (Some(_), Some(directory)) => {
                let failed =
                    |error: StateError| ServeError::State { path: directory.clone(), reason: error.to_string() };
                let (state, mut catalogue) = State::open(directory, Epoch(random())).map_err(failed)?;
                catalogue.server = Some(lasting_id(directory, options.server_id)?);
                Some(SharedCatalogue::new(catalogue, Some(state), waker.clone()))
            }
        };
        let published = published.map(Arc::new);
        let versions = match (&options.watch, &options.state_directory) {
            // Versions are frozen from a directory of this machine.
            (Some(_), Some(directory)) if root.is_some() => {
                let failed =
                    |error: RootError| ServeError::State { path: directory.clone(), reason: error.to_string() };
                Some(Arc::new(Versions::open(directory).map_err(failed)?))
            }
            _ => None,
        };
        let versions_root = match (&versions, &options.relayed_versions) {
            (Some(versions), _) => Some(versions.root()),
            (None, Some(directory)) => {
                let opened = Root::directory(directory, Links::Never);
                Some(Arc::new(opened.map_err(|source| ServeError::Root { path: directory.clone(), source })?))
            }
            (None, None) => None,
        };
        if let (Some(versions), Some(root)) = (versions_root, &root) {
            root.add_versions(versions).map_err(unusable)?;
        }
        if let (Some(versions), Some(published)) = (&versions, &published) {
            versions.publish_stored(published);
        }
        let can_publish = versions.is_some();
        let (mut pool, done) =
            Pool::new(served, cache, small_files, storage, (published.clone(), versions.clone()), waker.clone())
                .map_err(ServeError::Threads)?;
        if let Some(push) = options.push {
            let directory = push.staging.clone().unwrap_or_else(|| path.join(push.directory.as_os_str()));
            let elsewhere = elsewhere.map(|source| (source, pool.context()));
            let failed = |reason| ServeError::Push { path: directory.clone(), reason };
            pool.take_pushes(|send_update| Pushes::start(push, &path, published.clone(), elsewhere, send_update))
                .map_err(failed)?;
        }
        let polled = options.watch.clone().zip(published.clone()).zip(polled).map(|((options, published), source)| {
            Polled::start(options, (pool.context(), source), published).map_err(ServeError::Threads)
        });
        let polled = polled.transpose()?;
        let watch = options.watch.zip(published.clone()).zip(root).map(|((options, published), root)| {
            Watch::start(options, (pool.context(), root), published)
                .map_err(|error| ServeError::Watch { path, reason: error.to_string() })
        });
        let watch = watch.transpose()?;
        let publishers = match (can_publish, options.accept_publish) {
            (false, _) => Publishers::Nobody,
            (true, false) => Publishers::Known,
            (true, true) => Publishers::All,
        };
        let mut clients = Clients::new(pool, options.open_files_max, via, publishers);
        clients.limit_chunks(options.bytes_per_second);
        let (_, holders) = clients.shared_with_relay();
        if let Some(names) = options.followers {
            holders.lock().unwrap_or_else(PoisonError::into_inner).set_listed(names);
        }
        let kept = match (&options.state_directory, &published) {
            (Some(directory), Some(published)) => {
                let may_have = |cursor| published.read().may_have(cursor);
                let number = |tenant: &Tenant| clients.number_of(tenant);
                Some(KeptFollowers::start(directory, holders, number, may_have).map_err(ServeError::Threads)?)
            }
            _ => None,
        };
        let rate = options.bytes_per_second.map(|bytes| Rate::new(bytes, Instant::now()));
        let control = Control::new(waker);
        let is_relay = options.is_relay;
        Ok(Server {
            hub,
            endpoints,
            clients,
            done,
            authenticator,
            control,
            published,
            versions,
            is_relay,
            rate,
            _kept: kept,
            _watch: watch,
            _polled: polled,
        })
    }

    /// Endpoints that it listens on, with the real ports.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// A handle to control the server from other threads.
    pub fn handle(&self) -> Handle {
        self.control.handle()
    }

    /// The relay through this server: with [`ServerOptions::is_relay`].
    pub fn relay(&self) -> Option<Relay> {
        let published = Arc::clone(self.published.as_ref().filter(|_| self.is_relay)?);
        let (via, holders) = self.clients.shared_with_relay();
        Some(Relay::new(move |change| published.change(|catalogue| change(catalogue)), via, holders))
    }

    /// An operator's view of the catalogue, if it watches its directory or is a relay.
    pub fn catalogue(&self) -> Option<CatalogueView> {
        let (published, (_, holders)) = (self.published.clone()?, self.clients.shared_with_relay());
        Some(CatalogueView::new(published, self.versions.clone(), holders))
    }

    /// Serves until it is shut down.
    pub fn run(mut self) -> Result<(), ServeError> {
        // Peers with events in this turn: each is served once.
        let mut touched = BTreeSet::new();
        while !self.control.is_shutdown {
            let turn = self.rate.as_ref().and_then(|rate| rate.wait(Instant::now()));
            self.hub.poll(self.control.drain.as_ref().map(Drain::wait).into_iter().chain(turn).min())?;
            while let Some(event) = self.hub.next_event() {
                touched.extend(self.take(event));
            }
            while let Ok(done) = self.done.try_recv() {
                self.clients.done(done, &mut touched);
            }
            self.clients.start_copies();
            if self.published.as_ref().is_some_and(|published| published.take_changed()) {
                self.clients.published(&mut touched);
            }
            self.control.turn(&mut self.hub, &mut self.clients, self.authenticator.as_ref());
            self.take_turns();
            loop {
                touched.append(&mut self.clients.take_unblocked());
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

    /// Serves those who waited for the rate, as far as it goes now.
    fn take_turns(&mut self) {
        while let Some(peer) = self.rate.as_mut().and_then(|rate| rate.next_turn(Instant::now())) {
            self.serve(peer);
        }
    }

    /// Handles an event and returns the peer that is to be served.
    fn take(&mut self, event: Event) -> Option<PeerId> {
        match event {
            Event::Ready { peer } if self.control.drain.is_some() => {
                self.hub.disconnect(peer, DRAINING);
                None
            }
            Event::Ready { peer } => {
                if let Some(info) = self.hub.peer(peer) {
                    match may(self.authenticator.as_ref(), &info, true) {
                        Some(permissions) => self.clients.connected(info, permissions),
                        None => self.hub.disconnect(peer, NOT_ADMITTED),
                    }
                }
                None
            }
            Event::Authenticate { peer, credentials } => {
                self.hub.authenticate_by(self.authenticator.as_ref(), peer, credentials);
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
                if let Some(rate) = &mut self.rate {
                    rate.gone(peer);
                }
                None
            }
            // Logged by the hub.
            Event::Failed { .. } => None,
            // Reading may be paused; sending will fail.
            Event::HungUp { .. } => None,
            // Bodies are not streamed to this server.
            Event::BodyStart { peer, .. } | Event::BodyData { peer, .. } | Event::BodyEnd { peer, .. } => {
                self.hub.disconnect(peer, "a frame over the limit");
                None
            }
            _ => None,
        }
    }

    /// Carries out a session's actions and queues its messages, as far as credit, pipeline and socket allow.
    fn serve(&mut self, peer: PeerId) {
        let Server { hub, clients, rate, .. } = self;
        clients.still_queued(peer, hub.queued(peer).messages);
        clients.watch_buffers(peer, || hub.tcp_info(peer));
        loop {
            clients.act(peer, |ticket| hub.remove_queued(peer, ticket.0));
            if !hub.is_writable(peer) || rate.as_mut().is_some_and(|rate| !rate.may_send(peer, Instant::now())) {
                break;
            }
            let Some(outgoing) = clients.next_message(peer) else {
                // With nothing to send yet, new credit may have given something to do.
                if clients.has_actions(peer) {
                    continue;
                }
                break;
            };
            if let Some(rate) = rate {
                rate.sent(outgoing.bytes(), Instant::now());
            }
            match hub.send(peer, message(outgoing)) {
                Ok(()) => {}
                // The event that says so is on its way.
                Err(SendError::Gone(_)) => break,
                // It said that it had space. A message must not be lost, so the connection is.
                Err(SendError::Full(_)) => {
                    hub.disconnect(peer, "its queue is full");
                    break;
                }
            }
        }
        clients.served(peer, rate.as_ref().is_some_and(|rate| rate.is_waiting(peer)));
        hub.pause_reading(peer, clients.is_congested(peer));
    }
}

/// A client's permissions; `None`: it may not stay.
pub(super) fn may(authenticator: Option<&Authenticator>, info: &PeerInfo, is_new: bool) -> Option<Permissions> {
    match authenticator {
        Some(authenticator) => authenticator.permissions(&info.principal, &info.address, is_new),
        None => Some(Permissions::unrestricted()),
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
            debug_assert!(file.is_local(), "sendfile may wait for ever");
            let Some(range) = file.range(offset, length) else {
                tracing::error!("a piece that isn't in memory has no descriptor");
                return Frame::Bytes(Bytes::new());
            };
            let range = range.tagged(slot).assume_cached();
            match if_short {
                IfShort::Pad => range.into(),
                IfShort::Close => range.close_if_short().into(),
            }
        }
    };
    let message: Message = parts.into_iter().map(frame).collect();
    message.tagged(ticket.map_or(0, |Ticket(number)| number))
}
