//! A follow as a state machine: what the server says, what the disk reports and the time go in, requests and commands for the disk come out.
//! It looks at its destination and writes its record itself; content goes through the transfer.
//!
//! The driver calls [`Follower::connected`], [`Follower::lost`], [`Follower::inbound`], [`Follower::disk`] and [`Follower::tick`], and after each
//! carries out all of [`Follower::next_output`].

use super::account::Account;
use super::feed::{self, Failed, Feed};
use super::finish::{RETRY_MIN, is_full};
use super::frozen::{Frozen, Seed};
use super::others::{Match, Others};
use super::pages::{CheckedPage, FOLLOW_ID, Pages, Placed};
use super::place::{Place, Survey};
use super::record::{Known, Origin, Record};
use super::report::Report;
use super::{FollowEnd, FollowEvent, FollowOptions};
use crate::client::get::windows;
use crate::counted;
use crate::disk::Ledger;
use crate::error::Error;
use crate::filter::Filter;
use crate::limits::CATALOGUE_PATHS_MAX;
use crate::path::RelPath;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::{
    Change, ChangeContent, ChangesReply, ErrorReply, FollowLinks, FollowingReply, HelloReply, Reply, Request,
    request_id,
};
use crate::protocol::follow::Cursor;
use crate::root::RootError;
use crate::transfer::names::follow_name;
use crate::transfer::{DiskReport, LIST_ENTRIES_MAX, Output, Transfer, TransferOptions};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pages that are asked for ahead until it is up to date: the next ones come while those that are there are put in place.
const PAGES_AHEAD: u32 = 8;
/// Replies that may wait: pages, and that the follow begins again.
const REPLIES_MAX: usize = PAGES_AHEAD as usize + 2;
/// Time between two looks at how much is lacking.
const LACKS_EVERY: Duration = Duration::from_secs(1);
/// Paths that are known, or have failed; those of a full state besides.
const PATHS_MAX: usize = 2 * CATALOGUE_PATHS_MAX;

pub(super) struct Follower<'a> {
    pub(super) options: &'a FollowOptions,
    idle_timeout: Duration,
    pub(super) on_event: &'a mut dyn FnMut(FollowEvent) -> std::io::Result<()>,
    /// The time, as the driver knew it last.
    pub(super) now: Instant,
    pub(super) is_connected: bool,
    pub(super) requests: VecDeque<Request>,
    pub(super) transfer: Transfer,
    pub(super) place: Place,
    pub(super) ledger: Arc<Ledger>,
    pub(super) record: Record,
    pub(super) pages: Pages,
    pub(super) report: Report,
    pub(super) account: Account,
    /// A version, whose pages come from its manifest.
    pub(super) frozen: Option<Frozen>,
    pub(super) seed: Option<Seed>,
    pub(super) feed: Option<Feed>,
    /// Replies that came during a fetch.
    pub(super) replies: VecDeque<Reply>,
    /// Entries that are gone at the server and were put here, by path on the destination.
    pub(super) gone: BTreeMap<RelPath, (RelPath, u64)>,
    /// Followed paths that the server can't read, and how many more there may be.
    pub(super) unread: (Vec<(RelPath, bool)>, u64),
    /// Entries in place and recorded that aren't reported yet; with the old path of renamed ones.
    pub(super) unreported: HashMap<RelPath, Option<RelPath>>,
    /// Inodes of the directories that were put here.
    pub(super) dirs: HashMap<RelPath, u64>,
    /// Whether an entry that was put here is missing, or may be.
    pub(super) is_missing: bool,
    /// Files whose content is here under another name, until it is known whether that name is to go.
    pub(super) waiting: BTreeMap<RelPath, Placed>,
    /// Paths that could not be put in place.
    pub(super) failed: BTreeMap<RelPath, Failed>,
    /// The last error reported for each path that fails.
    pub(super) said: HashMap<RelPath, String>,
    pub(super) retry_at: Option<Instant>,
    pub(super) retry_after: Duration,
    /// Until when the end waits for what the server has not noticed yet.
    pub(super) grace_until: Option<Instant>,
    pub(super) is_holding: bool,
    /// Why something could not be deleted.
    pub(super) undeleted: Option<String>,
    /// When it was last found out how much is lacking.
    lacks_at: Option<Instant>,
    /// The origin of everything, as reported by the server.
    pub(super) origin: Option<Origin>,
    /// Whether the server may be another one than before.
    pub(super) is_unknown: bool,
    pub(super) others: Others,
    /// The cursor when everything fed is in place.
    pub(super) cursor: Option<Cursor>,
    pub(super) end: Option<FollowEnd>,
}

