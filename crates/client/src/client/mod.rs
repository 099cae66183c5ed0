//! The client: requests to services, and their outcomes.
//!
//! A [`Client`] holds every request until its outcome is here. A connection that is lost is replaced by one to the next of its
//! endpoints, and everything without an outcome is sent again; a broker of numbered requests executes none of them twice
//! because of that, and no outcome is delivered twice. A stock Majordomo broker has no numbers: it is asked one thing at a
//! time, and may execute again what was under way when a connection was lost.
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
mod deadlines;
mod failover;
mod health;
mod inbox;
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
use inbox::{Inbox, RECEIVER};
use state::{Notices, State};
use std::sync::Arc;
use std::time::Duration;
use towpath_requests::body::Body;
use towpath_requests::limits::{BODY_BYTES_MAX, BODY_FRAMES_MAX, SERVICE_BYTES_MAX};
use towpath_requests::numbered::{ClientId, Status};
use towpath_sockets::{Endpoint, SocketError};

/// How long closing waits for what is still to be sent.
const LINGER: Duration = Duration::from_secs(2);

/// How a client behaves.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Requests without an outcome, and outcomes not yet received, before [`Client::send`] waits.
    pub outstanding_max: usize,
    /// Bytes of memory that requests without an outcome may take; one that is larger is taken alone.
    pub outstanding_bytes_max: usize,
    /// Bytes of outcomes not yet received, before nothing more is read from the connection until half of them are.
    pub received_bytes_max: usize,
    /// The connection.
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

/// How one request is made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// How long it may take; `None`: as the broker has it, without a limit on this side.
    pub ttl: Option<Duration>,
    /// It needn't be journalled: it is lost if the broker and this client both die.
    pub volatile: bool,
}

/// An outcome for [`Client::receive`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    /// The request's number.
    pub number: u64,
    /// How it ended.
    pub status: Status,
    /// The reply, or the reason.
    pub body: Body,
}

/// What became of the wait for a request to be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Accepted {
    /// It is in the broker's journal, and on the disk.
    Durable,
    /// Its outcome is here, so that nothing is left to be lost; or it never was.
    Over,
    /// The broker keeps no journal.
    NoJournal,
}

/// Where a client stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStatus {
    /// Requests without an outcome.
    pub outstanding: usize,
    /// Bytes of memory that they take.
    pub outstanding_bytes: usize,
    /// What has been counted.
    pub counters: Counters,
    /// Parts of replies that nobody had asked for by [`Client::stream`].
    pub parts_dropped: u64,
    /// The endpoint that it is connected to.
    pub connected: Option<Endpoint>,
    /// Whether requests are numbered there.
    pub numbered: bool,
    /// Why there is no connection, why the last one was lost, or that the peer isn't understood; for people. Empty where nothing has
    /// gone wrong.
    pub failure: String,
    /// The last refusal of a broker's, while requests wait to be sent again because of one.
    pub refused: Option<Refused>,
    /// Whether the connection that is there, or was last, is to a stock broker.
    pub is_stock: bool,
    /// Whether what such a broker sent last isn't Majordomo: it may be no broker.
    pub is_misheard: bool,
    /// Whether nothing at all has come from such a broker: it may speak another dialect.
    pub is_unheard: bool,
    /// Whether the broker doesn't let this client in, such as for want of a password.
    pub is_refused: bool,
}

/// Why a request isn't taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// As many requests or bytes are outstanding as may be; the body comes back. Not from methods that wait.
    #[error("as many requests are outstanding as may be")]
    Full(Body),
    /// The service's name.
    #[error("a service's name has 1 to {SERVICE_BYTES_MAX} bytes, and this one {0}")]
    BadService(usize),
    /// The body isn't in memory, and not in a file of this crate either.
    #[error("a body of this kind can't be sent")]
    BadBody,
    /// The body has several frames, which are in memory on their way, and is too large for that, or has too many.
    #[error(
        "a body of several frames has up to {BODY_FRAMES_MAX}, and {BODY_BYTES_MAX} bytes; this one {frames}, and {bytes}"
    )]
    TooLarge {
        /// How many frames it has.
        frames: usize,
        /// Bytes of all of them.
        bytes: u64,
    },
    /// The client is closed.
    #[error("the client is closed: {0}")]
    Closed(String),
}

/// A client of one broker, or of several of which it uses one at a time. Cheap to clone; all clones are the same client. When
/// the last one is dropped, requests without an outcome are given up.
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

impl Client {
    /// A client with a name of its own, driven by a task on the current tokio runtime. It connects to the first endpoint, and to
    /// the next one when that fails, for as long as it lives; requests may be made before it is connected.
    ///
    /// # Errors
    /// Without an endpoint, for options that can't work ([`SocketError::Option`]), outside of a runtime, or if the system has no event
    /// queue for it.
    ///
    /// # Panics
    /// If the runtime does no I/O.
    pub fn connect(endpoints: &[Endpoint], options: ClientOptions) -> Result<Client, SocketError> {
        let mut name = [0; 16];
        rustix::rand::getrandom(&mut name[..], rustix::rand::GetRandomFlags::empty())?;
        Client::start(ClientId(name), false, endpoints, options)
    }

    /// The same with a given name, by which brokers know the client: for one that is to have the outcomes of requests that it made
    /// before it was killed.
    ///
    /// Every client numbers its requests from 1, and a broker goes by name and number alone. To one that knows the name, the first
    /// request is the former first one again, whatever it asks now:
    /// - if that has an outcome that was never received, this is its outcome, and what is asked now is not executed;
    /// - if it is still being executed, its outcome will be;
    /// - if its outcome was received, the number is over: the request is ignored, and without [`CallOptions::ttl`] it waits for ever.
    ///
    /// So a name is given again only to who makes the same requests in the same order, and has received none of their outcomes;
    /// anything else takes a new one, as [`Client::connect`] does. A broker forgets a name of which nothing is left when its connection
    /// ends; other names five minutes later, or a week if they have requests in the journal, unless it is told otherwise.
    ///
    /// Two clients must not have one name at a time: each connection ends the other's, again and again, and either gets the
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

