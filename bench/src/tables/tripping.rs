//! Round trips of five bytes: what something between a client and a worker costs.

use super::{Bound, Content, Layout, Plan, Rows, Target, count_text};
use crate::Bench;
use crate::brokers::Broker;
use crate::ends::{Ends, Load, Setup};
use crate::exchange::variant;
use crate::series::Kind;

const SIZE: u64 = 5;
const SYNCHRONOUS: &str = "synchronous";
const ASYNCHRONOUS: &str = "asynchronous";
const PROXY: &str = "libzmq's proxy, libzmq ends";
const OURS: &str = "tow broker, tow call and tow work";
const OURS_STOCK: &str = "tow broker, libzmq ends";
const RAW: &str = "raw sockets";

pub fn plan(bench: &Bench) -> Plan<'_> {
    let one_by_one = bench.requests(10_000);
    let at_once = bench.requests(100_000);
    let mut variants = Vec::new();
    for (kind, name, broker, ends) in [
        (Kind::Peer, PROXY, Broker::Proxy, Ends::Libzmq),
        (Kind::Peer, "Majordomo broker in C, libzmq ends", Broker::Libzmq, Ends::Libzmq),
        (Kind::Ours, OURS, Broker::Tow { journal: false }, Ends::Tow),
        (Kind::Ours, OURS_STOCK, Broker::Tow { journal: false }, Ends::Libzmq),
        (Kind::Limit, RAW, Broker::Raw, Ends::Light),
    ] {
        let setup = Setup::new(broker, ends).workers(if ends == Ends::Tow { 0 } else { 1 });
        let load = Load { requests: one_by_one, ahead: 1, size: SIZE };
        variants.push(variant(bench, kind, name, SYNCHRONOUS, setup, load));
        let load = Load { requests: at_once, ahead: at_once, size: SIZE };
        variants.push(variant(bench, kind, name, ASYNCHRONOUS, setup, load));
    }
    Plan { content: content(one_by_one, at_once), variants, targets }
}

fn content(one_by_one: u64, at_once: u64) -> Content {
    Content {
        title: "Tripping".to_owned(),
        about: format!(
            "A client, something in the middle, and one worker that echoes, each a process: {} requests of {SIZE} bytes one after \
             another, and {} at once. The proxy forwards everything. The Majordomo brokers know services and workers, and give a \
             stock worker one request at a time, `tow work` as many as its credit. *Raw sockets* are epoll programs with frames but \
             no protocol.",
            count_text(one_by_one),
            count_text(at_once),
        ),
        peer: PROXY.to_owned(),
        layout: Layout::Rates,
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let faster =
        |text, bound, group| rows.compared(text, bound, (OURS, PROXY, group), |row, peer| row.times_faster(peer));
    vec![
        faster("one after another, times faster than libzmq's proxy", Bound::AtLeast(1.5), SYNCHRONOUS),
        faster("at once, times faster than libzmq's proxy", Bound::AtLeast(2.0), ASYNCHRONOUS),
    ]
}