impl<'a> Follower<'a> {
    pub(super) fn open(
        options: &'a FollowOptions,
        account: Account,
        idle_timeout: Duration,
        on_event: &'a mut dyn FnMut(FollowEvent) -> std::io::Result<()>,
        now: Instant,
    ) -> Result<Self, Error> {
        let refused = |reason: String| Error::Destination { path: options.destination.clone(), reason };
        let full = |error: &dyn std::fmt::Display| {
            Error::DiskFull(format!("cannot write the record of what was followed: {error}"))
        };
        let unwritable = |error: std::io::Error| match is_full(&error) {
            true => full(&error),
            false => refused(error.to_string()),
        };
        std::fs::create_dir_all(&options.destination).map_err(unwritable)?;
        let place = Place::open(options)?;
        let top = place.top().map_err(|error| refused(error.to_string()))?;
        let record = Record::open(&top, &options.source, &options.exclude);
        let mut record = record.map_err(|error| match error.is_full() {
            true => full(&error),
            false => refused(error.to_string()),
        })?;
        account.is_of(record.copy());
        record.begin(options.mirror).map_err(unwritable)?;
        place.adopt(&mut record).map_err(unwritable)?;
        let Survey { missing, dirs } = place.survey(&record);
        if let Some(first) = missing.first() {
            on_event(FollowEvent::Warning(feed::missing(first, missing.len())))?;
            record.forget_missing(&missing).map_err(unwritable)?;
        }
        let transfer = TransferOptions {
            source: options.source.clone(),
            window_bytes: options.window_bytes,
            windows: windows(),
            chunk_bytes: options.chunk_bytes,
            compress: options.compress,
            verify: true,
            durable: options.durable,
            bytes_per_second: options.bytes_per_second,
            idle_timeout,
            follow: FollowLinks::None,
            in_order: false,
            objects: false,
            check: false,
            max_bytes: None,
            max_entries: LIST_ENTRIES_MAX,
            filter: Filter::default(),
            sweep: false,
        };
        Ok(Follower {
            options,
            idle_timeout,
            on_event,
            now,
            is_connected: false,
            requests: VecDeque::new(),
            transfer: Transfer::fed(transfer, now),
            ledger: Arc::clone(&place.ledger),
            place,
            // A relay has to know everything that it passes on, and a version is compared as a whole.
            pages: Pages::new(
                options.source.clone(),
                options.exclude.clone(),
                // With nothing here it is to be said why, and costs nothing.
                record.cursor().filter(|_| !options.begins_anew() && record.len() > 0),
            ),
            report: Report::new(options, account.clone()),
            account,
            seed: options.frozen.as_ref().and_then(|frozen| {
                let (directory, source) = frozen.seed.as_ref()?;
                Seed::open(directory, source)
            }),
            frozen: options.frozen.clone(),
            cursor: record.cursor(),
            unreported: record.unreported().map(|path| (path.clone(), None)).collect(),
            record,
            feed: None,
            replies: VecDeque::new(),
            gone: BTreeMap::new(),
            unread: (Vec::new(), 0),
            dirs,
            is_missing: false,
            waiting: BTreeMap::new(),
            failed: BTreeMap::new(),
            said: HashMap::new(),
            retry_at: None,
            retry_after: RETRY_MIN,
            grace_until: None,
            is_holding: false,
            undeleted: None,
            lacks_at: None,
            origin: None,
            is_unknown: false,
            others: Others::default(),
            end: None,
        })
    }

