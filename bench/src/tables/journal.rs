//! Requests that are on the disk before they are confirmed.

use super::{Bound, Content, Figure, Layout, Plan, Rows, Target};
use crate::Bench;
use crate::brokers::Broker;
use crate::ends::{Ends, Load, Setup};
use crate::exchange::variant;
use crate::series::{Kind, Variant};

const SIZE: u64 = 30;
const OURS: &str = "tow broker --journal, confirmed";
const OURS_REPLIED: &str = "tow broker --journal, replied to";
const REDIS: &str = "Redis Streams, appendfsync always";
const NATS: &str = "NATS JetStream, sync_interval always";

/// How many clients, how much each has unconfirmed, and how many requests that is worth.
const GROUPS: [(u64, u64, u64); 5] = [(1, 1, 2000), (16, 1, 8000), (50, 1, 10_000), (1, 64, 10_000), (50, 64, 20_000)];

pub fn plan(bench: &Bench) -> Plan<'_> {
    let tow = Broker::Tow { journal: true };
    let mut variants: Vec<Variant<'_>> = Vec::new();
    for (clients, each, requests) in GROUPS {
        let load = Load { requests: bench.requests(requests), ahead: clients * each, size: SIZE };
        for (kind, name, setup) in [
            (Kind::Ours, OURS, Setup::new(tow, Ends::Durable).clients(clients)),
            (Kind::Ours, OURS_REPLIED, Setup::new(tow, Ends::Tow).clients(clients).workers(clients * each)),
            (Kind::Peer, REDIS, Setup::new(Broker::Redis, Ends::Store).clients(clients)),
            (Kind::Peer, NATS, Setup::new(Broker::Nats, Ends::Store).clients(clients)),
        ] {
            // It synchronizes each record on its own, so that more at a time take longer.
            let few = Load { requests: (load.requests / 5).max(bench.requests(1000)), ..load };
            let load = if setup.broker == Broker::Nats { few } else { load };
            variants.push(variant(bench, kind, name, &group(clients, each), setup, load));
        }
    }
    Plan { content: content(), variants, targets }
}

fn group(clients: u64, each: u64) -> String {
    format!("{clients} x {each}")
}

fn content() -> Content {
    Content {
        title: "Requests on the disk".to_owned(),
        about: format!(
            "Requests of {SIZE} bytes confirmed a second, each after it has been synced to disk, by clients and by what each has \
             unconfirmed. Redis and NATS confirm a record of a stream; our broker confirms a request that waits for a worker. In \
             the row *replied to* there is a worker too, and its replies are counted, which must be on disk before they are sent. \
             All clients are one process. The more requests there are at a time, the more of them share a sync."
        ),
        peer: REDIS.to_owned(),
        layout: Layout::Grid {
            groups: "clients x unconfirmed".to_owned(),
            figures: vec![Figure::RequestsPerSecond, Figure::BrokerMicroseconds],
            log_y: true,
        },
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let faster = |text, peer, (clients, each)| {
        let names = (OURS, peer, group(clients, each));
        rows.compared(text, Bound::AtLeast(1.0), (names.0, names.1, &names.2), |row, peer| row.times_faster(peer))
    };
    vec![
        faster("16 clients, times faster than NATS JetStream", NATS, (16, 1)),
        faster("50 clients, times faster than NATS JetStream", NATS, (50, 1)),
        faster("50 clients, times faster than Redis Streams", REDIS, (50, 1)),
    ]
}
