//! Holders, by their own reports.

use crate::digest::Digest;
use crate::limits::HOLDERS_MAX;
use crate::limits::HOLDERS_PAGE_BYTES_MAX;
use crate::path::RelPath;
use crate::protocol::control::{
    Holder, HolderName, HoldersReply, HoldersRequest, HoldersWanted, KnownHolder, Lacks, Left,
};
use crate::protocol::follow::{CopyId, Epoch};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_quota::{Permit, Quota};
use towpath_sockets::{Page, PeerId, Tenant};

/// Names that a tenant may have in any case, and at most.
const TENANT_NAMES_SURE: u64 = 16;
const TENANT_NAMES_MAX: u64 = HOLDERS_MAX as u64 / 2;

/// Time after which one that says nothing is forgotten: a copy that isn't there any more isn't missing for ever.
const SILENT_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Time in which one whose connection has ended may come back before it counts as gone.
const RETURNS_IN: Duration = Duration::from_secs(10);

/// Time that one behind a relay may say nothing: it repeats itself every minute.
const RELAY_SILENT_MAX: Duration = Duration::from_secs(3 * 60);

/// Names altogether: what each tenant may have in any case comes on top of what they share.
const NAMES_MAX: usize = 2 * HOLDERS_MAX;

/// A name belongs to the tenant that says it: nobody speaks for another one. It may have several copies.
type Key = (HolderName, Option<CopyId>, u64);

/// Last reports of holders, by name and copy. Each tenant has a share of the names; when it is used up, its
/// oldest name is forgotten; with too many tenants, the oldest of all.
#[derive(Debug)]
pub struct Holders {
    holders: BTreeMap<Key, Said>,
    tenants: HashMap<u64, Names>,
    by_turn: BTreeMap<u64, Key>,
    names: Arc<Quota>,
    /// Reports that aren't passed on yet, if they are to be.
    unsaid: Option<BTreeSet<Key>>,
    turn: u64,
    /// Changes of what is kept across restarts.
    revision: u64,
    /// Names of those that are to be there, if they are listed.
    listed: Option<BTreeSet<HolderName>>,
    /// Since when something can be known.
    started: Instant,
}

/// Whether a follower is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Connected, here or to a relay, or was a moment ago.
    Here,
    /// Its connection has ended, and it has not come back.
    Gone,
    /// Ended by itself, as it was to.
    Ended,
}

/// A holder's last report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderStats {
    /// Its name and copy.
    pub name: String,
    /// Which copy.
    pub copy: Option<CopyId>,
    /// The user, or the name of the key, that said so.
    pub user: Option<String>,
    /// The relay that passed it on, by name.
    pub via: Option<String>,
    /// The connection by which it speaks for itself, while that is there.
    pub peer: Option<PeerId>,
    /// Whether it is there.
    pub presence: Presence,
    /// Everything up to this number is in place; None: nothing yet.
    pub seq: Option<u64>,
    /// Whether it is synced to the disk.
    pub durable: bool,
    /// The version that is in place.
    pub version: Option<Digest>,
    /// The path whose versions it follows, if it follows versions.
    pub versions_of: Option<RelPath>,
    /// Its last error, until it works again.
    pub error: Option<ErrorStats>,
    /// The part of what it knows of that isn't in place.
    pub lacks: Option<Lacks>,
    /// When it was said.
    pub said_at: Instant,
    /// Since when it is known.
    pub known_since: Instant,
}

/// An error of a follower.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorStats {
    /// In its own words.
    pub text: String,
    /// Failures in a row.
    pub tries: u32,
    /// When the first of them was.
    pub since: Instant,
}

/// A holder as it is kept across restarts.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The user, or the name of the key, that said so.
    pub user: Option<Arc<str>>,
    /// The relay that passed it on.
    pub via: Option<HolderName>,
    /// Its last report.
    pub holder: Holder,
    /// How long ago that was.
    pub ago: Duration,
}

