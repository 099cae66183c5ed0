//! Accepts connections and answers one request on each, within limits of time, size and number.
//!
//! Connections whose request hasn't arrived don't keep others out: when there are too many, the oldest is closed.

use super::access::{Access, Ends, HEALTH_PATHS};
use super::api::{self, Reply};
use super::args::HttpListener;
use super::history::EventKind;
use super::operator::Operator;
use super::{Shared, leader, lists, page, sampler, supervisor};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use towpath_blocking::CancelToken;
use towpath_sockets::Address;

/// Requests of one listener whose replies are made or written at a time; others wait. Those for health don't count.
const ANSWERS_MAX: usize = 16;

/// Of these, requests that have a thread to wait for the event loop.
const TURNS_MAX: usize = 4;

/// Requests of one listener for health that have such a thread. They don't wait for the others.
const HEALTH_TURNS_MAX: usize = 2;

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

/// Pause after a connection that couldn't be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Headers of every reply. Nothing of it is stored, framed, named to other sites, or of use to them.
const HEADERS: [(HeaderName, &str); 6] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::CONTENT_SECURITY_POLICY, page::SECURITY_POLICY),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Starts the thread that answers, and one that pings the service manager's watchdog if there is one.
pub fn start(shared: &Arc<Shared>, socket: Option<&impl AsFd>, http: Vec<HttpListener>) -> io::Result<()> {
    if let Some(interval) = supervisor::watchdog_interval() {
        let shared = Arc::clone(shared);
        std::thread::Builder::new().name("watchdog".to_owned()).spawn(move || watch(&shared, interval))?;
    }
    let count = usize::from(socket.is_some()) + http.len();
    if count == 0 {
        return Ok(());
    }
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    // And one for `page`.
    let runtime = runtime.enable_all().max_blocking_threads((count + 1) * (TURNS_MAX + HEALTH_TURNS_MAX)).build()?;
    let mut listeners = Vec::with_capacity(count);
    {
        let _guard = runtime.enter();
        if let Some(socket) = socket {
            match listener_of_socket(socket) {
                Ok(listener) => listeners.push((listener, Access::Local)),
                Err(error) => tracing::warn!(%error, "cannot listen for tow status"),
            }
        }
        for HttpListener { listener, access } in http {
            listeners.push((listener_of_http(listener)?, access));
        }
    }
    let shared = Arc::clone(shared);
    let run = async move {
        for (listener, access) in listeners {
            tokio::spawn(serve(listener, access, Arc::clone(&shared)));
        }
        std::future::pending::<()>().await;
    };
    std::thread::Builder::new().name("admin".to_owned()).spawn(move || runtime.block_on(run)).map(drop)
}

/// URL of the page, which is served from now on if it wasn't yet: on a port that the system picks, to programs of this machine that have a token. To be called
/// on a thread of the runtime.
pub fn page(shared: &Arc<Shared>) -> io::Result<String> {
    if let Some(page) = &shared.http.page {
        return Ok(page.clone());
    }
    let mut late = shared.late_page.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(page) = &*late {
        return Ok(page.clone());
    }
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let url = format!("http://{}/", listener.local_addr()?);
    let runtime = tokio::runtime::Handle::current();
    let listener = {
        let _guard = runtime.enter();
        listener_of_http(listener)?
    };
    let access = Access::Token { own: None, tokens: shared.tokens.clone(), names: Vec::new() };
    runtime.spawn(serve(listener, access, Arc::clone(shared)));
    tracing::info!(url, "page for browsers, for tow page");
    Ok(late.insert(url).clone())
}

