//! State that the server of a relay shares with its follower.
//!
//! The follower puts into the server's catalogue what is in place and verified, with the numbers of the server where it comes from. So
//! a follower of the one can continue at the other.

mod holders;
mod via;

pub use holders::{ErrorStats, HolderStats, Holders, Kept, Known, Presence, Reporter};
pub use via::{Via, ViaError};

use crate::catalogue::{Catalogue, Entry, TooManyPaths};
use crate::path::RelPath;
use crate::protocol::control::Holder;
use crate::protocol::follow::{Cursor, ServerId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

type Change = dyn Fn(&mut dyn FnMut(&mut Catalogue)) + Send + Sync;

/// A path and what is there.
pub type Passed = (Arc<[u8]>, Entry);

/// The relaying server, as seen by the follower that feeds it.
#[derive(Clone)]
pub struct Relay {
    change: Arc<Change>,
    via: Arc<Via>,
    holders: Arc<Mutex<Holders>>,
}

impl Relay {
    /// A relay; `change` changes its server's catalogue, and notifies its followers.
    pub fn new(
        change: impl Fn(&mut dyn FnMut(&mut Catalogue)) + Send + Sync + 'static,
        via: Arc<Via>,
        holders: Arc<Mutex<Holders>>,
    ) -> Relay {
        lock(&holders).pass_on();
        Relay { change: Arc::new(change), via, holders }
    }

    /// All that there is at a cursor of this server: nothing is known of what there was before.
    ///
    /// # Errors
    /// It is more than a server may have.
    pub fn reset(&self, server: Option<ServerId>, cursor: Cursor, entries: Vec<Passed>) -> Result<(), TooManyPaths> {
        let (mut entries, mut result) = (Some(entries), Ok(()));
        (self.change)(&mut |catalogue| result = catalogue.reset(server, cursor, entries.take().unwrap_or_default()));
        result
    }

    /// Publishes the changes up to a cursor.
    ///
    /// # Errors
    /// It is more than a server may have.
    pub fn advance(&self, cursor: Cursor, entries: Vec<Passed>) -> Result<(), TooManyPaths> {
        let (mut entries, mut result) = (Some(entries), Ok(()));
        (self.change)(&mut |catalogue| result = catalogue.advance(cursor, entries.take().unwrap_or_default()));
        result
    }

    /// Sets the paths that the first server can't read, whether each is a directory, and the number of those left out.
    pub fn set_unread(&self, unread: BTreeMap<RelPath, bool>, more: u64) {
        let mut unread = Some(unread);
        (self.change)(&mut |catalogue| catalogue.set_unread(unread.take().unwrap_or_default(), more));
    }

    /// Notes which servers its own server's files come through.
    ///
    /// # Errors
    /// This relay is among them, or there are too many.
    pub fn comes_through(&self, servers: &[ServerId]) -> Result<(), ViaError> {
        self.via.set_above(servers)
    }

    /// Reports of followers behind this relay since the last call.
    pub fn take_said(&self, most: usize) -> Vec<Holder> {
        lock(&self.holders).take_said(most, Instant::now())
    }

    /// Whether [`Relay::take_said`] has any.
    pub fn has_said(&self) -> bool {
        lock(&self.holders).has_said()
    }

    /// All of it is to be passed on again.
    pub fn say_again(&self) {
        lock(&self.holders).pass_on();
    }
}

fn lock(holders: &Mutex<Holders>) -> MutexGuard<'_, Holders> {
    holders.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").finish_non_exhaustive()
    }
}
