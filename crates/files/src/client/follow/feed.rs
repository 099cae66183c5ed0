//! Puts the changes of a page in place: what is here already is used, the rest is given to the transfer.

use super::super::get::GetError;
use super::super::transfer::{FileFailure, TransferError};
use super::finish::is_full;
use super::follower::Follower;
use super::pages::Placed;
use super::place::Plan;
use super::record::Known;
use super::{FollowEvent, PutKind};
use crate::digest::{Digest, wall_clock};
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::protocol::control::ChangeContent;
use crate::protocol::follow::Cursor;
use crate::root::{FileStat, RootError};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Smallest file that is copied from another one of the same content.
const COPY_FROM_BYTES: u64 = 64 << 10;

/// What the transfer is fed with.
#[derive(Debug)]
pub(super) struct Feed {
    fed: Vec<Placed>,
    /// Of the page, unless this is a retry.
    cursor: Option<Cursor>,
    live: bool,
    is_retry: bool,
    /// Files and links that are gone, by what they have: what is renamed isn't fetched.
    sources: HashMap<Moved, Vec<RelPath>>,
    /// Old paths of what was renamed.
    renamed: BTreeMap<RelPath, RelPath>,
    /// Where something was known to be before.
    known: HashSet<RelPath>,
    /// Where the trash has what is replaced.
    kept: BTreeMap<RelPath, RelPath>,
}

/// What could not be put in place.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) placed: Placed,
    pub(super) reason: String,
    pub(super) why: Why,
}

impl Failed {
    pub(super) fn is_out_of_date(&self) -> bool {
        self.why == Why::OutOfDate
    }
}

/// Why something could not be put in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The server has something else there by now, or nothing, and will say so.
    OutOfDate,
    /// There is no room for it.
    NoSpace,
    Other,
}

