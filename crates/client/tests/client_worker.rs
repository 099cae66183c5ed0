//! Clients and workers with a real broker between them, over real sockets.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test says what it expects by unwrapping")]

#[path = "client_worker/large.rs"]
mod large;
#[path = "client_worker/options.rs"]
mod options;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Notify;
use towpath_broker::server::{Broker, BrokerError, BrokerOptions, Handle};
use towpath_client::client::{
    Accepted, CallError, CallOptions, Client, ClientOptions, Completed, Dialect, LinkOptions, StreamItem, SubmitError,
};
use towpath_client::worker::{Request, Worker, WorkerError, WorkerOptions};
use towpath_client::{Body, Endpoint, LargeBody, SocketError, Spool};
use towpath_requests::numbered::{Block, CLIENT_HEADER, ClientId, FromClient, Status, ToClient};
use towpath_sockets::{Frame, HubOptions, Socket, SocketType, Wanted};

const TIMEOUT: Duration = Duration::from_secs(60);

struct Running {
    endpoint: Endpoint,
    stop: Handle,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn start(options: impl FnOnce(&mut BrokerOptions)) -> Running {
        Running::at("tcp://127.0.0.1:0".parse().unwrap(), options)
    }

    fn at(endpoint: Endpoint, change: impl FnOnce(&mut BrokerOptions)) -> Running {
        let mut options = BrokerOptions::new(vec![endpoint]);
        options.grace = Duration::from_millis(100);
        change(&mut options);
        let broker = Broker::bind(options).unwrap();
        let (endpoint, stop) = (broker.endpoints()[0].clone(), broker.handle());
        let thread = std::thread::spawn(move || broker.run().unwrap());
        Running { endpoint, stop, thread: Some(thread) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.shutdown();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn client(endpoints: &[&Endpoint], dialect: Dialect) -> Client {
    let endpoints: Vec<Endpoint> = endpoints.iter().map(|endpoint| (*endpoint).clone()).collect();
    let link = LinkOptions { dialect, ..LinkOptions::default() };
    Client::connect(&endpoints, ClientOptions { link, ..ClientOptions::default() }).unwrap()
}

fn options(credit: u32, dialect: Dialect) -> WorkerOptions {
    WorkerOptions { credit, link: LinkOptions { dialect, ..LinkOptions::default() } }
}

fn echo(endpoints: &[&Endpoint], credit: u32) -> Worker {
    let endpoints: Vec<Endpoint> = endpoints.iter().map(|endpoint| (*endpoint).clone()).collect();
    Worker::at_once(&endpoints, "echo", options(credit, Dialect::Auto), std::convert::identity).unwrap()
}

/// Runs to its end on the runtime that `tow call` uses, and on one of several threads.
fn on_both<F: Future<Output = ()>>(test: impl Fn() -> F) {
    for runtime in [
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap(),
    ] {
        runtime.block_on(async {
            tokio::time::timeout(TIMEOUT, test()).await.expect("it takes too long");
        });
    }
}

#[test]
fn impossible_options_are_refused() {
    let broker = Running::start(|_| ());
    let here = [broker.endpoint.clone()];
    assert!(matches!(Client::connect(&here, ClientOptions::default()), Err(SocketError::NoRuntime)));
    let outside = Worker::connect(&here, "echo", WorkerOptions::default());
    assert!(matches!(outside, Err(WorkerError::Socket(SocketError::NoRuntime))));
    assert!(matches!(Broker::bind(BrokerOptions::new(vec![])), Err(BrokerError::Socket(SocketError::NoEndpoint))));
    on_both(|| async {
        assert!(matches!(Client::connect(&[], ClientOptions::default()), Err(SocketError::NoEndpoint)));
        let worker = Worker::connect(&[], "echo", WorkerOptions::default());
        assert!(matches!(worker, Err(WorkerError::Socket(SocketError::NoEndpoint))));
    });
}

#[test]
fn callers_return_when_the_runtime_is_gone() {
    let broker = Running::start(|_| ());
    let here = [broker.endpoint.clone()];
    let gone = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (client, worker) = gone.block_on(async {
        let client = Client::connect(&here, ClientOptions::default()).unwrap();
        (client, Worker::connect(&here, "nobody", WorkerOptions::default()).unwrap())
    });
    let number = client.try_send("no-such-service", "x", CallOptions::default()).unwrap();
    drop(gone);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let all = async {
            assert!(matches!(client.call("echo", "late").await, Err(CallError::NotMade(SubmitError::Closed(_)))));
            let outcome = client.receive().await;
            assert!(outcome.is_none_or(|outcome| outcome.number == number && !outcome.status.is_ok()));
            client.close().await;
            assert!(worker.next().await.is_none());
            worker.closed().await;
        };
        tokio::time::timeout(TIMEOUT, all).await.expect("it waits");
    });
}

#[test]
fn calls_in_order_and_side_by_side() {
    on_both(|| async {
        let broker = Running::start(|_| ());
        let _worker = echo(&[&broker.endpoint], 100);
        let client = client(&[&broker.endpoint], Dialect::Auto);
        let two = Body::of_frames(["how far?".into(), vec![7; 9000].into()]);
        assert_eq!(client.call("echo", two.clone()).await.unwrap().body, two);
        // No clock counts so far, and nobody needs one to.
        let waiting = CallOptions { ttl: Some(Duration::MAX), ..CallOptions::default() };
        assert_eq!(client.call_with("echo", "whenever", waiting).await.unwrap().body, Body::from("whenever"));
        let calls: Vec<_> = (0..50)
            .map(|n| {
                let client = client.clone();
                tokio::spawn(async move { client.call("echo", format!("{n}")).await.unwrap().body })
            })
            .collect();
        for (n, call) in calls.into_iter().enumerate() {
            assert_eq!(call.await.unwrap(), Body::from(format!("{n}")));
        }
        let status = client.status();
        assert_eq!((status.outstanding, status.numbered, &*status.failure), (0, true, ""));
        client.close().await;
        assert!(matches!(client.try_send("echo", "late", CallOptions::default()), Err(SubmitError::Closed(_))));
        assert_eq!(client.receive().await, None);
    });
}

#[test]
fn many_requests_ahead_each_get_their_own_reply() {
    on_both(|| async {
        const COUNT: u64 = 30_000;
        let broker = Running::start(|_| ());
        let _worker = echo(&[&broker.endpoint], 1000);
        let link = LinkOptions::default();
        let limits = ClientOptions { outstanding_max: 500, link, ..ClientOptions::default() };
        let client = Client::connect(std::slice::from_ref(&broker.endpoint), limits).unwrap();
        let sender = client.clone();
        let sending = tokio::spawn(async move {
            for n in 1..=COUNT {
                let number = sender.send("echo", Body::copied(&n.to_be_bytes()), CallOptions::default()).await.unwrap();
                assert_eq!(number, n);
            }
        });
        let mut seen = vec![false; COUNT as usize + 1];
        let (mut count, mut batch) = (0, Vec::new());
        while count < COUNT {
            client.receive_many(&mut batch).await;
            assert!(client.status().outstanding <= 500);
            for Completed { number, status, body } in batch.drain(..) {
                assert_eq!((status, body), (Status::OK, Body::copied(&number.to_be_bytes())));
                assert!(!std::mem::replace(&mut seen[number as usize], true));
                count += 1;
            }
        }
        sending.await.unwrap();
        client.close().await;
    });
}

#[test]
fn parts_failures_and_dropped_requests() {
    on_both(|| async {
        let broker = Running::start(|_| ());
        let endpoint = std::slice::from_ref(&broker.endpoint);
        let worker = Arc::new(Worker::connect(endpoint, "odd", options(4, Dialect::Auto)).unwrap());
        let works = Arc::clone(&worker);
        let working = tokio::spawn(async move {
            works
                .run(|mut request| async move {
                    match request.body().single().unwrap() {
                        b"parts" => {
                            for n in 0..5 {
                                request.part(format!("part {n}")).await.map_err(|error| error.to_string())?;
                            }
                            Ok(Body::from("end"))
                        }
                        b"panic" => panic!("a worker that panics (this is a test)"),
                        _ => Err("I don't want to".to_owned()),
                    }
                })
                .await;
        });
        let client = client(&[&broker.endpoint], Dialect::Auto);
        let mut stream = client.stream("odd", "parts", CallOptions::default()).await.unwrap();
        for n in 0..5 {
            let part = StreamItem::Part { number: n, body: format!("part {n}").into() };
            assert_eq!(stream.next().await.unwrap().unwrap(), part);
        }
        let last = stream.next().await.unwrap().unwrap();
        assert!(matches!(last, StreamItem::Final(reply) if reply.body == Body::from("end")));
        assert!(stream.next().await.is_none());
        let error = client.call("odd", "refuse").await.unwrap_err();
        assert_eq!(error.to_string(), "500 the worker failed: I don't want to");
        let error = client.call("odd", "panic").await.unwrap_err();
        assert!(
            matches!(&error, CallError::Ended { status: Status::FAILED, reason } if reason.contains("dropped")),
            "{error}"
        );
        worker.leave();
        working.await.unwrap();
        assert_eq!(worker.status().counters.requests, 3);
    });
}

#[test]
fn cancelled_by_dropping_the_call() {
    on_both(|| async {
        let broker = Running::start(|_| ());
        let endpoint = std::slice::from_ref(&broker.endpoint);
        let worker = Worker::connect(endpoint, "slow", options(2, Dialect::Auto)).unwrap();
        let client = client(&[&broker.endpoint], Dialect::Auto);
        let request = tokio::select! {
            outcome = client.call("slow", "sleep") => panic!("{outcome:?}"),
            request = worker.next() => request.unwrap(),
        };
        request.cancelled().await;
        assert!(request.is_cancelled());
        request.reply("too late").unwrap_err();
        assert_eq!(client.status().outstanding, 0);

        // And by its number, and by its time.
        let number = client.send("slow", "sleep", CallOptions::default()).await.unwrap();
        let request = worker.next().await.unwrap();
        assert!(client.cancel(number));
        assert!(!client.cancel(number));
        assert_eq!(client.receive().await.unwrap().status, Status::CANCELLED);
        request.cancelled().await;
        let short = CallOptions { ttl: Some(Duration::from_millis(100)), ..CallOptions::default() };
        let error = client.call_with("slow", "sleep", short).await.unwrap_err();
        assert!(matches!(error.status(), Some(Status::EXPIRED | Status::TIMED_OUT)), "{error}");
    });
}

#[test]
fn another_broker_takes_over() {
    on_both(|| async {
        let (one, two) = (Running::start(|_| ()), Running::start(|_| ()));
        let _worker = echo(&[&one.endpoint, &two.endpoint], 10);
        let client = client(&[&one.endpoint, &two.endpoint], Dialect::Auto);
        client.call("echo", "first").await.unwrap();
        assert_eq!(client.status().connected.as_ref(), Some(&one.endpoint));
        // Nobody works on this, so that it is there to be sent again.
        let number = client.send("later", "second", CallOptions::default()).await.unwrap();
        client.call("echo", "behind it").await.unwrap();
        drop(one);
        let endpoint = std::slice::from_ref(&two.endpoint);
        let _later = Worker::at_once(endpoint, "later", options(1, Dialect::Auto), |_| Body::from("done")).unwrap();
        let completed = client.receive().await.unwrap();
        assert_eq!((completed.number, completed.body), (number, Body::from("done")));
        let status = client.status();
        assert_eq!(status.connected.as_ref(), Some(&two.endpoint));
        assert_eq!((status.counters.resent, status.counters.restarts), (1, 1));
    });
}

/// Waits until a broker has this many requests.
async fn holds(broker: &Running, requests: usize) {
    while broker.stop.snapshot(Wanted::Sums).unwrap().requests != requests {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn a_broker_that_was_left_learns_which_outcomes_it_may_drop() {
    on_both(|| async {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("journal");
        let one = Running::start(|options| options.journal = Some(journal.clone()));
        let two = Running::start(|_| ());
        let later = |endpoint: &Endpoint| {
            let options = options(100, Dialect::Auto);
            Worker::at_once(std::slice::from_ref(endpoint), "later", options, std::convert::identity).unwrap()
        };
        // The second one ends while the broker is away, and sends it nothing as long as it lives.
        let [first, second] = [(); 2].map(|()| client(&[&one.endpoint, &two.endpoint], Dialect::Auto));
        for client in [&first, &second] {
            for number in 1..=20 {
                assert_eq!(client.send("later", "x", CallOptions::default()).await.unwrap(), number);
            }
            assert_eq!(client.accepted(20).await, Accepted::Durable);
        }
        let endpoint = one.endpoint.clone();
        drop(one);
        let _worker = later(&two.endpoint);
        for client in [&first, &second] {
            for _ in 0..20 {
                assert!(client.receive().await.unwrap().status.is_ok());
            }
            assert_eq!(client.status().connected.as_ref(), Some(&two.endpoint));
        }
        second.close().await;
        let one = Running::at(endpoint, |options| options.journal = Some(journal.clone()));
        holds(&one, 20).await;
        // One that ends notifies it as well.
        let third = client(&[&one.endpoint, &two.endpoint], Dialect::Auto);
        third.send("nobody", "x", CallOptions::default()).await.unwrap();
        holds(&one, 21).await;
        let peers = one.stop.snapshot(Wanted::Peers(0)).unwrap().peers.entries;
        // The connection that notified the broker may be among them.
        assert!(peers.into_iter().filter(|(_, peer)| one.stop.disconnect(peer.info.id, "for a test")).count() > 0);
        while third.status().connected.as_ref() != Some(&two.endpoint) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        third.close().await;
        holds(&one, 20).await;
        assert_eq!(first.status().connected.as_ref(), Some(&two.endpoint));
    });
}

#[test]
fn a_broker_with_a_journal_says_when_a_request_is_safe() {
    on_both(|| async {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("journal");
        let broker = Running::start(|options| options.journal = Some(journal.clone()));
        let client = client(&[&broker.endpoint], Dialect::Auto);
        let number = client.send("echo", "keep this", CallOptions::default()).await.unwrap();
        assert_eq!(client.accepted(number).await, Accepted::Durable);
        let endpoint = broker.endpoint.clone();
        drop(broker);
        let broker = Running::at(endpoint, |options| options.journal = Some(journal.clone()));
        let _worker = echo(&[&broker.endpoint], 10);
        assert_eq!(client.receive().await.unwrap().body, Body::from("keep this"));
        assert_eq!(client.accepted(number).await, Accepted::Over);
    });
}

#[test]
fn a_panic_ends_one_request_and_nothing_else() {
    on_both(|| async {
        let broker = Running::start(|_| ());
        let endpoint = std::slice::from_ref(&broker.endpoint);
        let _worker = Worker::at_once(endpoint, "odd", options(4, Dialect::Auto), |body| match body.single() {
            Some(b"panic") => panic!("a worker that panics (this is a test)"),
            _ => body,
        })
        .unwrap();
        let client = client(&[&broker.endpoint], Dialect::Auto);
        let error = client.call("odd", "panic").await.unwrap_err();
        assert_eq!(error.to_string(), "500 the worker failed: the worker panicked");
        assert_eq!(client.call("odd", "fine").await.unwrap().body, Body::from("fine"));
        // Before there is a future, too.
        let worker = Worker::connect(endpoint, "early", options(1, Dialect::Auto)).unwrap();
        let working = tokio::spawn(async move {
            worker
                .run(|request: Request| {
                    assert!(request.body().single() != Some(b"panic"), "this is a test");
                    async move { Ok(request.body().clone()) }
                })
                .await;
        });
        let error = client.call("early", "panic").await.unwrap_err();
        assert_eq!(error.to_string(), "500 the worker failed: the worker panicked");
        assert_eq!(client.call("early", "fine").await.unwrap().body, Body::from("fine"));
        working.abort();
    });
}

#[test]
fn stock_dialects_one_at_a_time() {
    for dialect in [Dialect::Mdp01, Dialect::Mdp02, Dialect::Majortomo] {
        on_both(|| async move {
            let broker = Running::start(|_| ());
            let endpoint = std::slice::from_ref(&broker.endpoint);
            let worker = Arc::new(Worker::connect(endpoint, "work", options(1, dialect)).unwrap());
            let works = Arc::clone(&worker);
            let (go_on, seen) = (Arc::new(Notify::new()), AtomicU32::new(0));
            let wait = Arc::clone(&go_on);
            let working = tokio::spawn(async move {
                works
                    .run(move |request| {
                        let is_first = seen.fetch_add(1, Ordering::Relaxed) == 0;
                        let wait = is_first.then(|| Arc::clone(&wait));
                        async move {
                            if let Some(wait) = wait {
                                wait.notified().await;
                            }
                            Ok(request.body().clone())
                        }
                    })
                    .await;
            });
            let client = client(&[&broker.endpoint], dialect);
            // The first one's reply comes when nobody waits for it any more, and must not be taken for the second one's.
            let short = CallOptions { ttl: Some(Duration::from_secs(1)), ..CallOptions::default() };
            let error = client.call_with("work", "too slow", short).await.unwrap_err();
            assert_eq!(error.status(), Some(Status::TIMED_OUT), "{error}");
            go_on.notify_one();
            for n in 0..5 {
                let two = Body::of_frames(["frame".into(), format!("{n}").into()]);
                assert_eq!(client.call("work", two.clone()).await.unwrap().body, two);
            }
            assert!(!client.status().numbered);
            worker.leave();
            working.await.unwrap();
        });
    }
}

#[test]
fn a_leaving_worker_finishes_its_requests() {
    on_both(|| async {
        let broker = Running::start(|_| ());
        let endpoint = std::slice::from_ref(&broker.endpoint);
        let worker = Worker::connect(endpoint, "slow", options(1, Dialect::Auto)).unwrap();
        let client = client(&[&broker.endpoint], Dialect::Auto);
        let first = client.send("slow", "first", CallOptions::default()).await.unwrap();
        let request = worker.next().await.unwrap();
        worker.leave();
        let second = client.send("slow", "second", CallOptions::default()).await.unwrap();
        holds(&broker, 2).await;
        request.reply("finished").unwrap();
        let completed = client.receive().await.unwrap();
        assert_eq!((completed.number, completed.body), (first, Body::from("finished")));
        assert!(worker.next().await.is_none());
        worker.closed().await;
        // The other one waits for the next worker.
        let next = Worker::at_once(endpoint, "slow", options(1, Dialect::Auto), std::convert::identity).unwrap();
        assert_eq!(client.receive().await.unwrap().number, second);
        drop(next);
    });
}

const MIB: usize = 1 << 20;

fn of_frames(lengths: &[usize]) -> Body {
    Body::of_frames(lengths.iter().map(|length| vec![0; *length].into()))
}

/// A body of a kind that this crate doesn't know.
#[derive(Debug)]
struct Elsewhere;

impl LargeBody for Elsewhere {
    fn length(&self) -> u64 {
        1
    }
}

/// Runs to its end on one thread: large bodies take their time.
fn on_one<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, test).await.expect("it takes too long") });
}

