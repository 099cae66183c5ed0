//! The event loop of the client: runs one operation after another on a connection, and decides when to give up.
//!
//! There are two time limits, the same for all operations: [`ConnectOptions::connect_timeout`] for the first connection, and
//! [`ConnectOptions::idle_timeout`] for going on without progress or connection after that.

use super::connection::{ConnectOptions, Connection, ConnectionEvent};
use crate::error::Error;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::{HelloReply, Reply, Request, request_id};
use crate::transfer::idle_timer::IdleTimer;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use towpath_blocking::CancelToken;
use towpath_sockets::Waker;

/// Longest wait for an event while progress is shown, or something else has to be looked at.
pub(super) const POLL_MAX: Duration = Duration::from_millis(100);
/// Longest wait for an event in any case.
const POLL_IDLE_MAX: Duration = Duration::from_secs(10);
/// A connection that nothing has used for longer isn't used again: nobody has answered its heartbeats.
const SPARE_MAX: Duration = Duration::from_secs(5);
/// Connections that are kept for the next operations.
const SPARES_MAX: usize = 16;
/// A `hello` is sent each time that this part of the idle timeout has passed without a sign of life.
const HELLOS: u32 = 3;

/// One operation: what is sent to the server, and what becomes of what it sends.
pub(super) trait Operation {
    /// The result.
    type Outcome;

    /// Does what can be done now.
    fn turn(&mut self, connection: &mut Connection, now: Instant) -> Result<Turn<Self::Outcome>, Error>;

    /// Called once connected.
    fn connected(&mut self, connection: &mut Connection, now: Instant) -> Result<(), Error>;

    /// The connection is lost: whether the operation goes on with another one.
    fn lost(&mut self, _reason: &str) -> Result<bool, Error> {
        Ok(false)
    }

    /// Takes what the server sent: whether that is progress.
    fn inbound(&mut self, inbound: Inbound, connection: &mut Connection, now: Instant) -> Result<bool, Error>;

    /// Bytes of an incomplete message arrived.
    fn arriving(&mut self, _now: Instant) {}

    /// A range of a file has left, whole or padded.
    fn file_sent(&mut self, _tag: u64, _whole: bool, _connection: &mut Connection) -> Result<(), Error> {
        Ok(())
    }

    /// How long the server may be silent now.
    fn wait_limit(&self) -> WaitLimit;

    /// Ends because it was cancelled: at once with an error, or with the next turn.
    fn cancel(&mut self) -> Result<(), Error> {
        Err(Error::Cancelled)
    }

    /// Ends because of an error, likewise.
    fn failed(&mut self, error: Error) -> Result<(), Error> {
        Err(error)
    }

    /// Waits a moment for space in memory: whether there is some, so that more may be read from the connection.
    fn make_space(&mut self, _connection: &mut Connection) -> Result<bool, Error> {
        Ok(true)
    }
}

/// The end of a turn.
pub(super) enum Turn<T> {
    /// The operation is over.
    Over(T),
    /// Wait for this time, or until an event.
    Wait(Duration),
}

/// How long the server may be silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitLimit {
    /// For the idle timeout, and so much longer.
    Extra(Duration),
    /// As long as it takes, as long as it answers `hello` within the idle timeout.
    WhileAlive,
    /// For ever: nothing is awaited, or the operation has a timer of its own.
    Unlimited,
}

/// A server, and the connections to it that are left of the last operations, if those left nothing open on them.
pub(super) struct Connector {
    pub(super) options: ConnectOptions,
    /// The newest last.
    spare: Mutex<Vec<(Exchange, Instant)>>,
}

impl Connector {
    pub(super) fn new(options: ConnectOptions) -> Self {
        Self { options, spare: Mutex::default() }
    }

    /// A connection for an operation that ends with `cancel`; it is made in the background.
    pub(super) fn exchange(&self, cancel: &CancelToken) -> Result<Exchange, Error> {
        let newest = || self.spare.lock().unwrap_or_else(PoisonError::into_inner).pop();
        while let Some((mut exchange, since)) = newest() {
            if since.elapsed() >= SPARE_MAX || !exchange.is_usable() {
                continue;
            }
            exchange.cancel = cancel.child();
            exchange.connection.wake_on(&exchange.cancel);
            return Ok(exchange);
        }
        Exchange::open(&self.options, cancel)
    }

    /// Waits for a connection, which the next operation uses.
    pub(super) fn connect(&self, cancel: &CancelToken) -> Result<(), Error> {
        self.ask(&mut Greeting { is_connected: false }, cancel)
    }

    /// Runs an operation on a connection of its own.
    pub(super) fn run<O: Operation>(&self, operation: &mut O, cancel: &CancelToken) -> Result<O::Outcome, Error> {
        let mut exchange = self.exchange(cancel)?;
        let outcome = exchange.run(operation);
        exchange.close();
        outcome
    }

