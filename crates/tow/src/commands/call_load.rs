//! Load test of `tow call`: many requests in flight, each reply checked.

use crate::cli::escape::Line;
use crate::cli::exit::{Failure, Status};
use crate::cli::output::{eprint_line, print_line};
use crate::cli::progress::Bar;
use crate::cli::service_name::ServiceName;
use crate::commands::call::notify_on_signal;
use crate::commands::call_waiting;
use crate::runtime::rlimits::own_usage;
use hdrhistogram::Histogram;
use serde_json::json;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::Read;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};
use towpath_client::client::{CallOptions, Client, ClientOptions, Completed, LinkOptions, SubmitError};
use towpath_requests::Body;
use towpath_sockets::Endpoint;

/// Bytes of the number at the start of each body, if it is long enough.
const NUMBER_BYTES: usize = 8;

/// Failures that are printed.
const FAILURES_SHOWN_MAX: u64 = 5;

/// Requests submitted before the client may send them.
const BATCH_MAX: u64 = 1024;

/// Time without any connection after which a load test with a timeout is given up, in timeouts: otherwise it would wait for each of
/// its requests to expire.
const OFFLINE_TIMEOUTS: u32 = 5;

/// Shortest time without any connection after which a load test is given up.
const OFFLINE_MIN: Duration = Duration::from_secs(5);

/// Between two updates of the bar.
const BAR_INTERVAL: Duration = Duration::from_millis(100);

/// Longest latency in the histogram, in microseconds.
const LATENCY_MAX_US: u64 = 3_600_000_000;

/// Parameters of a load test.
pub struct Load {
    /// Service that echoes.
    pub service: ServiceName,
    /// Brokers.
    pub endpoints: Vec<Endpoint>,
    /// Options of each connection.
    pub link: LinkOptions,
    /// Options of each request.
    pub options: CallOptions,
    /// Requests in all.
    pub count: u64,
    /// Requests in flight per client.
    pub ahead: usize,
    /// Bytes of each body, at least 1.
    pub size: usize,
    /// Requests per second in all.
    pub rate: Option<f64>,
    /// Clients, each with a connection.
    pub clients: usize,
}

/// Results of all clients.
struct Tally {
    requests: u64,
    replies: u64,
    failed: u64,
    wrong: u64,
    latency: Histogram<u64>,
}

/// End of a load test.
enum End {
    /// All requests have an outcome, or can't get one.
    Complete,
    Interrupted,
    /// No connection for this long, and why.
    Offline(Duration, String),
}

impl Tally {
    fn record_failure(&mut self, reason: impl FnOnce() -> String) {
        self.failed += 1;
        if self.failed <= FAILURES_SHOWN_MAX {
            eprint_line(format_args!("tow: {}", Line(&reason())));
        }
    }
}

impl Load {
    /// Refuses bodies too short to have distinct numbers for all requests in flight.
    pub fn check(&self) -> Result<(), Failure> {
        let (ahead, bits) = (self.ahead as u128, client_bits(self.clients));
        let is_distinct = |size: usize| size >= NUMBER_BYTES || ahead << bits <= 1 << (8 * size);
        if is_distinct(self.size) {
            return Ok(());
        }
        let enough = (self.size..).find(|size| is_distinct(*size)).unwrap_or(NUMBER_BYTES);
        Err(Failure::usage(format!(
            "bodies of {} bytes can't number {} requests in flight of each of {} clients; use --size {enough}",
            self.size, self.ahead, self.clients
        )))
    }

