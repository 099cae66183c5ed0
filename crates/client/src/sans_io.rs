//! Sessions of client and worker without sockets, for simulations.

use crate::client::session::{Delivery, NewRequest, Session as ClientSession};
use crate::worker::session::{Session as WorkerSession, WorkerEvent};
use bytes::Bytes;
use std::time::Duration;
use towpath_requests::Millis;
use towpath_requests::body::Body;
use towpath_requests::numbered::{Block, ClientId, Status, Token, WireError};

const WELCOME_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes encoded at a time.
const PUMP_BYTES: usize = 8 * 1024;

/// An outcome, or part of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Number of the request.
    pub number: u64,
    /// Status.
    pub status: Status,
    /// Part number, unless it is the final part.
    pub part: Option<u32>,
    /// Reply, or reason.
    pub body: Body,
}

impl From<Delivery> for Outcome {
    fn from(delivery: Delivery) -> Outcome {
        let Delivery { number, status, part, body, .. } = delivery;
        Outcome { number, status, part, body }
    }
}

/// Session of a client.
pub struct Client(ClientSession);

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("outstanding", &self.0.outstanding()).finish_non_exhaustive()
    }
}

impl Client {
    /// A session without requests or connection.
    pub fn new(client: ClientId, requests_max: usize) -> Client {
        Client(ClientSession::new(client, requests_max, usize::MAX, WELCOME_TIMEOUT))
    }

    /// Submits a request if there is space, and returns its number.
    pub fn submit(
        &mut self,
        now: Millis,
        service: impl AsRef<[u8]>,
        body: Body,
        ttl: Option<Millis>,
        volatile: bool,
    ) -> Option<u64> {
        let (service, ttl) = (service.as_ref(), ttl.map(Duration::from_millis));
        let space = self.0.has_space(&body, 0);
        space.then(|| self.0.submit(NewRequest { service, body, ttl, volatile, owner: 0 }, Duration::from_millis(now)))
    }

    /// A connection is ready. Appends the greeting.
    pub fn connected(&mut self, now: Millis, block: &mut Block) {
        self.0.connected(Duration::from_millis(now), block);
    }

    /// The connection is lost.
    pub fn disconnected(&mut self) {
        self.0.disconnected();
    }

    /// Whether the connection has to be replaced.
    pub fn is_spoiled(&self) -> bool {
        self.0.spoiled().is_some()
    }

    /// Takes a message.
    pub fn on_block(
        &mut self,
        now: Millis,
        block: &Bytes,
        attached: Option<Body>,
        mut sink: impl FnMut(Outcome),
    ) -> Result<(), WireError> {
        let mut sink = |delivery: Delivery| sink(delivery.into());
        self.0.on_block(block, attached.map(Ok), Duration::from_millis(now), &mut sink)
    }

    /// Cancels a request.
    pub fn cancel(&mut self, now: Millis, number: u64) -> Option<Outcome> {
        self.0.cancel(number, Duration::from_millis(now)).map(Outcome::from)
    }

    /// Handles everything that is due, appends records that may be sent, and returns when there is more to do.
    pub fn pump(&mut self, now: Millis, block: &mut Block, mut sink: impl FnMut(Outcome)) -> Option<Millis> {
        self.0.on_time(Duration::from_millis(now), &mut |delivery: Delivery| sink(delivery.into()));
        if self.0.pump(Duration::from_millis(now), block, PUMP_BYTES) {
            return Some(now);
        }
        self.0.deadline(true).map(|at| at.as_millis() as Millis)
    }

    /// Whether nothing is outstanding, and everything was sent.
    pub fn is_done(&self) -> bool {
        self.0.outstanding() == 0 && self.0.is_flushed()
    }
}

/// Work from a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// A request.
    Request(Token, Body),
    /// The reply isn't wanted any more.
    Cancelled(Token),
}

impl From<WorkerEvent> for Work {
    fn from(received: WorkerEvent) -> Work {
        match received {
            WorkerEvent::Request(arrival) => Work::Request(arrival.token, arrival.body),
            WorkerEvent::Cancelled(token) => Work::Cancelled(token),
        }
    }
}

/// Session of a worker.
pub struct Worker(WorkerSession);

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("counters", &self.0.counters()).finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker without a connection.
    pub fn new(service: impl AsRef<[u8]>, credit: u32) -> Worker {
        Worker(WorkerSession::new(service.as_ref(), credit))
    }

    /// A connection is ready. Appends the greeting.
    pub fn connected(&mut self, block: &mut Block) {
        self.0.connected(block);
    }

    /// The connection is lost, and with it requests that can't be answered on another.
    pub fn disconnected(&mut self, mut sink: impl FnMut(Work)) {
        self.0.disconnected(&mut |received| sink(received.into()));
    }

    /// Takes a message.
    pub fn on_block(
        &mut self,
        block: &Bytes,
        attached: Option<Body>,
        out: &mut Block,
        mut sink: impl FnMut(Work),
    ) -> Result<(), WireError> {
        self.0.on_block(block, attached.map(Ok), out, None, &mut |received| sink(received.into()))
    }

    /// Sends a reply, or part of one. Returns whether it is still wanted.
    pub fn reply(&mut self, token: Token, status: Status, part: Option<u32>, body: &Body, out: &mut Block) -> bool {
        self.0.reply(token, status, part, body, out)
    }
}
