//! `tow call`: one request and its reply, or a load test.

use crate::cli::body_io::write_body;
use crate::cli::connect_args::BrokerArgs;
use crate::cli::escape::Json;
use crate::cli::exit::{Failure, Status};
use crate::cli::output::{eprint_line, stdout_failure};
use crate::cli::service_name::{NameArgs, ServiceName};
use crate::cli::units::{body_size, clients, duration, positive, rate, size};
use crate::commands::call_body::request_body;
use crate::commands::call_dialect;
use crate::commands::call_load::Load;
use crate::commands::call_waiting;
use crate::runtime::rlimits::own_usage;
use serde_json::json;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use towpath_client::client::{CallError, CallOptions, Client, ClientOptions, StreamItem, SubmitError};
use towpath_requests::Body;
use towpath_requests::is_built_in;
use towpath_requests::limits::SERVICE_BYTES_MAX;
use towpath_requests::numbered::Status as Outcome;
use towpath_sockets::Refusal;

/// How long a request may take unless `--timeout` says.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Arguments of `tow call`.
#[derive(clap::Args)]
pub struct Arguments {
    /// Service to call.
    service: OsString,
    #[command(flatten)]
    name: NameArgs,
    /// Request: words joined by spaces, @FILE for a file's content, or @- for standard input (the default)
    body: Vec<OsString>,
    /// Send each word as its own frame, as titanic.request needs.
    #[arg(long, requires = "body")]
    frames: bool,
    /// How long the request may take [default: 60s; in a load test the broker's limit]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    /// Fail immediately if the service has no worker.
    #[arg(long, conflicts_with = "count")]
    no_wait: bool,
    /// Largest reply, with all its parts.
    #[arg(long, value_name = "SIZE", default_value = "16G", value_parser = size)]
    max_reply: u64,
    /// Don't have the broker journal the request.
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
    /// Send N requests to an echo service, check every reply, report latency.
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
    /// Clients, each with its own connection.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "count", value_parser = clients)]
    clients: usize,
}

/// Notified by the first signal. The second one ends the process.
pub fn notify_on_signal() -> Result<Arc<Notify>, Failure> {
    let notify = Arc::new(Notify::new());
    let notified = Arc::clone(&notify);
    let is_interrupted = std::sync::atomic::AtomicBool::new(false);
    crate::runtime::signals::on_stop_signal(move || {
        if is_interrupted.swap(true, std::sync::atomic::Ordering::Relaxed) {
            crate::runtime::signals::end_by_signal();
        }
        notified.notify_one();
    })?;
    Ok(notify)
}

