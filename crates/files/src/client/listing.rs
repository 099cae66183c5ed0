//! Lists what a server has, without fetching it.
//!
//! A server that hashes says nothing before it has hashed a file, however large. For a listing with digests it is
//! therefore first asked for one without them, which shows how long that may take.

use super::connection::Connection;
use super::exchange::{Connector, Operation, Turn, WaitLimit};
use super::stream::Stream;
use crate::error::Error;
use crate::protocol::ErrorCode;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::{
    Base, DirStat, EntryKind, FollowLinks, ListEntry, ListPage, ListRequest, ListTarget, Reply, Request,
};
use crate::transfer::{HASH_BYTES_PER_SECOND_MIN, LISTING_BUSY_WAIT, Source};
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{Duration, Instant};
use towpath_blocking::CancelToken;
use towpath_sockets::Waker;

/// Bytes that a server may hash for a page, beside its last file.
const PAGE_HASHED_BYTES: u64 = 1 << 30;
/// Pages that are taken ahead of the reader, of at most 512 KiB of JSON each.
const PAGES_AHEAD: usize = 2;

/// Options of [`FileClient::list`](super::FileClient::list).
#[derive(Clone, Debug)]
pub struct ListOptions {
    /// A path or a pattern on the server.
    pub source: Source,
    /// Include what is below directories.
    pub recursive: bool,
    /// Include digests, for which the server may have to hash.
    pub digest: bool,
    /// Links that are listed as what they lead to.
    pub follow: FollowLinks,
}

impl ListOptions {
    /// The defaults for a path or a pattern: not recursive, no digests, links as links.
    pub fn new(source: Source) -> Self {
        Self { source, recursive: false, digest: false, follow: FollowLinks::None }
    }
}

/// The entries of a listing, in the server's order; paths and texts in them are the server's: escape them before they reach a terminal.
/// The last item is an error if the listing fails. A listing isn't resumed when its connection is lost.
pub struct Entries {
    stream: Stream<Vec<ListEntry>, (Base, Option<DirStat>)>,
    page: std::vec::IntoIter<ListEntry>,
    /// Of the thread that may wait until a page is taken.
    waker: Waker,
    base: Option<Base>,
    dir: Option<DirStat>,
}

impl Entries {
    pub(super) fn start(connector: Arc<Connector>, options: ListOptions, cancel: CancelToken) -> Result<Self, Error> {
        let mut exchange = connector.exchange(&cancel)?;
        let waker = exchange.waker();
        let stream = Stream::start(PAGES_AHEAD, cancel, move |pages, _| {
            let listing = Listing::new(options);
            let mut list = List {
                listing,
                pages,
                full: None,
                next: None,
                busy: None,
                is_handed_over: false,
                dir: None,
                base: None,
            };
            let outcome = exchange.run(&mut list);
            connector.keep(exchange, &outcome);
            outcome
        })?;
        Ok(Self { stream, page: Vec::new().into_iter(), waker, base: None, dir: None })
    }

    /// The kind of what was listed, once all entries were taken.
    pub fn base(&self) -> Option<Base> {
        self.base
    }

    /// Metadata of the directory that was listed, once all entries were taken.
    pub fn dir(&self) -> Option<DirStat> {
        self.dir
    }
}

impl Iterator for Entries {
    type Item = Result<ListEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(entry) = self.page.next() {
                return Some(Ok(entry));
            }
            let Some(page) = self.stream.next() else {
                return match self.stream.outcome()? {
                    Ok((base, dir)) => {
                        (self.base, self.dir) = (Some(base), dir);
                        None
                    }
                    Err(error) => Some(Err(error)),
                };
            };
            self.page = page.into_iter();
            self.waker.wake();
        }
    }
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entries").field("base", &self.base).finish_non_exhaustive()
    }
}

