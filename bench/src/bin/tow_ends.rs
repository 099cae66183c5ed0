//! Clients and a worker on the library, for what `tow call` and `tow work` don't do: waiting until a request is durable instead of for
//! its reply, measuring pauses, and work that takes a time exactly.
//!
//! The clients print one JSON object, named as `tow call --json` names its own.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::error::Error;
use std::rc::Rc;
use std::time::{Duration, Instant};

use clap::{Args, Parser};
use serde_json::json;
use tokio::task::LocalSet;
use towpath_client::client::{Accepted, CallOptions, Client, ClientOptions, Completed};
use towpath_client::worker::{Worker, WorkerOptions};
use towpath_requests::Body;
use towpath_sockets::Endpoint;

mod work;

const SERVICE: &str = "echo";
const NUMBER_BYTES: usize = 4;
/// Bytes that may be outstanding: more than any measurement has.
const OUTSTANDING_BYTES: usize = 1 << 30;

/// Clients or a worker of Towpath's broker, for measuring.
#[derive(Parser)]
enum Command {
    Call(CallArguments),
    Work(WorkArguments),
}

#[derive(Args)]
struct CallArguments {
    /// The brokers, of which one is used at a time
    #[arg(long, required = true)]
    connect: Vec<Endpoint>,
    #[arg(long)]
    requests: usize,
    /// Requests that each client has in flight
    #[arg(long, default_value_t = 1)]
    ahead: usize,
    #[arg(long, default_value_t = 1)]
    clients: usize,
    /// Bytes of a body
    #[arg(long, default_value_t = 30)]
    size: usize,
    /// Wait until each request is on the broker's disk, not for its reply
    #[arg(long)]
    durable: bool,
    /// Ask nothing more after so long
    #[arg(long)]
    seconds: Option<f64>,
}

#[derive(Args)]
struct WorkArguments {
    /// The brokers, all of which are worked for
    #[arg(long, required = true)]
    connect: Vec<Endpoint>,
    #[arg(long, default_value_t = 1)]
    jobs: u32,
    /// Milliseconds that each request takes
    #[arg(long, default_value_t = 0)]
    work_ms: u64,
}

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let command = Command::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match command {
            Command::Call(arguments) => LocalSet::new().run_until(call(arguments)).await,
            Command::Work(arguments) => work(arguments).await,
        }
    })
}

async fn work(arguments: WorkArguments) -> Outcome<()> {
    let options = WorkerOptions { credit: arguments.jobs, ..WorkerOptions::default() };
    if arguments.work_ms == 0 {
        let worker = Worker::at_once(&arguments.connect, SERVICE, options, std::convert::identity)?;
        println!("ready 0");
        while worker.next().await.is_some() {}
        return Ok(());
    }
    let worker = Worker::connect(&arguments.connect, SERVICE, options)?;
    println!("ready 0");
    // On a thread of its own: the runtime's timers are as coarse as a millisecond.
    let work = Duration::from_millis(arguments.work_ms);
    worker
        .run(move |request| async move {
            let worked = tokio::task::spawn_blocking(move || work::take(work)).await;
            worked.map(|()| request.body().clone()).map_err(|error| error.to_string())
        })
        .await;
    Ok(())
}

/// Results of all clients together.
struct Ledger {
    requests: usize,
    until: Option<Instant>,
    sent: Vec<Instant>,
    answered: Vec<bool>,
    latencies: Vec<Duration>,
    last: Instant,
    longest_pause: Duration,
}

impl Ledger {
    /// The number of the next request; `None`: there are enough.
    fn send(&mut self) -> Option<u32> {
        let now = Instant::now();
        if self.sent.len() >= self.requests || self.until.is_some_and(|until| now > until) {
            return None;
        }
        self.sent.push(now);
        self.answered.push(false);
        u32::try_from(self.sent.len() - 1).ok()
    }

    fn answer(&mut self, number: u32) -> Outcome<()> {
        let now = Instant::now();
        let index = number as usize;
        let (Some(sent), Some(answered)) = (self.sent.get(index), self.answered.get_mut(index)) else {
            return Err("a reply to a request that was never sent".into());
        };
        if std::mem::replace(answered, true) {
            return Err("a second reply to the same request".into());
        }
        self.latencies.push(now - *sent);
        self.longest_pause = self.longest_pause.max(now - self.last);
        self.last = now;
        Ok(())
    }

