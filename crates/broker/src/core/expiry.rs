//! Deadlines: expiry of requests, the busy timeout, heartbeats of stock workers, and absent clients.

use super::requests::State;
use super::settings::{Millis, NEVER};
use super::{Action, Core, Kind};
use towpath_requests::body::Body;
use towpath_requests::numbered::Status;

/// Milliseconds between sweeps, at least. More with many requests, so that sweeps cost little.
const SWEEP_GRAIN: Millis = 20;
const SWEPT_PER_MILLISECOND: usize = 20_000;

/// Milliseconds between looks at the absent clients.
const ABSENCE_GRAIN: Millis = 1_000;

/// The same while absent clients with very many requests are being forgotten.
const FORGET_GRAIN: Millis = 20;

const TOO_SLOW: &str = "a worker exceeded the busy timeout";

/// When [`Core::tick`] next has something to do for requests, heartbeats and absent clients.
#[derive(Debug)]
pub(super) struct Deadlines {
    /// No request expires before this, and no worker exceeds the busy timeout. May be too early.
    expiry: Millis,
    last_sweep: Millis,
    heartbeat: Millis,
    absence_check: Millis,
}

impl Default for Deadlines {
    fn default() -> Deadlines {
        Deadlines { expiry: NEVER, last_sweep: 0, heartbeat: 0, absence_check: 0 }
    }
}

impl Deadlines {
    /// A request expires or exceeds the busy timeout at this time.
    #[inline]
    pub fn expires_at(&mut self, at: Millis) {
        self.expiry = self.expiry.min(at);
    }

    /// The earliest time for a sweep over this many requests.
    fn next_sweep(&self, requests: usize) -> Millis {
        self.last_sweep + SWEEP_GRAIN.max((requests / SWEPT_PER_MILLISECOND) as Millis)
    }

    fn next(&self, requests: usize) -> Millis {
        let sweep = if self.expiry == NEVER { NEVER } else { self.expiry.max(self.next_sweep(requests)) };
        sweep.min(self.heartbeat).min(self.absence_check)
    }
}

impl Core {
    /// Does what is due. Called in every round: costs next to nothing if nothing is due.
    #[inline]
    pub fn tick(&mut self, now: Millis) {
        if self.may_resume() {
            self.resume_clients();
        } else {
            self.paused.memory_freed = false;
        }
        if self.drain.is_any_leaving() {
            self.send_away(now);
        }
        self.retry_waiting_services(now);
        if now >= self.deadlines.expiry && now >= self.deadlines.next_sweep(self.requests.len()) {
            self.sweep(now);
        }
        if now >= self.deadlines.heartbeat {
            self.deadlines.heartbeat = now.saturating_add(self.settings.heartbeat_ms);
            self.heartbeats(now);
        }
        if now >= self.workers.next_rest_end {
            self.end_rests(now);
        }
        if now >= self.retries.next() {
            self.end_pauses(now);
        }
        if now >= self.deadlines.absence_check || self.has_surplus_outcomes() {
            if !self.forget_absent(now) {
                self.deadlines.absence_check = now + FORGET_GRAIN;
                return;
            }
            self.deadlines.absence_check = now + ABSENCE_GRAIN;
            self.full.age();
            self.check_held_back(now);
            self.retry_dead_letters(now);
        }
    }

    /// When [`Core::tick`] next has something to do.
    pub fn next_deadline(&self) -> Millis {
        if self.may_resume() {
            return 0;
        }
        self.deadlines.next(self.requests.len()).min(self.workers.next_rest_end).min(self.retries.next())
    }