#[test]
fn bodies_of_several_frames_pass_up_to_their_limits_and_no_further() {
    on_one(async {
        let broker = Running::start(|_| ());
        let here = std::slice::from_ref(&broker.endpoint);
        let echo = echo(&[&broker.endpoint], 2);
        let client = client(&[&broker.endpoint], Dialect::Auto);
        for lengths in [&[32 * MIB, 32 * MIB][..], &[67_108; 1000]] {
            let body = of_frames(lengths);
            assert!(client.call("echo", body.clone()).await.unwrap().body == body);
        }
        assert_eq!(echo.status().counters.requests, 2);

        let error = client.call("echo", of_frames(&[32 * MIB, 32 * MIB + 1])).await.unwrap_err();
        assert!(matches!(error, CallError::NotMade(SubmitError::TooLarge { frames: 2, bytes: 67_108_865 })), "{error}");
        let error = client.call("echo", of_frames(&[1; 1001])).await.unwrap_err();
        assert!(matches!(error, CallError::NotMade(SubmitError::TooLarge { frames: 1001, bytes: 1001 })), "{error}");
        let error = client.call("echo", Body::large(Arc::new(Elsewhere))).await.unwrap_err();
        assert!(matches!(error, CallError::NotMade(SubmitError::BadBody)), "{error}");

        // A worker's too large reply, however it is given, is reported as a failure, once.
        let too_large = |_| of_frames(&[32 * MIB, 32 * MIB + 1]);
        let at_once = Worker::at_once(here, "at once", options(1, Dialect::Auto), too_large).unwrap();
        let (asked, later) = (Arc::new(AtomicU32::new(0)), Worker::connect(here, "later", options(2, Dialect::Auto)));
        let (counted, later) = (Arc::clone(&asked), later.unwrap());
        let working = tokio::spawn(async move {
            let work = |mut request: Request| {
                counted.fetch_add(1, Ordering::Relaxed);
                async move {
                    let parts = request.body().single() == Some(b"parts");
                    let body = of_frames(&[1; 1001]);
                    if !parts {
                        return Ok(body);
                    }
                    assert!(request.part(body).await.is_err());
                    Ok(Body::from("end"))
                }
            };
            later.run(work).await;
        });
        for (service, body) in [("at once", "whole"), ("later", "whole"), ("later", "parts")] {
            let error = client.call(service, body).await.unwrap_err();
            assert_eq!(error.status(), Some(Status::FAILED));
            assert!(error.to_string().contains("a body of several frames has up to 1000"), "{error}");
        }
        assert_eq!((at_once.status().counters.requests, asked.load(Ordering::Relaxed)), (1, 2));
        working.abort();
    });
}

