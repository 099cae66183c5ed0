//! A follower's account of itself for its server: what it has, what it lacks, and what keeps it from going on.

use super::FollowOptions;
use crate::digest::Digest;
use crate::limits::HAVE_HOLDERS_MAX;
use crate::protocol::control::{
    ErrorText, FetchesFor, Have, Holder, HolderError, HolderName, Lacks, Left, Request, VersionsOf,
};
use crate::protocol::follow::{CopyId, Cursor};
use crate::relay::Relay;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two messages, the same if only what it lacks has changed, and if nothing has.
pub(super) const SAID_EVERY: Duration = Duration::from_secs(1);
const LACKS_EVERY: Duration = Duration::from_secs(5);
const SAID_AGAIN: Duration = Duration::from_secs(60);

/// Time between two looks at how much has come.
const RATE_EVERY: Duration = Duration::from_secs(1);

/// The part of a rate that the last look counts.
const RATE_NEW: f64 = 0.2;

/// Bytes that have come since an error, beyond which it has passed: what an almost full disk takes isn't as much.
const PASSED_BYTES: u64 = 16 << 20;

/// See the [module](self). One of a follow, for all its connections; clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Account(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    name: HolderName,
    copy: Option<CopyId>,
    durable: bool,
    versions_of: Option<VersionsOf>,
    relay: Option<Relay>,
    cursor: Option<Cursor>,
    version: Option<Digest>,
    error: Option<Trouble>,
    lacks: Option<Lacks>,
    rate: Rate,
    /// The last report on this connection, and its time.
    said: Option<Holder>,
    said_at: Option<Instant>,
}

/// An error, until it has passed.
#[derive(Debug)]
struct Trouble {
    text: ErrorText,
    tries: u32,
    since: Instant,
    /// Bytes that were lacking when it was noted.
    lacked: Option<u64>,
}

