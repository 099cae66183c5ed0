//! A follower's reports of itself, and those that a relay passes on.

use super::FollowOptions;
use super::pages::Placed;
use super::place::Place;
use crate::catalogue::{Content, Entry, Identity};
use crate::error::Error;
use crate::limits::HAVE_HOLDERS_MAX;
use crate::path::RelPath;
use crate::protocol::control::{ChangeContent, Have, HelloReply, Holder, HolderName, Request};
use crate::protocol::follow::{CopyId, Cursor, ServerId};
use crate::relay::{Passed, Relay};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Time between two messages about what is in place.
pub(super) const SAID_EVERY: Duration = Duration::from_secs(1);
/// Time after which it is said again though nothing has changed.
pub(super) const SAID_AGAIN: Duration = Duration::from_secs(60);
/// Time between a relay's questions about which servers the files come through.
pub(super) const VIA_EVERY: Duration = Duration::from_secs(2);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Report {
    name: HolderName,
    copy: CopyId,
    durable: bool,
    /// Everything up to it is in place.
    at: Option<Cursor>,
    /// The last report on this connection, and its time.
    said: Option<Cursor>,
    said_at: Option<Instant>,
    /// The server wants to know.
    is_wanted: bool,
    asked_at: Option<Instant>,
    /// Whether a version is followed, which others report.
    is_silent: bool,
    relay: Option<Relay>,
    /// Changes since the last cursor of which everything was in place, for the relay: the last of each path.
    passed: HashMap<RelPath, Placed>,
    is_full: bool,
    /// The first server of a full state.
    server: Option<ServerId>,
}

impl Report {
    pub(super) fn new(options: &FollowOptions, copy: CopyId) -> Report {
        Report {
            name: options.name.clone(),
            copy,
            durable: options.durable,
            at: None,
            said: None,
            said_at: None,
            is_wanted: false,
            asked_at: None,
            is_silent: options.frozen.is_some(),
            relay: options.relay.clone(),
            passed: HashMap::new(),
            is_full: false,
            server: None,
        }
    }

    /// Begins on a new connection.
    pub(super) fn connected(&mut self) {
        (self.said, self.is_wanted, self.asked_at) = (None, false, None);
        if let Some(relay) = &self.relay {
            relay.say_again();
        }
    }

    /// The server says what it is.
    pub(super) fn hello(&mut self, hello: &HelloReply) -> Result<(), Error> {
        self.is_wanted = !self.is_silent && hello.features.iter().any(|feature| feature == "have");
        match &self.relay {
            Some(relay) => relay.comes_through(&hello.via).map_err(|error| Error::unmet(error.to_string())),
            None => Ok(()),
        }
    }

    /// The follow begins, or begins again.
    pub(super) fn following(&mut self, is_full: bool, server: Option<ServerId>) {
        if is_full {
            (self.is_full, self.server) = (true, server);
            self.passed.clear();
        }
    }

    /// Starts over, since an entry isn't in place any more.
    pub(super) fn begin_anew(&mut self) {
        self.at = None;
    }

    /// A page came.
    pub(super) fn page(&mut self, changes: &[Placed]) {
        if self.relay.is_some() {
            self.passed.extend(changes.iter().map(|placed| (placed.remote.clone(), placed.clone())));
        }
    }

    /// Passes on the paths that the server can't read.
    pub(super) fn unread(&self, unread: &[(RelPath, bool)], more: u64) {
        if let Some(relay) = &self.relay {
            relay.set_unread(unread.iter().cloned().collect(), more);
        }
    }

    /// Everything up to a cursor is in place: it is passed on.
    pub(super) fn in_place(&mut self, cursor: Cursor, place: &Place) -> Result<(), Error> {
        self.at = Some(cursor);
        let Some(relay) = &self.relay else { return Ok(()) };
        let mut entries: Vec<_> =
            std::mem::take(&mut self.passed).into_values().map(|placed| passed(placed, place)).collect();
        entries.sort_unstable_by_key(|(_, entry)| entry.seq);
        let passed = match std::mem::take(&mut self.is_full) {
            true => relay.reset(self.server, cursor, entries),
            false => relay.advance(cursor, entries),
        };
        passed.map_err(|error| Error::unmet(error.to_string()))
    }

    /// When there is something to say.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let next = |after: Option<Instant>, pause| after.map_or(now, |after| after + pause);
        let has_changes = self.at != self.said || self.relay.as_ref().is_some_and(Relay::has_said);
        let pause = if has_changes { SAID_EVERY } else { SAID_AGAIN };
        let say = (self.is_wanted && self.at.is_some()).then(|| next(self.said_at, pause));
        let ask = match self.asked_at {
            None => Some(now),
            // Children say something at any time.
            Some(asked) => self.relay.is_some().then_some(asked + SAID_EVERY.min(VIA_EVERY)),
        };
        [say, ask].into_iter().flatten().min()
    }

    /// The report that is due now.
    pub(super) fn next_request(&mut self, now: Instant) -> Option<Request> {
        if self.asked_at.is_none_or(|asked| self.relay.is_some() && asked + VIA_EVERY <= now) {
            self.asked_at = Some(now);
            return Some(Request::Hello);
        }
        let has_changes = self.at != self.said || self.relay.as_ref().is_some_and(Relay::has_said);
        let pause = if has_changes { SAID_EVERY } else { SAID_AGAIN };
        let cursor = self.at.filter(|_| self.is_wanted)?;
        if self.said_at.is_some_and(|said| said + pause > now) {
            return None;
        }
        (self.said, self.said_at) = (self.at, Some(now));
        let (name, copy) = (self.name.clone(), Some(self.copy));
        let own = Holder { name, copy, cursor, durable: self.durable, version: None };
        let behind = self.relay.as_ref().map(|relay| relay.take_said(HAVE_HOLDERS_MAX - 1)).unwrap_or_default();
        Some(Request::Have(Have { holders: [own].into_iter().chain(behind).collect() }))
    }
}

/// A change as a relay's catalogue has it.
fn passed(placed: Placed, place: &Place) -> Passed {
    let Placed { remote, local, change } = placed;
    let content = match change.content {
        ChangeContent::File { size, mtime: modified, mode, digest } => Content::File { size, modified, mode, digest },
        ChangeContent::Dir { mode } => Content::Dir { mode },
        ChangeContent::Link { target, mtime: modified } => {
            Content::Link { target: target.into_bytes().into(), modified }
        }
        ChangeContent::Gone => Content::Gone,
    };
    let stat = place.stat(&local).ok().flatten();
    let identity = stat.map(|stat| Identity::of(&stat, true)).unwrap_or_default();
    (remote.as_bytes().into(), Entry { seq: change.seq, content, identity })
}
