//! Follows a path of a server: brings the destination up to date, and keeps it so.
//!
//! `pages` checks what the server says, `record` remembers what was put into the destination, `place` is what is done there beside a
//! transfer, and `follower`, `feed` and `finish` decide: they join them with a transfer that fetches, checks and installs. `driver` is what joins
//! that with the connection and the disk.

mod account;
mod driver;
mod events;
mod feed;
mod finish;
mod follower;
mod frozen;
mod others;
mod pages;
mod passed_versions;
mod place;
mod record;
mod record_items;
mod report;
#[cfg(test)]
pub(crate) mod simulated;
#[cfg(test)]
mod tests;
mod trash;
mod version_list;
mod versions;

pub use crate::filter::Excludes;
pub use events::Events;
#[cfg(fuzzing)]
pub use record_items::fuzz_body as fuzz_follow_record;

use super::connection::Connection;
use super::exchange::{Connector, Operation, Turn, WaitLimit};
use super::get::WINDOW_BYTES_DEFAULT;
use crate::error::Error;
use crate::limits::CHUNK_BYTES_DEFAULT;
use crate::path::RelPath;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::{Compression, HolderName, Left, Request, VersionsOf};
use crate::relay::Relay;
use crate::transfer::Source;
use crate::transfer::names::changes_names;
use account::Account;
use driver::Driver;
use frozen::Frozen;
pub use pages::ALL_EXCLUDED;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};
use towpath_blocking::CancelToken;
pub(super) use version_list::versions;
pub use version_list::{Version, Versions};

/// Options of [`FileClient::follow`](super::FileClient::follow).
#[derive(Clone, Debug)]
pub struct FollowOptions {
    /// A path or a glob on the server.
    pub source: Source,
    /// Paths that are left out.
    pub exclude: Excludes,
    /// The directory that is kept up to date, made if there is none.
    pub destination: PathBuf,
    /// Follow what is published of the path: each version is put in place beside the one before, as a whole, and then the link `current`
    /// leads to it.
    pub versions: bool,
    /// End when it is up to date.
    pub once: bool,
    /// Delete what is gone at the server, if it was put there by following, and is as it was put.
    pub mirror: bool,
    /// Deletions at a time, beyond which all are held; by default 1,000 if that is over a tenth, or everything.
    pub max_delete: Option<u64>,
    /// A directory that gets what is deleted or replaced, made if there is none.
    pub trash: Option<PathBuf>,
    /// Take over what the destination has of another server or path.
    pub adopt: bool,
    /// Sync files before they get their names, directories after, and the record.
    pub durable: bool,
    /// By which name the server knows what is in place here.
    pub name: HolderName,
    /// A server to pass everything on through.
    pub relay: Option<Relay>,
    /// Whether bodies may be compressed.
    pub compress: Option<Compression>,
    /// Largest body frame, in bytes.
    pub chunk_bytes: u64,
    /// Limit of the credit window, in bytes.
    pub window_bytes: u64,
    /// Bytes that the server may send in a second, on average; [`BYTES_PER_SECOND_MIN`](super::BYTES_PER_SECOND_MIN) at least.
    pub bytes_per_second: Option<u64>,
    /// A version is put in place, and nothing is followed.
    frozen: Option<Frozen>,
}

impl FollowOptions {
    /// The defaults for a source and a destination.
    pub fn new(source: Source, destination: PathBuf) -> Self {
        Self {
            source,
            exclude: Excludes::default(),
            destination,
            versions: false,
            once: false,
            mirror: false,
            max_delete: None,
            trash: None,
            adopt: false,
            durable: false,
            name: own_name(),
            relay: None,
            compress: None,
            chunk_bytes: CHUNK_BYTES_DEFAULT,
            window_bytes: WINDOW_BYTES_DEFAULT,
            bytes_per_second: None,
            frozen: None,
        }
    }

    /// Whether the full state is needed in any case.
    fn begins_anew(&self) -> bool {
        self.relay.is_some() || self.frozen.is_some()
    }
}

/// The name of this machine.
fn own_name() -> HolderName {
    HolderName::near(&std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default())
}

impl FollowOptions {
    /// Names, in the destination, of two files for a program that acts on changes: what it has still to act on, and what it is acting on. No
    /// such file is received or published, and no other follower has the same ones.
    pub fn changes_names(&self) -> [OsString; 2] {
        changes_names(&self.source, &self.exclude).map(OsString::from_vec)
    }
}

/// An event of a follow. Paths are those on the server unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FollowEvent {
    /// Something new or changed is in place.
    Put {
        /// Its path.
        path: RelPath,
        /// Its number.
        seq: u64,
        /// Whether nothing was put there before.
        is_new: bool,
        /// Its kind.
        kind: PutKind,
    },
    /// Something is gone.
    Gone {
        /// Its path.
        path: RelPath,
        /// Its number; that of the page, for what a full state doesn't have.
        seq: u64,
        /// Whether it was left here: nothing is deleted, or it was changed here.
        kept: bool,
    },
    /// A file has another name.
    Renamed {
        /// The old path.
        from: RelPath,
        /// The new path.
        to: RelPath,
        /// The number of the new one.
        seq: u64,
    },
    /// A file that was changed at the destination is kept under another name there.
    Conflict {
        /// The path.
        path: RelPath,
        /// Its path below the destination.
        kept_as: RelPath,
    },
    /// Everything up to a number is in place.
    UpToDate {
        /// The number.
        seq: u64,
    },
    /// So many deletions are held.
    Held {
        /// Their paths.
        paths: Vec<RelPath>,
        /// Why.
        why: HeldWhy,
    },
    /// Something can't be put in place, and is tried again later.
    Failed {
        /// Its path.
        path: RelPath,
        /// Why.
        reason: String,
    },
    /// A version is in place, and `current` leads to it.
    Version {
        /// Its label.
        label: String,
        /// Digest of its manifest.
        version: crate::digest::Digest,
        /// Its number.
        seq: u64,
    },
    /// Following is interrupted, and goes on later.
    Interrupted {
        /// Why.
        reason: String,
    },
    /// A warning.
    Warning(String),
}

