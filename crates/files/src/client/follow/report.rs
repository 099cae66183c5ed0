//! A follower's reports of itself, and what a relay passes on.

use super::FollowOptions;
use super::account::{Account, SAID_EVERY};
use super::pages::Placed;
use super::place::Place;
use crate::catalogue::{Content, Entry, Identity};
use crate::error::Error;
use crate::path::RelPath;
use crate::protocol::control::{ChangeContent, HelloReply, Request};
use crate::protocol::follow::{Cursor, ServerId};
use crate::relay::{Passed, Relay};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Time between a relay's questions about which servers the files come through.
pub(super) const VIA_EVERY: Duration = Duration::from_secs(2);

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Report {
    account: Account,
    /// Whether a version is followed, which others report.
    is_silent: bool,
    relay: Option<Relay>,
    asked_at: Option<Instant>,
    /// Changes since the last cursor of which everything was in place, for the relay: the last of each path.
    passed: HashMap<RelPath, Placed>,
    is_full: bool,
    /// The first server of a full state.
    server: Option<ServerId>,
}

impl Report {
    pub(super) fn new(options: &FollowOptions, account: Account) -> Report {
        Report {
            account,
            is_silent: options.frozen.is_some(),
            relay: options.relay.clone(),
            asked_at: None,
            passed: HashMap::new(),
            is_full: false,
            server: None,
        }
    }

    /// Begins on a new connection.
    pub(super) fn connected(&mut self) {
        self.asked_at = None;
        if !self.is_silent {
            self.account.connected();
        }
    }

    /// The server says what it is.
    pub(super) fn hello(&self, hello: &HelloReply) -> Result<(), Error> {
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
    pub(super) fn begin_anew(&self) {
        self.account.in_place(None);
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
        self.account.in_place(Some(cursor));
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
        let say = (!self.is_silent).then(|| self.account.due(now));
        // Children say something at any time.
        let look = |asked: Instant| (asked + VIA_EVERY).min(now + SAID_EVERY);
        let ask = self.relay.as_ref().map(|_| self.asked_at.map_or(now, look));
        [say, ask].into_iter().flatten().min()
    }

    /// The report or question that is due now.
    pub(super) fn next_request(&mut self, now: Instant) -> Option<Request> {
        let said = if self.is_silent { None } else { self.account.next_request(now) };
        if said.is_some() {
            return said;
        }
        let asks = self.relay.is_some() && self.asked_at.is_none_or(|asked| asked + VIA_EVERY <= now);
        asks.then(|| {
            self.asked_at = Some(now);
            Request::Hello
        })
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
