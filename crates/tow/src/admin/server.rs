//! Accepts connections and answers one request on each, within limits of time, size and number.

use super::api::{self, Reply};
use super::{Shared, supervisor};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::{interval, sleep, timeout};

/// Connections at a time; others wait to be accepted.
const CONNECTIONS_MAX: usize = 16;

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

/// Starts the thread. Without a listener it only serves the service manager, if there is one.
pub fn start(shared: &Arc<Shared>, listener: Option<&impl AsFd>) -> io::Result<()> {
    let watchdog = supervisor::watchdog_interval();
    if listener.is_none() && watchdog.is_none() {
        return Ok(());
    }
    let listener = listener.map(|listener| listener.as_fd().try_clone_to_owned()).transpose()?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(WAITING_THREADS_MAX).build()?;
    let shared = Arc::clone(shared);
    let run = async move {
        if let Some(interval) = watchdog {
            tokio::spawn(watch(Arc::clone(&shared), interval));
        }
        match listener.map(|listener| UnixListener::from_std(listener.into())) {
            Some(Ok(listener)) => serve(listener, shared).await,
            Some(Err(error)) => tracing::warn!(%error, "cannot listen for tow status"),
            None => {}
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

async fn serve(listener: UnixListener, shared: Arc<Shared>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    let _permit = permit;
                    let _ = timeout(CONNECTION_TIMEOUT, connection(stream, shared)).await;
                });
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection for tow status");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: UnixStream, shared: Arc<Shared>) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES_MAX).keep_alive(false);
    let service = service_fn(|request| answer(request, Arc::clone(&shared)));
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection for tow status");
    }
}

async fn answer(request: Request<Incoming>, shared: Arc<Shared>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let too_long = || Reply::error(413, format_args!("the body has over {BODY_BYTES_MAX} bytes, or is incomplete"));
    let reply = if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        too_long()
    } else if let Ok(body) = Limited::new(body, BODY_BYTES_MAX).collect().await {
        let body = body.to_bytes();
        // It waits for the event loop.
        let asked = tokio::task::spawn_blocking(move || api::reply(&shared, &head.method, &head.uri, &body));
        asked.await.unwrap_or_else(|_| Reply::error(500, "this question fails"))
    } else {
        too_long()
    };
    let mut response = Response::new(Full::new(Bytes::from(reply.body)));
    *response.status_mut() = reply.status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(reply.content_type));
    Ok(response)
}