    /// Runs an operation that leaves nothing open when it succeeds or is refused.
    pub(super) fn ask<O: Operation>(&self, operation: &mut O, cancel: &CancelToken) -> Result<O::Outcome, Error> {
        let mut exchange = self.exchange(cancel)?;
        let outcome = exchange.run(operation);
        self.keep(exchange, &outcome);
        outcome
    }

    /// Keeps a connection for the next operation, if the last one left nothing open on it.
    pub(super) fn keep<T>(&self, exchange: Exchange, outcome: &Result<T, Error>) {
        if matches!(outcome, Ok(_) | Err(Error::Refused { .. })) {
            let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
            spare.retain(|(_, since)| since.elapsed() < SPARE_MAX);
            if spare.len() < SPARES_MAX {
                spare.push((exchange, Instant::now()));
            }
        } else {
            exchange.close();
        }
    }
}

/// Waits for a connection.
struct Greeting {
    is_connected: bool,
}

impl Operation for Greeting {
    type Outcome = ();

    fn turn(&mut self, _connection: &mut Connection, _now: Instant) -> Result<Turn<()>, Error> {
        Ok(if self.is_connected { Turn::Over(()) } else { Turn::Wait(Duration::MAX) })
    }

    fn connected(&mut self, _connection: &mut Connection, _now: Instant) -> Result<(), Error> {
        self.is_connected = true;
        Ok(())
    }

    fn inbound(&mut self, _inbound: Inbound, _connection: &mut Connection, _now: Instant) -> Result<bool, Error> {
        Ok(false)
    }

    fn wait_limit(&self) -> WaitLimit {
        WaitLimit::Extra(Duration::ZERO)
    }
}

/// A connection, and the operation that runs on it.
pub(super) struct Exchange {
    options: ConnectOptions,
    cancel: CancelToken,
    connection: Connection,
    is_connected: bool,
    was_connected: bool,
    /// Why the last connection was lost, or could not be made.
    last_reason: Option<String>,
    idle: IdleTimer,
    hello_at: Option<Instant>,
}

impl Exchange {
    /// Connects, in the background.
    fn open(options: &ConnectOptions, cancel: &CancelToken) -> Result<Self, Error> {
        // One of its own, which nothing else waits for.
        let cancel = cancel.child();
        Ok(Self {
            options: options.clone(),
            connection: Connection::open(options, &cancel)?,
            cancel,
            is_connected: false,
            was_connected: false,
            last_reason: None,
            idle: IdleTimer::new(Instant::now()),
            hello_at: None,
        })
    }

    /// Notes that this server was connected before, so that the next connection isn't the first.
    pub(super) fn assume_connected_before(&mut self, was_connected: bool) {
        self.was_connected |= was_connected;
    }

    pub(super) fn was_connected(&self) -> bool {
        self.was_connected
    }

    /// Wakes the operation from another thread: it gets another turn.
    pub(super) fn waker(&self) -> Waker {
        self.connection.waker()
    }

    /// Whether it is still connected. What came since the last operation is dropped.
    fn is_usable(&mut self) -> bool {
        let is_polled = self.connection.poll(Duration::ZERO).is_ok();
        let still = |event| matches!(event, ConnectionEvent::Inbound(_) | ConnectionEvent::Arriving);
        let is_same = std::iter::from_fn(|| self.connection.next()).all(still);
        is_polled && is_same && self.is_connected
    }

    /// Runs an operation to its end.
    pub(super) fn run<O: Operation>(&mut self, operation: &mut O) -> Result<O::Outcome, Error> {
        self.idle = IdleTimer::new(Instant::now());
        if self.is_connected {
            operation.connected(&mut self.connection, Instant::now())?;
        }
        loop {
            if self.cancel.is_cancelled() {
                operation.cancel()?;
            }
            let wait = match operation.turn(&mut self.connection, Instant::now())? {
                Turn::Over(outcome) => return Ok(outcome),
                Turn::Wait(wait) => wait,
            };
            match self.left(operation.wait_limit(), Instant::now()) {
                Ok(left) => self.connection.poll(wait.min(left).min(POLL_IDLE_MAX))?,
                Err(error) => operation.failed(error)?,
            }
            while let Some(event) = self.connection.next() {
                self.event(event, operation)?;
                while !operation.make_space(&mut self.connection)? && !self.cancel.is_cancelled() {}
            }
        }
    }

    /// Sends something that has no answer, if it is connected.
    pub(super) fn say(&mut self, request: &Request) {
        if self.is_connected {
            self.connection.send(request);
        }
    }

    /// Sends what is queued, and closes.
    pub(super) fn close(self) {
        self.connection.close();
    }

