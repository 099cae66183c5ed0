//! The same service behind different Majordomo brokers.

use super::{Bound, Content, Layout, Plan, Rows, Target, count_text};
use crate::Bench;
use crate::brokers::Broker;
use crate::ends::{Ends, Load, Setup};
use crate::exchange::variant;
use crate::series::Kind;

const SIZE: u64 = 30;
const SYNCHRONOUS: &str = "synchronous";
const ONE_WORKER: &str = "asynchronous, 1 worker";
const TEN_WORKERS: &str = "asynchronous, 10 workers";
const TEN_APART: &str = "asynchronous, 10 workers, a process each";
const LIBZMQ: &str = "broker in C on libzmq, libzmq ends";
const RAW: &str = "epoll loop without duties, libzmq ends";
const OURS: &str = "tow broker, tow call and tow work";
const OURS_LIMITED: &str = "tow broker, tow call and tow work --jobs 1 or 10";
const OURS_STOCK: &str = "tow broker, libzmq ends";
/// majortomo's socket drops what goes beyond its queue of 1000.
const MAJORTOMO_AHEAD: u64 = 500;

pub fn plan(bench: &Bench) -> Plan<'_> {
    let requests = bench.requests(100_000);
    let mut variants = Vec::new();
    for (kind, name, broker, ends, requests) in [
        (Kind::Peer, LIBZMQ, Broker::Libzmq, Ends::Libzmq, requests),
        (Kind::Peer, "majortomo in Python, libzmq ends", Broker::Majortomo, Ends::Libzmq, requests / 10),
        (Kind::Limit, RAW, Broker::RawMajordomo, Ends::Libzmq, requests),
        (Kind::Ours, OURS_STOCK, Broker::Tow { journal: false }, Ends::Libzmq, requests),
        (Kind::Ours, OURS_LIMITED, Broker::Tow { journal: false }, Ends::Tow, requests),
    ] {
        for (group, workers, ahead) in
            [(SYNCHRONOUS, 1, 1), (ONE_WORKER, 1, requests), (TEN_WORKERS, 10, requests), (TEN_APART, 10, requests)]
        {
            let apart = group == TEN_APART;
            if apart && ends == Ends::Tow {
                continue;
            }
            let ahead = if broker == Broker::Majortomo { ahead.min(MAJORTOMO_AHEAD) } else { ahead };
            let setup = Setup::new(broker, ends).workers(workers).apart(apart);
            variants.push(variant(bench, kind, name, group, setup, Load { requests, ahead, size: SIZE }));
        }
    }
    for (group, ahead, requests) in [(SYNCHRONOUS, 1, requests), (ONE_WORKER, requests * 5, requests * 5)] {
        let setup = Setup::new(Broker::Tow { journal: false }, Ends::Tow).workers(0);
        variants.push(variant(bench, Kind::Ours, OURS, group, setup, Load { requests, ahead, size: SIZE }));
    }
    Plan { content: content(requests), variants, targets }
}

fn content(requests: u64) -> Content {
    Content {
        title: "Majordomo brokers".to_owned(),
        about: format!(
            "A service that echoes {SIZE} bytes, called through a broker: one request after another, and {} at once \
             ({MAJORTOMO_AHEAD} ahead with majortomo, which loses replies beyond that), with one worker and with ten. libzmq's ends \
             speak Majordomo 0.1, a worker of theirs gets one request at a time, and all ten are threads of a process or a \
             process each. The *epoll loop without duties* shows what such ends leave to any broker: one thread that moves \
             requests to the worker that has waited longest, and replies back, knows one service and checks nothing. `tow work` \
             is one worker that takes 4096 requests at a time (here {} at once), or with --jobs as many as there are workers in \
             the other rows. majortomo logs errors only.",
            count_text(requests),
            count_text(requests * 5),
        ),
        peer: LIBZMQ.to_owned(),
        layout: Layout::Rates,
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let faster = |text, least, ours, group| {
        rows.compared(text, Bound::AtLeast(least), (ours, LIBZMQ, group), |row, peer| row.times_faster(peer))
    };
    vec![
        faster("stock ends one after another, times faster than behind the broker in C", 1.5, OURS_STOCK, SYNCHRONOUS),
        faster("stock ends with 1 worker, times faster than behind the broker in C", 1.5, OURS_STOCK, ONE_WORKER),
        faster("stock ends with 10 workers, times faster than behind the broker in C", 1.5, OURS_STOCK, TEN_WORKERS),
        faster("the same, a process each", 1.5, OURS_STOCK, TEN_APART),
        faster("our own ends at once, times faster than stock ends behind the broker in C", 20.0, OURS, ONE_WORKER),
    ]
}
