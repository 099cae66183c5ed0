//! A server without threads and sockets: a test decides what happens next. The directory, the kernel's events and the stored catalogue are real.

use super::events::{Events, Woken};
use super::{SharedCatalogue, State, WatchOptions, Watcher};
use crate::catalogue::{Catalogue, Content, Entry};
use crate::path::RelPath;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::{Holder, Request};
use crate::protocol::follow::{Epoch, ServerId};
use crate::root::{FileStat, Secrets};
use crate::server::jobs::{Answer, Changes, Context, Job};
use crate::server::quota::Quotas;
use crate::server::session::{Action, Part, Session, Ticket};
use crate::server::snapshot::{RootWatch, Served};
use rustix::fs::inotify::ReadFlags;
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::thread::{CapabilitySet, UnshareFlags, capabilities, set_capabilities};
use std::collections::{BTreeMap, VecDeque};
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use towpath_sockets::{Hub, HubOptions, Principal, SocketType};

pub(crate) struct SimulatedServer {
    watcher: Watcher,
    published: Arc<SharedCatalogue>,
    release: Arc<AtomicBool>,
    buffer: Vec<MaybeUninit<u8>>,
}

/// A client's session on the server.
pub(crate) struct SimulatedSession {
    session: Session<()>,
    jobs: VecDeque<(Ticket, Changes)>,
    /// The client's reports.
    pub(crate) said: Vec<Holder>,
}

impl SimulatedServer {
    /// `epoch` is for a new catalogue, `boot` another one if the machine was started since.
    pub(crate) fn start(root: &Path, state: &Path, epoch: u8, boot: u8, max_delete: u64) -> SimulatedServer {
        let (state, mut catalogue) =
            State::open_after(state, Epoch([epoch; 16]), Some([boot; 16])).expect("a stored catalogue");
        catalogue.server = Some(ServerId([9; 16]));
        let waker = Hub::new(HubOptions::new(SocketType::Dealer)).expect("a hub").waker();
        let published = Arc::new(SharedCatalogue::new(catalogue, Some(state), waker.clone()));
        let path = Arc::new(RootWatch::open(root, Secrets::default()).expect("a root"));
        let context = Context::watching(Served::Path(Arc::clone(&path)), Arc::clone(&published), waker);
        let release = Arc::new(AtomicBool::new(false));
        // Leases show when a file is finished.
        let settle = Duration::from_secs(3600);
        let options =
            WatchOptions { settle, max_delete, release_deletions: Arc::clone(&release), ..WatchOptions::default() };
        let events = Events::new(usize::MAX).expect("events");
        events.everything();
        published.is_watched_by(Arc::clone(&events));
        let watcher = Watcher::new(options, (context, path), Arc::clone(&published), events);
        SimulatedServer { watcher, published, release, buffer: vec![MaybeUninit::uninit(); 64 << 10] }
    }

    /// Looks where something happened; or the events are lost, or come twice. Whether they were of everything.
    pub(crate) fn look(&mut self, times: usize) -> bool {
        self.watcher.events.poll_mounts();
        self.watcher.events.read(&mut self.buffer).expect("events");
        let Woken::Dirty { dirty, .. } = self.watcher.events.wait(Some(Instant::now())) else { return false };
        let is_everything = dirty.is_everything;
        for _ in 1..times {
            self.watcher.look(dirty.clone());
        }
        if times > 0 {
            self.watcher.look(dirty);
        } else if dirty.are_mounts {
            // Of this nothing is ever lost.
            self.watcher.events.mounts_changed();
        }
        is_everything
    }

    pub(crate) fn finish(&mut self) {
        self.watcher.finish();
    }

    pub(crate) fn has_unfinished(&self) -> bool {
        self.watcher.unfinished.due().is_some_and(|due| due <= Instant::now())
    }

    pub(crate) fn rescan(&self) {
        self.watcher.events.everything();
    }

    pub(crate) fn overflow(&self) {
        self.watcher.events.take(-1, ReadFlags::QUEUE_OVERFLOW, None);
    }

    /// Looks, and publishes what is finished, until there is nothing to do.
    pub(crate) fn settle(&mut self) {
        loop {
            self.watcher.events.poll_mounts();
            self.watcher.events.read(&mut self.buffer).expect("events");
            match self.watcher.events.wait(Some(Instant::now())) {
                Woken::Dirty { dirty, .. } => self.watcher.look(dirty),
                _ if self.has_unfinished() => {}
                _ => return,
            }
            self.watcher.finish();
        }
    }

    /// Reports a file that was read.
    pub(crate) fn found(&self, path: &RelPath, stat: &FileStat) {
        self.published.found(path, stat);
    }

    /// Forgets what happened since the last look.
    pub(crate) fn lose_events(&mut self) {
        self.watcher.events.read(&mut self.buffer).expect("events");
        let _ = self.watcher.events.wait(Some(Instant::now()));
    }