/// A listing whose entries are handed over.
struct List {
    listing: Listing,
    pages: SyncSender<Vec<ListEntry>>,
    /// A page that did not fit.
    full: Option<Vec<ListEntry>>,
    /// The request to send once it is handed over.
    next: Option<Request>,
    /// When it is requested again, as the server is too busy for it.
    busy: Option<(Instant, Error)>,
    /// Entries were handed over, which can't be taken back: such a listing isn't requested again.
    is_handed_over: bool,
    /// Of the directory.
    dir: Option<DirStat>,
    /// Of a listing that is over.
    base: Option<Base>,
}

impl Operation for List {
    type Outcome = (Base, Option<DirStat>);

    fn turn(&mut self, connection: &mut Connection, now: Instant) -> Result<Turn<Self::Outcome>, Error> {
        if let Some(page) = self.full.take() {
            match self.pages.try_send(page) {
                Ok(()) => {}
                Err(TrySendError::Full(page)) => {
                    self.full = Some(page);
                    return Ok(Turn::Wait(Duration::MAX));
                }
                Err(TrySendError::Disconnected(_)) => return Err(Error::Cancelled),
            }
        }
        self.next.take().iter().for_each(|next| connection.send(next));
        if let Some(base) = self.base {
            return Ok(Turn::Over((base, self.dir)));
        }
        if self.busy.as_ref().is_some_and(|(until, _)| *until <= now) {
            self.busy = None;
            connection.send(&self.listing.request());
        }
        let again = self.busy.as_ref().map(|(until, _)| until.saturating_duration_since(now));
        Ok(Turn::Wait(again.unwrap_or(Duration::MAX)))
    }

    fn connected(&mut self, connection: &mut Connection, _now: Instant) -> Result<(), Error> {
        connection.send(&self.listing.request());
        Ok(())
    }

