//! The client: requests to services, and their outcomes.
//!
//! A [`Client`] holds every request until it has the outcome. A lost connection is replaced by one to the next of its
//! endpoints, and everything without an outcome is resent. A broker of numbered requests executes none of them twice
//! because of that, and no outcome is delivered twice. A stock Majordomo broker has no numbers: it gets one request at a
//! time, and may execute the outstanding one again when a connection was lost.
//!
//! ```no_run
//! use towpath_client::client::{Client, ClientOptions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(&["tcp://127.0.0.1:5555".parse()?], ClientOptions::default())?;
//! let reply = client.call("echo", "how far?").await?;
//! assert_eq!(reply.body.single(), Some(&b"how far?"[..]));
//! client.close().await;
//! # Ok(())
//! # }
//! ```

mod acks;
mod batch;
mod call;
mod connection_state;
mod deadlines;
mod failover;
mod health;
mod inbox;
mod left;
mod outstanding;
mod services;
pub(crate) mod session;
mod state;
#[cfg(test)]
mod tests;

pub use crate::connection::{Dialect, LinkOptions};
pub use batch::Batch;
pub use call::{Call, CallError, Reply, Stream, StreamItem};
pub use session::{Counters, Refused};

use crate::connection::driver::Shared;
use crate::connection::encoder::UnsendableBody;
use inbox::{Inbox, RECEIVER};
use state::{Notices, State};
use std::sync::Arc;
use std::time::Duration;
use towpath_requests::body::Body;
use towpath_requests::limits::{BODY_BYTES_MAX, BODY_FRAMES_MAX, SERVICE_BYTES_MAX};
use towpath_requests::numbered::{ClientId, Status};
use towpath_sockets::{Endpoint, Refusal, SocketError};

/// How long closing waits for queued messages.
const LINGER: Duration = Duration::from_secs(2);

/// Options of a client.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Most requests without an outcome, and outcomes not yet received; beyond it [`Client::send`] waits.
    pub outstanding_max: usize,
    /// Most bytes of memory of requests without an outcome. A larger request is taken alone.
    pub outstanding_bytes_max: usize,
    /// Bytes of outcomes not yet received above which the connection isn't read, until half are.
    pub received_bytes_max: usize,
    /// Options of the connection.
    pub link: LinkOptions,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            outstanding_max: 65_536,
            outstanding_bytes_max: 64 * 1024 * 1024,
            received_bytes_max: 64 * 1024 * 1024,
            link: LinkOptions::default(),
        }
    }
}

/// Options of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// Time to live. `None`: the broker's default, and no limit on this side.
    pub ttl: Option<Duration>,
    /// Not journalled: lost if the broker and this client both die.
    pub volatile: bool,
}

/// An outcome for [`Client::receive`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    /// Number of the request.
    pub number: u64,
    /// Status of the outcome.
    pub status: Status,
    /// Reply, or reason.
    pub body: Body,
}

/// Result of waiting for a request to be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Accepted {
    /// Durable in the broker's journal.
    Durable,
    /// The outcome has arrived, so nothing can be lost any more; or the request never existed.
    Over,
    /// The broker has no journal.
    NoJournal,
}

/// State of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStatus {
    /// Requests without an outcome.
    pub outstanding: usize,
    /// Bytes of memory that they take.
    pub outstanding_bytes: usize,
    /// Counters since the client was made.
    pub counters: Counters,
    /// Parts that were dropped because the request wasn't made by [`Client::stream`].
    pub parts_dropped: u64,
    /// Endpoint of the connection.
    pub connected: Option<Endpoint>,
    /// Whether the broker takes numbered requests.
    pub numbered: bool,
    /// Why there is no connection, why the last one was lost, or that the peer isn't understood. For people; empty if
    /// nothing is wrong.
    pub failure: String,
    /// The last refusal by a broker, while refused requests wait to be resent.
    pub refused: Option<Refused>,
    /// Whether the current or last connection is to a stock broker.
    pub is_stock: bool,
    /// Whether a stock broker's last message isn't Majordomo: it may be no broker.
    pub is_not_majordomo: bool,
    /// Whether a stock broker has sent nothing: it may speak another dialect.
    pub is_silent: bool,
    /// Why the broker refuses this client, for example for want of a password.
    pub refusal: Option<Refusal>,
    /// Whether all brokers do: only another configuration helps.
    pub refused_by_all: bool,
}

