//! Listing what a server has, without getting it.
//!
//! A server that hashes says nothing before it is through with a file, however large. So where digests are wanted, it is first asked for
//! a listing without them, which tells how long that may take.

use std::time::{Duration, Instant};

use super::assembler::Inbound;
use super::connection::{CancelHandle, ConnectOptions, Connection, Happened};
use super::get::GetError;
use super::idle_timer::IdleTimer;
use super::transfer::{HASH_BYTES_PER_SECOND_MIN, LISTING_BUSY_WAIT, TransferError};
use crate::protocol::ErrorCode;
use crate::protocol::control::{Base, EntryKind, ListEntry, ListPage, ListRequest, ListTarget, Reply, Request};

/// Bytes that a server may hash for a page beside its last file.
const PAGE_HASHED_BYTES: u64 = 1 << 30;

/// What to list.
#[derive(Clone, Debug)]
pub struct ListOptions {
    /// The server.
    pub connect: ConnectOptions,
    /// A path or a pattern there.
    pub target: ListTarget,
    /// With all that is below directories.
    pub recursive: bool,
    /// With digests, which may take the server time.
    pub digest: bool,
}

/// Lists; `take` is called with every entry in the server's order, and what the listed path is comes back.
///
/// Paths and texts in the entries are the server's: escape them before they reach a terminal.
///
/// # Errors
/// No connection, a cut one (a listing is not resumed), a refusal, or nothing for too long.
pub fn list(
    options: &ListOptions,
    take: &mut dyn FnMut(ListEntry) -> Result<(), std::io::Error>,
    cancel: &CancelHandle,
) -> Result<Base, GetError> {
    let mut connection = Connection::open(&options.connect, cancel)?;
    let result = run(&mut connection, options, take, cancel);
    connection.close();
    result
}

fn run(
    connection: &mut Connection,
    options: &ListOptions,
    take: &mut dyn FnMut(ListEntry) -> Result<(), std::io::Error>,
    cancel: &CancelHandle,
) -> Result<Base, GetError> {
    let mut listing = Listing::new(options);
    let unreachable = |reason: String| GetError::Connect { endpoint: options.connect.endpoint.to_string(), reason };
    let (mut connected, mut last_reason) = (false, "no answer".to_owned());
    let mut waiting = IdleTimer::new(Instant::now());
    // Until when it isn't asked for again, since the server has no room for it.
    let mut busy: Option<(Instant, TransferError)> = None;
    // What was told can't be taken back: such a listing isn't begun again.
    let mut is_told = false;
    loop {
        let limit = if connected { options.connect.idle_timeout } else { options.connect.connect_timeout };
        let limit = limit.saturating_add(listing.patience());
        let left = limit.saturating_sub(waiting.since().elapsed());
        if cancel.is_cancelled() {
            connection.send(&Request::Cancel { id: listing.id });
            return Err(TransferError::Cancelled.into());
        }
        if left.is_zero() {
            if let Some((_, busy)) = busy {
                return Err(busy.into());
            }
            let seconds = limit.as_secs();
            return Err(if connected {
                TransferError::Stalled { seconds, connected }.into()
            } else {
                unreachable(last_reason)
            });
        }
        if busy.take_if(|(until, _)| *until <= Instant::now()).is_some() {
            connection.send(&listing.request());
        }
        let rest = busy.as_ref().map_or(left, |(until, _)| until.saturating_duration_since(Instant::now()));
        connection.turn(left.min(rest))?;
        while let Some(happened) = connection.next() {
            match happened {
                Happened::Up => {
                    connected = true;
                    waiting.progressed(Instant::now());
                    connection.send(&listing.request());
                }
                Happened::Down { reason } => return Err(unreachable(reason)),
                Happened::Failed { reason } => last_reason = reason,
                Happened::Refused { reason } => return Err(options.connect.refused(reason)),
                Happened::Broken(error) => return Err(TransferError::from(error).into()),
                Happened::Arriving => waiting.arriving(Instant::now()),
                Happened::Inbound(inbound) => {
                    let page = match listing.page_of(inbound) {
                        Ok(page) => page,
                        Err(error @ TransferError::Refused { code: ErrorCode::Busy, .. }) if !is_told => {
                            busy = Some((Instant::now() + LISTING_BUSY_WAIT, error));
                            None
                        }
                        Err(error) => return Err(error.into()),
                    };
                    let Some(page) = page else {
                        waiting.came_to_nothing();
                        continue;
                    };
                    waiting.progressed(Instant::now());
                    let (base, is_over) = (page.base, !page.more && !listing.is_survey());
                    let (entries, next) = listing.take(page);
                    is_told |= !entries.is_empty();
                    entries.into_iter().try_for_each(&mut *take)?;
                    if is_over {
                        return Ok(base);
                    }
                    connection.send(&next);
                }
            }
        }
    }
}

