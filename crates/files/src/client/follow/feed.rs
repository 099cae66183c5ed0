//! Puts the changes of a page in place: what is here already is used, the rest is given to the transfer.

use super::super::get::GetError;
use super::super::transfer::TransferError;
use super::follower::Follower;
use super::pages::Placed;
use super::place::Plan;
use super::record::Known;
use super::{FollowEvent, PutKind};
use crate::digest::wall_clock;
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::protocol::control::ChangeContent;
use crate::protocol::follow::Cursor;
use crate::root::RootError;
use std::collections::{BTreeMap, HashSet};

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
    /// The server has something else there by now, or nothing, and will say so.
    pub(super) is_out_of_date: bool,
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
            renamed: BTreeMap::new(),
            known: HashSet::new(),
            kept: BTreeMap::new(),
        };
        // What a crash leaves in place is this follower's all the same.
        let intended = there.iter().filter_map(|placed| Some((&placed.local, Known::of(&placed.change)?)));
        let noted = { intended }.try_for_each(|(local, known)| self.record.intend(local, &known));
        noted.and_then(|()| self.record.flush()).map_err(|error| self.record_failed(&error))?;
        let mut entries = Vec::new();
        let now = wall_clock();
        self.others.refresh();
        for placed in there {
            self.take_over(&placed)?;
            self.gone.remove(&placed.local);
            let was_known = self.record.get(&placed.local).is_some();
            let refused = match self.plan(&placed, &mut feed) {
                Ok(Plan::InPlace) if was_known => continue,
                Ok(Plan::InPlace | Plan::Get) => None,
                Ok(Plan::Refused(reason)) => Some(reason),
                Err(error) => Some(error.to_string()),
            };
            if let Some(reason) = refused {
                self.failed.insert(placed.local.clone(), Failed { placed, reason, is_out_of_date: false });
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

    fn plan(&mut self, placed: &Placed, feed: &mut Feed) -> Result<Plan, GetError> {
        let Placed { local, change, remote } = placed;
        let Follower { place, record, tell, options, gone, .. } = self;
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
        let ChangeContent::File { digest, size, .. } = change.content else { return Ok(plan) };
        let is_small = size < COPY_FROM_BYTES && self.seed.is_none();
        if plan != Plan::Get || is_small || place.stat(local).map_err(failed)?.is_some() {
            return Ok(plan);
        }
        if self.seed.as_ref().is_some_and(|seed| seed.copy(digest, place, local, change)) {
            return Ok(plan);
        }
        let Some((from, known)) = record.with_digest(digest).map(|(from, known)| (from.clone(), *known)) else {
            return Ok(plan);
        };
        if options.mirror
            && self.gone.contains_key(&from)
            && place.rename(&from, &known, local).unwrap_or_else(|error| log_unused(&from, &error))
        {
            if let Some((old, _)) = self.gone.remove(&from) {
                feed.renamed.insert(local.clone(), old);
            }
            let _ = record.forget(&from);
        } else {
            // What can't be copied is fetched.
            place.copy(&from, &known, local, change).unwrap_or_else(|error| log_unused(&from, &error));
        }
        Ok(plan)
    }

    /// All that was fed is in place, or has failed.
    pub(super) fn in_place(&mut self) -> Result<(), GetError> {
        let Some(feed) = self.feed.take() else { return Ok(()) };
        let (failures, count) = self.transfer.take_failures();
        let are_unknown = failures.len() as u64 != count;
        let mut reasons: BTreeMap<_, _> =
            failures.into_iter().map(|failure| (failure.path, (failure.reason, failure.code))).collect();
        for placed in feed.fed {
            let reason = reasons.remove(&placed.remote.to_string());
            if let Some((reason, code)) = reason.or_else(|| are_unknown.then(|| ("too many failed".to_owned(), None))) {
                let is_out_of_date =
                    matches!(code, Some(ErrorCode::Changed | ErrorCode::NotFound | ErrorCode::NotAFile));
                if let Some(kept) = feed.kept.get(&placed.local) {
                    self.place.keep_not(kept).unwrap_or_else(|error| _ = log_unused(kept, &error));
                }
                self.failed.insert(placed.local.clone(), Failed { placed, reason, is_out_of_date });
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
            self.record.put(&local, known).map_err(|error| self.record_failed(&error))?;
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

fn log_unused(path: &RelPath, error: &RootError) -> bool {
    tracing::debug!(%path, %error, "content that is there can't be used");
    false
}
