//! Lists what a server has, without fetching it.
//!
//! A server that hashes says nothing before it has hashed a file, however large. For a listing with digests it is
//! therefore first asked for one without them, which shows how long that may take.

use crate::error::Error;
use std::time::{Duration, Instant};

use super::connection::{ConnectOptions, Connection};
use super::exchange::{Exchange, Operation, Turn, WaitLimit};
use crate::protocol::ErrorCode;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::{
    Base, EntryKind, FollowLinks, ListEntry, ListPage, ListRequest, ListTarget, Reply, Request,
};
use crate::transfer::{HASH_BYTES_PER_SECOND_MIN, LISTING_BUSY_WAIT};
use towpath_blocking::CancelToken;

/// Bytes that a server may hash for a page, beside its last file.
const PAGE_HASHED_BYTES: u64 = 1 << 30;

/// Options of a listing.
#[derive(Clone, Debug)]
pub struct ListOptions {
    /// The server.
    pub connect: ConnectOptions,
    /// A path or a pattern on the server.
    pub target: ListTarget,
    /// Include what is below directories.
    pub recursive: bool,
    /// Include digests, for which the server may have to hash.
    pub digest: bool,
    /// Links that are listed as what they lead to.
    pub follow: FollowLinks,
}

/// Lists a path: calls `take` with every entry in the server's order, and returns what the path is.
///
/// Paths and texts in the entries are the server's: escape them before they reach a terminal.
///
/// # Errors
/// There is no connection, it was lost (a listing isn't resumed), the server refused, or nothing happened for too
/// long.
pub fn list(
    options: &ListOptions,
    take: &mut dyn FnMut(ListEntry) -> Result<(), std::io::Error>,
    cancel: &CancelToken,
) -> Result<Base, Error> {
    let mut exchange = Exchange::open(&options.connect, cancel)?;
    let listing = Listing::new(options);
    let result = exchange.run(&mut List { listing, take, busy: None, is_handed_over: false, base: None });
    exchange.close();
    result
}

/// A listing whose entries are handed over.
struct List<'a> {
    listing: Listing<'a>,
    take: &'a mut dyn FnMut(ListEntry) -> Result<(), std::io::Error>,
    /// When it is requested again, as the server has no space for it.
    busy: Option<(Instant, Error)>,
    /// Entries were handed over, which can't be taken back: such a listing isn't requested again.
    is_handed_over: bool,
    /// Of a listing that is over.
    base: Option<Base>,
}

impl Operation for List<'_> {
    type Outcome = Base;

    fn turn(&mut self, connection: &mut Connection, now: Instant) -> Result<Turn<Base>, Error> {
        if let Some(base) = self.base {
            return Ok(Turn::Over(base));
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

    fn inbound(&mut self, inbound: Inbound, connection: &mut Connection, now: Instant) -> Result<bool, Error> {
        let page = match self.listing.page_of(inbound) {
            Ok(page) => page,
            Err(error @ Error::Refused { code: ErrorCode::Busy, .. }) if !self.is_handed_over => {
                self.busy = Some((now + LISTING_BUSY_WAIT, error));
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let Some(page) = page else { return Ok(false) };
        let (base, is_over) = (page.base, !page.more && !self.listing.is_survey());
        let (entries, next) = self.listing.take(page);
        self.is_handed_over |= !entries.is_empty();
        entries.into_iter().try_for_each(&mut *self.take)?;
        if is_over {
            self.base = Some(base);
        } else {
            connection.send(&next);
        }
        Ok(true)
    }

    fn wait_limit(&self) -> WaitLimit {
        WaitLimit::Extra(self.listing.extra_timeout())
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
struct Listing<'a> {
    options: &'a ListOptions,
    /// The open request.
    id: u32,
    /// The first listing, without digests.
    surveying: bool,
    /// Bytes of the largest file that was listed.
    largest: u64,
}

impl<'a> Listing<'a> {
    fn new(options: &'a ListOptions) -> Self {
        Self { options, id: 1, surveying: options.digest, largest: 0 }
    }

    fn is_survey(&self) -> bool {
        self.surveying
    }

    fn request(&self) -> Request {
        let ListOptions { target, recursive, digest, follow, .. } = self.options.clone();
        let digest = digest && !self.surveying;
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
    use crate::protocol::control::WirePath;

    const SIZE: u64 = 100 << 30;

    fn options(digest: bool) -> ListOptions {
        let connect = ConnectOptions::new("tcp://127.0.0.1:1".parse().unwrap());
        let target = ListTarget::Path(WirePath::default());
        ListOptions { connect, target, recursive: true, digest, follow: FollowLinks::None }
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
        let options = options(true);
        let mut listing = Listing::new(&options);
        let given = |listing: &mut Listing<'_>, inbound| {
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
        let options = options(false);
        let mut listing = Listing::new(&options);
        let page = listing.page_of(page(1, "large", EntryKind::File, true)).unwrap().unwrap();
        assert!(!listing.is_survey() && listing.take(page).0.len() == 1);
        assert_eq!(listing.extra_timeout(), Duration::ZERO);
    }
}
