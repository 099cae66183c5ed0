//! An object store as the destination of files: what it has to be able to do, and the sink of a transfer that uses it.
//!
//! `Objects` is the transfer's side. A thread of its own (`assembler`) checks leaves and gathers parts (`content`); requests to the store run on
//! a few more, since they block.

mod assembler;
mod content;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};
use std::{io, sync::OnceLock};

use bytes::Bytes;

use super::output::DISK_QUEUE_BYTES_MAX;
use crate::digest::Digest;
use crate::disk::{Metadata, Notices};
use crate::error::Error;
use crate::root::Timestamp;
use crate::transfer::{DiskCommand, DiskReport, Version};
use assembler::{Assembler, Event};

/// Time in which uploads that were begun are to be aborted when a transfer ends early.
pub const ABORT_WITHIN: Duration = Duration::from_secs(10);
/// Names of metadata of objects. That of the time is the one of other programs, too.
const MODIFIED: &str = "mtime";
const MODE: &str = "towpath-mode";
const DIGEST: &str = "towpath-blake3";

/// A store of objects that files are put into. Its calls block, and come from several threads; each ends by itself, as by a timeout.
/// Where asking again may help, it has done so before it fails.
pub trait ObjectStore: Debug + Send + Sync + 'static {
    /// Whether there are no objects whose keys begin with this.
    fn is_empty(&self, prefix: &str) -> Result<bool, ObjectError>;

    /// Size and attributes of an object, if there is one.
    fn head(&self, key: &str) -> Result<Option<(u64, ObjectAttributes)>, ObjectError>;

    /// Puts an object, in place of another one if there is one.
    fn put(&self, key: &str, content: Bytes, attributes: &ObjectAttributes) -> Result<(), ObjectError>;

    /// Begins to put an object in parts. It isn't there before [`ObjectUpload::complete`].
    fn begin(&self, key: &str, attributes: &ObjectAttributes) -> Result<Arc<dyn ObjectUpload>, ObjectError>;
}

/// An object that is put in parts.
pub trait ObjectUpload: Debug + Send + Sync + 'static {
    /// Puts a part, counted from 0. All have the same length, but for the last. They come in any order, some at the same time.
    fn put_part(&self, index: u32, content: Bytes) -> Result<(), ObjectError>;

    /// Puts the object in place, once all parts are there.
    fn complete(&self) -> Result<(), ObjectError>;

    /// Removes what was put. Parts that are on their way may fail.
    fn abort(&self) -> Result<(), ObjectError>;
}

/// Why a request to an object store failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ObjectError {
    /// Whether any other object would fail, too: there is no bucket, no permission, no connection.
    pub is_for_all: bool,
    /// The failed request, and why, for people.
    pub message: String,
}

/// Attributes that an object has beside its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectAttributes {
    /// Time of last modification of the file.
    pub modified: Option<Timestamp>,
    /// Its permission bits.
    pub mode: Option<u32>,
    /// BLAKE3 of the content.
    pub digest: Option<Digest>,
}

impl ObjectAttributes {
    fn of(version: &Version, digest: Option<Digest>, metadata: &Metadata) -> ObjectAttributes {
        ObjectAttributes {
            modified: metadata.has_times().then_some(version.modified),
            mode: metadata.has_modes().then(|| metadata.file_mode(version.mode)),
            digest,
        }
    }

    /// The attributes in the metadata of an object. What can't be understood isn't there.
    pub fn parse<'a>(mut get: impl FnMut(&str) -> Option<&'a str>) -> ObjectAttributes {
        ObjectAttributes {
            modified: get(MODIFIED).and_then(parse_time),
            mode: get(MODE).and_then(|text| u32::from_str_radix(text, 8).ok()).filter(|mode| *mode <= 0o7777),
            digest: get(DIGEST).and_then(|text| Digest::from_str(text).ok()),
        }
    }

    /// Names and values of metadata.
    pub fn pairs(&self) -> BTreeMap<&'static str, String> {
        let modified = self.modified.map(|at| (MODIFIED, show_time(at)));
        let mode = self.mode.map(|mode| (MODE, format!("{mode:04o}")));
        let digest = self.digest.map(|digest| (DIGEST, digest.to_string()));
        [modified, mode, digest].into_iter().flatten().collect()
    }
}

/// Seconds since 1970 with a fraction, as other programs write them.
fn show_time(at: Timestamp) -> String {
    match (at.seconds < 0, at.nanoseconds) {
        (_, 0) => at.seconds.to_string(),
        (false, nanoseconds) => format!("{}.{nanoseconds:09}", at.seconds),
        // The fraction is added to the seconds here, and to their amount in the text.
        (true, nanoseconds) => format!("-{}.{:09}", -(at.seconds + 1), 1_000_000_000 - nanoseconds),
    }
}

