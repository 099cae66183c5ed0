//! Who has what, as far as they have said.

use crate::limits::HOLDERS_MAX;
use crate::protocol::control::{Holder, HolderName, HoldersReply, HoldersRequest, HoldersWanted, KnownHolder};
use crate::protocol::follow::Epoch;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;
use towpath_quota::{Permit, Quota};

/// Names that a tenant may have in any case, and at most.
const TENANT_NAMES_SURE: u64 = 16;
const TENANT_NAMES_MAX: u64 = HOLDERS_MAX as u64 / 2;

/// Names altogether: what each tenant may have in any case comes on top of what they share.
const NAMES_MAX: usize = 2 * HOLDERS_MAX;

/// A name belongs to the tenant that says it: nobody speaks for another one.
type Key = (HolderName, u64);

/// What holders have said last, by name. Each tenant has a share of the names; when it is used up, its
/// oldest name is forgotten; with too many tenants, the oldest of all.
#[derive(Debug)]
pub struct Holders {
    holders: BTreeMap<Key, Said>,
    tenants: HashMap<u64, Names>,
    by_turn: BTreeMap<u64, Key>,
    names: Arc<Quota>,
    /// What isn't passed on yet, if it is to be.
    unsaid: Option<BTreeSet<Key>>,
    turn: u64,
}

#[derive(Debug)]
struct Said {
    holder: Holder,
    user: Option<Arc<str>>,
    at: Instant,
    turn: u64,
    _permit: Permit,
}

#[derive(Debug)]
struct Names {
    share: Arc<Quota>,
    by_turn: BTreeMap<u64, HolderName>,
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
        }
    }
}

impl Holders {
    /// Notes what a holder has.
    pub fn note(&mut self, tenant: u64, user: Option<&Arc<str>>, holder: Holder, now: Instant) {
        let key = (holder.name.clone(), tenant);
        let names = self.tenants.entry(tenant).or_insert_with(|| Names {
            share: self.names.share(TENANT_NAMES_SURE, TENANT_NAMES_MAX),
            by_turn: BTreeMap::new(),
        });
        let permit = match self.holders.remove(&key) {
            Some(said) => {
                names.by_turn.remove(&said.turn);
                self.by_turn.remove(&said.turn);
                Some(said._permit)
            }
            None => names.share.try_acquire(1),
        };
        let permit = permit.or_else(|| {
            // Its own oldest one makes way.
            let (turn, oldest) = names.by_turn.pop_first()?;
            self.by_turn.remove(&turn);
            let oldest = (oldest, tenant);
            self.unsaid.as_mut().map(|unsaid| unsaid.remove(&oldest));
            self.holders.remove(&oldest).map(|said| said._permit)
        });
        let Some(permit) = permit else { return };
        self.turn += 1;
        names.by_turn.insert(self.turn, holder.name.clone());
        let said = Said { holder, user: user.cloned(), at: now, turn: self.turn, _permit: permit };
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
        let Some((turn, key)) = self.by_turn.pop_first() else { return };
        self.holders.remove(&key);
        self.unsaid.as_mut().map(|unsaid| unsaid.remove(&key));
        if let Some(names) = self.tenants.get_mut(&key.1) {
            names.by_turn.remove(&turn);
            if names.by_turn.is_empty() {
                self.tenants.remove(&key.1);
            }
        }
    }

    /// The answer to who has something.
    pub fn answer(&self, request: &HoldersRequest, epoch: Option<Epoch>, most: usize, now: Instant) -> HoldersReply {
        let holds = |holder: &Holder| match request.wanted {
            HoldersWanted::Seq(seq) => Some(holder.cursor.epoch) == epoch && holder.cursor.seq >= seq,
            HoldersWanted::Version(version) => holder.version == Some(version),
        };
        let as_u32 = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let holding = self.holders.values().filter(|said| holds(&said.holder)).count();
        let page = self.holders.values().skip(request.from as usize).take(most.min(request.count as usize));
        let known = |said: &Said| KnownHolder {
            holder: said.holder.clone(),
            holds: holds(&said.holder),
            user: said.user.as_deref().map(str::to_owned),
            age_ms: u64::try_from(now.saturating_duration_since(said.at).as_millis()).unwrap_or(u64::MAX),
        };
        HoldersReply {
            id: request.id,
            holding: as_u32(holding),
            total: as_u32(self.holders.len()),
            holders: page.map(known).collect(),
        }
    }

    /// From now on, what is said is also to be passed on, and all that was said before.
    pub(super) fn pass_on(&mut self) {
        self.unsaid = Some(self.holders.keys().cloned().collect());
    }

    pub(super) fn has_said(&self) -> bool {
        self.unsaid.as_ref().is_some_and(|unsaid| !unsaid.is_empty())
    }