/// Why a request isn't accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// Too many requests or bytes are outstanding. Returns the body. Not from methods that wait.
    #[error("as many requests are outstanding as may be")]
    Full(Body),
    /// The service name is empty or too long.
    #[error("a service's name has 1 to {SERVICE_BYTES_MAX} bytes, and this one {0}")]
    BadService(usize),
    /// The body is neither in memory nor in a file of this crate.
    #[error("a body of this kind can't be sent")]
    BadBody,
    /// A body of several frames, which is sent from memory, is too large or has too many frames.
    #[error(
        "a body of several frames has up to {BODY_FRAMES_MAX}, and {BODY_BYTES_MAX} bytes; this one {frames}, and {bytes}"
    )]
    TooLarge {
        /// Frames of the body.
        frames: usize,
        /// Bytes of the body.
        bytes: u64,
    },
    /// The client is closed.
    #[error("the client is closed: {0}")]
    Closed(String),
}

impl From<UnsendableBody> for SubmitError {
    fn from(unfit: UnsendableBody) -> SubmitError {
        match unfit {
            UnsendableBody::Kind => SubmitError::BadBody,
            UnsendableBody::TooLarge { frames, bytes } => SubmitError::TooLarge { frames, bytes },
        }
    }
}

/// A client of one broker, or of several of which it uses one at a time. Cheap to clone; all clones are the same client.
/// Dropping the last clone gives up all requests without an outcome.
#[derive(Clone)]
pub struct Client {
    owner: Arc<Owner>,
}

/// Ends the task with the last clone.
struct Owner {
    shared: Arc<Shared<State>>,
    notices: Arc<Notices>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.hang_up();
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Client").field(&self.status()).finish()
    }
}

/// An id that no other client has.
fn random_id() -> Result<ClientId, SocketError> {
    let mut id = [0; 16];
    rustix::rand::getrandom(&mut id[..], rustix::rand::GetRandomFlags::empty())?;
    Ok(ClientId(id))
}

/// A new id in a process that was forked from the one in which the client had its id: that one goes on with it.
fn id_after_fork(process: &mut u32) -> Option<ClientId> {
    let former = std::mem::replace(process, std::process::id());
    (former != *process).then(random_id)?.ok()
}

impl Client {
    /// Makes a client with a random id, driven by a task on the current tokio runtime. It connects to the first endpoint,
    /// and to the next one when that fails, for as long as it lives. Requests may be submitted before it is connected.
    ///
    /// # Errors
    /// Without an endpoint, for options that can't work ([`SocketError::Option`]), outside of a runtime, or if the system has no event
    /// queue for it.
    ///
    /// # Panics
    /// If the runtime does no I/O.
    pub fn connect(endpoints: &[Endpoint], options: ClientOptions) -> Result<Client, SocketError> {
        Client::start(random_id()?, false, endpoints, options)
    }

    /// Makes a client with a given id, by which brokers know it: to get the outcomes of requests that it submitted before
    /// it was killed.
    ///
    /// Every client numbers its requests from 1, and a broker matches by id and number. To a broker that knows the id, the first request is the
    /// former first request again:
    /// - if that has an outcome that was never received, that outcome is delivered, and the request isn't executed again;
    /// - if it is still being executed, its outcome will be delivered;
    /// - if it asks something else now, or its outcome was received, it is refused with
    ///   [`Status::CONFLICT`](towpath_requests::numbered::Status::CONFLICT).
    ///
    /// So reuse an id only for the same requests in the same order, of which no outcome was received. Otherwise take a new
    /// one, as [`Client::connect`] does. A broker forgets an id when its connection ends if nothing is left of it;
    /// otherwise after five minutes, or after a week if it has requests in the journal, unless its options say otherwise.
    ///
    /// Two clients must not use one id at a time: each connection ends the other's, again and again, and either may get the
    /// other's outcomes.
    pub fn connect_as(id: ClientId, endpoints: &[Endpoint], options: ClientOptions) -> Result<Client, SocketError> {
        Client::start(id, true, endpoints, options)
    }