/// A peer that isn't of this crate.
fn dealer(broker: &Running) -> Socket {
    let dealer = Socket::new(HubOptions::new(SocketType::Dealer)).unwrap();
    dealer.connect(&broker.endpoint).unwrap();
    dealer
}

#[test]
fn a_body_of_several_frames_beyond_the_limit_is_read_to_its_end_and_answered() {
    on_one(async {
        let broker = Running::start(|_| ());
        // Found out at the end of the list, and before its frame.
        for (number, lengths) in (1..).zip([&[32 * MIB, 32 * MIB + 1][..], &[40 * MIB, 40 * MIB]]) {
            let numbered = dealer(&broker);
            let mut block = Block::default();
            FromClient::hello(&mut block, ClientId([number; 16]), 1);
            FromClient::request(&mut block, u64::from(number), 0, false, b"echo", &of_frames(lengths));
            for message in block.drain() {
                let attached = message.attached.into_iter().flat_map(|body| body.to_frames().unwrap());
                let frames = [CLIENT_HEADER.into(), message.block].into_iter().chain(attached);
                numbered.send(frames.map(Frame::Bytes).collect()).await.unwrap();
            }
            let mut refused = None;
            while refused.is_none() {
                let message = numbered.recv().await.unwrap().frames;
                let mut block = &message[1][..];
                while !block.is_empty() {
                    if let ToClient::Refused { number, status, retry_ms, .. } = ToClient::decode(&mut block).unwrap() {
                        refused = Some((number, status, retry_ms));
                    }
                }
            }
            assert_eq!(refused, Some((u64::from(number), Status::TOO_LARGE, 0)));
        }
        // The same with a stock client, whose connection stays open.
        let (stock, mut codes) = (dealer(&broker), Vec::new());
        for body in [&[40 * MIB, 40 * MIB, 3][..], &[64 * MIB, 1], &[1, 80 * MIB, 80 * MIB], &[67_110; 1000], &[7]] {
            let head = [Bytes::from("MDPC02"), Bytes::from(vec![1]), Bytes::from("mmi.service")];
            let body = body.iter().map(|length| vec![b'x'; *length].into());
            stock.send(head.into_iter().chain(body).map(Frame::Bytes).collect()).await.unwrap();
            let reply = stock.recv().await.unwrap().frames;
            assert_eq!(reply[2], "mmi.service");
            codes.push(String::from_utf8(reply[3].to_vec()).unwrap());
        }
        assert_eq!(codes, ["413", "413", "413", "413", "404"]);
    });
}
