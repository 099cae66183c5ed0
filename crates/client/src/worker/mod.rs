//! The worker: takes requests for one service, and replies.
//!
//! A [`Worker`] is connected to all its brokers at the same time, so that clients find it at any of them. Each broker may
//! give it as many requests at a time as its credit. A reply that is ready while the connection is lost is sent on the next
//! one.
//!
//! ```no_run
//! use towpath_client::worker::{Worker, WorkerOptions};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let worker = Worker::connect(&["tcp://127.0.0.1:5555".parse()?], "echo", WorkerOptions::default())?;
//! worker.run(|request| async move { Ok(request.body().clone()) }).await;
//! # Ok(())
//! # }
//! ```

mod connection;
mod request;
pub(crate) mod session;
#[cfg(test)]
mod tests;

pub use crate::connection::{Dialect, LinkOptions};
pub use request::{NotWanted, Request, WorkError};
pub use session::WorkerCounters;

use crate::connection::driver::Shared;
use connection::{BrokerConnection, Handler};
use session::Session;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use towpath_requests::body::Body;
use towpath_requests::is_built_in;
use towpath_requests::limits::SERVICE_BYTES_MAX;
use towpath_requests::numbered::IDS_PROPERTY;
pub use towpath_requests::numbered::RequestId;
use towpath_sockets::{Endpoint, SocketError};

/// Reason of a request whose handler panicked.
const PANICKED: &str = "the worker panicked";

/// How long closing waits for queued messages.
const LINGER: Duration = Duration::from_secs(2);

/// Options of a worker.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// Requests that each broker may give it at a time. A stock broker gives one.
    pub credit: u32,
    /// Options of the connections.
    pub link: LinkOptions,
}

impl Default for WorkerOptions {
    fn default() -> WorkerOptions {
        WorkerOptions { credit: 1, link: LinkOptions::default() }
    }
}

/// Why a worker can't be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The service name is empty or too long.
    #[error("a service's name has 1 to {SERVICE_BYTES_MAX} bytes, and this one {0}")]
    BadService(usize),
    /// A built-in service. Brokers answer these themselves, and disconnect a worker for one.
    #[error("{0}: names that begin with mmi. or titanic. are the broker's own services")]
    BuiltIn(String),
    /// Error of the system.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// State of a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStatus {
    /// Connected endpoints.
    pub connected: Vec<Endpoint>,
    /// Endpoints without a connection, and why. For people.
    pub failures: Vec<(Endpoint, String)>,
    /// Whether a valid message has come from a broker.
    pub has_received: bool,
    /// Counters over all connections.
    pub counters: WorkerCounters,
}

/// Requests that haven't been taken yet.
#[derive(Debug)]
struct Inbox {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Debug)]
struct Waiting {
    requests: VecDeque<Request>,
    links: usize,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, requests: Vec<Request>) {
        self.lock().requests.extend(requests);
        self.arrived.notify_waiters();
    }

    fn link_ended(&self) {
        let links = {
            let mut waiting = self.lock();
            waiting.links -= 1;
            waiting.links
        };
        if links == 0 {
            self.abandon();
        }
        self.arrived.notify_waiters();
    }

    /// Drops all requests: the broker gives them to other workers when the connection closes. Breaks the cycle of
    /// references between requests and connections.
    fn abandon(&self) {
        let requests = std::mem::take(&mut self.lock().requests);
        requests.into_iter().for_each(Request::abandon);
    }
}

/// A worker for one service. Dropping it ends its connections at once, and its requests go to other workers.
pub struct Worker {
    links: Vec<Arc<Shared<BrokerConnection>>>,
    inbox: Arc<Inbox>,
    credit: usize,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Worker").field(&self.status()).finish()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.links.iter().for_each(|link| link.hang_up());
        self.inbox.abandon();
    }
}

impl Worker {
    /// Makes a worker, driven by a task for each endpoint on the current tokio runtime. Lost connections are
    /// re-established.
    /// # Errors
    /// Without an endpoint, for a service that can't be or options that can't work, outside of a runtime, or if the system has no event
    /// queue for it.
    ///
    /// # Panics
    /// If the runtime does no I/O.
    pub fn connect(
        endpoints: &[Endpoint],
        service: impl AsRef<[u8]>,
        options: WorkerOptions,
    ) -> Result<Worker, WorkerError> {
        Worker::start(endpoints, service.as_ref(), options, None)
    }

    /// Makes a worker whose replies are computed in the tasks that drive the connections: for work that is cheaper than
    /// handing it to another task. [`Worker::next`] returns nothing.
    ///
    /// `reply` is called under the lock of its connection. It must not call methods of this worker nor drop it, which would
    /// deadlock. Nothing else happens on the connection meanwhile, and a broker that receives nothing for 10 s (unless its
    /// heartbeat options differ) gives the worker up and executes the request again. Use [`Worker::run`] for long
    /// computations, waiting, or bodies in files.
    pub fn at_once(
        endpoints: &[Endpoint],
        service: impl AsRef<[u8]>,
        options: WorkerOptions,
        reply: impl Fn(Body) -> Body + Send + Sync + 'static,
    ) -> Result<Worker, WorkerError> {
        let reply = move |body| {
            // A panic ends one request, not the connection.
            catch_unwind(AssertUnwindSafe(|| reply(body))).map_err(|_| PANICKED.to_owned())
        };
        Worker::start(endpoints, service.as_ref(), options, Some(Arc::new(reply)))
    }