/// The origin of a holder's report.
#[derive(Clone, Copy, Debug)]
pub struct Reporter<'a> {
    /// Whose names these are.
    pub whose: &'a Tenant,
    /// The same as a number.
    pub tenant: u64,
    /// Its user, or the name of its key.
    pub user: Option<&'a Arc<str>>,
    /// Its connection.
    pub peer: PeerId,
    /// The speaker's own name, if it speaks for another one.
    pub via: Option<&'a HolderName>,
}

#[derive(Debug)]
struct Said {
    holder: Holder,
    user: Option<Arc<str>>,
    /// The connection by which it speaks for itself, while that is there.
    peer: Option<PeerId>,
    via: Option<HolderName>,
    at: Instant,
    /// When it first said something.
    since: Instant,
    /// When its connection has ended, if it did.
    left_at: Option<Instant>,
    turn: u64,
    _permit: Permit,
}

#[derive(Debug)]
struct Names {
    whose: Tenant,
    share: Arc<Quota>,
    by_turn: BTreeMap<u64, (HolderName, Option<CopyId>)>,
}

/// A holder at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    said: &'a Said,
    now: Instant,
}

impl<'a> Known<'a> {
    /// Its last report. Times in it are as of that.
    pub fn holder(&self) -> &'a Holder {
        &self.said.holder
    }

    /// The connection by which it speaks for itself, while that is there.
    pub fn peer(&self) -> Option<PeerId> {
        self.said.peer
    }

    /// When the first of its failures was, if it fails.
    pub fn fails_since(&self) -> Option<Instant> {
        let error = self.said.holder.error.as_ref()?;
        Some(before(self.said.at, error.since_ms))
    }

    /// Since when it is known.
    pub fn since(&self) -> Instant {
        self.said.since
    }

    /// Whether it is there.
    pub fn presence(&self) -> Presence {
        let Said { holder, peer, via, at, left_at, .. } = self.said;
        let ago = |then: Instant| self.now.saturating_duration_since(then);
        match left_at {
            _ if holder.left == Some(Left::Ended) => Presence::Ended,
            _ if peer.is_some() => Presence::Here,
            Some(left_at) if ago(*left_at) > RETURNS_IN => Presence::Gone,
            _ if via.is_some() && ago(*at) > RELAY_SILENT_MAX => Presence::Gone,
            _ => Presence::Here,
        }
    }

    /// All of it.
    pub fn stats(&self) -> HolderStats {
        let Said { holder, user, peer, via, at, since, .. } = self.said;
        let error = holder.error.as_ref().map(|error| ErrorStats {
            text: error.text.as_str().to_owned(),
            tries: error.tries,
            since: before(*at, error.since_ms),
        });
        HolderStats {
            name: holder.name.as_str().to_owned(),
            copy: holder.copy,
            user: user.as_deref().map(str::to_owned),
            via: via.as_ref().map(|name| name.as_str().to_owned()),
            peer: *peer,
            presence: self.presence(),
            seq: holder.cursor.map(|cursor| cursor.seq),
            durable: holder.durable,
            version: holder.version,
            versions_of: holder.versions_of.as_ref().map(|of| of.path().clone()),
            error,
            lacks: holder.lacks,
            said_at: *at,
            known_since: *since,
        }
    }
}

/// The time so many milliseconds before another.
fn before(then: Instant, ms: u64) -> Instant {
    then.checked_sub(Duration::from_millis(ms)).unwrap_or(then)
}

fn ms_since(then: Instant, now: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(then).as_millis()).unwrap_or(u64::MAX)
}

impl Default for Holders {
    fn default() -> Holders {
        Holders {
            holders: BTreeMap::new(),
            tenants: HashMap::new(),
            by_turn: BTreeMap::new(),
            names: Quota::new(HOLDERS_MAX as u64),
            unsaid: None,
            turn: 0,
            revision: 0,
            listed: None,
            started: Instant::now(),
        }
    }
}