    /// Ends requests that have expired and disconnects workers that exceed the busy timeout. One look at all requests, when the
    /// earliest deadline is due, is cheaper than a timer for each.
    fn sweep(&mut self, now: Millis) {
        self.deadlines.last_sweep = now;
        let busy = self.settings.busy_timeout_ms;
        let (mut expired, mut too_slow, mut next) = (Vec::new(), Vec::new(), NEVER);
        for (slot, request) in self.requests.iter() {
            let busy_until = match (request.state, busy) {
                (State::Settled | State::Free, _) => continue,
                (State::Held(worker, _), Some(busy)) => {
                    let until = request.since.saturating_add(busy);
                    if until <= now {
                        too_slow.push((self.workers[worker].peer, worker, slot, request.generation));
                    }
                    if until <= now { NEVER } else { until }
                }
                _ => NEVER,
            };
            if request.expires <= now {
                expired.push((matches!(request.state, State::Held(..)), slot, request.generation));
            } else {
                next = next.min(request.expires).min(busy_until);
            }
        }
        self.deadlines.expiry = next;
        too_slow.sort_unstable();
        for &(_, worker, ..) in &too_slow {
            // They don't get requests of each other, nor one in place of an expired one.
            self.workers[worker].leaving = true;
        }
        // Waiting requests first: a worker that becomes free must not get one that has expired too.
        expired.sort_unstable();
        for (_, slot, generation) in expired {
            // It may have ended with an earlier one.
            let Some(request) = self.requests.find(slot, generation) else { continue };
            // Short enough to need no memory beside the request's. The status says that it expired.
            let (status, reason) = match request.state {
                State::Settled => continue,
                State::Held(..) => (Status::TIMED_OUT, "a worker had it"),
                State::Detached => (Status::TIMED_OUT, "its answer was waiting for the disk"),
                _ if request.attempt == 0 => (Status::EXPIRED, "it was waiting for a worker"),
                _ if request.attempt == 1 && self.durability.is_restored(request.journal_id) => {
                    (Status::TIMED_OUT, "before the broker was restarted")
                }
                _ => (Status::TIMED_OUT, "it was queued again"),
            };
            if let State::Held(worker, _) = request.state {
                // Its clients' deadlines would else hide a worker that hangs.
                let failed = &mut self.workers[worker].failed_in_a_row;
                *failed = failed.saturating_add(1);
            }
            self.withdraw(now, slot);
            self.settle(slot, status, Body::from(reason).into());
        }
        for its in too_slow.chunk_by(|(one, ..), (other, ..)| one == other) {
            let &[(peer, worker, ..), ..] = its else { continue };
            if self.workers.get(worker).is_some_and(|worker| worker.kind == Kind::Numbered) {
                // Otherwise the hung request would use up credit on the worker's next connection too.
                for &(.., slot, generation) in its {
                    let request = self.requests.find(slot, generation);
                    if request.is_some_and(|request| matches!(request.state, State::Held(by, _) if by == worker)) {
                        self.actions.push(Action::CancelWork { peer, token: self.token_of(slot) });
                    }
                }
            }
            self.disconnect(now, peer, TOO_SLOW);
        }
        if let Some(busy) = busy {
            // Requests that went to other workers have a new deadline.
            self.deadlines.expires_at(now.saturating_add(busy));
        }
    }

    /// Sends heartbeats to stock workers, and disconnects those that are silent. A busy one may be silent: it can't send.
    fn heartbeats(&mut self, now: Millis) {
        let timeout = self.settings.heartbeat_ms.saturating_mul(Millis::from(self.settings.liveness));
        let busy = self.settings.busy_timeout_ms;
        let mut gone = Vec::new();
        for (_, worker) in self.workers.iter() {
            if worker.kind != Kind::Stock {
                continue;
            }
            let is_busy = worker.held.len > 0 || !worker.abandoned.is_empty();
            let is_stuck = |since: Millis| busy.is_some_and(|busy| now.saturating_sub(since) >= busy);
            if !is_busy && now.saturating_sub(worker.last_received) > timeout {
                gone.push((worker.peer, "a worker missed its heartbeats"));
            } else if worker.abandoned.iter().any(|&(_, since)| is_stuck(since)) {
                // The abandoned request has ended, so the sweep doesn't see it.
                gone.push((worker.peer, TOO_SLOW));
            } else {
                self.actions.push(Action::Heartbeat { peer: worker.peer });
            }
        }
        for (peer, reason) in gone {
            self.disconnect(now, peer, reason);
        }
    }
}
