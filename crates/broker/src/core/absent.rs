//! Clients without a connection: how long they are remembered, and what gives way when others need it.
//!
//! Requests give way that no worker has had, and that aren't in the journal: when their client comes back it sends them again, and nothing is
//! executed twice. Outcomes give way when they come to too much, and go in any case some time after their request would have expired. Their
//! numbers are remembered as over.

use super::outcomes::Outcomes;
use super::requests::State;
use super::settings::{Millis, NEVER};
use super::{Core, SessionKey, TenantKey};
use std::collections::{BinaryHeap, HashMap};

/// Forgotten requests after which other peers have their turn. One client may have four times as many.
const FORGOTTEN_AT_ONCE: usize = 65_536;

/// A client that is away for so long may not be back soon: its outcomes have less space.
const AWAY_MS: Millis = 10_000;

/// Queued and parked requests that no worker has had, and that aren't in the journal.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Untried {
    requests: usize,
    bytes: usize,
}

/// A client without a connection, and its droppable requests and outcomes.
#[derive(Debug, Clone)]
struct Absent {
    since: Millis,
    key: SessionKey,
    tenant: TenantKey,
    untried: Untried,
    outcomes: Outcomes,
}

/// Absent clients that give way so that `surplus` less of something is left: of the tenant that has the most of it, the one longest away,
/// and so on.
fn evictions<'a>(
    absent: impl Iterator<Item = &'a Absent>,
    surplus: usize,
    measure: impl Fn(&Absent) -> usize,
) -> Vec<SessionKey> {
    let (mut sums, mut theirs) = (HashMap::new(), HashMap::<_, Vec<&Absent>>::new());
    if surplus == 0 {
        return Vec::new();
    }
    let mut absent: Vec<&Absent> = absent.filter(|client| measure(client) > 0).collect();
    absent.sort_unstable_by_key(|client| std::cmp::Reverse((client.since, client.key)));
    for client in absent {
        *sums.entry(client.tenant).or_default() += measure(client);
        theirs.entry(client.tenant).or_default().push(client);
    }
    let mut most: BinaryHeap<(usize, TenantKey)> = sums.into_iter().map(|(tenant, sum)| (sum, tenant)).collect();
    let (mut forgotten, mut freed) = (Vec::new(), 0);
    while freed < surplus
        && let Some((sum, tenant)) = most.pop()
    {
        let Some(client) = theirs.get_mut(&tenant).and_then(Vec::pop) else { continue };
        forgotten.push(client.key);
        freed += measure(client);
        most.push((sum - measure(client), tenant));
    }
    forgotten
}