impl Holders {
    /// Notes what a holder has, and what it says of itself besides.
    pub fn note(&mut self, reporter: Reporter<'_>, mut holder: Holder, now: Instant) {
        let Reporter { whose, tenant, user, peer, via } = reporter;
        let ago = std::mem::take(&mut holder.ago_ms);
        let at = if via.is_some() { before(now, ago) } else { now };
        // Of its own loss nobody can speak.
        holder.left.take_if(|left| *left == Left::Lost && via.is_none());
        let left_at = (holder.left == Some(Left::Lost)).then_some(now);
        while let Some((_, key)) = self.by_turn.first_key_value()
            && self.holders.get(key).is_none_or(|said| now.saturating_duration_since(said.at) > SILENT_MAX)
        {
            self.forget_oldest();
        }
        let key = (holder.name.clone(), holder.copy, tenant);
        // What speaks for itself isn't spoken for: a relay may remember it from before.
        let is_known_better = |said: &Said| said.peer.is_some() || (said.at > at && said.via.as_ref() != via);
        if via.is_some() && self.holders.get(&key).is_some_and(is_known_better) {
            return;
        }
        // What it said before it knew which copy it is.
        let unknown = (holder.name.clone(), None, tenant);
        if holder.copy.is_some()
            && let Some(said) = self.holders.get(&unknown)
            && said.peer.is_none_or(|of| of == peer && via.is_none())
        {
            self.remove(&unknown, said.turn);
        }
        let names = self.tenants.entry(tenant).or_insert_with(|| Names {
            whose: whose.clone(),
            share: self.names.share(TENANT_NAMES_SURE, TENANT_NAMES_MAX),
            by_turn: BTreeMap::new(),
        });
        let (mut left_before, mut since) = (None, at);
        let permit = match self.holders.remove(&key) {
            Some(said) => {
                (left_before, since) = (said.left_at, said.since);
                let of = |holder: &Holder| (holder.cursor, holder.version, holder.left, holder.error.is_some());
                self.revision += u64::from(of(&said.holder) != of(&holder));
                if holder.cursor.is_none() && holder.left.is_none() {
                    // It has yet to find out what it has.
                    let Holder { cursor, version, durable, .. } = said.holder;
                    (holder.cursor, holder.version, holder.durable) = (cursor, version, durable);
                }
                names.by_turn.remove(&said.turn);
                self.by_turn.remove(&said.turn);
                Some(said._permit)
            }
            None => {
                self.revision += 1;
                names.share.try_acquire(1)
            }
        };
        let permit = permit.or_else(|| {
            // Its own oldest one makes way.
            let (turn, oldest) = names.by_turn.pop_first()?;
            self.by_turn.remove(&turn);
            let oldest = (oldest.0, oldest.1, tenant);
            self.unsaid.as_mut().map(|unsaid| unsaid.remove(&oldest));
            self.holders.remove(&oldest).map(|said| said._permit)
        });
        let Some(permit) = permit else { return };
        self.turn += 1;
        names.by_turn.insert(self.turn, (holder.name.clone(), holder.copy));
        let (peer, via) = (via.is_none().then_some(peer), via.cloned());
        let left_at = left_at.map(|left| left_before.unwrap_or(left));
        let said =
            Said { holder, user: user.cloned(), peer, via, at, since, left_at, turn: self.turn, _permit: permit };
        if let Some(unsaid) = &mut self.unsaid {
            unsaid.insert(key.clone());
        }
        self.by_turn.insert(self.turn, key.clone());
        self.holders.insert(key, said);
        if self.holders.len() > NAMES_MAX {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((turn, key)) = self.by_turn.first_key_value() {
            self.remove(&key.clone(), *turn);
        }
    }

    fn remove(&mut self, key: &Key, turn: u64) {
        self.by_turn.remove(&turn);
        self.holders.remove(key);
        self.unsaid.as_mut().map(|unsaid| unsaid.remove(key));
        if let Some(names) = self.tenants.get_mut(&key.2) {
            names.by_turn.remove(&turn);
            if names.by_turn.is_empty() {
                self.tenants.remove(&key.2);
            }
        }
    }

    /// One that speaks for itself has everything up to a number: there was nothing for it behind what it said.
    pub fn reach(&mut self, (name, copy): (&str, Option<CopyId>), tenant: u64, peer: PeerId, seq: u64) {
        let key = HolderName::new(name).map(|name| (name, copy, tenant));
        let said = key.ok().and_then(|key| self.holders.get_mut(&key)).filter(|said| said.peer == Some(peer));
        if let Some(said) = said.filter(|said| said.holder.versions_of.is_none() && said.holder.version.is_none())
            && let Some(cursor) = &mut said.holder.cursor
        {
            cursor.seq = cursor.seq.max(seq);
        }
    }

    /// A connection has ended by which a holder spoke for itself.
    pub fn left(&mut self, (name, copy): (&str, Option<CopyId>), tenant: u64, peer: PeerId, now: Instant) {
        let Ok(key) = HolderName::new(name).map(|name| (name, copy, tenant)) else { return };
        if let Some(said) = self.holders.get_mut(&key)
            && said.peer.take_if(|of| *of == peer).is_some()
        {
            said.left_at = Some(now);
            self.unsaid.as_mut().map(|unsaid| unsaid.insert(key));
        }
    }

    /// Forgets the holders of a name that aren't there: how many, and how many are there.
    pub fn forget(&mut self, name: &HolderName, now: Instant) -> (usize, usize) {
        let of_name = self.holders.iter().filter(|((of, ..), _)| of == name);
        let (here, gone): (Vec<_>, Vec<_>) =
            of_name.partition(|(_, said)| Known { said, now }.presence() == Presence::Here);
        let (here, gone) =
            (here.len(), gone.into_iter().map(|(key, said)| (key.clone(), said.turn)).collect::<Vec<_>>());
        gone.iter().for_each(|(key, turn)| self.remove(key, *turn));
        self.revision += 1;
        (gone.len(), here)
    }

    /// Changes of what is kept across restarts, but for times.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Those to keep across a restart, so many at most, the last ones first.
    pub fn kept(&self, most: usize, now: Instant) -> impl Iterator<Item = (&Tenant, Kept)> {
        let last = self.by_turn.values().rev().take(most);
        last.filter_map(move |key| {
            let (said, names) = (self.holders.get(key)?, self.tenants.get(&key.2)?);
            let Said { holder, user, via, at, .. } = said;
            let (holder, user, via) = (holder.clone(), user.clone(), via.clone());
            Some((&names.whose, Kept { user, via, holder, ago: now.saturating_duration_since(*at) }))
        })
    }

    /// Takes one that was kept.
    pub fn restore(&mut self, whose: &Tenant, tenant: u64, kept: Kept, now: Instant) {
        let Kept { user, via, holder, ago } = kept;
        if ago > SILENT_MAX {
            return;
        }
        let key = (holder.name.clone(), holder.copy, tenant);
        let reporter = Reporter { whose, tenant, user: user.as_ref(), peer: PeerId::new(0, 0), via: via.as_ref() };
        self.note(reporter, holder, now);
        if let Some(said) = self.holders.get_mut(&key) {
            let at = now.checked_sub(ago).unwrap_or(now);
            (said.peer, said.at, said.since, said.left_at) = (None, at, at, Some(now));
        }
    }

    /// Names of those that are to be there.
    pub fn set_listed(&mut self, names: BTreeSet<HolderName>) {
        self.listed = Some(names);
    }

    /// Since when something can be known.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Whether one of this name is to be there.
    pub fn is_expected(&self, name: &HolderName) -> bool {
        self.listed.as_ref().is_none_or(|listed| listed.contains(name))
    }

    /// Those that are to be there, and have never been.
    pub fn never_seen(&self) -> impl Iterator<Item = &HolderName> {
        self.listed.iter().flatten().filter(|name| {
            let first = ((*name).clone(), None, 0);
            self.holders.range(first..).next().is_none_or(|((of, ..), _)| of != *name)
        })
    }

    /// One holder.
    pub fn get(&self, name: &HolderName, copy: Option<CopyId>, tenant: u64, now: Instant) -> Option<HolderStats> {
        let said = self.holders.get(&(name.clone(), copy, tenant))?;
        Some(Known { said, now }.stats())
    }

    /// All holders, by name.
    pub fn known(&self, now: Instant) -> impl Iterator<Item = Known<'_>> {
        self.holders.values().map(move |said| Known { said, now })
    }