    fn inbound(&mut self, inbound: Inbound, _connection: &mut Connection, now: Instant) -> Result<bool, Error> {
        let page = match self.listing.page_of(inbound) {
            Ok(page) => page,
            Err(error @ Error::Refused { code: ErrorCode::Busy, .. }) if !self.is_handed_over => {
                self.busy = Some((now + LISTING_BUSY_WAIT, error));
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let Some(page) = page else { return Ok(false) };
        if self.full.is_some() {
            return Error::protocol("a page that wasn't asked for");
        }
        self.dir = self.dir.or(page.dir);
        let (base, is_over) = (page.base, !page.more && !self.listing.is_survey());
        let (entries, next) = self.listing.take(page);
        self.is_handed_over |= !entries.is_empty();
        self.full = Some(entries).filter(|entries| !entries.is_empty());
        if is_over {
            self.base = Some(base);
        } else {
            self.next = Some(next);
        }
        Ok(true)
    }

    fn wait_limit(&self) -> WaitLimit {
        match self.full {
            // The reader takes its time.
            Some(_) => WaitLimit::Unlimited,
            None => WaitLimit::Extra(self.listing.extra_timeout()),
        }
    }

    fn failed(&mut self, error: Error) -> Result<(), Error> {
        match (error, self.busy.take()) {
            (Error::Stalled { .. }, Some((_, busy))) => Err(busy),
            (error, _) => Err(error),
        }
    }
}

/// A listing, and how long the server may take for it.
#[derive(Debug)]
struct Listing {
    options: ListOptions,
    /// The open request.
    id: u32,
    /// The first listing, without digests.
    surveying: bool,
    /// Bytes of the largest file that was listed.
    largest: u64,
}

impl Listing {
    fn new(options: ListOptions) -> Self {
        Self { id: 1, surveying: options.digest, largest: 0, options }
    }

    fn is_survey(&self) -> bool {
        self.surveying
    }

    fn request(&self) -> Request {
        let ListOptions { recursive, follow, .. } = self.options;
        let digest = self.options.digest && !self.surveying;
        let target = match &self.options.source {
            Source::Path(path) => ListTarget::Path(path.into()),
            Source::Glob(glob) => ListTarget::Glob { glob: glob.clone() },
        };
        Request::List(ListRequest { id: self.id, target, recursive, digest, follow })
    }

    /// How much longer than usual the server may be silent: it hashes at most one page, which ends with its largest
    /// file.
    fn extra_timeout(&self) -> Duration {
        if self.surveying || !self.options.digest {
            return Duration::ZERO;
        }
        Duration::from_secs(self.largest.saturating_add(PAGE_HASHED_BYTES) / HASH_BYTES_PER_SECOND_MIN)
    }

    /// The entries of a page that are handed over, and the next request unless it was the last page.
    fn take(&mut self, page: ListPage) -> (Vec<ListEntry>, Request) {
        if !self.surveying {
            return (page.entries, Request::More { id: self.id });
        }
        let sizes = page.entries.iter().filter(|entry| entry.kind == EntryKind::File).map(|entry| entry.size);
        self.largest = sizes.fold(self.largest, u64::max);
        if page.more {
            return (Vec::new(), Request::More { id: self.id });
        }
        (self.surveying, self.id) = (false, self.id + 1);
        (Vec::new(), self.request())
    }

    fn page_of(&self, inbound: Inbound) -> Result<Option<ListPage>, Error> {
        let Inbound::Control { json, .. } = inbound else {
            return Err(Error::Protocol("data, although a listing was requested".to_owned()));
        };
        match Reply::decode(&json)? {
            Reply::List(page) if page.id != self.id || (page.more && page.entries.is_empty()) => {
                Err(Error::Protocol("a page that wasn't requested, or an empty one".to_owned()))
            }
            Reply::List(page) => Ok(Some(page)),
            Reply::Error(error) => Err(Error::Refused { code: error.code, message: error.message }),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::RelPath;

    const SIZE: u64 = 100 << 30;

    fn options(digest: bool) -> ListOptions {
        ListOptions { recursive: true, digest, ..ListOptions::new(Source::Path(RelPath::root())) }
    }

    fn page(id: u32, path: &str, kind: EntryKind, more: bool) -> Inbound {
        let entry = ListEntry {
            path: path.as_bytes().to_vec().into(),
            kind,
            size: SIZE,
            mtime: Default::default(),
            mode: 0o644,
            allocated: None,
            hard_link: None,
            target: None,
            digest: None,
            message: None,
        };
        let page = ListPage { id, base: Base::Dir, dir: None, entries: vec![entry], more };
        Inbound::Control { json: Reply::List(page).encode().into(), attachment: None }
    }

    #[test]
    fn server_may_be_silent_while_it_hashes_for_a_listing() {
        let mut listing = Listing::new(options(true));
        let given = |listing: &mut Listing, inbound| {
            let page = listing.page_of(inbound).unwrap().unwrap();
            let (entries, next) = listing.take(page);
            (entries.len(), next)
        };
        let Request::List(survey) = listing.request() else { panic!("no listing") };
        assert!(!survey.digest && survey.recursive);
        assert_eq!(listing.extra_timeout(), Duration::ZERO);
        assert_eq!(given(&mut listing, page(1, "large", EntryKind::File, true)), (0, Request::More { id: 1 }));
        // Said to be large, and not hashed.
        let (yielded, next) = given(&mut listing, page(1, "other", EntryKind::Other, false));
        assert_eq!((yielded, &next), (0, &Request::List(ListRequest { id: 2, digest: true, ..survey })));
        assert_eq!(listing.extra_timeout().as_secs(), (SIZE + (1 << 30)) / (200 << 20));
        assert!(listing.page_of(page(1, "late", EntryKind::File, false)).is_err());
        assert_eq!(given(&mut listing, page(2, "large", EntryKind::File, true)), (1, Request::More { id: 2 }));
        assert!(!listing.is_survey());
    }

    #[test]
    fn listing_without_digests_is_requested_once_and_gets_no_extra_time() {
        let mut listing = Listing::new(options(false));
        let page = listing.page_of(page(1, "large", EntryKind::File, true)).unwrap().unwrap();
        assert!(!listing.is_survey() && listing.take(page).0.len() == 1);
        assert_eq!(listing.extra_timeout(), Duration::ZERO);
    }
}