    fn start(
        id: ClientId,
        comes_back: bool,
        endpoints: &[Endpoint],
        options: ClientOptions,
    ) -> Result<Client, SocketError> {
        if endpoints.is_empty() {
            return Err(SocketError::NoEndpoint);
        }
        let hub_options = options.link.hub_options()?;
        let notices = Arc::new(Notices::default());
        let mut state = State::new(id, endpoints.to_vec(), options, Arc::clone(&notices));
        state.comes_back = comes_back;
        let shared = Shared::start(hub_options, state, LINGER, |_| Ok(()))?;
        Ok(Client { owner: Arc::new(Owner { shared, notices }) })
    }

    fn shared(&self) -> &Arc<Shared<State>> {
        &self.owner.shared
    }

    /// Submits a request and waits for its outcome. Dropping the future cancels the request. A reply in parts needs
    /// [`Client::stream`]: here it ends with [`Status::LOST`](towpath_requests::numbered::Status::LOST).
    pub async fn call(&self, service: impl AsRef<[u8]>, body: impl Into<Body>) -> Result<Reply, CallError> {
        self.call_with(service, body, CallOptions::default()).await
    }

    /// Like [`Client::call`], with options.
    pub async fn call_with(
        &self,
        service: impl AsRef<[u8]>,
        body: impl Into<Body>,
        options: CallOptions,
    ) -> Result<Reply, CallError> {
        let (number, place) = self.submit_call(service.as_ref(), body.into(), options, false).await?;
        Call::new(self.clone(), number, place).await
    }

    /// Submits a request whose reply may come in parts. Dropping the stream cancels the request. Parts that aren't taken
    /// are held in memory; beyond [`ClientOptions::received_bytes_max`] nothing more is read for any request of this
    /// client, and a broker that can't send ends the connection. Use a client of its own for a slow reader.
    pub async fn stream(
        &self,
        service: impl AsRef<[u8]>,
        body: impl Into<Body>,
        options: CallOptions,
    ) -> Result<Stream, SubmitError> {
        let (number, place) = self.submit_call(service.as_ref(), body.into(), options, true).await?;
        Ok(Stream::new(self.clone(), number, place))
    }

    async fn submit_call(
        &self,
        service: &[u8],
        body: Body,
        options: CallOptions,
        streams: bool,
    ) -> Result<(u64, u32), SubmitError> {
        let mut place = 0;
        let number = self
            .submit(service, body, options, |state| {
                place = state.inbox.add_call(streams);
                place
            })
            .await?;
        Ok((number, place))
    }

    async fn submit(
        &self,
        service: &[u8],
        body: Body,
        options: CallOptions,
        mut owner: impl FnMut(&mut State) -> u32,
    ) -> Result<u64, SubmitError> {
        let mut body = body;
        loop {
            match self.submit_now(service, body, options, &mut owner) {
                Err(SubmitError::Full(back)) => body = back,
                other => return other,
            }
            let space = self.owner.notices.space.notified();
            let _wanted = SpaceWaiter::new(self);
            // Space that became free before this waiter was registered wasn't announced to it.
            if !self.shared().lock().has_space(&body) {
                space.await;
            }
        }
    }

    #[inline]
    fn submit_now(
        &self,
        service: &[u8],
        body: Body,
        options: CallOptions,
        owner: impl FnOnce(&mut State) -> u32,
    ) -> Result<u64, SubmitError> {
        let mut state = self.shared().lock();
        let number = state.submit(service, body, options, owner)?;
        self.shared().wake(state);
        Ok(number)
    }

    /// Submits a request whose outcome is delivered by [`Client::receive`], and returns its number. Waits while too much is
    /// outstanding, so outcomes must be received. The number serves to cancel, and for [`Client::accepted`].
    pub async fn send(
        &self,
        service: impl AsRef<[u8]>,
        body: impl Into<Body>,
        options: CallOptions,
    ) -> Result<u64, SubmitError> {
        self.submit(service.as_ref(), body.into(), options, |_| RECEIVER).await
    }