    /// Makes the requests and prints the results.
    pub async fn run(self, as_json: bool, quiet: bool) -> Result<ExitCode, Failure> {
        let latency = Histogram::new_with_bounds(1, LATENCY_MAX_US, 3).map_err(Failure::failed)?;
        let tally = Rc::new(RefCell::new(Tally { requests: 0, replies: 0, failed: 0, wrong: 0, latency }));
        let interrupted = notify_on_signal()?;
        let outstanding_max = self.ahead.saturating_add(1);
        let outstanding_bytes_max = outstanding_max.saturating_mul(self.size + 1024);
        let options = ClientOptions {
            outstanding_max,
            outstanding_bytes_max,
            link: self.link.clone(),
            ..ClientOptions::default()
        };
        let clients = (0..self.clients)
            .map(|_| Client::connect(&self.endpoints, options.clone()).map_err(Failure::failed))
            .collect::<Result<Vec<_>, Failure>>()?;
        let bar = Bar::counting(quiet);
        let load = Rc::new(self);
        let started = Instant::now();
        let tasks = tokio::task::LocalSet::new();
        let mut running = tokio::task::JoinSet::new();
        for (index, client) in clients.iter().enumerate() {
            let task = run_client(Rc::clone(&load), index as u64, client.clone(), Rc::clone(&tally), started);
            running.spawn_local_on(task, &tasks);
        }
        let first = clients.first().cloned();
        let mut reporting = Box::pin(async move {
            match first {
                Some(client) => call_waiting::report(&client, None).await,
                None => std::future::pending().await,
            }
        });
        let mut online = Instant::now();
        let end = tasks
            .run_until(async {
                let mut tick = tokio::time::interval(BAR_INTERVAL);
                loop {
                    tokio::select! {
                        ended = running.join_next() => match ended {
                            Some(Err(error)) => return Err(Failure::failed(error)),
                            Some(Ok(())) => {}
                            None => return Ok(End::Complete),
                        },
                        _ = tick.tick() => {
                            bar.set(tally.borrow().replies, load.count, String::new());
                            if let Some(offline) = load.is_offline(&clients, &mut online) {
                                return Ok(offline);
                            }
                        }
                        () = interrupted.notified() => return Ok(End::Interrupted),
                        never = &mut reporting => match never {},
                    }
                }
            })
            .await?;
        let seconds = started.elapsed().as_secs_f64();
        bar.finish();
        drop(running);
        if let End::Offline(..) = end {
            let mut tally = tally.borrow_mut();
            tally.failed = load.count - tally.replies;
        }
        let summarized = load.summarize(&clients, &tally.borrow(), seconds, as_json);
        for client in &clients {
            client.close().await;
        }
        match &end {
            End::Complete => {}
            End::Interrupted => return Err(Failure::interrupted()),
            End::Offline(time, why) => {
                let time = time.as_secs();
                return Err(Failure::new(
                    Status::NoServer,
                    format_args!("gave up after {time} s without a connection to a broker: {why}"),
                ));
            }
        }
        summarized?;
        let good = matches!(end, End::Complete) && tally.borrow().replies == load.count;
        Ok(ExitCode::from(u8::from(!good)))
    }

    /// End of a test without a connection for too long. `online`: when there was one last.
    fn is_offline(&self, clients: &[Client], online: &mut Instant) -> Option<End> {
        let timeout = self.options.ttl?.saturating_mul(OFFLINE_TIMEOUTS).max(OFFLINE_MIN);
        if clients.iter().any(|client| client.status().connected.is_some()) {
            *online = Instant::now();
            return None;
        }
        let offline = online.elapsed();
        (offline >= timeout)
            .then(|| End::Offline(offline, clients.first().map_or_else(String::new, |client| client.status().failure)))
    }

    fn summarize(&self, clients: &[Client], tally: &Tally, seconds: f64, as_json: bool) -> Result<(), Failure> {
        let (mut resent, mut retried, mut duplicates) = (0, 0, 0);
        for client in clients {
            let counters = client.status().counters;
            resent += counters.resent;
            retried += counters.retried;
            duplicates += counters.duplicates;
        }
        let per_second = tally.replies as f64 / seconds.max(1e-9);
        let us = |quantile: f64| tally.latency.value_at_quantile(quantile);
        let usage = own_usage();
        if as_json {
            let object = json!({
                "requests": tally.requests,
                "replies": tally.replies,
                "failed": tally.failed,
                "wrong": tally.wrong,
                "resent": resent,
                "retried": retried,
                "duplicates": duplicates,
                "seconds": seconds,
                "per_second": per_second,
                "p50_us": us(0.5),
                "p90_us": us(0.9),
                "p99_us": us(0.99),
                "p999_us": us(0.999),
                "max_us": tally.latency.max(),
                "cpu_seconds": usage.cpu_seconds,
                "peak_memory_bytes": usage.peak_memory_bytes,
            });
            print_line(object)
        } else {
            print_line(format_args!(
                "{} of {} replies in {seconds:.2} s: {per_second:.0}/s; {} failed, {resent} sent again; \
                 p50 {} us, p99 {} us, at most {} us",
                tally.replies,
                self.count,
                tally.failed,
                us(0.5),
                us(0.99),
                tally.latency.max()
            ))
        }
    }
}