    /// An error with the reason why there is no connection, if it is about that.
    pub(super) fn explain(&mut self, error: Error) -> Error {
        match error {
            Error::Stalled { seconds, connected: false } => {
                let reason = self.last_reason.take();
                let reason = reason.map(|reason| format!("{reason}; gave up after {seconds} s"));
                self.unreachable(reason.unwrap_or_else(|| format!("no answer for {seconds} s")))
            }
            error => error,
        }
    }

    fn unreachable(&self, reason: String) -> Error {
        Error::Connect { endpoint: self.options.endpoint.to_string(), reason }
    }

    /// Time until the operation fails or a `hello` is due, unless something happens.
    fn left(&mut self, wait_limit: WaitLimit, now: Instant) -> Result<Duration, Error> {
        let ConnectOptions { connect_timeout, idle_timeout, .. } = self.options;
        let limit = match wait_limit {
            _ if !self.was_connected => connect_timeout,
            WaitLimit::Unlimited => {
                self.idle.progressed(now);
                return Ok(Duration::MAX);
            }
            WaitLimit::Extra(extra) if self.is_connected => idle_timeout.saturating_add(extra),
            _ => idle_timeout,
        };
        let silent = now.saturating_duration_since(self.idle.since());
        let left = limit.saturating_sub(silent);
        if left.is_zero() {
            return Err(match (self.is_connected, self.was_connected) {
                (true, _) => Error::Stalled { seconds: limit.as_secs(), connected: true },
                (false, true) => self.explain(Error::Stalled { seconds: limit.as_secs(), connected: false }),
                (false, false) => {
                    let reason = self.last_reason.take();
                    self.unreachable(reason.unwrap_or_else(|| "no answer".to_owned()))
                }
            });
        }
        if wait_limit != WaitLimit::WhileAlive || !self.is_connected {
            return Ok(left);
        }
        let since = self.hello_at.map_or(self.idle.since(), |at| at.max(self.idle.since()));
        let pause = (idle_timeout / HELLOS).saturating_sub(now.saturating_duration_since(since));
        if pause.is_zero() {
            self.connection.send(&Request::Hello);
            self.hello_at = Some(now);
        }
        Ok(left.min(if pause.is_zero() { idle_timeout / HELLOS } else { pause }))
    }

    fn event<O: Operation>(&mut self, event: ConnectionEvent, operation: &mut O) -> Result<(), Error> {
        let now = Instant::now();
        match event {
            ConnectionEvent::Connected => {
                self.is_connected = true;
                if !std::mem::replace(&mut self.was_connected, true) {
                    self.idle.progressed(now);
                } else if self.last_reason.is_some() {
                    tracing::info!("connected again");
                }
                self.last_reason = None;
                if self.options.via.is_some() {
                    self.connection.send(&Request::Hello);
                }
                operation.connected(&mut self.connection, now)
            }
            ConnectionEvent::Lost { reason } => {
                tracing::info!(%reason, "the connection is lost");
                self.is_connected = false;
                let goes_on = operation.lost(&reason)?;
                self.last_reason = Some(reason.clone());
                if goes_on { Ok(()) } else { Err(self.unreachable(reason)) }
            }
            ConnectionEvent::Failed { reason } => {
                tracing::debug!(%reason, "cannot connect");
                self.last_reason = Some(reason);
                Ok(())
            }
            ConnectionEvent::Refused { reason, refusal } => {
                operation.failed(Error::Rejected { endpoint: self.options.endpoint.to_string(), reason, refusal })
            }
            ConnectionEvent::ProtocolError(error) => {
                self.is_connected = false;
                operation.failed(error.into())
            }
            ConnectionEvent::FileSent { tag, whole } => operation.file_sent(tag, whole, &mut self.connection),
            ConnectionEvent::Arriving => {
                self.idle.arriving(now);
                operation.arriving(now);
                Ok(())
            }
            ConnectionEvent::Inbound(inbound) => {
                let waits_while_alive = operation.wait_limit() == WaitLimit::WhileAlive;
                let wanted = waits_while_alive || self.options.via.is_some();
                let hello = wanted.then(|| hello(&inbound)).flatten();
                let is_alive = waits_while_alive && hello.is_some();
                if let Some((via, hello)) = self.options.via.as_ref().zip(hello) {
                    via.set_above(&hello.via).map_err(|error| Error::unmet(error.to_string()))?;
                }
                if operation.inbound(inbound, &mut self.connection, now)? || is_alive {
                    self.idle.progressed(now);
                } else {
                    self.idle.was_no_progress();
                }
                Ok(())
            }
        }
    }
}

fn hello(inbound: &Inbound) -> Option<HelloReply> {
    let Inbound::Control { json, .. } = inbound else { return None };
    match Reply::decode(json) {
        Ok(Reply::Hello(hello)) if request_id(json).is_none() => Some(hello),
        _ => None,
    }
}