/// A count of bytes or files that may be beyond what memory can have.
fn large(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

impl Core {
    /// Counts a request that is queued or parked now, or adds it no longer, if it is one that may give way.
    #[inline]
    pub(super) fn count_untried(&mut self, slot: u32, is_added: bool) {
        let request = self.requests.at(slot);
        if request.attempt > 0 || request.journal_id != 0 {
            return;
        }
        let bytes = request.bytes();
        let untried = &mut self.sessions[request.session].untried;
        if is_added {
            untried.requests += 1;
            untried.bytes += bytes;
        } else {
            untried.requests -= 1;
            untried.bytes -= bytes;
        }
    }

    /// Forgets clients whose time is over, and what others have that has to give way. Returns whether it is done: otherwise the rest is for
    /// the next time.
    pub(super) fn forget_absent(&mut self, now: Millis) -> bool {
        let absent = self.sessions.iter().filter(|(_, session)| session.peer.is_none());
        let (mut over, mut late, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for (key, session) in absent.filter(|(_, session)| !session.is_dead_letter() || session.requests.is_empty()) {
            let kept = match session.is_journalled {
                true => self.settings.journal_retention_ms,
                false => self.settings.absent_client_ms,
            };
            let since = session.absent_since;
            if session.is_empty() || now.saturating_sub(since) > kept {
                over.push((since, key));
                continue;
            }
            if session.next_drop <= now && session.replies.kept.count > 0 {
                late.push(key);
            }
            let (tenant, untried) = (session.tenant, session.untried);
            others.push(Absent { since, key, tenant, untried, outcomes: Outcomes::default() });
        }
        over.sort_unstable();
        // What waits in the journal was acknowledged: only its retention ends it.
        let may_go = |client: &&Absent| {
            let session = &self.sessions[client.key];
            !session.is_journalled || session.requests.is_empty()
        };
        let too_many = others.iter().filter(may_go).count().saturating_sub(self.settings.absent_clients_max);
        over.extend(evictions(others.iter().filter(may_go), too_many, |_| 1).into_iter().map(|key| (0, key)));
        let mut forgotten = 0;
        for (_, key) in over {
            if forgotten >= FORGOTTEN_AT_ONCE {
                return false;
            }
            forgotten += self.sessions[key].requests.len();
            self.remove_session(now, key);
        }
        for key in late {
            if forgotten >= FORGOTTEN_AT_ONCE {
                return false;
            }
            forgotten += self.drop_outcomes(key, Some(now));
        }
        self.measure_outcomes(&mut others);
        self.drop_surplus_outcomes(now, &mut others, &mut forgotten) && self.forget_surplus(now, &others, forgotten)
    }

    /// Whether outcomes of absent clients take too much memory, so that some must be dropped now.
    #[inline]
    pub(super) fn has_surplus_outcomes(&self) -> bool {
        self.replies.absent_bytes > self.settings.bytes_max / 8 * 4
    }

    /// Drops outcomes of absent clients beyond what these may have together: half of the memory of outcomes, and of what requests have of
    /// the spool; those that are away for longer, a quarter.
    fn drop_surplus_outcomes(&mut self, now: Millis, absent: &mut [Absent], forgotten: &mut usize) -> bool {
        type Measure = fn(&Absent) -> usize;
        let measures: [(usize, Measure); 3] = [
            (self.settings.bytes_max, |client| client.outcomes.bytes),
            (large(self.settings.large_bytes_max), |client| large(client.outcomes.large_bytes)),
            (large(self.settings.large_files_max), |client| large(client.outcomes.files)),
        ];
        for (away_ms, eighths, left) in [(0, 4, 3), (AWAY_MS, 2, 2)] {
            for (most, measure) in measures {
                let is_away = |client: &&Absent| client.since.saturating_add(away_ms) <= now;
                let sum = absent.iter().filter(is_away).map(measure).fold(0, usize::saturating_add);
                // Somewhat more than the surplus, so that not each further one makes others go.
                let surplus = if sum > most / 8 * eighths { sum - most / 8 * left } else { 0 };
                let hogs = evictions(absent.iter().filter(is_away), surplus, measure);
                for key in &hogs {
                    if *forgotten >= FORGOTTEN_AT_ONCE {
                        return false;
                    }
                    *forgotten += self.drop_outcomes(*key, None);
                }
                if !hogs.is_empty() {
                    self.measure_outcomes(absent);
                }
            }
        }
        true
    }

    /// Counts again what absent clients have, after some was dropped.
    fn measure_outcomes(&self, absent: &mut [Absent]) {
        for client in absent {
            let session = &self.sessions[client.key];
            client.outcomes = if session.is_stored { Outcomes::default() } else { session.replies.kept };
        }
    }

    /// Forgets requests of absent clients that have to give way.
    fn forget_surplus(&mut self, now: Millis, absent: &[Absent], mut forgotten: usize) -> bool {
        let (settings, (all_requests, all_bytes)) = (&self.settings, self.used());
        let sum = |measure: fn(&Absent) -> usize| absent.iter().map(measure).sum::<usize>();
        // They keep a quarter in any case, and more as long as half of all is free.
        let requests = sum(|client| client.untried.requests)
            .saturating_sub(settings.absent_requests_max())
            .min(all_requests.saturating_sub(settings.requests_max / 2));
        let bytes = sum(|client| client.untried.bytes)
            .saturating_sub(settings.absent_bytes_max())
            .min(all_bytes.saturating_sub(settings.bytes_max / 2));
        let mut hogs = evictions(absent.iter(), requests, |client| client.untried.requests);
        hogs.extend(evictions(absent.iter(), bytes, |client| client.untried.bytes));
        for key in hogs {
            if forgotten >= FORGOTTEN_AT_ONCE {
                return false;
            }
            forgotten += self.forget_untried(now, key);
        }
        true
    }

    /// Drops outcomes of an absent client: those whose time is over by `due`, or all. Returns how many there were.
    fn drop_outcomes(&mut self, key: SessionKey, due: Option<Millis>) -> usize {
        let (mut dropped, mut next) = (Vec::new(), NEVER);
        for slot in self.sessions[key].requests.slots() {
            let request = self.requests.at(slot);
            let grace = if request.state == State::Settled { 0 } else { self.settings.outcome_grace_ms };
            let until = request.expires.saturating_add(grace);
            // Those of stored requests are never dropped.
            if request.state == State::Settled && until != NEVER && due.is_none_or(|due| until <= due) {
                dropped.push((request.number, slot));
            } else {
                next = next.min(until);
            }
        }
        dropped.sort_unstable();
        let gaps = self.sessions[key].gaps();
        let session = &mut self.sessions[key];
        dropped.iter().for_each(|&(number, _)| session.dropped.insert(number, number.saturating_add(1)));
        // Before their requests are forgotten there.
        if dropped.iter().any(|&(_, slot)| self.requests.at(slot).journal_id != 0) {
            self.journal_dropped(key);
        }
        dropped.iter().for_each(|&(_, slot)| self.forget(slot));
        self.counters.outcomes_dropped += dropped.len() as u64;
        let session = &mut self.sessions[key];
        session.next_drop = next;
        if session.requests.is_empty() {
            session.forget_gaps();
        }
        self.update_gap_bytes(key, gaps);
        dropped.len()
    }

    /// Drops all outcomes of clients that are absent, some at a time. Returns how many: 0 when there are no more.
    pub fn drop_absent_outcomes(&mut self) -> usize {
        let absent = self.sessions.iter().filter(|(_, session)| {
            session.peer.is_none() && session.replies.kept.count > 0 && !session.is_stored && !session.is_dead_letter()
        });
        let keys: Vec<SessionKey> = absent.map(|(key, _)| key).collect();
        let mut dropped = 0;
        for key in keys {
            dropped += self.drop_outcomes(key, None);
            if dropped >= FORGOTTEN_AT_ONCE {
                break;
            }
        }
        dropped
    }

    /// Forgets the requests of a client that no worker has had. Returns how many there were.
    fn forget_untried(&mut self, now: Millis, key: SessionKey) -> usize {
        let Some(session) = self.sessions.get(key) else { return 0 };
        let untried = session.requests.slots().filter(|&slot| {
            let request = self.requests.at(slot);
            let waits = matches!(request.state, State::Waiting | State::Parked);
            waits && request.attempt == 0 && request.journal_id == 0
        });
        let mut untried: Vec<u32> = untried.collect();
        untried.sort_unstable_by_key(|&slot| self.requests.at(slot).number);
        for &slot in &untried {
            self.counters.given_up += 1;
            self.withdraw(now, slot);
            self.forget(slot);
        }
        if self.sessions[key].is_empty() {
            self.remove_session(now, key);
        }
        untried.len()
    }

    /// Part of [`Core::check`].
    pub(super) fn check_untried(&self) {
        let mut all: HashMap<SessionKey, Untried> = HashMap::new();
        for (_, request) in self.requests.iter() {
            let waits = matches!(request.state, State::Waiting | State::Parked);
            if waits && request.attempt == 0 && request.journal_id == 0 {
                let untried = all.entry(request.session).or_default();
                untried.requests += 1;
                untried.bytes += request.bytes();
            }
        }
        for (key, session) in self.sessions.iter() {
            assert_eq!(all.get(&key).copied().unwrap_or_default(), session.untried, "what may give way");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_have_the_most_give_way_and_of_them_the_one_longest_away() {
        let client = |since, key, tenant, requests| {
            let untried = Untried { requests, bytes: 0 };
            Absent { since, key, tenant, untried, outcomes: Outcomes::default() }
        };
        let absent =
            [client(0, 1, 7, 3), client(1, 2, 8, 10), client(2, 3, 8, 10), client(3, 4, 9, 12), client(4, 5, 8, 5)];
        let forgotten = |surplus| evictions(absent.iter(), surplus, |client| client.untried.requests);
        assert_eq!(forgotten(0), [0; 0]);
        assert_eq!(forgotten(1), [2]);
        assert_eq!(forgotten(11), [2, 3]);
        assert_eq!(forgotten(21), [2, 3, 4]);
        assert_eq!(forgotten(1_000), [2, 3, 4, 5, 1]);
    }
}