    /// What is to be passed on.
    pub(super) fn take_said(&mut self, most: usize) -> Vec<Holder> {
        let Some(unsaid) = &mut self.unsaid else { return Vec::new() };
        let keys = std::iter::from_fn(|| unsaid.pop_first()).take(most);
        keys.filter_map(|key| Some(self.holders.get(&key)?.holder.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;
    use crate::protocol::follow::Cursor;
    use std::time::Duration;

    const EPOCH: Epoch = Epoch([1; 16]);

    fn holder(name: &str, seq: u64) -> Holder {
        let version = (seq > 100).then_some(Digest([7; 32]));
        let name = HolderName::new(name).unwrap();
        Holder { name, cursor: Cursor { epoch: EPOCH, seq }, durable: false, version }
    }

    fn ask(holders: &Holders, wanted: HoldersWanted, now: Instant) -> HoldersReply {
        holders.answer(&HoldersRequest { id: 1, wanted, from: 0, count: 100 }, Some(EPOCH), 1000, now)
    }

    #[test]
    fn the_last_word_of_each_counts_and_nobody_speaks_for_another_tenant() {
        let (mut holders, now) = (Holders::default(), Instant::now());
        let ann: Arc<str> = "ann".into();
        holders.note(1, Some(&ann), holder("a", 5), now);
        holders.note(1, Some(&ann), holder("a", 9), now + Duration::from_secs(1));
        holders.note(2, None, holder("a", 3), now);
        holders.note(2, None, holder("b", 150), now);
        let reply = ask(&holders, HoldersWanted::Seq(4), now + Duration::from_secs(3));
        assert_eq!((reply.holding, reply.total), (2, 3));
        let shown: Vec<_> =
            reply.holders.iter().map(|known| (known.holder.cursor.seq, known.holds, known.age_ms)).collect();
        assert_eq!(shown, [(9, true, 2000), (3, false, 3000), (150, true, 3000)]);
        assert_eq!(reply.holders[0].user.as_deref(), Some("ann"));
        assert_eq!(ask(&holders, HoldersWanted::Version(Digest([7; 32])), now).holding, 1);
        let of_another = holders.answer(
            &HoldersRequest { id: 1, wanted: HoldersWanted::Seq(0), from: 2, count: 9 },
            Some(Epoch([2; 16])),
            9,
            now,
        );
        assert_eq!((of_another.holding, of_another.holders.len()), (0, 1));
    }

    #[test]
    fn names_without_end_take_only_their_tenants_share() {
        let (mut holders, now) = (Holders::default(), Instant::now());
        holders.note(1, None, holder("honest", 5), now);
        for index in 0..100_000_u64 {
            holders.note(2 + index % 3, None, holder(&format!("{:x}", index / 3), 5), now);
        }
        assert!(holders.holders.len() <= HOLDERS_MAX + 4 * TENANT_NAMES_SURE as usize);
        assert_eq!(holders.names.used(), holders.holders.len() as u64);
        assert!(holders.holders.contains_key(&(HolderName::new("honest").unwrap(), 1)));
        assert!(holders.holders.contains_key(&(HolderName::new(&format!("{:x}", 33_332)).unwrap(), 2)));
        // Others still get in, and the newest of each remain.
        holders.note(9, None, holder("late", 5), now);
        assert!(holders.holders.contains_key(&(HolderName::new("late").unwrap(), 9)));
    }

    #[test]
    fn tenants_without_end_take_only_so_much() {
        let (mut holders, now) = (Holders::default(), Instant::now());
        holders.pass_on();
        let count = NAMES_MAX as u64 + 100;
        (0..count).for_each(|tenant| holders.note(tenant, None, holder("a", 5), now));
        let kept = |of: u64| holders.holders.contains_key(&(HolderName::new("a").unwrap(), of));
        assert!(!kept(0) && kept(100) && kept(count - 1));
        let unsaid = holders.unsaid.as_ref().unwrap().len();
        let counts = [holders.holders.len(), holders.tenants.len(), holders.by_turn.len(), unsaid];
        assert_eq!(counts, [NAMES_MAX; 4]);
        assert_eq!(holders.names.used(), NAMES_MAX as u64);
    }

    #[test]
    fn a_relay_passes_on_what_was_said_once() {
        let (mut holders, now) = (Holders::default(), Instant::now());
        holders.note(1, None, holder("a", 5), now);
        assert!(holders.take_said(10).is_empty(), "no relay");
        holders.pass_on();
        holders.note(1, None, holder("b", 5), now);
        holders.note(1, None, holder("b", 6), now);
        assert_eq!(holders.take_said(1), [holder("a", 5)]);
        assert_eq!(holders.take_said(10), [holder("b", 6)]);
        assert!(!holders.has_said());
    }
}