/// Pings the service manager's watchdog while the event loop answers. Requests don't delay that.
fn watch(shared: &Shared, every: Duration) {
    loop {
        if api::is_alive(shared) {
            supervisor::alive();
        }
        std::thread::sleep(every);
    }
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

fn listener_of_socket(socket: &impl AsFd) -> io::Result<Listener> {
    Ok(Listener::Unix(UnixListener::from_std(socket.as_fd().try_clone_to_owned()?.into())?))
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
    /// Threads for them.
    turns: Arc<Semaphore>,
    /// Threads for requests for health.
    health_turns: Arc<Semaphore>,
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
    let [answers, turns, health_turns] =
        [ANSWERS_MAX, TURNS_MAX, HEALTH_TURNS_MAX].map(|count| Arc::new(Semaphore::new(count)));
    let door = Arc::new(Door { access, shared, answers, turns, health_turns, arriving: Mutex::default() });
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
    /// Waits for its turn to be answered. From then on it isn't closed for others. What is returned is for a thread, until that has ended.
    async fn enter(&self, is_health: bool) -> Option<OwnedSemaphorePermit> {
        let turns = match is_health {
            true => &self.door.health_turns,
            false => {
                let permit = Arc::clone(&self.door.answers).acquire_owned().await.ok();
                *self.permit.lock().unwrap_or_else(PoisonError::into_inner) = permit;
                &self.door.turns
            }
        };
        let turn = Arc::clone(turns).acquire_owned().await.ok();
        self.door.remove(self.number);
        turn
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
    let operator = match visit.door.access.check(&head, &visit.ends) {
        Ok(operator) => operator,
        Err(refused) => {
            tracing::debug!(address = %visit.ends.remote, status = %refused.status, path = head.uri.path(), "refused");
            return refused.into();
        }
    };
    if let (&Method::GET, Some(file)) = (&head.method, page::file(head.uri.path())) {
        return response(StatusCode::OK, file.content_type, Bytes::from_static(file.content));
    }
    let turn = visit.enter(HEALTH_PATHS.contains(&head.uri.path())).await;
    let (shared, address) = (Arc::clone(&visit.door.shared), visit.ends.remote.to_string());
    // It goes on although its client may be gone, and so has its turn until it ends; but a list ends soon then.
    let gone = CancelToken::new();
    let _guard = CancelGuard(gone.clone());
    let asked = tokio::spawn(async move {
        let _turn = turn;
        ask(shared, operator, address, head, body, gone).await
    });
    asked.await.unwrap_or_else(|_| failed()).into()
}

/// Cancels when it is dropped: when the reply is made, or its connection has ended.
struct CancelGuard(CancelToken);

impl Drop for CancelGuard {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Asks the event loop, or, about a cell, the broker that leads it.
async fn ask(
    shared: Arc<Shared>,
    operator: Operator,
    address: String,
    head: Parts,
    body: Bytes,
    gone: CancelToken,
) -> Reply {
    match leader::ask(&shared, &operator, &address, &head, &body).await {
        Some(reply) => reply,
        None => ask_here(shared, operator, address, head, body, gone).await,
    }
}

/// Asks the event loop on a thread. What is done of an action is written down before and after it.
pub async fn ask_here(
    shared: Arc<Shared>,
    operator: Operator,
    address: String,
    head: Parts,
    body: Bytes,
    gone: CancelToken,
) -> Reply {
    let path = head.uri.path();
    let action = match api::is_action(&head.method, path) {
        true => match shared.actions.begin(&operator, &address, path, &body).await {
            Ok(action) => Some(action),
            Err(refused) => return refused,
        },
        false => None,
    };
    let on_thread = {
        let shared = Arc::clone(&shared);
        move || api::reply(&shared, &operator, &head, &body, &gone)
    };
    let reply = tokio::task::spawn_blocking(on_thread).await.unwrap_or_else(|_| failed());
    if let Some(action) = action {
        if let Some(text) = sampler::action_text(&action, &reply) {
            shared.note(EventKind::Action, text, lists::service_of(&action), None);
        }
        shared.actions.end(action, &reply);
    }
    reply
}

fn failed() -> Reply {
    Reply::error(500, "this question fails")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::figures::Snapshot;
    use crate::admin::problems::Found;
    use crate::admin::process::Disk;
    use crate::admin::view::{List, Refusal, View};
    use crate::admin::{HttpPlaces, Running};
    use serde_json::{Value, json};
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpStream};
    use std::os::fd::OwnedFd;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::{Instant, SystemTime};
    use towpath_sockets::{Page, PeerId};

    const DEADLINE: Duration = Duration::from_secs(20);

    /// A server whose metrics take until `go_on`.
    struct Slow {
        asked: Arc<AtomicUsize>,
        go_on: Arc<AtomicBool>,
    }

    impl View for Slow {
        fn sums(&self) -> Result<Value, Refusal> {
            Ok(json!({}))
        }

        fn trouble(&self) -> Result<Option<&'static str>, Refusal> {
            Ok(None)
        }

        fn page(&self, _: List, _: u32) -> Result<Page<Value>, Refusal> {
            Err(Refusal::NoList)
        }

        fn figures(&self, _: &mut Snapshot, _: bool) -> Result<(), Refusal> {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let begin = Instant::now();
            while !self.go_on.load(Ordering::SeqCst) && begin.elapsed() < 2 * DEADLINE {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(Refusal::NoAnswer)
        }

        fn problems(&self) -> Result<Vec<Found>, Refusal> {
            Ok(Vec::new())
        }

        fn disconnect(&self, _: PeerId, _: &str) -> bool {
            false
        }
    }

    fn ask(address: SocketAddr, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
        stream
    }

    #[test]
    fn those_who_ask_and_leave_take_few_threads_and_none_of_health() {
        let (asked, go_on) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let view = Slow { asked: Arc::clone(&asked), go_on: Arc::clone(&go_on) };
        let shared = Arc::new(Shared {
            program: "broker",
            http: HttpPlaces::default(),
            late_page: Mutex::default(),
            actions: crate::admin::Actions::new(None),
            blocks: crate::admin::Blocks::none(),
            tokens: crate::admin::Tokens::new(None),
            tracker: Mutex::default(),
            history: Mutex::new(sampler::history_of("broker")),
            disk: Disk::of(None),
            started: Instant::now(),
            started_at: SystemTime::now(),
            running: OnceLock::from(Running { view: Box::new(view), endpoints: Vec::new() }),
            is_stopping: AtomicBool::new(false),
        });
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let access = Access::Metrics { names: Vec::new() };
        start(&shared, None::<&OwnedFd>, vec![HttpListener { listener, access }]).unwrap();
        let first: Vec<_> = (0..TURNS_MAX).map(|_| ask(address, "/metrics")).collect();
        let begin = Instant::now();
        while asked.load(Ordering::SeqCst) < TURNS_MAX && begin.elapsed() < DEADLINE {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Their questions go on.
        drop(first);
        drop((0..200).map(|_| ask(address, "/metrics")).collect::<Vec<_>>());
        let mut reply = String::new();
        ask(address, "/healthz").read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
        assert_eq!(asked.load(Ordering::SeqCst), TURNS_MAX);
        go_on.store(true, Ordering::SeqCst);
        let mut reply = String::new();
        ask(address, "/metrics").read_to_string(&mut reply).unwrap();
        assert!(reply.starts_with("HTTP/1.1 503 "), "{reply}");
    }
}
