//! Puts the changes of a page in place: what is here already is used, the rest is given to the transfer.

use super::finish::is_full;
use super::follower::Follower;
use super::pages::{FOLLOW_ID, Placed};
use super::place::Plan;
use super::record::Known;
use super::{FollowEvent, PutKind};
use crate::digest::{Digest, wall_clock};
use crate::error::Error;
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::protocol::control::{ChangeContent, Request};
use crate::protocol::follow::Cursor;
use crate::root::{FileKind, RootError};
use crate::transfer::{FileFailure, Progress};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Smallest file that is copied from another one of the same content.
const COPY_FROM_BYTES: u64 = 64 << 10;

/// Entries that the transfer is fed with.
#[derive(Debug)]
pub(super) struct Feed {
    fed: Vec<Placed>,
    /// The transfer before it was fed.
    begun: Progress,
    /// Of the page, unless this is a retry.
    cursor: Option<Cursor>,
    live: bool,
    is_retry: bool,
    /// Files and links that are gone, by what they have: what is renamed isn't fetched.
    sources: HashMap<Moved, Vec<RelPath>>,
    /// Known entries before this feed.
    before: HashMap<RelPath, Known>,
    /// Directories that are to be made for what is below them.
    parents: BTreeSet<RelPath>,
    /// Paths in the trash of replaced files.
    kept: BTreeMap<RelPath, RelPath>,
}

impl Feed {
    /// Files that aren't in place, and their bytes that aren't here.
    pub(super) fn lacks(&self, now: &Progress) -> (u64, u64) {
        let left = |(all, all_before): (u64, u64), (done, done_before): (u64, u64)| {
            all.saturating_sub(all_before).saturating_sub(done.saturating_sub(done_before))
        };
        let begun = &self.begun;
        let files = left((now.files_total, begun.files_total), (now.files_done, begun.files_done));
        (files, left((now.bytes_total, begun.bytes_total), (now.bytes_done, begun.bytes_done)))
    }
}