    /// Begins the follow on a new connection.
    pub(super) fn connected(&mut self) {
        self.is_connected = true;
        self.transfer.connected();
        self.report.connected();
        self.requests.extend(self.report.next_request(self.now));
        let fetches_for = self.frozen.as_ref().map(|frozen| frozen.fetches_for.clone());
        self.requests.extend(fetches_for.map(Request::FetchesFor));
        self.ask();
    }

    /// The connection is lost, and with it whatever was asked for.
    pub(super) fn lost(&mut self, reason: &str) -> Result<(), Error> {
        self.is_connected = false;
        (self.on_event)(FollowEvent::Interrupted { reason: format!("the connection is lost: {reason}") })?;
        self.pages.lost();
        self.replies.clear();
        self.requests.clear();
        self.transfer.disconnected();
        Ok(())
    }

    /// Takes what the server sent.
    pub(super) fn inbound(&mut self, inbound: Inbound, now: Instant) -> Result<(), Error> {
        self.now = now;
        match &inbound {
            Inbound::Control { json, .. } if request_id(json) == Some(FOLLOW_ID) => {
                if self.replies.len() >= REPLIES_MAX {
                    return Error::protocol("more pages than were asked for");
                }
                self.replies.push_back(Reply::decode(json).map_err(Error::from)?);
                self.take_replies()
            }
            _ => match hello(&inbound) {
                Some(hello) => self.report.hello(&hello),
                None => {
                    self.transfer.inbound(inbound, now);
                    Ok(())
                }
            },
        }
    }

    /// Takes a report of the disk.
    pub(super) fn disk(&mut self, report: DiskReport, now: Instant) {
        self.now = now;
        self.transfer.disk(report, now);
    }

