//! Absent clients, and outcomes of theirs that are dropped.

use super::{Model, Request, Session, State};
use std::collections::BTreeSet;
use towpath_broker::core::Millis;

impl Model {
    /// Absent clients, those longest away first.
    pub(super) fn absent(&self) -> Vec<(Millis, usize, u8)> {
        let is_absent = |session: &Session| session.peer.is_none() && session.letter == 0;
        let absent = self.sessions.iter().filter(|(_, session)| is_absent(session));
        let mut absent: Vec<(Millis, usize, u8)> = absent.map(|(key, s)| (s.absent_since, key, s.tenant)).collect();
        absent.sort_unstable();
        absent
    }

    /// Drops outcomes of an absent client whose requests would have expired by then, and the grace is over.
    pub(super) fn drop_outcomes(&mut self, key: usize, due: Millis) {
        let grace = self.settings.outcome_grace_ms;
        let is_due = |r: &Request| r.state == State::Settled && r.expires.saturating_add(grace) <= due;
        let all = self.requests.iter().filter(|(_, r)| r.session == key && is_due(r));
        let mut all: Vec<(u64, usize)> = all.map(|(slot, request)| (request.number, slot)).collect();
        all.sort_unstable();
        for (number, slot) in all {
            self.counters.outcomes_dropped += 1;
            self.sessions.at(key).dropped.insert(number);
            self.forget(slot);
        }
        if !self.sessions.at(key).dropped.is_empty() && self.of_session(key).next().is_none() {
            // Whatever lies between is over as well.
            let session = self.sessions.at(key);
            let below = (0..).find(|number| !session.confirmed.contains(number)).expect("there is one");
            let gaps = session.confirmed.split_off(&below);
            let all: BTreeSet<u64> = session.dropped.union(&gaps).copied().collect();
            let (first, last) = (all.first().expect("one"), all.last().expect("one"));
            session.dropped = (*first..=*last).collect();
        }
    }

    /// Drops all outcomes of some absent clients, while these are over half of what outcomes may have.
    pub(super) fn drop_surplus(&mut self) {
        let mut left = self.absent();
        let of = |model: &Model, tenant: Option<u8>, left: &[(Millis, usize, u8)]| -> usize {
            let its = left.iter().filter(|(.., of)| tenant.is_none_or(|tenant| *of == tenant));
            its.map(|(_, key, _)| model.unconfirmed(*key)).sum()
        };
        let eighth = self.settings.bytes_max / 8;
        if of(self, None, &left) <= 4 * eighth {
            return;
        }
        while of(self, None, &left) > 3 * eighth {
            let tenants = left.iter().map(|(.., tenant)| *tenant);
            let hog = tenants.max_by_key(|&tenant| (of(self, Some(tenant), &left), tenant)).expect("one is absent");
            let at = left.iter().position(|(.., tenant)| *tenant == hog).expect("one is absent");
            let (_, key, _) = left.remove(at);
            self.drop_outcomes(key, Millis::MAX - 1);
        }
    }
}
