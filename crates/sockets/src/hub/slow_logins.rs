//! Decisions about credentials that take long, such as hashed passwords: on other threads, by turns of tenants. Few run at a time, since each may
//! take a lot of memory, and the others wait here: whether a tenant may still try is asked when its turn has come.

use crate::auth::Authenticator;
use crate::net::tenant::Tenant;
use crate::peer_id::PeerId;
use crate::waker::Waker;
use std::sync::mpsc::{Receiver, Sender, channel};
use towpath_blocking::{BlockingPool, PoolLimits};
use towpath_quota::FairQueue;
use towpath_zmtp::{Credentials, Principal};

/// Decisions that run at the same time.
const RUNNING_MAX: usize = 2;

const LIMITS: PoolLimits =
    PoolLimits { name: "tow-login", threads_max: RUNNING_MAX, hung_max: 0, per_group_max: RUNNING_MAX };
const GROUP: u64 = 0;

/// Credentials, and the authenticator that decides about them.
#[derive(Debug)]
pub(super) struct Login {
    pub(super) authenticator: Authenticator,
    pub(super) credentials: Credentials,
}

/// The outcome of a decision. The error: it was not made, for want of a thread.
pub(super) type Decision = Result<Option<Principal>, ()>;

pub(super) struct SlowLogins {
    pool: BlockingPool,
    waker: Waker,
    sender: Sender<(PeerId, Decision)>,
    done: Receiver<(PeerId, Decision)>,
    waiting: FairQueue<Tenant, PeerId, Login>,
    running: usize,
}

impl SlowLogins {
    pub(super) fn new(waker: Waker) -> SlowLogins {
        let (sender, done) = channel();
        SlowLogins { pool: BlockingPool::new(LIMITS), waker, sender, done, waiting: FairQueue::default(), running: 0 }
    }

    pub(super) fn push(&mut self, tenant: &Tenant, peer: PeerId, login: Login) {
        self.waiting.push(tenant, peer, login);
    }

    /// The login whose turn it is, if it may start now.
    pub(super) fn next_to_start(&mut self) -> Option<(PeerId, Login)> {
        if self.running < RUNNING_MAX { self.waiting.pop_next() } else { None }
    }

    /// Decides about a login. The hub is woken when [`SlowLogins::next_done`] gives the decision.
    pub(super) fn start(&mut self, peer: PeerId, login: Login) {
        self.running += 1;
        let report = Report { peer, decision: Err(()), sender: self.sender.clone(), waker: self.waker.clone() };
        // Without a thread the job is dropped, and reports that.
        let _ = self.pool.submit(GROUP, peer.token(), move || {
            let mut report = report;
            report.decision = Ok(login.authenticator.identify(&login.credentials));
            drop(report);
        });
    }

    /// The next decision.
    pub(super) fn next_done(&mut self) -> Option<(PeerId, Decision)> {
        let done = self.done.try_recv().ok()?;
        self.running -= 1;
        Some(done)
    }

    /// Drops the login of a peer that is gone, unless it is being decided.
    pub(super) fn cancel(&mut self, peer: PeerId) {
        self.waiting.remove(peer);
    }
}

/// Reports the decision when dropped, in any case.
struct Report {
    peer: PeerId,
    decision: Decision,
    sender: Sender<(PeerId, Decision)>,
    waker: Waker,
}

impl Drop for Report {
    fn drop(&mut self) {
        let _ = self.sender.send((self.peer, std::mem::replace(&mut self.decision, Err(()))));
        self.waker.wake();
    }
}