fn parse_time(text: &str) -> Option<Timestamp> {
    let (amount, is_negative) = text.strip_prefix('-').map_or((text, false), |amount| (amount, true));
    let (whole, fraction) = amount.split_once('.').unwrap_or((amount, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let seconds: i64 = whole.parse().ok()?;
    let nanoseconds: u32 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    Some(match (is_negative, nanoseconds) {
        (false, nanoseconds) => Timestamp { seconds, nanoseconds },
        (true, 0) => Timestamp { seconds: -seconds, nanoseconds: 0 },
        (true, nanoseconds) => Timestamp { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds },
    })
}

/// Options of the sink.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectOptions {
    pub(super) verify: bool,
    /// Objects that are there are compared by digest, not by size and time.
    pub(super) check: bool,
    pub(super) metadata: Metadata,
}

/// State that the threads of a sink share with the transfer's.
#[derive(Default)]
struct Shared {
    /// Bytes in memory that wait for the assembler or for the store. Those of parts that aren't whole don't count: they wait for the server.
    queued_bytes: AtomicU64,
    /// Grows while the store has requests.
    alive: AtomicU64,
    /// The transfer was woken since its reports were last looked at.
    awake: AtomicBool,
    /// Why nothing more can be put.
    failure: OnceLock<ObjectError>,
    notices: Arc<Notices>,
}

/// An object store as the sink of a transfer. Dropping it aborts what isn't complete.
pub(super) struct Objects {
    events: Sender<Event>,
    reports: Receiver<DiskReport>,
    shared: Arc<Shared>,
    /// Place of the objects, for people.
    place: String,
    /// Uploads were aborted, or weren't in time.
    has_ended: bool,
}

impl Objects {
    /// Puts objects whose keys begin with `prefix`. `wake` is called from other threads when there are reports.
    pub(super) fn start(
        store: Arc<dyn ObjectStore>,
        prefix: String,
        place: String,
        options: ObjectOptions,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Objects> {
        let (events, todo) = channel();
        let (done, reports) = channel();
        let shared = Arc::new(Shared::default());
        let own = (events.clone(), todo);
        let assembler = Assembler::new(store, prefix, options, own, done, Arc::clone(&shared), Box::new(wake))?;
        std::thread::Builder::new().name("objects".to_owned()).spawn(move || assembler.run())?;
        Ok(Objects { events, reports, shared, place, has_ended: false })
    }

    /// The summary's notices.
    pub(super) fn notices(&self) -> Arc<Notices> {
        Arc::clone(&self.shared.notices)
    }

    /// Why nothing more can be put, if that is so.
    pub(super) fn failure(&self) -> Option<Error> {
        let error = self.shared.failure.get()?;
        Some(Error::Destination { path: self.place.clone().into(), reason: error.message.clone() })
    }

    pub(super) fn command(&self, command: DiskCommand) {
        let bytes = match &command {
            DiskCommand::Write { data, .. } => data.len() as u64,
            DiskCommand::Small(small) => small.bytes(),
            _ => 0,
        };
        self.shared.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        // The thread ends after this.
        let _ = self.events.send(Event::Command(command));
    }

    pub(super) fn next_report(&self) -> Option<DiskReport> {
        self.shared.awake.store(false, Ordering::Release);
        self.reports.try_recv().ok()
    }

    pub(super) fn wait_report(&self, timeout: Duration) -> Option<DiskReport> {
        self.reports.recv_timeout(timeout).ok()
    }

    /// Whether so much is queued that the server has to wait.
    pub(super) fn is_over(&self) -> bool {
        self.shared.queued_bytes.load(Ordering::Relaxed) > DISK_QUEUE_BYTES_MAX
    }

    /// A count that grows while the store has requests, each of which ends by itself.
    pub(super) fn alive(&self) -> u64 {
        self.shared.alive.load(Ordering::Relaxed)
    }

    /// Aborts what isn't complete.
    ///
    /// # Errors
    /// That wasn't possible in time: the place, for people.
    pub(super) fn end(mut self) -> Result<(), String> {
        if self.abort() { Ok(()) } else { Err(self.place.clone()) }
    }

    /// False if it took too long.
    fn abort(&mut self) -> bool {
        self.has_ended = true;
        let _ = self.events.send(Event::End);
        let deadline = Instant::now() + ABORT_WITHIN;
        loop {
            match self.reports.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return true,
                Err(RecvTimeoutError::Timeout) => return false,
            }
        }
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        if !self.has_ended {
            self.abort();
        }
    }
}
