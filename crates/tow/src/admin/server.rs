//! Accepts connections and answers one request on each, within limits of time, size and number.
//!
//! Connections whose request hasn't arrived don't keep others out: when there are too many, the oldest is closed.

use super::access::{Access, Ends, HEALTH_PATHS};
use super::api::{self, Reply};
use super::args::HttpListener;
use super::{Shared, page, supervisor};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{interval, sleep, timeout};
use towpath_sockets::Address;

/// Requests of one listener that are answered at a time; others wait. Those for health don't count.
const ANSWERS_MAX: usize = 16;

/// Connections of one listener whose request isn't being answered yet.
const ARRIVING_MAX: usize = 32;

/// Longest time of a connection, from its beginning to its end.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest time for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of the head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Bytes of the body of a request.
const BODY_BYTES_MAX: usize = 16 << 10;

/// Threads that wait for the event loop.
const WAITING_THREADS_MAX: usize = 4;

/// Pause after a connection that couldn't be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Headers of every reply. Nothing of it is stored, framed, or named to other sites.
const HEADERS: [(HeaderName, &str); 4] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::CONTENT_SECURITY_POLICY, page::SECURITY_POLICY),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
];

/// Starts the thread. Without listeners it only serves the service manager, if there is one.
pub fn start(shared: &Arc<Shared>, socket: Option<&impl AsFd>, http: Vec<HttpListener>) -> io::Result<()> {
    let watchdog = supervisor::watchdog_interval();
    if socket.is_none() && http.is_empty() && watchdog.is_none() {
        return Ok(());
    }
    let socket = socket.map(|socket| socket.as_fd().try_clone_to_owned()).transpose()?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(WAITING_THREADS_MAX).build()?;
    let shared = Arc::clone(shared);
    let run = async move {
        if let Some(interval) = watchdog {
            tokio::spawn(watch(Arc::clone(&shared), interval));
        }
        let socket = socket.map(|socket| (listener_of_socket(socket.into()), Access::Local));
        let http = http.into_iter().map(|http| (listener_of_http(http.listener), http.access));
        for (listener, access) in socket.into_iter().chain(http) {
            match listener {
                Ok(listener) => drop(tokio::spawn(serve(listener, access, Arc::clone(&shared)))),
                Err(error) => tracing::warn!(%error, "cannot listen for tow status"),
            }
        }
        std::future::pending::<()>().await;
    };
    std::thread::Builder::new().name("admin".to_owned()).spawn(move || runtime.block_on(run)).map(drop)
}

/// Tells the service manager that the event loop runs, as long as it answers.
async fn watch(shared: Arc<Shared>, every: Duration) {
    let mut ticks = interval(every);
    loop {
        ticks.tick().await;
        let shared = Arc::clone(&shared);
        if let Ok(true) = tokio::task::spawn_blocking(move || api::is_alive(&shared)).await {
            supervisor::alive();
        }
    }
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

fn listener_of_socket(listener: std::os::unix::net::UnixListener) -> io::Result<Listener> {
    Ok(Listener::Unix(UnixListener::from_std(listener)?))
}

fn listener_of_http(listener: std::net::TcpListener) -> io::Result<Listener> {
    listener.set_nonblocking(true)?;
    Ok(Listener::Tcp(TcpListener::from_std(listener)?))
}

/// A connection.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Listener {
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Ends)> {
        match self {
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = stream.peer_cred().ok();
                let (pid, uid) = (peer.as_ref().and_then(|peer| peer.pid()), peer.map(|peer| peer.uid()));
                Ok((Box::new(stream), Ends { remote: Address::Ipc { pid, uid }, local: None }))
            }
            Listener::Tcp(listener) => {
                let (stream, remote) = listener.accept().await?;
                // Only slower without.
                let _ = stream.set_nodelay(true);
                let local = stream.local_addr().ok();
                Ok((Box::new(stream), Ends { remote: Address::Tcp(remote), local }))
            }
        }
    }
}

