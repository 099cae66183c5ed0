//! Requests through the broker's core: accepted, dispatched, replied to, confirmed.

use bytes::Bytes;
use divan::{Bencher, counter::ItemsCount};
use towpath_broker::core::{Core, Kind, Peer, QueuedAction, Settings};
use towpath_requests::body::Body;
use towpath_requests::numbered::{ClientId, Status};

const CLIENT: Peer = 1;
const WORKER: Peer = 2;

/// Requests an iteration.
const REQUESTS: u64 = 1_000;

/// Requests that are in flight together.
const IN_FLIGHT: [u64; 3] = [1, 10, 100];

/// A request and its reply, with this many in flight.
#[divan::bench(args = IN_FLIGHT)]
fn round_trip(bencher: Bencher, in_flight: u64) {
    let mut core = Core::new(Settings { secret: [3, 4], ..Settings::default() });
    core.client_hello(0, CLIENT, ClientId([7; 16]), 1);
    core.worker_ready(0, WORKER, Kind::Numbered, b"echo", 1_000);
    let body = Body::from(Bytes::from(vec![7; 250]));
    let mut tasks = Vec::new();
    let mut number = 0;
    bencher.counter(ItemsCount::new(REQUESTS)).bench_local(|| {
        for _ in 0..REQUESTS / in_flight {
            let first = number + 1;
            for _ in 0..in_flight {
                number += 1;
                core.request(0, CLIENT, number, 0, true, b"echo", body.clone());
            }
            let mut replies = 0;
            while replies < in_flight {
                core.take_queued_actions(&mut tasks);
                assert!(!tasks.is_empty(), "a request is neither dispatched nor replied to");
                for task in tasks.drain(..) {
                    match task {
                        QueuedAction::Dispatch { token, attempt, body_ref, .. } => {
                            divan::black_box(core.body_for_worker(body_ref, attempt));
                            core.worker_reply(0, WORKER, &token, Status::OK, None, body.clone());
                        }
                        QueuedAction::Reply { body_ref, .. } => {
                            divan::black_box(core.body_for_client(body_ref));
                            replies += 1;
                        }
                        QueuedAction::Other(_) => {}
                    }
                }
                core.flushed(0);
            }
            core.confirm(0, CLIENT, first, in_flight as u32);
        }
    });
}
