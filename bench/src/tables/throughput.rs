//! A broker's throughput with many requests in flight, and the cost of one.

use super::{Bound, Content, Figure, Layout, Plan, Rows, Target, count_text};
use crate::Bench;
use crate::brokers::Broker;
use crate::ends::{Ends, Load, Setup};
use crate::exchange::variant;
use crate::series::Kind;

const AHEAD: [u64; 3] = [100, 1000, 10_000];
const SIZES: [u64; 2] = [30, 250];
/// Stock workers take one request at a time: this many of them keep a broker busy.
const STOCK_WORKERS: u64 = 100;

const OURS: &str = "tow broker, tow call and tow work";
const OURS_STOCK: &str = "tow broker, 100 stock workers";
const LIBZMQ: &str = "broker in C on libzmq, 100 stock workers";
const RAW: &str = "raw sockets";

pub fn plan(bench: &Bench) -> Plan<'_> {
    let tow = Broker::Tow { journal: false };
    let mut variants = Vec::new();
    let most = bench.requests(1_000_000);
    for size in SIZES {
        for ahead in AHEAD {
            let group = group(size, ahead);
            for (kind, name, setup, requests) in [
                (Kind::Ours, OURS, Setup::new(tow, Ends::Tow).workers(ahead), most),
                (Kind::Ours, OURS_STOCK, Setup::new(tow, Ends::Light).workers(STOCK_WORKERS), most / 10),
                (Kind::Peer, LIBZMQ, Setup::new(Broker::Libzmq, Ends::Light).workers(STOCK_WORKERS), most / 10),
                (Kind::Peer, "NATS", Setup::new(Broker::NatsCore, Ends::Nats), most / 10),
                (Kind::Limit, RAW, Setup::new(Broker::Raw, Ends::Light), most),
            ] {
                variants.push(variant(bench, kind, name, &group, setup, Load { requests, ahead, size }));
            }
        }
    }
    let setup = Setup::new(Broker::Majortomo, Ends::Light).workers(STOCK_WORKERS);
    let load = Load { requests: bench.requests(5000), ahead: 100, size: 30 };
    variants.push(variant(bench, Kind::Peer, "majortomo, 100 stock workers", &group(30, 100), setup, load));
    Plan { content: content(bench), variants, targets }
}

fn group(size: u64, ahead: u64) -> String {
    format!("{size} B, {}", count_text(ahead))
}

fn content(bench: &Bench) -> Content {
    let most = bench.requests(1_000_000);
    Content {
        title: "Throughput".to_owned(),
        about: format!(
            "One client with 100, 1000 and 10,000 requests in flight, of 30 and 250 bytes: {} requests in all to our own worker and \
             over raw sockets, {} through NATS (whose server keeps no queue of requests), {} to stock workers behind our broker, {} \
             behind the one on libzmq, {} behind majortomo; half as many of the large ones. Stock workers take one request at a time, \
             so there are {STOCK_WORKERS}; they and their client are epoll programs that speak Majordomo 0.1, so that the broker is \
             what is measured. All ends are one process a side.",
            count_text(most),
            count_text(most / 10),
            count_text(most / 10),
            count_text(most / 50),
            count_text(bench.requests(5000)),
        ),
        peer: LIBZMQ.to_owned(),
        layout: Layout::Grid {
            groups: "size and requests ahead".to_owned(),
            figures: vec![Figure::RequestsPerSecond, Figure::BrokerMicroseconds, Figure::ServerPeakMebibytes],
            log_y: true,
        },
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let of_ours = |text, bound, group: &str, figure: fn(&crate::series::Row) -> Option<f64>| {
        rows.compared(text, bound, (OURS, OURS, group), |row, _| figure(row))
    };
    let million = |row: &crate::series::Row| Some(row.per_second()? / 1e6);
    let rate = |text, size, ahead| of_ours(text, Bound::AtLeast(1.0), &group(size, ahead), million);
    vec![
        rate("30 bytes, 100 ahead, million requests a second", 30, 100),
        rate("30 bytes, 1000 ahead, million requests a second", 30, 1000),
        rate("30 bytes, 10,000 ahead, million requests a second", 30, 10_000),
        of_ours("the broker's CPU there, us a request", Bound::AtMost(0.5), &group(30, 10_000), |row| row.broker_us()),
        rows.compared(
            "stock ends, 1000 ahead, times faster than behind the broker in C",
            Bound::AtLeast(2.0),
            (OURS_STOCK, LIBZMQ, &group(30, 1000)),
            |row, peer| row.times_faster(peer),
        ),
        rate("250 bytes, 100 ahead, million requests a second", 250, 100),
        rate("250 bytes, 1000 ahead, million requests a second", 250, 1000),
        rate("250 bytes, 10,000 ahead, million requests a second", 250, 10_000),
    ]
}