    /// Number of known holders.
    pub fn count(&self) -> usize {
        self.holders.len()
    }

    /// The versions that holders have.
    pub fn versions(&self) -> impl Iterator<Item = Digest> {
        self.holders.values().filter_map(|said| said.holder.version)
    }

    /// A page of holders that aren't connected themselves.
    pub fn elsewhere(&self, from: u32, now: Instant) -> Page<HolderStats> {
        let numbered = (0..).zip(self.known(now)).skip(from as usize);
        Page::of(numbered.map(|(number, known)| (number, known.peer().is_none().then(|| known.stats()))))
    }

    /// The answer to `holders`.
    pub fn answer(&self, request: &HoldersRequest, epoch: Option<Epoch>, most: usize, now: Instant) -> HoldersReply {
        let holds = |holder: &Holder| match request.wanted {
            HoldersWanted::Seq(seq) => {
                holder.cursor.is_some_and(|cursor| Some(cursor.epoch) == epoch && cursor.seq >= seq)
            }
            HoldersWanted::Version(version) => holder.version == Some(version),
        };
        let as_u32 = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let holding = self.holders.values().filter(|said| holds(&said.holder)).count();
        let page = self.holders.values().skip(request.from as usize).take(most.min(request.count as usize));
        let holder = |said: &Said| {
            let is_gone = Known { said, now }.presence() == Presence::Gone;
            Holder { left: said.holder.left.or(is_gone.then_some(Left::Lost)), ..said.holder.clone() }
        };
        let known = |said: &Said| KnownHolder {
            holder: holder(said),
            holds: holds(&said.holder),
            user: said.user.as_deref().map(str::to_owned),
            age_ms: ms_since(said.at, now),
        };
        let mut bytes = 0;
        let has_space = |known: &KnownHolder| {
            bytes += serde_json::to_vec(known).map_or(0, |json| json.len());
            bytes <= HOLDERS_PAGE_BYTES_MAX
        };
        HoldersReply {
            id: request.id,
            holding: as_u32(holding),
            total: as_u32(self.holders.len()),
            holders: page.map(known).take_while(has_space).collect(),
        }
    }

    /// From now on, what is said is also to be passed on, and all that was said before.
    pub(super) fn pass_on(&mut self) {
        self.unsaid = Some(self.holders.keys().cloned().collect());
    }

    pub(super) fn has_said(&self) -> bool {
        self.unsaid.as_ref().is_some_and(|unsaid| !unsaid.is_empty())
    }

    /// Takes the reports to pass on.
    pub(super) fn take_said(&mut self, most: usize, now: Instant) -> Vec<Holder> {
        let Some(unsaid) = &mut self.unsaid else { return Vec::new() };
        let keys = std::iter::from_fn(|| unsaid.pop_first()).take(most);
        keys.filter_map(|key| Some(passed_on(self.holders.get(&key)?, now))).collect()
    }
}

/// A report as it is passed on: it was said a while ago, and its speaker may be gone.
fn passed_on(said: &Said, now: Instant) -> Holder {
    let mut holder = said.holder.clone();
    holder.ago_ms = ms_since(said.at, now);
    if said.via.is_none() && said.peer.is_none() && said.left_at.is_some() {
        holder.left = holder.left.or(Some(Left::Lost));
    }
    holder
}

#[cfg(test)]
mod tests;