    /// Like [`Client::send`] without waiting: [`SubmitError::Full`] returns the body.
    #[inline]
    pub fn try_send(
        &self,
        service: impl AsRef<[u8]>,
        body: impl Into<Body>,
        options: CallOptions,
    ) -> Result<u64, SubmitError> {
        self.submit_now(service.as_ref(), body.into(), options, |_| RECEIVER)
    }

    /// Submits many requests like [`Client::try_send`] at less cost each.
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(self)
    }

    /// The next outcome of requests submitted by [`Client::send`], in the order of arrival. `None`: the client is closed.
    /// Cancel-safe.
    pub async fn receive(&self) -> Option<Completed> {
        self.receive_by(Inbox::take_completed).await
    }

    /// Appends all available outcomes, waiting for at least one, and returns their count, which is 0 only if the client is
    /// closed. An empty vector is filled without copying. Cancel-safe.
    pub async fn receive_many(&self, out: &mut Vec<Completed>) -> usize {
        let take = |inbox: &mut Inbox| Some(inbox.take_all_completed(out)).filter(|count| *count > 0);
        self.receive_by(take).await.unwrap_or(0)
    }

    async fn receive_by<T>(&self, mut take: impl FnMut(&mut Inbox) -> Option<T>) -> Option<T> {
        loop {
            let arrived = self.owner.notices.arrived.notified();
            {
                let mut state = self.shared().lock();
                if let Some(taken) = take(&mut state.inbox) {
                    state.notify_senders();
                    if state.wants_resume() {
                        self.shared().wake(state);
                    }
                    return Some(taken);
                }
                if state.ended.is_some() {
                    return None;
                }
            }
            arrived.await;
        }
    }

    /// Cancels a request, which ends with [`Status::CANCELLED`]. Returns whether it had no outcome yet.
    pub fn cancel(&self, number: u64) -> bool {
        let mut state = self.shared().lock();
        let cancelled = state.cancel(number);
        self.shared().wake(state);
        cancelled
    }

    /// Waits until a request is durable, or never will be. Without a connection that may take long.
    pub async fn accepted(&self, number: u64) -> Accepted {
        loop {
            let accepted = self.owner.notices.accepted.notified();
            {
                let mut state = self.shared().lock();
                match (state.session.is_accepted(number), state.session.journal()) {
                    (None, _) => return Accepted::Over,
                    (Some(true), _) => return Accepted::Durable,
                    (Some(false), Some(false)) => return Accepted::NoJournal,
                    (Some(false), _) => {}
                }
            }
            accepted.await;
        }
    }

    /// Current state.
    pub fn status(&self) -> ClientStatus {
        let state = self.shared().lock();
        let connected = state.connected();
        ClientStatus {
            outstanding: state.session.outstanding(),
            outstanding_bytes: state.session.outstanding_bytes(),
            counters: state.session.counters(),
            parts_dropped: state.inbox.parts_dropped(),
            numbered: connected.is_some_and(|(_, numbered)| numbered),
            connected: connected.map(|(endpoint, _)| endpoint.clone()),
            failure: state.health.failure().to_owned(),
            refused: state.session.refused().cloned(),
            is_stock: state.health.is_stock(),
            is_not_majordomo: state.health.is_not_majordomo(),
            is_silent: state.health.is_silent(),
            refusal: state.health.refusal(),
            refused_by_all: state.refused_by_all(),
        }
    }

    /// Acknowledges to the broker what it may forget, and closes the connection. Requests without an outcome are given up; the broker
    /// keeps only those of a client with a given id ([`Client::connect_as`]), which may come back for them.
    pub async fn close(&self) {
        let mut state = self.shared().lock();
        state.closing = true;
        self.shared().wake(state);
        self.shared().closed().await;
    }
}

/// Registration of a caller that waits for space.
struct SpaceWaiter<'a>(&'a Client);

impl<'a> SpaceWaiter<'a> {
    fn new(client: &'a Client) -> SpaceWaiter<'a> {
        client.shared().lock().space_waiters += 1;
        SpaceWaiter(client)
    }
}

impl Drop for SpaceWaiter<'_> {
    fn drop(&mut self) {
        self.0.shared().lock().space_waiters -= 1;
    }
}