/// A listener's connections.
struct Door {
    access: Access,
    shared: Arc<Shared>,
    answers: Arc<Semaphore>,
    /// Connections whose request isn't being answered yet, the oldest first.
    arriving: Mutex<BTreeMap<u64, AbortHandle>>,
}

impl Door {
    /// Adds a connection, and closes the oldest one if there are too many.
    fn add(&self, number: u64, task: AbortHandle) {
        let mut arriving = self.arriving.lock().unwrap_or_else(PoisonError::into_inner);
        arriving.insert(number, task);
        if arriving.len() > ARRIVING_MAX
            && let Some((_, oldest)) = arriving.pop_first()
        {
            oldest.abort();
        }
    }

    fn remove(&self, number: u64) {
        self.arriving.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }
}

async fn serve(listener: Listener, access: Access, shared: Arc<Shared>) {
    let (answers, arriving) = (Arc::new(Semaphore::new(ANSWERS_MAX)), Mutex::default());
    let door = Arc::new(Door { access, shared, answers, arriving });
    for number in 0.. {
        match listener.accept().await {
            Ok((stream, ends)) => {
                let visit = Visit { door: Arc::clone(&door), number, ends, permit: Mutex::default() };
                // The task begins when this one waits.
                let task = tokio::spawn(async move {
                    let _ = timeout(CONNECTION_TIMEOUT, connection(stream, &visit)).await;
                    visit.door.remove(number);
                });
                door.add(number, task.abort_handle());
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection for tow status");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A connection.
struct Visit {
    door: Arc<Door>,
    number: u64,
    ends: Ends,
    /// Held until the reply is written.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Visit {
    /// Waits for its turn to be answered. From then on it isn't closed for others.
    async fn enter(&self) {
        if let Ok(permit) = Arc::clone(&self.door.answers).acquire_owned().await {
            *self.permit.lock().unwrap_or_else(PoisonError::into_inner) = Some(permit);
        }
        self.door.remove(self.number);
    }
}

async fn connection(stream: Box<dyn Stream>, visit: &Visit) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES_MAX).keep_alive(false);
    let service = service_fn(|request| async { Ok::<_, Infallible>(answer(request, visit).await) });
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection for tow status");
    }
}

async fn answer(request: Request<Incoming>, visit: &Visit) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let too_long = || Reply::error(413, format_args!("the body has over {BODY_BYTES_MAX} bytes, or is incomplete"));
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return too_long().into();
    }
    // Before anything is refused: what is left unread would break the connection, and lose the reply.
    let Ok(body) = Limited::new(body, BODY_BYTES_MAX).collect().await else { return too_long().into() };
    let body = body.to_bytes();
    if let Err(refused) = visit.door.access.check(&head, &visit.ends) {
        tracing::debug!(address = %visit.ends.remote, status = %refused.status, path = head.uri.path(), "refused");
        return refused.into();
    }
    if let (&Method::GET, Some(file)) = (&head.method, page::file(head.uri.path())) {
        return response(StatusCode::OK, file.content_type, Bytes::from_static(file.content));
    }
    if !HEALTH_PATHS.contains(&head.uri.path()) {
        visit.enter().await;
    }
    let shared = Arc::clone(&visit.door.shared);
    let action = if api::is_action(&head.method, head.uri.path()) {
        match shared.actions.begin(&visit.ends.remote, head.uri.path(), &body).await {
            Ok(action) => Some(action),
            Err(refused) => return refused.into(),
        }
    } else {
        None
    };
    // It waits for the event loop. An action goes on although its client may be gone.
    let asked = tokio::task::spawn_blocking(move || {
        let reply = api::reply(&shared, &head.method, &head.uri, &body);
        action.into_iter().for_each(|action| shared.actions.end(action, &reply));
        reply
    });
    asked.await.unwrap_or_else(|_| Reply::error(500, "this question fails")).into()
}

impl From<Reply> for Response<Full<Bytes>> {
    fn from(Reply { status, content_type, body }: Reply) -> Self {
        response(status, content_type, body.into())
    }
}

fn response(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}
