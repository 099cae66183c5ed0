//! `tow call`: one request and its reply, or a load of them.

use crate::cli::body_io::{Unread, read_body, write_body};
use crate::cli::connect_args::BrokerArgs;
use crate::cli::escape::Shown;
use crate::cli::exit::Failure;
use crate::cli::output::{no_output, say};
use crate::cli::units::{body_size, clients, duration, positive, rate};
use crate::commands::call_load::Load;
use crate::runtime::rlimits::own_usage;
use serde_json::json;
use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use towpath_client::client::{CallOptions, Client, ClientOptions, StreamItem, SubmitError};
use towpath_requests::Body;
use towpath_requests::is_built_in;
use towpath_requests::limits::SERVICE_BYTES_MAX;

/// How long a request may take unless `--timeout` says.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Error of an interrupted call.
const INTERRUPTED: &str = "interrupted";

/// When to say what a call is waiting for.
const WAIT_SHOWN_AFTER: Duration = Duration::from_secs(2);

/// Arguments of `tow call`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Service to call.
    service: String,
    /// Request; words are joined by spaces [default: standard input]
    body: Vec<OsString>,
    /// Send each word as a frame of its own, as titanic.request needs them.
    #[arg(long, requires = "body")]
    frames: bool,
    /// How long a request may take [default: 60s; in a load test the broker's]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    /// Don't ask the broker to journal the request.
    #[arg(long)]
    volatile: bool,
    /// Print one JSON object: to stderr, in a load test to stdout.
    #[arg(long)]
    json: bool,
    /// Show no progress bar.
    #[arg(long, short)]
    quiet: bool,
    #[command(flatten)]
    brokers: BrokerArgs,
    #[command(flatten)]
    load: LoadArgs,
}

/// Options of a load test.
#[derive(clap::Args)]
#[command(next_help_heading = "Load test")]
struct LoadArgs {
    /// Send N requests to an echo service, check all replies, report latency.
    #[arg(long, value_name = "N", value_parser = positive::<u64>)]
    count: Option<u64>,
    /// Requests in flight per client.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "count", value_parser = positive::<usize>)]
    ahead: usize,
    /// Size of a body, from 1 to 64M; it must hold --ahead distinct numbers.
    #[arg(long, value_name = "SIZE", default_value = "32", requires = "count", value_parser = body_size)]
    size: usize,
    /// Requests per second [default: as many as possible]
    #[arg(long, value_name = "N", requires = "count", value_parser = rate)]
    rate: Option<f64>,
    /// Clients, each with a connection of its own.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "count", value_parser = clients)]
    clients: usize,
}

/// Told by the first signal to end; the second one ends at once.
pub fn interrupted() -> Result<Arc<Notify>, Failure> {
    let notify = Arc::new(Notify::new());
    let told = Arc::clone(&notify);
    let before = std::sync::atomic::AtomicBool::new(false);
    crate::runtime::signals::on_end(move || {
        if before.swap(true, std::sync::atomic::Ordering::Relaxed) {
            std::process::exit(1);
        }
        told.notify_one();
    })?;
    Ok(notify)
}

/// Calls.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    if let Some(count) = arguments.load.count {
        if !arguments.body.is_empty() {
            return Err(Failure::usage("a load makes its own bodies"));
        }
        if !(1..=SERVICE_BYTES_MAX).contains(&arguments.service.len()) {
            return Err(Failure::usage(SubmitError::BadService(arguments.service.len())));
        }
        let load = Load {
            service: arguments.service,
            endpoints: arguments.brokers.endpoints.clone(),
            link: arguments.brokers.link()?,
            options: CallOptions { ttl: arguments.timeout, volatile: arguments.volatile },
            count,
            ahead: arguments.load.ahead,
            size: arguments.load.size,
            rate: arguments.load.rate,
            clients: arguments.load.clients,
        };
        load.check()?;
        return runtime.block_on(load.run(arguments.json, arguments.quiet));
    }
    let outcome = runtime.block_on(one(arguments));
    // Who was interrupted doesn't wait for standard input or output, which may hang for ever.
    runtime.shutdown_background();
    outcome
}

/// Makes one request.
async fn one(arguments: Arguments) -> Result<ExitCode, Failure> {
    let interrupted = interrupted()?;
    let mut link = arguments.brokers.link()?;
    let read = request_body(arguments.body, arguments.frames, link.spool_folder.clone());
    let body = tokio::select! {
        body = read => body,
        () = interrupted.notified() => Err(Failure::failed(INTERRUPTED)),
    };
    let body = match body {
        Ok(body) => body,
        Err(failure) => {
            if arguments.json {
                say(summary(Err(&failure), 0, Duration::ZERO));
            }
            return Err(failure);
        }
    };
    let ttl = arguments.timeout.unwrap_or(TIMEOUT);
    if arguments.brokers.endpoints.len() > 1 {
        // Where the first one hangs, there is still time to ask the second.
        link.connect_timeout = link.connect_timeout.min(ttl / 2);
    }
    let ttl = Some(ttl);
    let options = CallOptions { ttl, volatile: arguments.volatile };
    let options_of_client = ClientOptions { link, ..ClientOptions::default() };
    let client = Client::connect(&arguments.brokers.endpoints, options_of_client).map_err(Failure::failed)?;
    let started = Instant::now();
    let outcome = tokio::select! {
        outcome = call(&client, &arguments.service, body, options) => outcome,
        () = interrupted.notified() => Err(Failure::failed(INTERRUPTED)),
        never = say_what_is_waited_for(&client) => match never {},
    };
    let status = client.status();
    if arguments.json {
        say(summary(outcome.as_ref().copied(), status.counters.resent, started.elapsed()));
    }
    // The broker may forget the reply now.
    client.close().await;
    match outcome {
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(Failure::Failed(failure)) if status.is_not_majordomo => {
            Err(Failure::failed(format!("{failure} ({})", status.failure)))
        }
        Err(Failure::Failed(failure)) if status.is_silent => {
            Err(Failure::failed(format!("{failure} ({})", arguments.brokers.dialect_hint())))
        }
        Err(Failure::Failed(failure)) if status.connected.is_none() => {
            let hint = if status.is_refused { format!("; {}", arguments.brokers.login_hint()) } else { String::new() };
            Err(Failure::failed(format!("{failure} (no connection: {}{hint})", status.failure)))
        }
        Err(failure) => Err(failure),
    }
}