impl Account {
    pub(super) fn new(options: &FollowOptions, versions_of: Option<VersionsOf>) -> Account {
        Account(Arc::new(Mutex::new(State {
            name: options.name.clone(),
            copy: None,
            durable: options.durable,
            versions_of,
            relay: options.relay.clone(),
            cursor: None,
            version: None,
            error: None,
            lacks: None,
            rate: Rate::default(),
            said: None,
            said_at: None,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which copy it is.
    pub(super) fn is_of(&self, copy: CopyId) {
        self.state().copy = Some(copy);
    }

    /// Begins on a new connection.
    pub(super) fn connected(&self) {
        let mut state = self.state();
        (state.said, state.said_at) = (None, None);
        if let Some(relay) = &state.relay {
            relay.say_again();
        }
    }

    /// Everything up to a cursor is in place, or nothing is known to be.
    pub(super) fn in_place(&self, cursor: Option<Cursor>) {
        self.state().cursor = cursor;
    }

    /// A version is in place.
    pub(super) fn has_version(&self, version: Digest, cursor: Option<Cursor>) {
        let mut state = self.state();
        (state.version, state.cursor) = (Some(version), cursor);
    }

    /// Something fails, and is tried again.
    pub(super) fn fails(&self, text: &str, now: Instant) {
        let mut state = self.state();
        let lacked = state.lacks.map(|lacks| lacks.bytes);
        let (tries, since) = state.error.as_ref().map_or((0, now), |error| (error.tries, error.since));
        let tries = tries.saturating_add(1);
        state.error = Some(Trouble { text: ErrorText::near(text), tries, since, lacked });
        // How long it takes isn't known any more.
        state.rate = Rate::default();
        if let Some(lacks) = &mut state.lacks {
            lacks.seconds_left = None;
        }
    }

    /// Clears the error: it works, or does again.
    pub(super) fn works(&self) {
        self.state().error = None;
    }

    /// The error, in words.
    pub(super) fn error(&self) -> Option<String> {
        self.state().error.as_ref().map(|error| error.text.as_str().to_owned())
    }

    /// How much isn't in place.
    pub(super) fn lacks(&self, (files, bytes): (u64, u64), now: Instant) {
        let mut state = self.state();
        let left = state.rate.left(bytes, now);
        state.lacks = ((files, bytes) != (0, 0)).then_some(Lacks { files, bytes, seconds_left: left });
        let lacked = state.error.as_ref().and_then(|error| error.lacked);
        if lacked.is_some_and(|lacked| bytes.saturating_add(PASSED_BYTES) < lacked) {
            state.error = None;
        }
    }

    /// Lacks the same as another one.
    pub(super) fn lacks_as(&self, other: &Account) {
        let lacks = other.state().lacks;
        let mut state = self.state();
        state.lacks = lacks;
        let lacked = state.error.as_ref().and_then(|error| error.lacked).zip(lacks);
        if lacked.is_some_and(|(lacked, lacks)| lacks.bytes.saturating_add(PASSED_BYTES) < lacked) {
            state.error = None;
        }
    }

    /// Message of another connection that fetches for this follower.
    pub(super) fn fetches_for(&self) -> FetchesFor {
        let state = self.state();
        FetchesFor { name: state.name.clone(), copy: state.copy }
    }

    /// When there is something to say.
    pub(super) fn due(&self, now: Instant) -> Instant {
        let state = self.state();
        state.said_at.map_or(now, |said| said + state.pause())
    }

    /// The report that is due now.
    pub(super) fn next_request(&self, now: Instant) -> Option<Request> {
        let mut state = self.state();
        if state.said_at.is_some_and(|said| said + state.pause() > now) {
            return None;
        }
        let behind = state.relay.as_ref().map(|relay| relay.take_said(HAVE_HOLDERS_MAX - 1)).unwrap_or_default();
        let own = state.holder(now);
        (state.said, state.said_at) = (Some(own.clone()), Some(now));
        Some(Request::Have(Have { holders: [own].into_iter().chain(behind).collect() }))
    }

    /// The last report of a follower that ends, by itself or because of an error.
    pub(super) fn last_words(&self, left: Option<Left>, now: Instant) -> Request {
        let own = Holder { left, ..self.state().holder(now) };
        Request::Have(Have { holders: vec![own] })
    }
}

impl State {
    fn holder(&self, now: Instant) -> Holder {
        let error = self.error.as_ref().map(|Trouble { text, tries, since, .. }| HolderError {
            text: text.clone(),
            tries: *tries,
            since_ms: u64::try_from(now.saturating_duration_since(*since).as_millis()).unwrap_or(u64::MAX),
        });
        Holder {
            copy: self.copy,
            cursor: self.cursor,
            durable: self.durable,
            version: self.version,
            versions_of: self.versions_of.clone(),
            error,
            lacks: self.lacks,
            ..Holder::new(self.name.clone())
        }
    }

    /// Time between the last report and the next one.
    fn pause(&self) -> Duration {
        let Some(said) = &self.said else { return SAID_EVERY };
        let error = |error: &HolderError| (error.text.clone(), error.tries);
        let has_changed = (self.copy, self.cursor, self.version) != (said.copy, said.cursor, said.version)
            || self.error.as_ref().map(|error| (error.text.clone(), error.tries)) != said.error.as_ref().map(error)
            || self.lacks.is_some() != said.lacks.is_some();
        match has_changed || self.relay.as_ref().is_some_and(Relay::has_said) {
            true => SAID_EVERY,
            false if self.lacks != said.lacks => LACKS_EVERY,
            false => SAID_AGAIN,
        }
    }
}

/// How fast what is lacking becomes less.
#[derive(Debug, Default)]
struct Rate {
    last: Option<(Instant, u64)>,
    bytes_per_second: Option<f64>,
}

impl Rate {
    /// Estimated time until so many bytes are here, in seconds.
    fn left(&mut self, bytes: u64, now: Instant) -> Option<u64> {
        let (at, before) = *self.last.get_or_insert((now, bytes));
        let time = now.saturating_duration_since(at);
        if time >= RATE_EVERY {
            self.last = Some((now, bytes));
            // More may have become known of meanwhile.
            if let Some(came) = before.checked_sub(bytes) {
                let new = came as f64 / time.as_secs_f64();
                let old = self.bytes_per_second.unwrap_or(new);
                self.bytes_per_second = Some(old + (new - old) * RATE_NEW);
            }
        }
        let rate = self.bytes_per_second.filter(|rate| *rate >= 1.0)?;
        Some((bytes as f64 / rate).ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::Source;

    fn account() -> Account {
        let mut options = FollowOptions::new(Source::Path("a".parse().unwrap()), "copy".into());
        options.name = HolderName::new("db-3").unwrap();
        Account::new(&options, None)
    }

    /// The report that is due, if one is.
    fn said(account: &Account, now: Instant) -> Option<Holder> {
        let Request::Have(mut have) = account.next_request(now)? else { panic!("not a report") };
        assert_eq!(have.holders.len(), 1);
        have.holders.pop()
    }

    #[test]
    fn an_error_is_said_within_a_second_and_cleared_when_it_has_passed() {
        let (account, start) = (account(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let first = said(&account, start).unwrap();
        assert_eq!((first.name.as_str(), first.error, first.cursor), ("db-3", None, None));
        account.fails("no space left", at(100));
        assert!(said(&account, at(999)).is_none(), "at most once a second");
        assert_eq!(account.due(at(999)), at(1000));
        let error = said(&account, at(1000)).unwrap().error.unwrap();
        assert_eq!((error.text.as_str(), error.tries, error.since_ms), ("no space left", 1, 900));
        assert!(said(&account, at(30_000)).is_none(), "nothing has changed");
        account.fails("no space left", at(40_100));
        let error = said(&account, at(40_100)).unwrap().error.unwrap();
        assert_eq!((error.tries, error.since_ms), (2, 40_000));
        account.works();
        assert_eq!(said(&account, at(41_100)).unwrap().error, None);
        // On another connection all of it is said again.
        account.connected();
        assert!(said(&account, at(41_200)).is_some() && said(&account, at(60_000)).is_none());
    }

    #[test]
    fn the_time_left_follows_the_rate() {
        let (account, start) = (account(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let lacks = |bytes, seconds| {
            account.lacks((3, bytes), at(seconds));
            account.last_words(None, at(seconds))
        };
        let left = |request: Request| match request {
            Request::Have(have) => have.holders[0].lacks.map(|lacks| lacks.seconds_left),
            _ => None,
        };
        assert_eq!(left(lacks(1000 << 20, 0)), Some(None), "not known yet");
        assert_eq!(left(lacks(990 << 20, 1)), Some(Some(99)));
        // More became known.
        assert_eq!(left(lacks(1990 << 20, 2)), Some(Some(199)));
        account.fails("no space left", at(2));
        assert_eq!(left(lacks(1990 << 20, 3)), Some(None));
        // It goes on: the error has passed.
        assert!(account.error().is_some());
        lacks(1900 << 20, 4);
        assert!(account.error().is_none());
        account.lacks((0, 0), at(5));
        assert_eq!(left(account.last_words(Some(Left::Ended), at(5))), None);
    }
}