/// A path that could not be put in place.
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
    /// No space for it.
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
    ) -> Result<(), Error> {
        let mut feed = Feed {
            fed: Vec::new(),
            begun: self.transfer.progress(),
            cursor,
            live,
            is_retry,
            sources: self.sources(live),
            before: HashMap::new(),
            parents: BTreeSet::new(),
            kept: BTreeMap::new(),
        };
        self.check_destination()?;
        self.look_at_parents(&there, &mut feed)?;
        // What a crash leaves in place is this follower's all the same.
        let intended = there.iter().filter_map(|placed| Some((&placed.local, Known::of(&placed.change)?)));
        let intended = feed.parents.iter().map(|parent| (parent, Known::Dir)).chain(intended);
        let noted = { intended }.try_for_each(|(local, known)| self.record.intend(local, &known));
        // Without space for that nothing is put in place, but what is gone is deleted all the same.
        let full = match noted.and_then(|()| self.record.flush()) {
            Err(error) if is_full(&error) => Some(format!("cannot write the record of what was followed: {error}")),
            noted => noted.map(|()| None).map_err(|error| self.record_failed(&error))?,
        };
        let mut entries = Vec::new();
        let now = wall_clock();
        self.others.refresh();
        for placed in there {
            if let Some(reason) = full.clone() {
                self.failed.insert(placed.local.clone(), Failed { placed, reason, why: Why::NoSpace });
                continue;
            }
            self.take_over(&placed)?;
            self.gone.remove(&placed.local);
            let before =
                self.record.get(&placed.local).filter(|_| !self.unreported.contains_key(&placed.local)).copied();
            let reported = before.or_else(|| self.put_before(&placed.local));
            let refused = match self.plan(&placed, &mut feed) {
                Ok(Plan::InPlace) if before.is_some() => continue,
                // Only its report is missing.
                Ok(Plan::InPlace) => self.place.plan_as_it_is(&placed.local).err().map(|error| error.to_string()),
                Ok(Plan::Get) => None,
                Ok(Plan::Refused(reason)) => Some(reason),
                Err(error) => Some(error.to_string()),
            };
            if let Some(reason) = refused {
                self.failed.insert(placed.local.clone(), Failed { placed, reason, why: Why::Other });
                continue;
            }
            feed.before.extend(reported.map(|reported| (placed.local.clone(), reported)));
            entries.extend(placed.entry(now));
            feed.fed.push(placed);
        }
        // Of what was renamed or copied.
        self.record.flush().or_else(|error| self.noted_later(error))?;
        self.feed = Some(feed);
        self.transfer.feed(entries, self.now);
        Ok(())
    }

    /// An error if the destination isn't at its path any more.
    fn check_destination(&self) -> Result<(), Error> {
        if self.place.is_there() {
            return Ok(());
        }
        let reason = "it was moved, or another directory has taken its place; begin again".to_owned();
        Err(Error::Destination { path: self.options.destination.clone(), reason })
    }

    /// Looks at the directories of what comes: which are missing, and whether somebody has moved or removed those that were put here, with what was in them.
    fn look_at_parents(&mut self, there: &[Placed], feed: &mut Feed) -> Result<(), Error> {
        let failed = |error: RootError| Error::unmet(error.to_string());
        let mut looked_at = HashSet::new();
        for placed in there {
            for parent in std::iter::successors(placed.local.parent(), RelPath::parent) {
                if parent.is_root() || !looked_at.insert(parent.clone()) {
                    break;
                }
                let found = self.place.stat(&parent).map_err(failed)?.filter(|found| found.kind == FileKind::Dir);
                match (self.record.get(&parent), found) {
                    (Some(Known::Dir), None) => self.is_missing = true,
                    (Some(Known::Dir), Some(found)) if self.place.has_lasting_inodes() => {
                        self.is_missing |= *self.dirs.entry(parent).or_insert(found.inode) != found.inode;
                    }
                    (_, None) => _ = feed.parents.insert(parent),
                    (_, Some(_)) => {}
                }
            }
        }
        Ok(())
    }

    /// Files to be deleted, by their content, once all are known.
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
    fn moved(&mut self, placed: &Placed, wanted: &Known, feed: &mut Feed, replaces: bool) -> Result<bool, Error> {
        let Some(moved) = moved_by(wanted) else { return Ok(false) };
        let local = &placed.local;
        while let Some(from) = feed.sources.get_mut(&moved).and_then(Vec::pop) {
            let Some(known) = self.record.get(&from).copied() else { continue };
            let renamed =
                self.place.rename(&from, &known, local, replaces).unwrap_or_else(|error| log_unused(&from, &error));
            let Some(put) = renamed else { continue };
            // What is there already is this follower's, whatever comes next.
            self.put_unreported(local, put)?;
            if let Some((old, _)) = self.gone.remove(&from) {
                // Of a file that was renamed twice, the first name is reported.
                let old = self.unreported.remove(&from).flatten().unwrap_or(old);
                self.unreported.insert(local.clone(), Some(old));
            }
            self.record.forget(&from).or_else(|error| self.noted_later(error))?;
            return Ok(true);
        }
        Ok(false)
    }

    fn plan(&mut self, placed: &Placed, feed: &mut Feed) -> Result<Plan, Error> {
        let Placed { local, change, remote } = placed;
        let Follower { place, record, on_event, options, gone, seed, .. } = self;
        let (mut kept, mut reported) = (None, Ok(()));
        // A retry comes after the deletions, unless they are held.
        let deletes = options.mirror && !(feed.is_retry && gone.is_empty());
        let failed = |error: RootError| Error::unmet(error.to_string());
        let plan = place
            .plan(local, change, record.get(local), deletes, &mut |path| kept = Some(path.clone()))
            .map_err(failed)?;
        if let Some(kept_as) = kept {
            reported = on_event(FollowEvent::Conflict { path: remote.clone(), kept_as });
            let _ = record.forget(local);
        }
        reported?;
        if plan == Plan::Get
            && let Some(known) = record.get(local)
            && let Some(kept) = place.keep(local, change, known).map_err(failed)?
        {
            feed.kept.insert(local.clone(), kept);
        }
        let Some(wanted) = Known::of(change).filter(|_| plan == Plan::Get) else { return Ok(plan) };
        let is_new = place.stat(local).map_err(failed)?.is_none();
        let is_older = || record.get(local).map_or(Ok(false), |known| place.is_older(local, known, &wanted));
        if !is_new && !is_older().map_err(failed)? {
            return Ok(plan);
        }
        if is_new
            && let (Some(seed), Some(digest)) = (seed, wanted.digest())
            && let Some(copied) = seed.copy(digest, place, local, change)
        {
            self.put_unreported(local, copied)?;
            return Ok(plan);
        }
        if self.moved(placed, &wanted, feed, !is_new)? || !is_new {
            return Ok(plan);
        }
        let Known::File { digest, size: COPY_FROM_BYTES.., .. } = wanted else { return Ok(plan) };
        let Some((from, known)) = self.record.with_digest(digest).map(|(from, known)| (from.clone(), *known)) else {
            return Ok(plan);
        };
        // What can't be copied is fetched.
        let copied = self.place.copy(&from, &known, local, change);
        if let Some(put) = copied.unwrap_or_else(|error| log_unused(&from, &error)) {
            self.put_unreported(local, put)?;
        }
        Ok(plan)
    }

    /// Ends a feed: all its entries are in place, or have failed.
    pub(super) fn in_place(&mut self) -> Result<(), Error> {
        let Some(feed) = self.feed.take() else { return Ok(()) };
        self.check_destination()?;
        let (failures, count) = self.transfer.take_failures();
        let are_unknown = failures.len() as u64 != count;
        let mut reasons: BTreeMap<_, _> =
            failures.into_iter().map(|failure| (failure.path.clone(), (why(&failure), failure.reason))).collect();
        for placed in feed.fed {
            let Placed { remote, local, change } = &placed;
            let reason = reasons.remove(&remote.to_string());
            let reason = reason.or_else(|| are_unknown.then(|| (Why::Other, "too many failed".to_owned())));
            // As it was when it got there: somebody may have changed it since.
            let put = self.place.ledger.put(local);
            let known = put.zip(Known::of(change)).map(|(put, known)| self.place.as_put(&known, &put));
            let is_there = self.place.stat(local).unwrap_or_default().is_some();
            let reason =
                reason.or_else(|| (put.is_some() && !is_there).then(|| (Why::Other, "it was removed here".to_owned())));
            if let Some(put) = put.filter(|put| put.kind == FileKind::Dir) {
                self.dirs.insert(local.clone(), put.inode);
            }
            if let Some((why, reason)) = reason {
                if let Some(kept) = feed.kept.get(local) {
                    self.place.keep_not(kept).unwrap_or_else(|error| _ = log_unused::<()>(kept, &error));
                }
                // What was done of it is this follower's all the same.
                if let Some(known) = known.filter(|_| is_there) {
                    self.put_unreported(local, known)?;
                }
                self.failed.insert(local.clone(), Failed { placed, reason, why });
                continue;
            }
            // A link that was left out.
            let Some(known) = known else { continue };
            let Placed { remote, local, change } = placed;
            let before = feed.before.get(&local);
            let unreported = self.unreported.remove(&local);
            let (seq, is_new) = (change.seq, before.is_none());
            let is_change = unreported.is_some() || before.is_none_or(|before| !before.is_same(&known));
            let event = match (unreported.flatten(), change.content) {
                (Some(from), _) => FollowEvent::Renamed { from, to: remote, seq },
                (None, ChangeContent::File { size, digest, .. }) => {
                    FollowEvent::Put { path: remote, seq, is_new, kind: PutKind::File { size, digest } }
                }
                (None, ChangeContent::Link { target, .. }) => {
                    let target = target.into_bytes();
                    FollowEvent::Put { path: remote, seq, is_new, kind: PutKind::Link { target } }
                }
                (None, _) => FollowEvent::Put { path: remote, seq, is_new, kind: PutKind::Dir },
            };
            if is_change {
                // Reported twice rather than never, should this be killed here.
                (self.on_event)(event)?;
            }
            self.record.put(&local, known).or_else(|error| self.noted_later(error))?;
        }
        for parent in feed.parents {
            let found = self.place.stat(&parent).unwrap_or_default().filter(|found| found.kind == FileKind::Dir);
            if let Some(found) = found.filter(|_| self.record.get(&parent).is_none()) {
                self.dirs.insert(parent.clone(), found.inode);
                self.put_unreported(&parent, Known::Dir)?;
            }
        }
        self.place.ledger.settle();
        self.cursor = feed.cursor.or(self.cursor);
        if std::mem::take(&mut self.is_missing) && self.begin_anew()? {
        } else if feed.live || feed.is_retry {
            self.up_to_date(feed.is_retry)?;
        } else {
            if self.failed.is_empty() {
                self.account.works();
            }
            self.store()?;
        }
        self.lacks_now();
        self.take_replies()?;
        self.ask();
        Ok(())
    }

    /// Records an entry that is in place before the rest of its change, so that it isn't reported yet.
    fn put_unreported(&mut self, local: &RelPath, known: Known) -> Result<(), Error> {
        let is_reported = !self.unreported.contains_key(local);
        let noted = if is_reported && self.record.get(local).is_some_and(|before| before.is_same(&known)) {
            self.record.put(local, known)
        } else {
            self.unreported.entry(local.clone()).or_default();
            self.record.put_unreported(local, known)
        };
        noted.or_else(|error| self.noted_later(error))
    }

    /// Asks for the full state if something that was put here isn't there any more. Returns whether something isn't.
    fn begin_anew(&mut self) -> Result<bool, Error> {
        let survey = self.place.survey(&self.record);
        self.dirs = survey.dirs;
        let Some(first) = survey.missing.first() else { return Ok(false) };
        (self.on_event)(FollowEvent::Warning(missing(first, survey.missing.len())))?;
        self.record.forget_missing(&survey.missing).map_err(|error| self.record_failed(&error))?;
        let is_cancelled = self.is_connected && self.frozen.is_none();
        self.pages.begin_anew(is_cancelled);
        self.report.begin_anew();
        self.replies.clear();
        if is_cancelled {
            self.requests.push_back(Request::Cancel { id: FOLLOW_ID });
        }
        Ok(true)
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

/// Key by which a moved entry is recognised; `None` for a directory, which is made again.
fn moved_by(known: &Known) -> Option<Moved> {
    match *known {
        Known::File { digest, .. } => Some((false, digest)),
        Known::Link(digest) => Some((true, digest)),
        Known::Dir => None,
    }
}

/// The warning about missing files that were put here.
pub(super) fn missing(first: &RelPath, count: usize) -> String {
    let others = if count > 1 { format!(" and {} more", count - 1) } else { String::new() };
    format!("{first}{others}: put here before, and not there any more; everything is compared")
}

fn log_unused<T>(path: &RelPath, error: &RootError) -> Option<T> {
    tracing::debug!(%path, %error, "content that is there can't be used");
    None
}
