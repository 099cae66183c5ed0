//! The end of a page: a follower stores its position, deletes what is gone, and tries again what failed.

use super::super::sweep::{FEW_OF, is_too_much};
use super::feed::{Failed, Why};
use super::follower::Follower;
use super::place::Removal;
use super::record::Known;
use super::{FollowEnd, FollowEvent, HeldWhy};
use crate::error::Error;
use crate::path::RelPath;
use crate::transfer::Source;
use crate::transfer::names::glob_base;
use crate::{counted, counted_are};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::ErrorKind;
use std::time::Duration;

/// Time before what failed is tried again, at first and at most.
pub(super) const RETRY_MIN: Duration = Duration::from_secs(10);
pub(super) const RETRY_MAX: Duration = Duration::from_secs(600);
/// With [`FollowOptions::once`](super::FollowOptions::once), time in which the server may notice that something isn't there any more, or is
/// another version by now: longer than its settle time by default.
const GRACE: Duration = Duration::from_secs(5);

impl Follower<'_> {
    /// Stores the cursor, if everything up to it is in place.
    pub(super) fn store(&mut self) -> Result<(), Error> {
        let is_incomplete = !self.failed.is_empty() || !self.gone.is_empty() || !self.waiting.is_empty();
        let is_all = !is_incomplete && self.pages.seen.is_none();
        let cursor = if is_all { self.cursor } else { self.record.cursor() };
        if is_all
            && std::mem::take(&mut self.is_unknown)
            && let Some(origin) = &self.origin
        {
            self.record.note_origin(origin).map_err(|error| self.record_failed(&error))?;
        }
        self.record.store(cursor, self.options.durable).map_err(|error| self.record_failed(&error))?;
        match cursor.filter(|_| is_all) {
            Some(cursor) => self.report.in_place(cursor, &self.place),
            None => Ok(()),
        }
    }

    /// Ignores a full disk: [`Follower::store`] writes the record later.
    pub(super) fn noted_later(&self, error: std::io::Error) -> Result<(), Error> {
        if is_full(&error) { Ok(()) } else { Err(self.record_failed(&error)) }
    }

    pub(super) fn record_failed(&self, error: &std::io::Error) -> Error {
        let reason = format!("cannot write the record of what was followed: {error}");
        if is_full(error) {
            return Error::DiskFull(reason);
        }
        Error::Destination { path: self.options.destination.clone(), reason }
    }

    /// A full state is complete: what it hasn't is gone.
    pub(super) fn unseen_are_gone(&mut self, seq: u64) {
        let Some(seen) = self.pages.seen.take().filter(|_| self.options.mirror) else { return };
        let base = self.base();
        // What matches a glob comes without the directories above it.
        let parents = |path: &RelPath| std::iter::successors(path.parent(), RelPath::parent);
        let above: HashSet<RelPath> = seen.iter().flat_map(parents).collect();
        let is_seen = |path: &RelPath| seen.contains(path) || above.contains(path);
        let unseen = self.record.iter().map(|(path, _)| path).filter(|path| !is_seen(path));
        self.gone.extend(unseen.map(|path| (path.clone(), (join(&base, path), seq))));
    }

    /// The server knows nothing more: deletes what is gone, and says that it is all there.
    pub(super) fn up_to_date(&mut self, is_retry: bool) -> Result<(), Error> {
        let seq = self.cursor.map_or(0, |cursor| cursor.seq);
        self.delete()?;
        if !self.failed.is_empty() && !is_retry {
            // What was deleted may have been in the way.
            return self.retry();
        }
        self.store()?;
        if self.options.once && !self.is_holding && self.failed.values().any(Failed::is_out_of_date) {
            let now = self.now;
            let until = *self.grace_until.get_or_insert(now + GRACE);
            if now < until {
                // The server's next page says what became of it.
                self.retry_at = Some(until);
                return Ok(());
            }
        }
        // A follow that goes on learns when the server can read more. One that ends is incomplete.
        let is_all_known = self.unread.0.is_empty() && self.unread.1 == 0;
        let is_deleted = self.gone.is_empty() || self.is_holding;
        let is_complete = is_deleted && self.failed.is_empty() && (is_all_known || !self.options.once);
        if is_complete && !self.is_holding {
            (self.retry_at, self.retry_after) = (None, RETRY_MIN);
            self.said.clear();
            self.account.works();
            (self.on_event)(FollowEvent::UpToDate { seq })?;
        } else if !is_complete {
            let held = if self.is_holding { self.counted().len() } else { 0 };
            match self.trouble(held) {
                Some(trouble) => self.account.fails(&trouble, self.now),
                None => self.account.works(),
            }
            let mut said = HashMap::with_capacity(self.failed.len());
            for Failed { placed, reason, why } in self.failed.values() {
                let reason = match why {
                    Why::OutOfDate => format!("{reason}; the server has not published what it is now"),
                    Why::NoSpace if held > 0 => {
                        format!(
                            "{reason}; {} held, start again with --max-delete {held} to make space",
                            counted_are(held as u64, "deletion")
                        )
                    }
                    Why::NoSpace | Why::Other => reason.clone(),
                };
                // Once, however often it is tried.
                if self.said.get(&placed.remote) != Some(&reason) {
                    (self.on_event)(FollowEvent::Failed { path: placed.remote.clone(), reason: reason.clone() })?;
                }
                said.insert(placed.remote.clone(), reason);
            }
            self.said = said;
            self.retry_at = Some(self.now + self.retry_after);
            self.retry_after = (self.retry_after * 2).min(RETRY_MAX);
        }
        if self.options.once {
            self.end = Some(match (self.is_holding, is_complete) {
                (true, _) => FollowEnd::Held,
                (false, true) => FollowEnd::UpToDate,
                (false, false) => FollowEnd::Incomplete,
            });
        }
        Ok(())
    }

    /// The trouble that keeps something from being in place, for a person. Whatever is out of date comes again by itself.
    fn trouble(&self, held: usize) -> Option<String> {
        if held > 0 && self.is_unknown {
            return Some(format!(
                "{} held: the server may be another one (--adopt)",
                counted_are(held as u64, "deletion")
            ));
        }
        if held > 0 {
            return Some(format!("{} held (--max-delete {held})", counted_are(held as u64, "deletion")));
        }
        let failed = || self.failed.values().filter(|failed| failed.why != Why::OutOfDate);
        let first = failed().find(|failed| failed.why == Why::NoSpace).or_else(|| failed().next());
        let Some(Failed { placed, reason, .. }) = first else {
            return self.undeleted.clone().filter(|_| !self.gone.is_empty());
        };
        let path = placed.remote.to_string();
        let name = path.rsplit('/').next().unwrap_or_default();
        Some(match failed().count() - 1 {
            0 => format!("{reason} ({name})"),
            others => format!("{reason} ({name}, and {})", counted(others as u64, "other")),
        })
    }

    /// Tries again what failed.
    pub(super) fn retry(&mut self) -> Result<(), Error> {
        let failed = std::mem::take(&mut self.failed);
        let placed = failed.into_values().map(|failed| failed.placed).collect();
        self.start(placed, None, true, true)
    }

    /// Deletes what is gone, unless that isn't wanted or too much.
    fn delete(&mut self) -> Result<(), Error> {
        if self.gone.is_empty() {
            self.is_holding = false;
            return Ok(());
        }
        if !self.options.mirror {
            for (_, (path, seq)) in std::mem::take(&mut self.gone) {
                (self.on_event)(FollowEvent::Gone { path, seq, kept: true })?;
            }
            return Ok(());
        }
        let counted = self.counted();
        // Directories don't count. No more has to be known of the others than that these are few.
        let others = self.record.iter().filter(|(_, known)| **known != Known::Dir);
        let known = others.take(counted.len().saturating_mul(FEW_OF) + 1).count();
        let why = match is_too_much(counted.len() as u64, known as u64, self.options.max_delete) {
            _ if self.is_unknown && !counted.is_empty() => Some(HeldWhy::UnknownServer),
            is_too_much => is_too_much.then_some(HeldWhy::TooMany),
        };
        if let Some(why) = why {
            if !std::mem::replace(&mut self.is_holding, true) {
                (self.on_event)(FollowEvent::Held { paths: counted, why })?;
            }
            return Ok(());
        }
        self.is_holding = false;
        let (mut left, mut above) = (BTreeMap::new(), HashSet::new());
        self.others.refresh();
        let top = self.place.top().ok().filter(|_| !self.others.is_empty());
        // What is in a directory before the directory.
        for (local, (path, seq)) in std::mem::take(&mut self.gone).into_iter().rev() {
            let Some(known) = self.record.get(&local).copied() else { continue };
            if above.contains(&local) {
                left.insert(local, (path, seq));
                continue;
            }
            let claim = top
                .as_ref()
                .zip(self.origin.as_ref())
                .and_then(|(top, origin)| self.others.claim(top, origin, &local, self.options.adopt));
            let is_others = match claim {
                Some((other, _)) => {
                    let is_given_up = self.options.adopt && other.give_up(&local).unwrap_or_default();
                    !is_given_up
                }
                None => false,
            };
            let removed = if is_others { Ok(Removal::Kept) } else { self.place.remove(&local, &known, seq) };
            let removal = match removed {
                Ok(removal) => removal,
                Err(error) => {
                    let reason = format!("cannot delete it: {error}");
                    self.undeleted = Some(format!("cannot delete {path}: {error}"));
                    (self.on_event)(FollowEvent::Failed { path: path.clone(), reason })?;
                    above.extend(std::iter::successors(local.parent(), RelPath::parent));
                    left.insert(local, (path, seq));
                    continue;
                }
            };
            // Reported twice rather than never, should this be killed here.
            (self.on_event)(FollowEvent::Gone { path, seq, kept: removal == Removal::Kept })?;
            self.record.forget(&local).or_else(|error| self.noted_later(error))?;
            self.dirs.remove(&local);
            if let Some(Some(path)) = self.unreported.remove(&local) {
                // It was renamed, which hasn't been reported.
                (self.on_event)(FollowEvent::Gone { path, seq, kept: false })?;
            }
        }
        // What could not be deleted is tried again.
        self.gone = left;
        Ok(())
    }

    /// Paths that count as deleted. A directory is removed when nothing is left in it, so with it nothing is lost.
    fn counted(&self) -> Vec<RelPath> {
        let is_counted = |local: &RelPath| self.record.get(local).is_some_and(|known| *known != Known::Dir);
        self.gone.iter().filter(|(local, _)| is_counted(local)).map(|(_, (path, _))| path.clone()).collect()
    }

    fn base(&self) -> RelPath {
        match &self.options.source {
            Source::Path(path) => path.clone(),
            Source::Glob(glob) => glob_base(glob),
        }
    }
}

/// Whether there was no space for something.
pub(super) fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

fn join(base: &RelPath, path: &RelPath) -> RelPath {
    path.names().try_fold(base.clone(), |at, name| at.join(name)).unwrap_or_else(|_| path.clone())
}