/// What is asked of the server, and what it may take.
#[derive(Debug)]
struct Listing<'a> {
    options: &'a ListOptions,
    /// Of the request under way.
    id: u32,
    /// The first one, without digests.
    surveying: bool,
    /// Bytes of the largest file that it told of.
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
        let ListOptions { target, recursive, digest, .. } = self.options.clone();
        let digest = digest && !self.surveying;
        Request::List(ListRequest { id: self.id, target, recursive, digest })
    }

    /// How much longer a server may be silent: it hashes one page at most, which ends with its largest file.
    fn patience(&self) -> Duration {
        if self.surveying || !self.options.digest {
            return Duration::ZERO;
        }
        Duration::from_secs(self.largest.saturating_add(PAGE_HASHED_BYTES) / HASH_BYTES_PER_SECOND_MIN)
    }

    /// The entries of a page that are to be told, and what to ask for next if it isn't the last one.
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

    fn page_of(&self, inbound: Inbound) -> Result<Option<ListPage>, TransferError> {
        let Inbound::Control { json, .. } = inbound else {
            return Err(TransferError::Protocol("data, where a listing was asked for".to_owned()));
        };
        match Reply::decode(&json)? {
            Reply::List(page) if page.id != self.id || (page.more && page.entries.is_empty()) => {
                Err(TransferError::Protocol("a page that was not asked for, or an empty one".to_owned()))
            }
            Reply::List(page) => Ok(Some(page)),
            Reply::Error(error) => Err(TransferError::Refused { code: error.code, message: error.message }),
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
        ListOptions { connect, target: ListTarget::Path(WirePath::default()), recursive: true, digest }
    }

    fn page(id: u32, path: &str, kind: EntryKind, more: bool) -> Inbound {
        let entry = ListEntry {
            path: path.as_bytes().to_vec().into(),
            kind,
            size: SIZE,
            mtime: Default::default(),
            mode: 0o644,
            allocated: None,
            target: None,
            digest: None,
            message: None,
        };
        let page = ListPage { id, base: Base::Dir, dir: None, entries: vec![entry], more };
        Inbound::Control { json: Reply::List(page).encode().into(), attachment: None }
    }

    #[test]
    fn a_server_that_hashes_for_a_listing_may_be_silent() {
        let options = options(true);
        let mut listing = Listing::new(&options);
        let given = |listing: &mut Listing<'_>, inbound| {
            let page = listing.page_of(inbound).unwrap().unwrap();
            let (entries, next) = listing.take(page);
            (entries.len(), next)
        };
        let Request::List(survey) = listing.request() else { panic!("no listing") };
        assert!(!survey.digest && survey.recursive);
        assert_eq!(listing.patience(), Duration::ZERO);
        assert_eq!(given(&mut listing, page(1, "large", EntryKind::File, true)), (0, Request::More { id: 1 }));
        // Something that is said to be large and isn't hashed.
        let (told, next) = given(&mut listing, page(1, "other", EntryKind::Other, false));
        assert_eq!((told, &next), (0, &Request::List(ListRequest { id: 2, digest: true, ..survey })));
        assert_eq!(listing.patience().as_secs(), (SIZE + (1 << 30)) / (200 << 20));
        assert!(listing.page_of(page(1, "late", EntryKind::File, false)).is_err());
        assert_eq!(given(&mut listing, page(2, "large", EntryKind::File, true)), (1, Request::More { id: 2 }));
        assert!(!listing.is_survey());
    }

    #[test]
    fn what_is_not_hashed_takes_no_longer_and_is_asked_for_once() {
        let options = options(false);
        let mut listing = Listing::new(&options);
        let page = listing.page_of(page(1, "large", EntryKind::File, true)).unwrap().unwrap();
        assert!(!listing.is_survey() && listing.take(page).0.len() == 1);
        assert_eq!(listing.patience(), Duration::ZERO);
    }
}