    fn start(
        endpoints: &[Endpoint],
        service: &[u8],
        options: WorkerOptions,
        handler: Option<Handler>,
    ) -> Result<Worker, WorkerError> {
        if service.is_empty() || service.len() > SERVICE_BYTES_MAX {
            return Err(WorkerError::BadService(service.len()));
        }
        if is_built_in(service) {
            return Err(WorkerError::BuiltIn(service.escape_ascii().to_string()));
        }
        if endpoints.is_empty() {
            return Err(SocketError::NoEndpoint.into());
        }
        let mut hub_options = options.link.hub_options()?;
        if handler.is_none() && options.link.dialect == Dialect::Auto {
            hub_options.metadata = hub_options.metadata.with(IDS_PROPERTY, &b"1"[..]);
        }
        let waiting = Waiting { requests: VecDeque::new(), links: endpoints.len() };
        let inbox = Arc::new(Inbox { waiting: Mutex::new(waiting), arrived: Notify::new() });
        let mut worker = Worker { links: Vec::new(), inbox, credit: options.credit.max(1) as usize };
        for endpoint in endpoints {
            let state = BrokerConnection::new(
                endpoint.clone(),
                Session::new(service, options.credit),
                options.link.clone(),
                handler.clone(),
                Arc::clone(&worker.inbox),
            );
            let link = Shared::start(hub_options.clone(), state, LINGER, |hub| hub.connect(endpoint))?;
            worker.links.push(link);
        }
        Ok(worker)
    }

    /// The next request. `None` when the worker has left and holds nothing. Cancel-safe.
    pub async fn next(&self) -> Option<Request> {
        loop {
            let arrived = self.inbox.arrived.notified();
            loop {
                let mut waiting = self.inbox.lock();
                match waiting.requests.pop_front() {
                    // Dropped without the lock, since dropping looks at its connection.
                    Some(request) if request.is_cancelled() => drop(waiting),
                    Some(request) => return Some(request),
                    None if waiting.links == 0 => return None,
                    None => break,
                }
            }
            arrived.await;
        }
    }

    /// Works on as many requests at a time as the credit, each in a task, until the worker has left. Cancelling a request
    /// drops its future.
    ///
    /// The tasks share the runtime with the connections. A future that blocks its thread holds up everything else there; on
    /// a single-threaded runtime that is everything, and after 10 s of silence the broker takes the worker for dead and has
    /// the request executed again (see [`Request::attempt`]). Use `tokio::task::spawn_blocking` for blocking work.
    pub async fn run<F, W>(&self, work: F)
    where
        F: Fn(Request) -> W,
        W: Future<Output = Result<Body, String>> + Send + 'static,
    {
        let work = |request| {
            let outcome = work(request);
            async move { outcome.await.map_err(WorkError::Failed) }
        };
        self.run_with_retries(work).await;
    }

    /// The same for work that may ask for another attempt, here or at another worker.
    pub async fn run_with_retries<F, W>(&self, work: F)
    where
        F: Fn(Request) -> W,
        W: Future<Output = Result<Body, WorkError>> + Send + 'static,
    {
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                request = self.next(), if tasks.len() < self.credit => {
                    let Some(request) = request else { break };
                    let (request, answer) = request.split();
                    let Ok(work) = catch_unwind(AssertUnwindSafe(|| work(request))) else {
                        let _ = answer.end(Err(WorkError::Failed(PANICKED.to_owned())));
                        continue;
                    };
                    tasks.spawn(async move {
                        let cancellation = Arc::clone(answer.cancellation());
                        tokio::select! {
                            outcome = work => {
                                // It no longer matters whether the reply is wanted.
                                let _ = answer.end(outcome);
                            }
                            () = cancellation.cancelled() => {}
                        }
                    });
                }
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "the work on a request panicked");
                    }
                }
            }
        }
        while tasks.join_next().await.is_some() {}
        self.closed().await;
    }

    /// Takes no more requests. Held requests are finished, and the connections close after the last reply: then
    /// [`Worker::run`] returns, and [`Worker::next`] returns `None`.
    pub fn leave(&self) {
        for link in &self.links {
            let mut state = link.lock();
            state.leave();
            link.wake(state);
        }
    }

    /// Waits until the worker has left and its connections are closed.
    pub async fn closed(&self) {
        for link in &self.links {
            link.closed().await;
        }
    }

    /// Current state.
    pub fn status(&self) -> WorkerStatus {
        let counters = WorkerCounters::default();
        let mut status = WorkerStatus { connected: Vec::new(), failures: Vec::new(), has_received: false, counters };
        for link in &self.links {
            let state = link.lock();
            status.has_received |= state.has_received();
            let WorkerCounters { requests, cancelled, orphaned } = state.session().counters();
            status.counters.requests += requests;
            status.counters.cancelled += cancelled;
            status.counters.orphaned += orphaned;
            match state.health() {
                (endpoint, Ok(())) => status.connected.push(endpoint.clone()),
                (endpoint, Err(why)) => status.failures.push((endpoint.clone(), why.to_owned())),
            }
        }
        status
    }
}