    /// Tries again to read what could not be read.
    pub(crate) fn look_at_unread(&mut self) {
        self.watcher.look_at_unread();
    }

    /// Unreadable paths that followers learn of.
    pub(crate) fn unread(&self) -> Vec<String> {
        self.published.read().unread().0.keys().map(ToString::to_string).collect()
    }

    /// A person releases what is held.
    pub(crate) fn release(&mut self) {
        self.release.store(true, Ordering::Release);
        self.watcher.check();
    }

    pub(crate) fn check(&mut self) {
        self.watcher.check();
    }

    pub(crate) fn is_holding(&self) -> bool {
        self.watcher.holding.is_some()
    }

    /// Whether the directory that is there now is the one that is published.
    pub(crate) fn is_accepted(&mut self) -> bool {
        let root = self.watcher.path.look();
        self.watcher.root_now(&root).is_some_and(|(_, is_accepted)| is_accepted)
    }

    pub(crate) fn head(&self) -> u64 {
        self.published.read().head()
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.published.read().epoch()
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.published.read().is_complete()
    }

    /// All entries, including deletions.
    pub(crate) fn entries(&self) -> BTreeMap<String, Entry> {
        let text = |path: &[u8]| String::from_utf8(path.to_vec()).expect("names are ASCII");
        let catalogue: &Catalogue = &self.published.read();
        catalogue.since(0).map(|(path, entry)| (text(path), entry.clone())).collect()
    }

    /// The published entries.
    pub(crate) fn live(&self) -> BTreeMap<String, Entry> {
        self.entries().into_iter().filter(|(_, entry)| entry.content != Content::Gone).collect()
    }

    pub(crate) fn has_changes(&self) -> bool {
        self.published.take_changed()
    }
}

/// Does something as a user whom the modes of files concern, as they don't root.
pub(crate) fn as_plain_user<R>(act: impl FnOnce() -> R) -> R {
    let all = capabilities(None).expect("capabilities");
    let mut fewer = all;
    fewer.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    set_capabilities(None, fewer).expect("fewer capabilities");
    let done = act();
    set_capabilities(None, all).expect("all capabilities");
    done
}

/// Gives this thread mounts of its own: whether that is allowed here.
pub(crate) fn has_own_mounts() -> bool {
    #[expect(deprecated, reason = "the other one is unsafe, because of descriptors, which stay shared here")]
    let unshared = rustix::thread::unshare(UnshareFlags::NEWNS);
    let is_private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    let done = unshared.and_then(|()| mount_change("/", is_private));
    if let Err(reason) = done {
        println!("skipped: nothing can be mounted here: {reason}");
    }
    done.is_ok()
}

impl SimulatedSession {
    pub(crate) fn new() -> SimulatedSession {
        let session = Session::new(Principal::Anonymous, Quotas::new(64).client()).following(true, false);
        SimulatedSession { session, jobs: VecDeque::new(), said: Vec::new() }
    }

    pub(crate) fn request(&mut self, request: Request) {
        self.session.request(Vec::new(), Ok(Request::decode(&request.encode()).expect("a request")));
        self.actions();
    }

    pub(crate) fn published(&mut self) {
        self.session.published();
        self.actions();
    }

    /// Makes a page that was asked for.
    pub(crate) fn job(&mut self, server: &SimulatedServer) {
        if let Some((ticket, job)) = self.jobs.pop_front() {
            let answer = job.make(&server.published);
            self.session.finish(ticket, Answer::Changes(answer));
            self.actions();
        }
    }

    pub(crate) fn has_jobs(&self) -> bool {
        !self.jobs.is_empty()
    }

    fn actions(&mut self) {
        while let Some(action) = self.session.next_action() {
            match action {
                Action::Start(ticket, Job::Changes(changes)) => self.jobs.push_back((ticket, changes)),
                Action::Start(_, other) => panic!("another job: {other:?}"),
                Action::Hello(envelope) => self.session.hello(&envelope, Vec::new()),
                Action::Have(holders) => self.said.extend(holders),
                Action::Release { .. } | Action::FetchesFor(_) | Action::Log(_) | Action::Holders(..) => {}
            }
        }
    }

    /// Messages to the client.
    pub(crate) fn sent(&mut self) -> Vec<Inbound> {
        let mut sent = Vec::new();
        while let Some(message) = self.session.next_message() {
            let frames = message.parts.into_iter().filter_map(|part| match part {
                Part::Bytes(bytes) => Some(bytes),
                Part::File { .. } => None,
            });
            // The tag first.
            sent.extend(frames.skip(1).take(1).map(|json| Inbound::Control { json, attachment: None }));
            self.actions();
        }
        sent
    }
}