/// Why deletions are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldWhy {
    /// Too many at a time.
    TooMany,
    /// The server has no lasting number: it may be another one than before.
    UnknownServer,
}

/// Kind of an entry that was put in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutKind {
    /// A file.
    File {
        /// Bytes.
        size: u64,
        /// Its digest.
        digest: crate::digest::Digest,
    },
    /// A directory.
    Dir,
    /// A link.
    Link {
        /// Its target.
        target: Vec<u8>,
    },
}

/// How following ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowEnd {
    /// Up to date.
    UpToDate,
    /// Deletions are held.
    Held,
    /// Some entries could not be put in place.
    Incomplete,
}

/// Called with what happens; its errors end the follow.
pub type OnEvent<'a> = dyn FnMut(FollowEvent) -> std::io::Result<()> + 'a;

/// Pause before it is tried again.
const PAUSE: Duration = Duration::from_secs(10);

/// Follows; again after a pause if it fails by something that may pass, unless it is to end.
pub(super) fn follow(
    connector: &Arc<Connector>,
    options: &FollowOptions,
    on_event: &mut OnEvent<'_>,
    cancel: &CancelToken,
) -> Result<FollowEnd, Error> {
    type Run = fn(
        &Arc<Connector>,
        &FollowOptions,
        &Account,
        &mut OnEvent<'_>,
        &CancelToken,
        &mut bool,
    ) -> Result<FollowEnd, Error>;
    let run: Run = if options.versions { versions::run } else { Driver::run };
    let versions_of = match &options.source {
        Source::Path(path) if options.versions => VersionsOf::new(path),
        _ => None,
    };
    let account = Account::new(options, versions_of);
    let mut was_connected = false;
    loop {
        let error = match run(connector, options, &account, on_event, cancel, &mut was_connected) {
            Err(error) if passes(&error, options) => error,
            outcome => return outcome,
        };
        account.fails(&error.to_string(), Instant::now());
        on_event(FollowEvent::Interrupted { reason: format!("{error}; trying again in {} s", PAUSE.as_secs()) })?;
        pause(connector, &account, Instant::now() + PAUSE, cancel)?;
    }
}

/// Whether an error may pass by itself, so that it is tried again.
fn passes(error: &Error, options: &FollowOptions) -> bool {
    matches!(error, Error::DiskFull(_) | Error::Stalled { .. }) && !options.once
}

/// The last message on a connection: none if it is tried again.
fn last_words(outcome: &Result<FollowEnd, Error>, options: &FollowOptions, account: &Account) -> Option<Request> {
    let left = match outcome {
        Err(error) if passes(error, options) => return None,
        Ok(_) | Err(Error::Cancelled) => Some(Left::Ended),
        Err(error) => {
            account.fails(&error.to_string(), Instant::now());
            // One that was to end anyway isn't missed.
            options.once.then_some(Left::Ended)
        }
    };
    Some(account.last_words(left, Instant::now()))
}

/// Waits, and says on a connection of its own what it waits for.
fn pause(connector: &Connector, account: &Account, until: Instant, cancel: &CancelToken) -> Result<(), Error> {
    let mut exchange = connector.exchange(cancel)?;
    exchange.assume_connected_before(true);
    let outcome = exchange.run(&mut Pause { account, until, is_connected: false });
    if matches!(outcome, Err(Error::Cancelled)) {
        exchange.say(&account.last_words(Some(Left::Ended), Instant::now()));
    }
    exchange.close();
    if matches!(outcome, Ok(()) | Err(Error::Cancelled)) {
        return outcome;
    }
    // There is no connection either.
    let (cancelled, wait) = sync_channel(1);
    let cancel = cancel.child();
    cancel.on_cancel(move || _ = cancelled.try_send(()));
    if cancel.is_cancelled() || wait.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok() {
        return Err(Error::Cancelled);
    }
    Ok(())
}

/// A pause before a follow is tried again.
struct Pause<'a> {
    account: &'a Account,
    until: Instant,
    is_connected: bool,
}

impl Operation for Pause<'_> {
    type Outcome = ();

    fn turn(&mut self, connection: &mut Connection, now: Instant) -> Result<Turn<()>, Error> {
        if now >= self.until {
            return Ok(Turn::Over(()));
        }
        if self.is_connected
            && let Some(request) = self.account.next_request(now)
        {
            connection.send(&request);
        }
        let due = if self.is_connected { self.account.due(now).min(self.until) } else { self.until };
        Ok(Turn::Wait(due.saturating_duration_since(now)))
    }

    fn connected(&mut self, _connection: &mut Connection, _now: Instant) -> Result<(), Error> {
        self.is_connected = true;
        self.account.connected();
        Ok(())
    }

    fn lost(&mut self, _reason: &str) -> Result<bool, Error> {
        self.is_connected = false;
        Ok(true)
    }

    fn inbound(&mut self, _inbound: Inbound, _connection: &mut Connection, _now: Instant) -> Result<bool, Error> {
        Ok(false)
    }

    fn wait_limit(&self) -> WaitLimit {
        WaitLimit::Unlimited
    }
}