    /// Time until something is due; `None` if nothing is.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        if self.frozen.as_ref().is_some_and(Frozen::has_reply) {
            return Some(Duration::ZERO);
        }
        let report = self.report.due(now).filter(|_| self.is_connected);
        let retry = self.retry_at.filter(|_| self.pages.is_live);
        let due = [report, retry].into_iter().flatten().min();
        due.map(|at| at.saturating_duration_since(now))
    }

    /// Does what is due. `reads`: the disk has read more of existing files since the last call.
    pub(super) fn tick(&mut self, now: Instant, reads: bool) -> Result<(), Error> {
        self.now = now;
        // With nothing to do, or nobody to do it with, no time passes for the transfer.
        if reads || self.feed.is_none() || !self.is_connected {
            self.transfer.reading(now);
        }
        self.transfer.tick(now);
        if self.lacks_at.is_none_or(|at| now.saturating_duration_since(at) >= LACKS_EVERY) {
            self.lacks_now();
        }
        while self.is_connected
            && let Some(request) = self.report.next_request(now)
        {
            self.requests.push_back(request);
        }
        // In the middle of a full state it isn't known yet what is gone; the end of it tries again too.
        if self.feed.is_none() && self.pages.is_live && self.retry_at.take_if(|at| *at <= now).is_some() {
            self.retry()?;
        }
        self.replies.extend(std::iter::from_fn(|| self.frozen.as_mut().and_then(Frozen::next_reply)));
        self.take_replies()
    }

    /// Takes what the server said, unless something is being fetched: what failed before may be tried again while a page comes.
    pub(super) fn take_replies(&mut self) -> Result<(), Error> {
        while self.feed.is_none()
            && self.end.is_none()
            && let Some(reply) = self.replies.pop_front()
        {
            match reply {
                Reply::Cancelled(_) => self.pages.cancelled(),
                _ if self.pages.is_stale() => {}
                Reply::Following(following) => {
                    self.begins(&following)?;
                    let is_full = self.pages.following(&following)?;
                    self.report.following(is_full, following.server);
                    // A full state makes these obsolete.
                    self.gone.retain(|_, _| !is_full);
                    self.waiting.retain(|_, _| !is_full);
                    self.failed.retain(|_, _| !is_full);
                }
                Reply::Changes(page) => self.page(page)?,
                Reply::Error(ErrorReply { code, message, .. }) => {
                    return Err(Error::Refused { code, message });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Looks whose the files are: what another server or path put here isn't touched.
    fn begins(&mut self, following: &FollowingReply) -> Result<(), Error> {
        if self.frozen.is_some() {
            return Ok(());
        }
        let FollowOptions { source, exclude, destination, .. } = self.options;
        let origin = Origin::new(source, following.server, following.cursor.epoch);
        self.is_unknown = self.record.check_origin(&origin, self.options)? == Match::Unknown;
        if !self.is_unknown {
            self.record.note_origin(&origin).map_err(|error| self.record_failed(&error))?;
        }
        self.others.look(destination, &follow_name(source, exclude));
        self.origin = Some(origin);
        Ok(())
    }

    /// Looks whether something may be put at a path: an error if another source has put something there, unless that is taken over.
    pub(super) fn take_over(&mut self, placed: &Placed) -> Result<(), Error> {
        let Follower { others, record, place, origin, options, .. } = self;
        let Some(origin) = origin.as_ref().filter(|_| !others.is_empty()) else { return Ok(()) };
        let unusable =
            |error: RootError| Error::Destination { path: options.destination.clone(), reason: error.to_string() };
        if place.stat(&placed.local).map_err(unusable)?.is_none() {
            return Ok(());
        }
        let is_dir = matches!(placed.change.content, ChangeContent::Dir { .. });
        others.take_over(&place.top().map_err(unusable)?, record, origin, (&placed.local, is_dir), options)
    }

    /// The entry that this source put at a path under another filter, if it is unchanged.
    pub(super) fn put_before(&mut self, local: &RelPath) -> Option<Known> {
        let Follower { others, place, origin, options, .. } = self;
        let origin = origin.as_ref().filter(|_| !others.is_empty())?;
        let known = others.same(&place.top().ok()?, origin, local, options.adopt)?;
        place.is_as_put(local, &known).then_some(known)
    }

    /// The driver's next step: send something, carry out a command, or all that was fed is in place
    /// ([`Output::InPlace`]).
    pub(super) fn next_output(&mut self) -> Result<Option<Output>, Error> {
        loop {
            if let Some(request) = self.requests.pop_front() {
                return Ok(Some(Output::Send(request)));
            }
            let Some(output) = self.transfer.next_output() else { return Ok(None) };
            match output {
                Output::Send(_) | Output::Disk(_) => return Ok(Some(output)),
                // That of a fed transfer is known, and nothing is deleted by it.
                Output::OpenDestination { .. } | Output::Sweep => {}
                Output::Warn(text) => (self.on_event)(FollowEvent::Warning(text))?,
                Output::InPlace => {
                    self.in_place()?;
                    return Ok(Some(Output::InPlace));
                }
                Output::Finished => {
                    let stalled = || Error::Stalled { seconds: self.idle_timeout.as_secs(), connected: true };
                    return Err(self.transfer.failure().unwrap_or_else(stalled));
                }
            }
        }
    }

    /// Asks for the next pages: if there is nothing else to do, or ahead, where more are to come.
    pub(super) fn ask(&mut self) {
        let ahead = match (&self.frozen, self.pages.is_live) {
            (None, false) => PAGES_AHEAD,
            _ => u32::from(self.feed.is_none()),
        };
        while self.is_connected
            && self.end.is_none()
            && let Some(request) = self.pages.next_request(ahead)
        {
            match &mut self.frozen {
                Some(frozen) => frozen.ask(&request),
                None => self.requests.push_back(request),
            }
        }
    }

    /// Checks a page.
    fn checked(&mut self, page: ChangesReply) -> Result<CheckedPage, Error> {
        // Paths in the page aren't tried again, the followed path itself included.
        let changed: HashSet<_> = page.changes.iter().map(|change| change.path.as_bytes()).collect();
        self.failed.retain(|_, failed| !changed.contains(failed.placed.remote.as_bytes()));
        self.waiting.retain(|_, placed| !changed.contains(placed.remote.as_bytes()));
        self.pages.page(page)
    }

    /// Takes a page of changes, with those that have come after it, and makes way for them.
    fn page(&mut self, page: ChangesReply) -> Result<(), Error> {
        let mut page = self.checked(page)?;
        while !page.live && matches!(self.replies.front(), Some(Reply::Changes(_))) {
            if let Some(Reply::Changes(next)) = self.replies.pop_front() {
                page.merge(self.checked(next)?);
            }
        }
        let pending = self.failed.len() + self.waiting.len();
        if self.record.len() + pending + self.pages.seen.as_ref().map_or(0, HashSet::len) > PATHS_MAX {
            return Err(Error::Limit(format!("more than {CATALOGUE_PATHS_MAX} paths")));
        }
        for warning in page.warnings {
            (self.on_event)(FollowEvent::Warning(warning))?;
        }
        if page.live {
            self.note_unread(page.unread, page.unread_more)?;
        }
        self.report.page(&page.changes);
        let (gone, mut there): (Vec<_>, Vec<_>) =
            page.changes.into_iter().partition(|placed| placed.change.content == ChangeContent::Gone);
        for Placed { remote, local, change } in gone {
            if self.record.get(&local).is_some() {
                self.gone.insert(local, (remote, change.seq));
            }
        }
        there.iter().for_each(|placed| _ = self.gone.remove(&placed.local));
        if page.live {
            self.unseen_are_gone(page.cursor.seq);
            there.splice(..0, std::mem::take(&mut self.waiting).into_values());
        } else {
            let waiting: Vec<_> = there.extract_if(.., |placed| self.may_be_moved(placed)).collect();
            self.waiting.extend(waiting.into_iter().map(|placed| (placed.local.clone(), placed)));
        }
        self.start(there, Some(page.cursor), page.live, false)?;
        self.ask();
        Ok(())
    }

    /// Finds out again how much is lacking.
    pub(super) fn lacks_now(&mut self) {
        self.lacks_at = Some(self.now);
        self.account.lacks(self.lacks(), self.now);
    }

    /// Files that aren't in place, and their bytes that aren't here, as far as they are known.
    pub(super) fn lacks(&self) -> (u64, u64) {
        let placed = self.failed.values().map(|failed| &failed.placed).chain(self.waiting.values());
        let own = placed.map(|placed| size_of(&placed.change));
        let fed = self.feed.as_ref().map(|feed| feed.lacks(&self.transfer.progress()));
        let later = self.frozen.as_ref().map(Frozen::later);
        let all = own.chain(fed).chain(later);
        all.fold((0, 0), |sum, one| (sum.0 + one.0, u64::saturating_add(sum.1, one.1)))
    }

    /// Whether the content of a file is here under another name, which may turn out to be gone. A link may always be.
    fn may_be_moved(&self, placed: &Placed) -> bool {
        let known = self.record.get(&placed.local);
        let is_moved = match Known::of(&placed.change) {
            Some(Known::File { digest, .. }) => {
                known.and_then(Known::digest) != Some(digest) && self.record.with_digest(digest).is_some()
            }
            wanted @ Some(Known::Link(_)) => known != wanted.as_ref(),
            _ => false,
        };
        self.options.mirror && is_moved
    }
}

impl Follower<'_> {
    /// Takes what the server can't read now. Of this nobody knows what is there.
    fn note_unread(&mut self, unread: Vec<(RelPath, bool)>, more: u64) -> Result<(), Error> {
        let new = unread.iter().filter(|unread| !self.unread.0.contains(unread));
        for (path, _) in new {
            let reason = "the server can't read it, so it isn't known what is there".to_owned();
            (self.on_event)(FollowEvent::Failed { path: path.clone(), reason })?;
        }
        if more > self.unread.1 {
            (self.on_event)(FollowEvent::Warning(format!("the server can't read {} besides", counted(more, "path"))))?;
        }
        self.report.unread(&unread, more);
        self.unread = (unread, more);
        Ok(())
    }
}

/// The number of files of a change, and their bytes.
pub(super) fn size_of(change: &Change) -> (u64, u64) {
    match change.content {
        ChangeContent::File { size, .. } => (1, size),
        _ => (0, 0),
    }
}

/// The server's answer to `hello`, if this is one.
fn hello(inbound: &Inbound) -> Option<HelloReply> {
    let Inbound::Control { json, .. } = inbound else { return None };
    match request_id(json).is_none().then(|| Reply::decode(json)) {
        Some(Ok(Reply::Hello(hello))) => Some(hello),
        _ => None,
    }
}