/// Makes one request or runs a load test.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let service = arguments.name.name(&arguments.service)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
    if let Some(count) = arguments.load.count {
        if !arguments.body.is_empty() {
            return Err(Failure::usage("--count makes its own bodies; leave the request out"));
        }
        let length = service.as_ref().len();
        if !(1..=SERVICE_BYTES_MAX).contains(&length) {
            return Err(Failure::usage(SubmitError::BadService(length)));
        }
        let load = Load {
            service,
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
    let outcome = runtime.block_on(one(arguments, &service));
    // Don't wait for standard input or output, which may block for ever.
    runtime.shutdown_background();
    outcome
}

/// Makes one request.
async fn one(arguments: Arguments, service: &ServiceName) -> Result<ExitCode, Failure> {
    let interrupted = notify_on_signal()?;
    let mut link = arguments.brokers.link()?;
    link.max_body_bytes = arguments.max_reply;
    let read = request_body(arguments.body, arguments.frames, link.spool_folder.clone());
    let body = tokio::select! {
        body = read => body,
        () = interrupted.notified() => Err(Failure::interrupted()),
    };
    let body = match body {
        Ok(body) => body,
        Err(failure) => {
            if arguments.json {
                eprint_line(Json(summary(Err(&failure), 0, Duration::ZERO)));
            }
            return Err(failure);
        }
    };
    let ttl = arguments.timeout.unwrap_or(TIMEOUT);
    if arguments.brokers.endpoints.len() > 1 {
        // Leave time for the second broker if the first one hangs.
        link.connect_timeout = link.connect_timeout.min(ttl / 2);
    }
    let options = CallOptions { ttl: Some(ttl), volatile: arguments.volatile };
    let options_of_client = ClientOptions { link, ..ClientOptions::default() };
    let client = Client::connect(&arguments.brokers.endpoints, options_of_client).map_err(Failure::failed)?;
    let started = Instant::now();
    let outcome = tokio::select! {
        outcome = async {
            if arguments.no_wait && call_waiting::has_no_worker(&client, service).await {
                return Err(Failure::new(Status::NotFound, "not sent"));
            }
            call(&client, service, body, options, arguments.max_reply).await
        } => outcome,
        () = interrupted.notified() => Err(Failure::interrupted()),
        () = call_waiting::refused(&client) => Err(refused(&client)),
        () = call_dialect::is_majortomo(&client, &arguments.brokers) => {
            Err(Failure::new(Status::NoServer, "the broker speaks majortomo's dialect; use --dialect majortomo"))
        }
        never = call_waiting::report(&client, Some((service, ttl))) => match never {},
    };
    let outcome = match outcome {
        Err(failure)
            if may_be_missing(&failure)
                && client.status().numbered
                && call_waiting::has_no_worker(&client, service).await =>
        {
            Err(failure.with(format_args!(" (no worker for {service})")))
        }
        outcome => outcome,
    };
    let status = client.status();
    if arguments.json {
        eprint_line(Json(summary(outcome.as_ref().copied(), status.counters.resent, started.elapsed())));
    }
    // Confirm the reply, so that the broker can forget it.
    client.close().await;
    match outcome {
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(failure) if failure.status == Status::Usage => Err(failure),
        Err(failure) if status.is_not_majordomo => Err(failure.with(format_args!(" ({})", status.failure))),
        Err(failure) if status.is_silent && failure.status != Status::NoServer => {
            Err(failure.with(format_args!(" ({})", arguments.brokers.dialect_hint())))
        }
        Err(failure) if status.connected.is_none() => {
            let is_login = status.refusal == Some(Refusal::Login);
            let hint = if is_login { format!("; {}", arguments.brokers.login_hint()) } else { String::new() };
            Err(failure.with(format_args!(" (no connection: {}{hint})", status.failure)))
        }
        Err(failure) => Err(failure),
    }
}

/// The end of a call that all brokers refuse.
fn refused(client: &Client) -> Failure {
    match client.status().refusal {
        Some(Refusal::Login) => Failure::new(Status::Refused, "the broker refuses this client"),
        _ => Failure::new(Status::NoServer, "no broker answers"),
    }
}

/// Whether a request ended so because no worker serves its service, perhaps.
fn may_be_missing(failure: &Failure) -> bool {
    matches!(failure.status, Status::Expired | Status::NotFound)
}

/// Exit status of a request that ended without a reply.
fn status_of(client: &Client, error: &CallError) -> Status {
    match error.status() {
        None => Status::Usage,
        Some(Outcome::EXPIRED) if client.status().connected.is_none() => Status::NoServer,
        Some(outcome) => status_of_outcome(outcome),
    }
}

/// Exit status of an outcome, the same in all dialects.
fn status_of_outcome(outcome: Outcome) -> Status {
    match outcome {
        Outcome::EXPIRED => Status::Expired,
        Outcome::TIMED_OUT | Outcome::LOST | Outcome::ATTEMPTS_USED_UP => Status::Lost,
        Outcome::FAILED => Status::WorkerFailed,
        Outcome::NOT_IMPLEMENTED => Status::NotFound,
        Outcome::TOO_LARGE | Outcome::FORBIDDEN | Outcome::CONFLICT => Status::Refused,
        _ => Status::Failed,
    }
}

/// JSON object of one request.
fn summary(outcome: Result<u64, &Failure>, resent: u64, taken: Duration) -> serde_json::Value {
    json!({
        "replies": u64::from(outcome.is_ok()),
        "reply_bytes": outcome.unwrap_or(0),
        "resent": resent,
        "seconds": taken.as_secs_f64(),
        "peak_memory_bytes": own_usage().peak_memory_bytes,
        "error": outcome.err().map(ToString::to_string),
        "status": outcome.err().map_or(0, |failure| failure.status as u8),
        "code": outcome.err().map_or("done", |failure| failure.status.code()),
    })
}

/// Runs blocking work on another thread; this one drives the connection.
pub async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    tokio::task::spawn_blocking(work).await.map_err(Failure::failed)
}

/// Writes a body to standard output.
async fn to_output(body: Body) -> Result<(), Failure> {
    run_blocking(move || write_body(&body, std::io::stdout().lock())).await?.map_err(stdout_failure)
}