impl Follower<'_> {
    pub(super) fn start(
        &mut self,
        there: Vec<Placed>,
        cursor: Option<Cursor>,
        live: bool,
        is_retry: bool,
    ) -> Result<(), GetError> {
        let mut feed = Feed {
            fed: Vec::new(),
            cursor,
            live,
            is_retry,
            sources: self.sources(live),
            renamed: BTreeMap::new(),
            known: HashSet::new(),
            kept: BTreeMap::new(),
        };
        // What a crash leaves in place is this follower's all the same.
        let intended = there.iter().filter_map(|placed| Some((&placed.local, Known::of(&placed.change)?)));
        let noted = { intended }.try_for_each(|(local, known)| self.record.intend(local, &known));
        // Without room for that nothing is put in place, but what is gone is deleted all the same.
        let full = match noted.and_then(|()| self.record.flush()) {
            Err(error) if is_full(&error) => Some(format!("cannot write the record of what was followed: {error}")),
            noted => noted.map(|()| None).map_err(|error| self.record_failed(&error))?,
        };
        let mut entries = Vec::new();
        let now = wall_clock();
        for placed in there {
            if let Some(reason) = full.clone() {
                self.failed.insert(placed.local.clone(), Failed { placed, reason, why: Why::NoSpace });
                continue;
            }
            let was_known = self.record.get(&placed.local).is_some();
            let refused = match self.plan(&placed, &mut feed) {
                Ok(Plan::InPlace) if was_known => continue,
                Ok(Plan::InPlace | Plan::Get) => None,
                Ok(Plan::Refused(reason)) => Some(reason),
                Err(error) => Some(error.to_string()),
            };
            if let Some(reason) = refused {
                self.failed.insert(placed.local.clone(), Failed { placed, reason, why: Why::Other });
                continue;
            }
            if was_known {
                feed.known.insert(placed.local.clone());
            }
            entries.extend(placed.entry(now));
            feed.fed.push(placed);
        }
        self.feed = Some(feed);
        self.transfer.feed(entries, self.now);
        Ok(())
    }

    /// What is to be deleted, by what it has, once that is known.
    fn sources(&self, live: bool) -> HashMap<Moved, Vec<RelPath>> {
        let mut sources: HashMap<_, Vec<_>> = HashMap::new();
        if self.options.mirror && live {
            for path in self.gone.keys() {
                if let Some(moved) = self.record.get(path).and_then(moved_by) {
                    sources.entry(moved).or_default().push(path.clone());
                }
            }
        }
        sources
    }

    /// Moves a file or a link with this content, which is to be deleted, to where it is wanted: whether there was one.
    fn moved(&mut self, placed: &Placed, wanted: &Known, feed: &mut Feed) -> Result<bool, GetError> {
        let Some(moved) = moved_by(wanted) else { return Ok(false) };
        while let Some(from) = feed.sources.get_mut(&moved).and_then(Vec::pop) {
            let Some(known) = self.record.get(&from).copied() else { continue };
            if self.place.known(&from, &known).ok().flatten() != Some(known)
                || !self.place.rename(&from, &known, &placed.local).unwrap_or_else(|error| log_unused(&from, &error))
            {
                continue;
            }
            let moved = self.place.known(&placed.local, &known).ok().flatten();
            let noted = self.record.forget(&from);
            let noted = noted.and_then(|()| moved.map_or(Ok(()), |known| self.record.put(&placed.local, known)));
            // It gets its time and mode by the transfer.
            let noted = noted.and_then(|()| self.record.intend(&placed.local, wanted));
            noted.or_else(|error| self.noted_later(error))?;
            if let Some((old, _)) = self.gone.remove(&from) {
                feed.renamed.insert(placed.local.clone(), old);
            }
            return Ok(true);
        }
        Ok(false)
    }

    fn plan(&mut self, placed: &Placed, feed: &mut Feed) -> Result<Plan, GetError> {
        let Placed { local, change, remote } = placed;
        let Follower { place, record, tell, options, gone, seed, .. } = self;
        let (mut kept, mut told) = (None, Ok(()));
        // A retry comes after the deletions, unless they are held.
        let deletes = options.mirror && !(feed.is_retry && gone.is_empty());
        let failed = |error: RootError| GetError::Transfer(TransferError::unmet(error.to_string()));
        let plan = place
            .plan(local, change, record.get(local), deletes, &mut |path| kept = Some(path.clone()))
            .map_err(failed)?;
        if let Some(kept_as) = kept {
            told = tell(FollowEvent::Conflict { path: remote.clone(), kept_as });
            let _ = record.forget(local);
        }
        told?;
        if plan == Plan::Get
            && let Some(known) = record.get(local)
            && let Some(kept) = place.keep(local, change, known).map_err(failed)?
        {
            feed.kept.insert(local.clone(), kept);
        }
        let Some(wanted) = Known::of(change).filter(|_| plan == Plan::Get) else { return Ok(plan) };
        let there = place.stat(local).map_err(failed)?;
        let is_older = |there: &FileStat| record.get(local).is_some_and(|known| known.is_older_file(there, &wanted));
        if there.as_ref().is_some_and(|there| !is_older(there)) {
            return Ok(plan);
        }
        let is_new = there.is_none();
        if is_new
            && let (Some(seed), Some(digest)) = (seed, wanted.digest())
            && seed.copy(digest, place, local, change)
        {
            return Ok(plan);
        }
        if !self.moved(placed, &wanted, feed)?
            && is_new
            && let Known::File { size, digest, .. } = wanted
            && size >= COPY_FROM_BYTES
            && let Some((from, known)) = self.record.with_digest(digest)
        {
            // What can't be copied is fetched.
            self.place.copy(from, known, local, change).unwrap_or_else(|error| log_unused(from, &error));
        }
        Ok(plan)
    }

    /// All that was fed is in place, or has failed.
    pub(super) fn in_place(&mut self) -> Result<(), GetError> {
        let Some(feed) = self.feed.take() else { return Ok(()) };
        let (failures, count) = self.transfer.take_failures();
        let are_unknown = failures.len() as u64 != count;
        let mut reasons: BTreeMap<_, _> =
            failures.into_iter().map(|failure| (failure.path.clone(), (why(&failure), failure.reason))).collect();
        for placed in feed.fed {
            let reason = reasons.remove(&placed.remote.to_string());
            if let Some((why, reason)) =
                reason.or_else(|| are_unknown.then(|| (Why::Other, "too many failed".to_owned())))
            {
                if let Some(kept) = feed.kept.get(&placed.local) {
                    self.place.keep_not(kept).unwrap_or_else(|error| _ = log_unused(kept, &error));
                }
                self.failed.insert(placed.local.clone(), Failed { placed, reason, why });
                continue;
            }
            let Placed { remote, local, change } = placed;
            let known = Known::of(&change).and_then(|known| self.place.known(&local, &known).unwrap_or_default());
            // A link that was left out, or what somebody else put there at once.
            let Some(known) = known else { continue };
            let is_news = self.record.get(&local) != Some(&known) || feed.renamed.contains_key(&local);
            if !is_news {
                continue;
            }
            let (seq, is_new) = (change.seq, !feed.known.contains(&local));
            let event = match (feed.renamed.get(&local), change.content) {
                (Some(from), _) => FollowEvent::Renamed { from: from.clone(), to: remote, seq },
                (None, ChangeContent::File { size, digest, .. }) => {
                    FollowEvent::Put { path: remote, seq, is_new, kind: PutKind::File { size, digest } }
                }
                (None, ChangeContent::Link { target, .. }) => {
                    let target = target.into_bytes();
                    FollowEvent::Put { path: remote, seq, is_new, kind: PutKind::Link { target } }
                }
                (None, _) => FollowEvent::Put { path: remote, seq, is_new, kind: PutKind::Dir },
            };
            // Told twice rather than never, should this be killed here.
            (self.tell)(event)?;
            self.record.put(&local, known).or_else(|error| self.noted_later(error))?;
        }
        self.cursor = feed.cursor.or(self.cursor);
        if feed.live || feed.is_retry {
            self.up_to_date(feed.is_retry)?;
        } else {
            self.store()?;
        }
        self.take_told()?;
        self.ask();
        Ok(())
    }
}

fn why(failure: &FileFailure) -> Why {
    match failure.code {
        _ if failure.no_space => Why::NoSpace,
        Some(ErrorCode::Changed | ErrorCode::NotFound | ErrorCode::NotAFile) => Why::OutOfDate,
        _ => Why::Other,
    }
}

/// Whether it is a link, and the digest of its target or of the file.
type Moved = (bool, Digest);

/// What tells something that was moved; `None` for a directory, which is made anew.
fn moved_by(known: &Known) -> Option<Moved> {
    match *known {
        Known::File { digest, .. } => Some((false, digest)),
        Known::Link(digest) => Some((true, digest)),
        Known::Dir => None,
    }
}

fn log_unused(path: &RelPath, error: &RootError) -> bool {
    tracing::debug!(%path, %error, "content that is there can't be used");
    false
}
