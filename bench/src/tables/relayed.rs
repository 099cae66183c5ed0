//! Connections that a standby of a cell relays, beside connections to the broker that leads.

use super::{Bound, Content, Figure, Layout, Plan, Rows, Target, count_text};
use crate::Bench;
use crate::brokers::Broker;
use crate::ends::{Ends, Load, Setup};
use crate::exchange::variant;
use crate::series::Kind;

const DIRECT: &str = "tow broker in a cell, to the leader";
const RELAYED: &str = "tow broker in a cell, through a standby";

/// Requests in flight, their size, and how many requests that is worth.
const GROUPS: [(u64, u64, u64); 4] = [(1, 30, 2_000), (64, 30, 20_000), (1_000, 30, 100_000), (8, 100_000, 1_000)];

pub fn plan(bench: &Bench) -> Plan<'_> {
    let mut variants = Vec::new();
    for (ahead, size, requests) in GROUPS {
        let load = Load { requests: bench.requests(requests), ahead, size };
        for (kind, name, standby) in [(Kind::Peer, DIRECT, false), (Kind::Ours, RELAYED, true)] {
            let setup = Setup::new(Broker::Cell { standby }, Ends::Tow).workers(ahead);
            variants.push(variant(bench, kind, name, &group(ahead, size), setup, load));
        }
    }
    Plan { content: content(), variants, targets }
}

fn group(ahead: u64, size: u64) -> String {
    format!("{} x {} B", count_text(ahead), count_text(size))
}

fn content() -> Content {
    Content {
        title: "Relayed connections of a cell".to_owned(),
        about: "Requests a second to a worker that sends them back, by how many are in flight and by size. The cell has two brokers and \
                one nats-server, synchronized always. Client and worker are connected to the broker that leads, or both to the other \
                one, which relays them. All processes share the machine."
            .to_owned(),
        peer: DIRECT.to_owned(),
        layout: Layout::Grid {
            groups: "in flight x size".to_owned(),
            figures: vec![Figure::RequestsPerSecond],
            log_y: true,
        },
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let ratio = |(ahead, size, _): (u64, u64, u64)| {
        let group = group(ahead, size);
        let text = format!("{group}: through a standby, times as fast as to the leader");
        rows.compared(&text, Bound::AtLeast(0.8), (RELAYED, DIRECT, &group), |row, peer| row.times_faster(peer))
    };
    GROUPS.map(ratio).to_vec()
}
