//! What a request costs as there are more services, workers or clients: it should not matter.

use super::{Bound, Content, Figure, Layout, Plan, Rows, Target, count_text};
use crate::Bench;
use crate::brokers::Broker;
use crate::ends::{Ends, Load, Setup};
use crate::exchange::variant;
use crate::series::Kind;

const SIZE: u64 = 30;
const AHEAD: u64 = 1000;
/// Where something else is varied.
const WORKERS: u64 = 100;
const OURS: &str = "tow broker";
const LIBZMQ: &str = "broker in C on libzmq";

/// What there is more of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    Services,
    Workers,
    Clients,
}

impl Axis {
    fn counts(self) -> &'static [u64] {
        match self {
            Self::Services => &[1, 10, 100, 1000, 10_000],
            Self::Workers | Self::Clients => &[1, 10, 100, 1000],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Workers => "workers",
            Self::Clients => "clients",
        }
    }

    fn setup(self, broker: Broker, count: u64) -> Setup {
        let setup = Setup::new(broker, Ends::Light);
        match self {
            Self::Services => setup.workers(count.max(WORKERS)).services(count),
            Self::Workers => setup.workers(count),
            Self::Clients => setup.workers(WORKERS).clients(count),
        }
    }
}

pub fn plan(bench: &Bench, axis: Axis) -> Plan<'_> {
    let requests = bench.requests(30_000);
    let mut variants = Vec::new();
    for &count in axis.counts() {
        for (kind, name, broker, requests) in [
            (Kind::Ours, OURS, Broker::Tow { journal: false }, requests),
            (Kind::Peer, LIBZMQ, Broker::Libzmq, requests / 3),
        ] {
            // A single worker is asked again only when it has answered.
            let requests = if axis == Axis::Workers && count == 1 { requests / 3 } else { requests };
            let load = Load { requests, ahead: AHEAD, size: SIZE };
            let setup = axis.setup(broker, count);
            variants.push(variant(bench, kind, name, &count_text(count), setup, load));
        }
    }
    Plan { content: content(axis), variants, targets: if axis == Axis::Services { targets } else { |_| Vec::new() } }
}

fn content(axis: Axis) -> Content {
    let others = match axis {
        Axis::Services => "one client asks the services in turn; there are 100 workers, or one a service",
        Axis::Workers => "one client, one service",
        Axis::Clients => "100 workers, one service (that the clients connect is in the CPU time too)",
    };
    Content {
        title: format!("A request's cost with more {}", axis.name()),
        about: format!(
            "Requests of {SIZE} octets, {} under way in all; {others}. All workers are connections of one epoll program, and so are all \
             clients; they speak Majordomo 0.1.",
            count_text(AHEAD)
        ),
        peer: LIBZMQ.to_owned(),
        layout: Layout::Grid {
            groups: axis.name().to_owned(),
            figures: vec![Figure::BrokerMicroseconds, Figure::RequestsPerSecond, Figure::ServerPeakMebibytes],
            log_y: true,
        },
    }
}

/// How much more a request costs with 10,000 services than with 100 (which have as many workers as one has).
fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let measured = || Some(rows.find(OURS, "10,000")?.broker_us()? / rows.find(OURS, "100")?.broker_us()?);
    vec![Target {
        text: "the broker's CPU for a request with 10,000 services, of that with 100".to_owned(),
        bound: Bound::AtMost(2.0),
        measured: measured(),
    }]
}