    fn report(&mut self, begin: Instant, resent: u64) -> serde_json::Value {
        self.latencies.sort_unstable();
        let quantile = |share: usize| {
            let index = (self.latencies.len() * share / 100).min(self.latencies.len().saturating_sub(1));
            self.latencies.get(index).map_or(0.0, |latency| latency.as_secs_f64() * 1e6)
        };
        let seconds = (self.last - begin).as_secs_f64();
        json!({
            "requests": self.sent.len(),
            "replies": self.latencies.len(),
            "failed": 0,
            "resent": resent,
            "seconds": seconds,
            "per_second": self.latencies.len() as f64 / seconds,
            "p50_us": quantile(50),
            "p99_us": quantile(99),
            "longest_pause_ms": self.longest_pause.as_secs_f64() * 1e3,
        })
    }
}

async fn call(arguments: CallArguments) -> Outcome<()> {
    let size = arguments.size.max(NUMBER_BYTES);
    let mut clients = Vec::new();
    for _ in 0..arguments.clients {
        let options = ClientOptions {
            outstanding_max: arguments.requests + 1,
            outstanding_bytes_max: OUTSTANDING_BYTES,
            ..ClientOptions::default()
        };
        let client = Client::connect(&arguments.connect, options)?;
        rehearse(&client, size, arguments.durable).await?;
        clients.push(client);
    }
    let begin = Instant::now();
    let ledger = Rc::new(RefCell::new(Ledger {
        requests: arguments.requests,
        until: arguments.seconds.map(|seconds| begin + Duration::from_secs_f64(seconds)),
        sent: Vec::with_capacity(arguments.requests),
        answered: Vec::with_capacity(arguments.requests),
        latencies: Vec::with_capacity(arguments.requests),
        last: begin,
        longest_pause: Duration::ZERO,
    }));
    let mut tasks = Vec::new();
    for client in &clients {
        let (client, ledger, ahead) = (client.clone(), Rc::clone(&ledger), arguments.ahead);
        tasks.push(if arguments.durable {
            tokio::task::spawn_local(async move { until_durable(&client, &ledger, ahead, size).await })
        } else {
            tokio::task::spawn_local(async move { until_replied(&client, &ledger, ahead, size).await })
        });
    }
    for task in tasks {
        task.await??;
    }
    let resent = clients.iter().map(|client| client.status().counters.resent).sum();
    println!("{}", ledger.borrow_mut().report(begin, resent));
    Ok(())
}

fn body(number: u32, size: usize) -> Body {
    let mut bytes = vec![b'x'; size];
    if let Some(first) = bytes.first_chunk_mut() {
        *first = number.to_ne_bytes();
    }
    Body::copied(&bytes)
}

/// A request that isn't counted: it shows that the way is open.
async fn rehearse(client: &Client, size: usize, durable: bool) -> Outcome<()> {
    let number = client.send(SERVICE, body(u32::MAX, size), CallOptions::default()).await?;
    if durable {
        check_durable(client.accepted(number).await)
    } else {
        let completed = client.receive().await.ok_or("the client is closed")?;
        replied(&completed).map(|_| ())
    }
}

async fn until_replied(client: &Client, ledger: &RefCell<Ledger>, ahead: usize, size: usize) -> Outcome<()> {
    let mut in_flight = 0;
    let mut arrived = Vec::new();
    loop {
        while in_flight < ahead {
            let Some(number) = ledger.borrow_mut().send() else {
                break;
            };
            client.try_send(SERVICE, body(number, size), CallOptions::default())?;
            in_flight += 1;
        }
        if in_flight == 0 {
            return Ok(());
        }
        in_flight -= client.receive_many(&mut arrived).await;
        for completed in arrived.drain(..) {
            ledger.borrow_mut().answer(replied(&completed)?)?;
        }
    }
}

/// Requests become durable in their order.
async fn until_durable(client: &Client, ledger: &RefCell<Ledger>, ahead: usize, size: usize) -> Outcome<()> {
    let mut in_flight = VecDeque::new();
    loop {
        while in_flight.len() < ahead {
            let Some(number) = ledger.borrow_mut().send() else {
                break;
            };
            in_flight.push_back((number, client.try_send(SERVICE, body(number, size), CallOptions::default())?));
        }
        let Some((number, sent_as)) = in_flight.pop_front() else {
            return Ok(());
        };
        check_durable(client.accepted(sent_as).await)?;
        ledger.borrow_mut().answer(number)?;
    }
}

/// The number in a reply.
fn replied(completed: &Completed) -> Outcome<u32> {
    if !completed.status.is_ok() {
        return Err(format!("a request ended so: {}", completed.status).into());
    }
    let number = completed.body.single().and_then(<[u8]>::first_chunk).ok_or("a reply without a number")?;
    Ok(u32::from_ne_bytes(*number))
}

fn check_durable(accepted: Accepted) -> Outcome<()> {
    match accepted {
        Accepted::Durable => Ok(()),
        other => Err(format!("a request isn't durable but {other:?}").into()),
    }
}