/// What `--json` prints.
fn summary(outcome: Result<u64, &Failure>, resent: u64, taken: Duration) -> serde_json::Value {
    json!({
        "replies": u64::from(outcome.is_ok()),
        "reply_bytes": outcome.unwrap_or(0),
        "resent": resent,
        "seconds": taken.as_secs_f64(),
        "peak_memory_bytes": own_usage().peak_memory_bytes,
        "error": outcome.err().map(ToString::to_string),
    })
}

/// The request: the words, or else standard input.
async fn request_body(words: Vec<OsString>, as_frames: bool, spool_folder: PathBuf) -> Result<Body, Failure> {
    if !words.is_empty() {
        let words: Vec<Vec<u8>> = words.into_iter().map(OsString::into_vec).collect();
        return Ok(if as_frames {
            Body::of_frames(words.into_iter().map(Into::into))
        } else {
            Body::from(words.join(&b' '))
        });
    }
    let body = aside(move || read_body(std::io::stdin().lock(), spool_folder)).await?;
    body.map_err(|error| match error {
        Unread::Stream(error) => Failure::failed(format!("standard input: {error}")),
        Unread::NoPlace(error) => Failure::failed(error),
    })
}

/// Does what may wait for somebody else on a thread of its own: the connection has this one.
async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(Failure::failed)
}

/// Writes a reply, or a part of one, to standard output.
async fn to_output(body: Body) -> Result<(), Failure> {
    aside(move || write_body(&body, std::io::stdout().lock())).await?.map_err(no_output)
}

/// Says once each, if it is so after a moment, that there is no broker to talk to, and that the broker refuses requests for a while: they
/// go on waiting. Never ends.
pub async fn say_what_is_waited_for(client: &Client) -> Infallible {
    tokio::time::sleep(WAIT_SHOWN_AFTER).await;
    let status = client.status();
    if status.connected.is_none() {
        say(format_args!("tow: no connection to a broker, still trying: {}", Shown(&status.failure)));
    }
    loop {
        if let Some(refused) = client.status().refused {
            say(format_args!(
                "tow: the broker refuses requests for now, still trying: {}",
                Shown(&refused.to_string())
            ));
            return std::future::pending().await;
        }
        tokio::time::sleep(WAIT_SHOWN_AFTER).await;
    }
}

/// Takes the code off a reply of the broker's own services, if it is the code of success and more follows.
fn without_code(body: &Body) -> Result<Option<Body>, Failure> {
    let frames = body.to_frames().unwrap_or_default();
    match frames.split_first() {
        Some((code, [])) if code == "200" => Ok(None),
        Some((code, more)) if code == "200" => Ok(Some(Body::of_frames(more.iter().cloned()))),
        _ => {
            let said: Vec<_> = frames.iter().map(|frame| String::from_utf8_lossy(frame)).collect();
            Err(Failure::failed(said.join(" ")))
        }
    }
}

/// The failure that a reply of a stock broker is, if it is one: Majordomo has no failures, and so our broker tells of them by a reply of
/// two frames, a status and a reason.
fn failure_of_stock(body: &Body) -> Option<Failure> {
    let mut frames = body.frames()?;
    let (Some(status), Some(reason), None) = (frames.next(), frames.next(), frames.next()) else { return None };
    let is_failure = matches!(status, [b'4' | b'5', b'0'..=b'9', b'0'..=b'9']);
    is_failure
        .then(|| Failure::failed(format!("{}: {}", String::from_utf8_lossy(status), String::from_utf8_lossy(reason))))
}

/// One request, of which the reply is written to standard output as it comes; gives its bytes.
async fn call(client: &Client, service: &str, body: Body, options: CallOptions) -> Result<u64, Failure> {
    let mut stream = client.stream(service, body, options).await.map_err(Failure::usage)?;
    let (mut parts, mut bytes) = (0, 0);
    while let Some(item) = stream.next().await {
        match item.map_err(Failure::failed)? {
            StreamItem::Part { number, body } => {
                if number != parts {
                    return Err(Failure::failed(
                        "the request was executed again after part of its reply had been written: what was written is void",
                    ));
                }
                parts += 1;
                bytes += body.length();
                to_output(body).await?;
            }
            StreamItem::Final(reply) if is_built_in(service.as_bytes()) => {
                bytes += reply.body.length();
                if let Some(body) = without_code(&reply.body)? {
                    to_output(body).await?;
                }
                // Of Majordomo's it is a line of text; of Titanic's what a worker replied.
                if service.starts_with("mmi.") && reply.body.frames().is_some_and(|frames| frames.len() > 1) {
                    to_output(Body::copied(b"\n")).await?;
                }
            }
            StreamItem::Final(reply) => {
                if let Some(failure) = failure_of_stock(&reply.body).filter(|_| client.status().is_stock) {
                    return Err(failure);
                }
                bytes += reply.body.length();
                to_output(reply.body).await?;
            }
        }
    }
    Ok(bytes)
}
