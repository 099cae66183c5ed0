//! A pool of workers in one process, on the library: a broker, workers that take a while for each request, and clients that ask one thing
//! at a time, each on a thread of its own, over inproc, ipc or tcp.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

use clap::Parser;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use towpath_broker::server::{Broker, BrokerOptions};
use towpath_client::client::{Client, ClientOptions};
use towpath_client::worker::{Worker, WorkerOptions};
use towpath_requests::Body;
use towpath_sockets::Endpoint;

mod work;

const SERVICE: &str = "echo";

/// The next request is there when one is done: it doesn't wait for the way to the broker and back.
const CREDIT: u32 = 2;

/// A pool of workers in one process.
#[derive(Parser, Clone)]
struct Arguments {
    /// inproc, ipc or tcp
    #[arg(long)]
    transport: String,
    #[arg(long)]
    requests: u64,
    #[arg(long)]
    clients: usize,
    #[arg(long)]
    workers: usize,
    /// Bytes of a body
    #[arg(long)]
    size: usize,
    /// Milliseconds that each request takes
    #[arg(long)]
    work_us: u64,
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    let folder = tempfile::tempdir()?;
    let endpoint: Endpoint = match &arguments.transport[..] {
        "inproc" => "inproc://pool".parse()?,
        "ipc" => format!("ipc://{}", folder.path().join("pool").display()).parse()?,
        _ => "tcp://127.0.0.1:0".parse()?,
    };
    let broker = Broker::bind(BrokerOptions::new(vec![endpoint]))?;
    let endpoint = broker.endpoints().first().cloned().ok_or("the broker is nowhere")?;
    std::thread::spawn(move || broker.run());
    for _ in 0..arguments.workers {
        let endpoint = endpoint.clone();
        let work = Duration::from_micros(arguments.work_us);
        std::thread::spawn(move || worker(&endpoint, work));
    }
    let left = Arc::new(AtomicU64::new(arguments.requests));
    let all_there = Arc::new(Barrier::new(arguments.clients));
    let clients: Vec<_> = (0..arguments.clients)
        .map(|_| {
            let (endpoint, left, all_there) = (endpoint.clone(), Arc::clone(&left), Arc::clone(&all_there));
            let size = arguments.size;
            std::thread::spawn(move || client(&endpoint, size, &left, &all_there))
        })
        .collect();
    let mut latencies = Vec::new();
    let mut spans = Vec::new();
    for client in clients {
        let (span, of_client) = client.join().map_err(|_| "a client panicked")??;
        spans.push(span);
        latencies.extend(of_client);
    }
    let begin = spans.iter().map(|(begin, _)| *begin).min().ok_or("no clients")?;
    let end = spans.iter().map(|(_, end)| *end).max().ok_or("no clients")?;
    report(&mut latencies, end - begin);
    Ok(())
}

fn runtime() -> Outcome<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Takes requests on one thread, and works on one after another on another.
fn worker(endpoint: &Endpoint, work: Duration) -> Outcome<()> {
    let (hand_over, taken) = mpsc::channel::<towpath_client::worker::Request>();
    std::thread::spawn(move || {
        for request in taken {
            work::take(work);
            let body = request.body().clone();
            let _ = request.reply(body);
        }
    });
    runtime()?.block_on(async {
        let options = WorkerOptions { credit: CREDIT, ..WorkerOptions::default() };
        let worker = Worker::connect(std::slice::from_ref(endpoint), SERVICE, options)?;
        while let Some(request) = worker.next().await {
            hand_over.send(request)?;
        }
        Ok(())
    })
}

type Span = (Instant, Instant);

fn client(endpoint: &Endpoint, size: usize, left: &AtomicU64, all_there: &Barrier) -> Outcome<(Span, Vec<Duration>)> {
    let runtime = runtime()?;
    let body = Body::from(vec![b'x'; size]);
    let client = runtime.block_on(async {
        let client = Client::connect(std::slice::from_ref(endpoint), ClientOptions::default())?;
        // It isn't counted: it shows that the way is open.
        client.call(SERVICE, body.clone()).await?;
        Outcome::Ok(client)
    })?;
    all_there.wait();
    runtime.block_on(async {
        let begin = Instant::now();
        let mut latencies = Vec::new();
        while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
            let asked = Instant::now();
            let reply = client.call(SERVICE, body.clone()).await?;
            if reply.body != body {
                return Err("a reply that isn't an echo".into());
            }
            latencies.push(asked.elapsed());
        }
        Ok(((begin, Instant::now()), latencies))
    })
}

fn report(latencies: &mut [Duration], took: Duration) {
    latencies.sort_unstable();
    let quantile = |share: usize| {
        let index = (latencies.len() * share / 100).min(latencies.len().saturating_sub(1));
        latencies.get(index).map_or(0.0, |latency| latency.as_secs_f64() * 1e6)
    };
    let (replies, seconds) = (latencies.len(), took.as_secs_f64());
    let object = json!({
        "requests": replies,
        "replies": replies,
        "failed": 0,
        "resent": 0,
        "seconds": seconds,
        "per_second": replies as f64 / seconds,
        "p50_us": quantile(50),
        "p99_us": quantile(99),
    });
    println!("{object}");
}