/// Start times of requests in flight, by number.
#[derive(Default)]
struct StartTimes {
    first: u64,
    at: VecDeque<Duration>,
}

impl StartTimes {
    /// Removes and returns the time of a request.
    fn take(&mut self, number: u64) -> Option<Duration> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let at = std::mem::replace(self.at.get_mut(place)?, Duration::MAX);
        while self.at.front() == Some(&Duration::MAX) {
            self.at.pop_front();
            self.first += 1;
        }
        (at != Duration::MAX).then_some(at)
    }
}

/// Makes one client's share of the requests.
async fn run_client(load: Rc<Load>, index: u64, client: Client, tally: Rc<RefCell<Tally>>, started: Instant) {
    let clients = load.clients as u64;
    let share = load.count / clients + u64::from(index < load.count % clients);
    // The client's index is in the number, so that a reply to the wrong client is found.
    let global = |number: u64| number << client_bits(load.clients) | index;
    let interval = load.rate.map(|rate| Duration::from_secs_f64(clients as f64 / rate.max(1e-3)));
    let filler = filler(load.size);
    let mut body = filler.clone();
    let mut times = StartTimes { first: 1, at: VecDeque::new() };
    let (mut sent, mut done) = (0, 0);
    let mut batch: Vec<Completed> = Vec::new();
    while done < share {
        let now = started.elapsed();
        let mut next_at = None;
        let mut lost = None;
        let mut requests = client.batch();
        let batch_end = sent + BATCH_MAX;
        while sent < share && sent - done < load.ahead as u64 && sent < batch_end {
            // Latency counts from when a request was due, so that a stalled broker can't hide it.
            let mut due = now;
            if let Some(interval) = interval {
                due = interval.mul_f64(sent as f64);
                if due > now {
                    next_at = Some(due);
                    break;
                }
            }
            write_body(&mut body, global(sent + 1), &filler);
            match requests.try_send(&load.service, &body[..], load.options) {
                Ok(number) => {
                    debug_assert_eq!(number, sent + 1);
                    times.at.push_back(due);
                    sent += 1;
                }
                Err(SubmitError::Full(_)) => break,
                Err(error) => {
                    lost = Some(error);
                    break;
                }
            }
        }
        drop(requests);
        if let Some(error) = lost {
            return tally.borrow_mut().record_failure(|| error.to_string());
        }
        let goes_on = sent == batch_end;
        let wait = async {
            match next_at {
                Some(at) => tokio::time::sleep_until((started + at).into()).await,
                None if goes_on => tokio::task::yield_now().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            count = client.receive_many(&mut batch), if sent > done => {
                if count == 0 {
                    return;
                }
            }
            () = wait => {}
        }
        let now = started.elapsed();
        let mut tally = tally.borrow_mut();
        for Completed { number, status, body } in batch.drain(..) {
            done += 1;
            tally.requests += 1;
            let at = times.take(number).unwrap_or(now);
            let bytes = body.single().unwrap_or_default();
            let is_right = |bytes: &[u8]| is_body(bytes, global(number), &filler);
            if status.is_ok() && (is_right(bytes) || read_spooled(&body).is_some_and(|bytes| is_right(&bytes))) {
                tally.replies += 1;
                let us = now.saturating_sub(at).as_micros().clamp(1, u128::from(LATENCY_MAX_US));
                tally.latency.saturating_record(us as u64);
            } else if status.is_ok() {
                tally.wrong += 1;
                tally.record_failure(|| format!("request {number}: the reply differs from the request; a load test is for a service of tow work --echo"));
            } else {
                tally.record_failure(|| {
                    format!("request {number}: {}", status.describe(&String::from_utf8_lossy(bytes)))
                });
            }
        }
    }
}

/// Low bits of a request's number that hold the client's index.
fn client_bits(clients: usize) -> u32 {
    clients.next_power_of_two().trailing_zeros()
}

/// Bytes without a pattern.
fn filler(size: usize) -> Vec<u8> {
    let words = (1..=size.div_ceil(8) as u64).flat_map(|number| mixed(number).to_ne_bytes());
    words.take(size).collect()
}

/// The number with all its bits mixed.
fn mixed(number: u64) -> u64 {
    let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    number ^ number >> 32
}

/// Makes it the body of request `number`: the number, only its last bytes if the body is short, and the filler, changed for each number. A
/// broker that compresses requests finds nothing to compress in it, as in requests that all differ.
fn write_body(body: &mut [u8], number: u64, filler: &[u8]) {
    let mask = mixed(number).to_ne_bytes();
    for (bytes, from) in body.chunks_mut(mask.len()).zip(filler.chunks(mask.len())) {
        bytes.iter_mut().zip(from).zip(mask).for_each(|((byte, from), mask)| *byte = from ^ mask);
    }
    let head = NUMBER_BYTES.min(body.len());
    body[..head].copy_from_slice(&number.to_be_bytes()[NUMBER_BYTES - head..]);
}

/// True if this is the body of request `number`, made of this filler.
fn is_body(bytes: &[u8], number: u64, filler: &[u8]) -> bool {
    let (head, tail) = bytes.split_at(NUMBER_BYTES.min(bytes.len()));
    let mask = mixed(number).to_ne_bytes();
    let is_same = |(bytes, from): (&[u8], &[u8])| bytes.iter().zip(from).zip(mask).all(|((b, from), m)| *b == from ^ m);
    bytes.len() == filler.len()
        && *head == number.to_be_bytes()[NUMBER_BYTES - head.len()..]
        && tail.chunks(mask.len()).zip(filler[head.len()..].chunks(mask.len())).all(is_same)
}

/// Reads a spooled body.
fn read_spooled(body: &Body) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    crate::cli::body_io::open_large(body)?.ok()?.read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_too_short_to_number_requests_in_flight_are_refused() {
        let check = |ahead, clients, size| {
            let (service, endpoints, link) = (ServiceName::default(), Vec::new(), LinkOptions::default());
            let load = Load {
                service,
                endpoints,
                link,
                options: CallOptions::default(),
                count: 1,
                ahead,
                size,
                rate: None,
                clients,
            };
            load.check().map_err(|failure| failure.to_string())
        };
        for (ahead, clients, size) in [(256, 1, 1), (64, 3, 1), (1, 256, 1), (10_000, 100, 3), (usize::MAX, 65_535, 8)]
        {
            assert_eq!(check(ahead, clients, size), Ok(()), "{ahead} {clients} {size}");
        }
        for (ahead, clients, size, enough) in [(257, 1, 1, 2), (65, 3, 1, 2), (1, 257, 1, 2), (usize::MAX, 2, 7, 8)] {
            let why = check(ahead, clients, size).unwrap_err();
            assert!(why.ends_with(&format!("use --size {enough}")), "{why}");
        }
    }

    #[test]
    fn wrong_number_length_or_content_is_noticed() {
        for size in [1, 5, 8, 9, 32] {
            let filler = filler(size);
            let mut body = filler.clone();
            write_body(&mut body, 513, &filler);
            assert!(is_body(&body, 513, &filler), "{size}");
            assert!(!is_body(&body, 514, &filler), "{size}");
            assert!(!is_body(&body[1..], 513, &filler), "{size}");
            assert!(!is_body(&[&body[..], b"x"].concat(), 513, &filler), "{size}");
            body[size - 1] ^= 1;
            assert!(!is_body(&body, 513, &filler), "{size}");
        }
    }
}
