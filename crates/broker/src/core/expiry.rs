//! What happens because time passes.

use super::requests::State;
use super::settings::{Millis, NEVER};
use super::{Action, Core, Kind, SessionKey};
use towpath_requests::body::Body;
use towpath_requests::numbered::Status;

/// Requests are looked through no more often than this; with many of them less often, so that it costs little.
const SWEEP_GRAIN: Millis = 20;
const SWEPT_PER_MILLISECOND: usize = 20_000;

/// How often clients that aren't connected are looked through.
const ABSENCE_GRAIN: Millis = 1_000;

const TOO_SLOW: &str = "a worker took longer for a request than it may";

/// When [`Core::tick`] next has something to do for requests, heartbeats and absent clients.
#[derive(Debug)]
pub(super) struct Deadlines {
    /// No request expires before this, and no worker exceeds the busy timeout.
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
    /// A request expires, or its worker has to reply, at this time.
    #[inline]
    pub fn expires_at(&mut self, at: Millis) {
        self.expiry = self.expiry.min(at);
    }

    /// The earliest time for a sweep over so many requests.
    fn next_sweep(&self, requests: usize) -> Millis {
        self.last_sweep + SWEEP_GRAIN.max((requests / SWEPT_PER_MILLISECOND) as Millis)
    }

    fn next(&self, requests: usize) -> Millis {
        let sweep = if self.expiry == NEVER { NEVER } else { self.expiry.max(self.next_sweep(requests)) };
        sweep.min(self.heartbeat).min(self.absence_check)
    }
}

impl Core {
    /// Does what is due. To be called after every batch of events: it costs next to nothing when nothing is due.
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
        if now >= self.deadlines.absence_check {
            self.deadlines.absence_check = now + ABSENCE_GRAIN;
            self.check_absent(now);
            self.check_held_back(now);
            self.retry_dead_letters(now);
        }
    }

    /// When [`Core::tick`] has something to do next.
    pub fn next_deadline(&self) -> Millis {
        if self.may_resume() {
            return 0;
        }
        self.deadlines.next(self.requests.len()).min(self.workers.next_rest_end)
    }

    /// One look at all requests instead of a timer each: the earliest deadline tells when it is worth it.
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
            // Nor are they given what others of them had, or what takes the place of an expired one.
            self.change_worker(worker, |worker| worker.leaving = true);
        }
        // First what waits: a worker that becomes free must not be given what has expired too.
        expired.sort_unstable();
        for (_, slot, generation) in expired {
            // An earlier one may have taken it along.
            let Some(request) = self.requests.find(slot, generation) else { continue };
            // Short enough to take no memory beside the request's. The status says that it expired.
            let (status, reason) = match request.state {
                State::Settled => continue,
                State::Held(..) => (Status::TIMED_OUT, "one had it at the end of its time"),
                State::Detached => (Status::TIMED_OUT, "it was on its way to the disk until then"),
                _ if request.attempt == 0 => (Status::EXPIRED, "it was in its service's queue until then"),
                _ => (Status::TIMED_OUT, "it waited again; one had it, or may have had"),
            };
            self.withdraw(now, slot);
            self.settle(slot, status, Body::from(reason).into());
        }
        for its in too_slow.chunk_by(|(one, ..), (other, ..)| one == other) {
            let &[(peer, worker, ..), ..] = its else { continue };
            if self.workers.get(worker).is_some_and(|worker| worker.kind == Kind::Numbered) {
                // What hangs there would otherwise keep its place on the worker's next connection too.
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
            // What went to other workers has a new deadline.
            self.deadlines.expires_at(now.saturating_add(busy));
        }
    }

    /// Stock workers hear from the broker, and must be heard unless they are busy: they can't speak then.
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
            if !is_busy && now.saturating_sub(worker.last_heard) > timeout {
                gone.push((worker.peer, "a worker was silent for too long"));
            } else if worker.abandoned.iter().any(|&(_, since)| is_stuck(since)) {
                // The request isn't there any more to be looked at.
                gone.push((worker.peer, TOO_SLOW));
            } else {
                self.actions.push(Action::Heartbeat { peer: worker.peer });
            }
        }
        for (peer, reason) in gone {
            self.disconnect(now, peer, reason);
        }
    }

    fn check_absent(&mut self, now: Millis) {
        let mut absent: Vec<(Millis, SessionKey, bool)> = self
            .sessions
            .iter()
            .filter(|(_, session)| session.peer.is_none() && (!session.is_dead_letter || session.requests.is_empty()))
            .map(|(key, session)| {
                let kept = if session.is_journalled {
                    self.settings.journal_retention_ms
                } else {
                    self.settings.absent_client_ms
                };
                let gone = session.requests.is_empty() || now.saturating_sub(session.absent_since) > kept;
                (session.absent_since, key, gone)
            })
            .collect();
        let too_many = absent.len().saturating_sub(self.settings.absent_clients_max);
        absent.sort_unstable();
        for (index, (_, key, gone)) in absent.into_iter().enumerate() {
            // What is in the journal was promised: only its time ends it.
            if gone || (index < too_many && !self.sessions[key].is_journalled) {
                self.remove_session(now, key);
            }
        }
    }
}
