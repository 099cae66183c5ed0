//! Clients without a connection: how long they are remembered, and what gives way when others need it.
//!
//! Only requests give way that no worker has had, and that aren't in the journal: when their client comes back it sends them again, and
//! nothing is executed twice.

use super::requests::State;
use super::settings::Millis;
use super::{Core, SessionKey, TenantKey};
use std::collections::{BinaryHeap, HashMap};

/// Forgotten requests after which other peers have their turn. One client may have four times as many.
const FORGOTTEN_AT_ONCE: usize = 65_536;

/// Queued and parked requests that no worker has had, and that aren't in the journal.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Untried {
    requests: usize,
    bytes: usize,
}

/// A client without a connection, and what it has that may give way.
#[derive(Debug, Clone)]
struct Absent {
    since: Millis,
    key: SessionKey,
    tenant: TenantKey,
    untried: Untried,
}

/// Absent clients that give way so that `surplus` less of something is left: of the tenant that has the most of it, the one longest away,
/// and so on. `absent` is in the order of their absence.
fn giving_way(absent: &[Absent], surplus: usize, measure: impl Fn(&Absent) -> usize) -> Vec<SessionKey> {
    let (mut sums, mut theirs) = (HashMap::new(), HashMap::<_, Vec<&Absent>>::new());
    if surplus == 0 {
        return Vec::new();
    }
    for client in absent.iter().rev() {
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

    /// Forgets clients whose time is over, and requests of others that have to give way. Returns whether it is done: otherwise the rest is
    /// for the next time.
    pub(super) fn forget_absent(&mut self, now: Millis) -> bool {
        let absent = self.sessions.iter().filter(|(_, session)| session.peer.is_none());
        let (mut over, mut others) = (Vec::new(), Vec::new());
        for (key, session) in absent.filter(|(_, session)| !session.is_dead_letter() || session.requests.is_empty()) {
            let kept = match session.is_journalled {
                true => self.settings.journal_retention_ms,
                false => self.settings.absent_client_ms,
            };
            let since = session.absent_since;
            if session.requests.is_empty() || now.saturating_sub(since) > kept {
                over.push((since, key));
            } else {
                others.push(Absent { since, key, tenant: session.tenant, untried: session.untried });
            }
        }
        over.sort_unstable();
        others.sort_unstable_by_key(|client| (client.since, client.key));
        // What is in the journal was acknowledged: only its retention ends it.
        let volatile: Vec<Absent> =
            others.iter().filter(|client| !self.sessions[client.key].is_journalled).cloned().collect();
        let too_many = volatile.len().saturating_sub(self.settings.absent_clients_max);
        over.extend(giving_way(&volatile, too_many, |_| 1).into_iter().map(|key| (0, key)));
        let mut forgotten = 0;
        for (_, key) in over {
            if forgotten >= FORGOTTEN_AT_ONCE {
                return false;
            }
            forgotten += self.sessions[key].requests.len();
            self.remove_session(now, key);
        }
        let settings = &self.settings;
        let sum = |measure: fn(&Absent) -> usize| others.iter().map(measure).sum::<usize>();
        // They keep a quarter in any case, and more as long as half of all is free.
        let requests = sum(|client| client.untried.requests)
            .saturating_sub(settings.absent_requests_max())
            .min(self.requests.len().saturating_sub(settings.requests_max / 2));
        let bytes = sum(|client| client.untried.bytes)
            .saturating_sub(settings.absent_bytes_max())
            .min(self.bytes.saturating_sub(settings.bytes_max / 2));
        let mut hogs = giving_way(&others, requests, |client| client.untried.requests);
        hogs.extend(giving_way(&others, bytes, |client| client.untried.bytes));
        for key in hogs {
            if forgotten >= FORGOTTEN_AT_ONCE {
                return false;
            }
            forgotten += self.forget_untried(now, key);
        }
        true
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
        if self.sessions[key].requests.is_empty() {
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
            Absent { since, key, tenant, untried }
        };
        let absent =
            [client(0, 1, 7, 3), client(1, 2, 8, 10), client(2, 3, 8, 10), client(3, 4, 9, 12), client(4, 5, 8, 5)];
        let forgotten = |surplus| giving_way(&absent, surplus, |client| client.untried.requests);
        assert_eq!(forgotten(0), [0; 0]);
        assert_eq!(forgotten(1), [2]);
        assert_eq!(forgotten(11), [2, 3]);
        assert_eq!(forgotten(21), [2, 3, 4]);
        assert_eq!(forgotten(1_000), [2, 3, 4, 5, 1]);
    }
}