/// Body behind the status of a reply of a built-in service; `None` if nothing follows status 200.
fn without_code(service: &[u8], body: &Body) -> Result<Option<Body>, Failure> {
    let frames = body.to_frames().unwrap_or_default();
    match frames.split_first() {
        Some((code, [])) if code == "200" => Ok(None),
        Some((code, more)) if code == "200" => Ok(Some(Body::of_frames(more.iter().cloned()))),
        _ => {
            let reasons: Vec<_> = frames.iter().map(|frame| String::from_utf8_lossy(frame)).collect();
            let reported = reasons.join(" ");
            let status = if reported.starts_with("404") || reported.starts_with("501") {
                Status::NotFound
            } else {
                Status::Failed
            };
            Err(Failure::new(
                status,
                meaning(service, &reported).map_or(reported.clone(), |meaning| format!("{reported}: {meaning}")),
            ))
        }
    }
}

/// Meaning of a code without a reason.
fn meaning(service: &[u8], code: &str) -> Option<&'static str> {
    match (service, code) {
        (b"mmi.service", "404") => Some("no worker serves it"),
        (b"titanic.reply", "300") => Some("not done yet; ask again"),
        (b"titanic.reply", "400") => Some("no request has this name"),
        (_, "400") => Some("not understood; titanic.request takes a service and a body as frames (--frames)"),
        (_, "404") => Some("not found"),
        (_, "501") => Some("the broker doesn't have this service"),
        _ => None,
    }
}

/// A reply of MMI, JSON with names that others have chosen, for a terminal.
fn escaped(body: Body) -> Body {
    let text = body.frames().and_then(|frames| frames.map(std::str::from_utf8).collect::<Result<String, _>>().ok());
    text.map_or(body, |text| Body::from(Json(text).to_string()))
}

/// Failure in a reply to a stock client. Majordomo has no failures, so our broker sends two frames, a status and a reason.
fn failure_of_stock(body: &Body) -> Option<Failure> {
    let mut frames = body.frames()?;
    let (Some(status), Some(reason), None) = (frames.next(), frames.next(), frames.next()) else { return None };
    let outcome = std::str::from_utf8(status).ok().filter(|status| status.len() == 3)?.parse().ok()?;
    let why = || format!("{outcome}: {}", String::from_utf8_lossy(reason));
    (400..600).contains(&outcome).then(|| Failure::new(status_of_outcome(Outcome(outcome)), why()))
}

/// Makes one request and writes its reply to standard output as it arrives; returns its length.
async fn call(
    client: &Client,
    service: &ServiceName,
    body: Body,
    options: CallOptions,
    bytes_max: u64,
) -> Result<u64, Failure> {
    let mut stream = client.stream(service, body, options).await.map_err(Failure::usage)?;
    let service = service.as_ref();
    let (mut parts, mut bytes) = (0, 0);
    while let Some(item) = stream.next().await {
        let item = item.map_err(|error| Failure::new(status_of(client, &error), error))?;
        bytes += match &item {
            StreamItem::Part { body, .. } => body.length(),
            StreamItem::Final(reply) => reply.body.length(),
        };
        if bytes > bytes_max {
            let why = format_args!("the reply has over {bytes_max} bytes (--max-reply)");
            return Err(Failure::new(Status::Refused, why));
        }
        match item {
            StreamItem::Part { number, body } => {
                if number != parts {
                    return Err(Failure::failed(
                        "the request was run again after part of its reply was written; discard the output",
                    ));
                }
                parts += 1;
                to_output(body).await?;
            }
            StreamItem::Final(reply) if is_built_in(service) => {
                if let Some(body) = without_code(service, &reply.body)? {
                    to_output(if service.starts_with(b"mmi.") { escaped(body) } else { body }).await?;
                } else if service == b"mmi.service" {
                    eprint_line("tow: it has a worker");
                }
                // A reply of MMI is a line of text, one of Titanic is a worker's reply.
                if service.starts_with(b"mmi.") && reply.body.frames().is_some_and(|frames| frames.len() > 1) {
                    to_output(Body::copied(b"\n")).await?;
                }
            }
            StreamItem::Final(reply) => {
                if let Some(failure) = failure_of_stock(&reply.body).filter(|_| client.status().is_stock) {
                    return Err(failure);
                }
                to_output(reply.body).await?;
            }
        }
    }
    Ok(bytes)
}