    /// Makes a request, and waits for its outcome. Dropping the future cancels the request. A reply in parts is for
    /// [`Client::stream`]: here it ends with [`Status::PARTS_LOST`](towpath_requests::numbered::Status::PARTS_LOST).
    pub async fn call(&self, service: &str, body: impl Into<Body>) -> Result<Reply, CallError> {
        self.call_with(service, body, CallOptions::default()).await
    }

    /// The same with options.
    pub async fn call_with(
        &self,
        service: &str,
        body: impl Into<Body>,
        options: CallOptions,
    ) -> Result<Reply, CallError> {
        let (number, place) = self.submit_call(service, body.into(), options, false).await?;
        Call::new(self.clone(), number, place).await
    }

    /// Makes a request of which the reply may come in parts. Dropping the stream cancels the request. Parts that aren't taken wait in
    /// memory; beyond [`ClientOptions::received_bytes_max`] nothing more is read for any request of this client, and a broker that
    /// can't get rid of what it has to say ends the connection. So who reads slowly has a client of its own.
    pub async fn stream(
        &self,
        service: &str,
        body: impl Into<Body>,
        options: CallOptions,
    ) -> Result<Stream, SubmitError> {
        let (number, place) = self.submit_call(service, body.into(), options, true).await?;
        Ok(Stream::new(self.clone(), number, place))
    }

    async fn submit_call(
        &self,
        service: &str,
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
        service: &str,
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
            let room = self.owner.notices.room.notified();
            let _wanted = RoomWanted::new(self);
            // Room that came before anybody was known to wait for it wasn't told of.
            if !self.shared().lock().has_room(&body) {
                room.await;
            }
        }
    }

    #[inline]
    fn submit_now(
        &self,
        service: &str,
        body: Body,
        options: CallOptions,
        owner: impl FnOnce(&mut State) -> u32,
    ) -> Result<u64, SubmitError> {
        let mut state = self.shared().lock();
        let number = state.submit(service, body, options, owner)?;
        self.shared().wake(state);
        Ok(number)
    }

    /// Makes a request of which the outcome comes by [`Client::receive`]; gives its number. Waits while too much is outstanding,
    /// so somebody must receive. A number may be cancelled, and waited for by [`Client::accepted`].
    pub async fn send(&self, service: &str, body: impl Into<Body>, options: CallOptions) -> Result<u64, SubmitError> {
        self.submit(service, body.into(), options, |_| RECEIVER).await
    }

    /// The same without waiting: [`SubmitError::Full`] gives the body back.
    #[inline]
    pub fn try_send(&self, service: &str, body: impl Into<Body>, options: CallOptions) -> Result<u64, SubmitError> {
        self.submit_now(service, body.into(), options, |_| RECEIVER)
    }

    /// Many requests like those of [`Client::try_send`] at less cost for each.
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(self)
    }

    /// The next outcome of a request made by [`Client::send`], in the order in which they come; `None`: the client is closed.
    /// Cancel-safe.
    pub async fn receive(&self) -> Option<Completed> {
        self.receive_by(Inbox::take_completed).await
    }

    /// Appends all outcomes that are here, at least one; gives their number, which is 0 only if the client is closed. An empty
    /// vector is filled without copying anything. Cancel-safe.
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
                    state.tell_room();
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

    /// Ends a request from this side, with [`Status::CANCELLED`]. Says whether it had no outcome yet.
    pub fn cancel(&self, number: u64) -> bool {
        let mut state = self.shared().lock();
        let cancelled = state.cancel(number);
        self.shared().wake(state);
        cancelled
    }

    /// Waits until a request is durable, or it is clear that it won't be. Without a connection that may take long.
    pub async fn accepted(&self, number: u64) -> Accepted {
        loop {
            let news = self.owner.notices.accepted.notified();
            {
                let mut state = self.shared().lock();
                match (state.session.is_accepted(number), state.session.journal()) {
                    (None, _) => return Accepted::Over,
                    (Some(true), _) => return Accepted::Durable,
                    (Some(false), Some(false)) => return Accepted::NoJournal,
                    (Some(false), _) => {}
                }
            }
            news.await;
        }
    }

    /// Where it stands.
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
            failure: state.standing.failure().to_owned(),
            refused: state.session.refused().cloned(),
            is_stock: state.standing.is_stock(),
            is_misheard: state.standing.is_misheard(),
            is_unheard: state.standing.is_unheard(),
            is_refused: state.standing.is_refused(),
        }
    }

    /// Tells the broker what it may forget, and closes the connection. Requests without an outcome are given up; the broker keeps
    /// only those of a client with a given name ([`Client::connect_as`]), which may come back for them.
    pub async fn close(&self) {
        let mut state = self.shared().lock();
        state.closing = true;
        self.shared().wake(state);
        self.shared().closed().await;
    }
}

/// Somebody waits for room.
struct RoomWanted<'a>(&'a Client);

impl<'a> RoomWanted<'a> {
    fn new(client: &'a Client) -> RoomWanted<'a> {
        client.shared().lock().room_wanted += 1;
        RoomWanted(client)
    }
}

impl Drop for RoomWanted<'_> {
    fn drop(&mut self) {
        self.0.shared().lock().room_wanted -= 1;
    }
}
