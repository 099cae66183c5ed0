//! The cost of a request by the number of services, workers or clients, which should not matter.
//!
//! One thing is varied at a time. Each service needs a worker, so there are as many workers for one service as for the most; what
//! their connections cost is in the table of the workers, which goes as far.

use super::{Bound, Content, Figure, Layout, Plan, Rows, Target, count_text};
use crate::Bench;
use crate::brokers::Broker;
use crate::ends::{Ends, Load, Setup};
use crate::exchange::variant;
use crate::series::Kind;

const SIZE: u64 = 30;
/// Requests that one client has in flight.
const AHEAD: u64 = 1000;
/// Requests in flight of each of several clients: the same, however many there are, since what comes together costs less.
const AHEAD_EACH: u64 = 10;
/// Where clients are varied.
const WORKERS: u64 = 100;
/// Where services are varied: one for each of the most.
const WORKERS_OF_SERVICES: u64 = 10_000;
const OURS: &str = "tow broker";
const LIBZMQ: &str = "broker in C on libzmq";

/// The number that is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    Services,
    Workers,
    Clients,
}

impl Axis {
    fn counts(self) -> &'static [u64] {
        match self {
            Self::Services | Self::Workers => &[1, 10, 100, 1000, 10_000],
            Self::Clients => &[1, 10, 100, 1000],
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
            Self::Services => setup.workers(WORKERS_OF_SERVICES).services(count),
            Self::Workers => setup.workers(count),
            Self::Clients => setup.workers(WORKERS).clients(count),
        }
    }
}

pub fn plan(bench: &Bench, axis: Axis) -> Plan<'_> {
    // So many that with the most services each is asked often enough for what the first request costs not to show.
    let requests = bench.requests(100_000);
    let mut variants = Vec::new();
    for &count in axis.counts() {
        // A single worker is asked again only when it has answered.
        let requests = if axis == Axis::Workers && count == 1 { requests / 5 } else { requests };
        let ahead = if axis == Axis::Clients { AHEAD_EACH * count } else { AHEAD };
        for (kind, name, broker) in
            [(Kind::Ours, OURS, Broker::Tow { journal: false }), (Kind::Peer, LIBZMQ, Broker::Libzmq)]
        {
            let load = Load { requests, ahead, size: SIZE };
            let setup = axis.setup(broker, count);
            variants.push(variant(bench, kind, name, &count_text(count), setup, load));
        }
    }
    let targets = match axis {
        Axis::Services => services_targets,
        Axis::Workers => workers_targets,
        Axis::Clients => clients_targets,
    };
    Plan { content: content(axis), variants, targets }
}

fn content(axis: Axis) -> Content {
    let in_flight = count_text(AHEAD);
    let others = match axis {
        Axis::Services => format!(
            "{in_flight} in flight; one client asks the services in turn; {} workers, divided among the services",
            count_text(WORKERS_OF_SERVICES)
        ),
        Axis::Workers => format!("{in_flight} in flight; one client, one service"),
        Axis::Clients => format!("{AHEAD_EACH} of each client in flight; {WORKERS} workers, one service"),
    };
    Content {
        title: format!("A request's cost with more {}", axis.name()),
        about: format!(
            "Requests of {SIZE} bytes, {others}. All workers are connections of one epoll program, and so are all clients; they speak \
             Majordomo 0.1. Connecting and ending are not counted."
        ),
        peer: LIBZMQ.to_owned(),
        layout: Layout::Grid {
            groups: axis.name().to_owned(),
            figures: vec![Figure::BrokerMicroseconds, Figure::RequestsPerSecond, Figure::ServerPeakMebibytes],
            log_y: true,
        },
    }
}

/// With 10,000 services, of a single one.
fn services_targets(rows: &Rows<'_>) -> Vec<Target> {
    vec![flat(rows, Axis::Services, "10,000", "1")]
}

/// With 1,000 workers, of 10: a single one waits for each answer.
fn workers_targets(rows: &Rows<'_>) -> Vec<Target> {
    vec![flat(rows, Axis::Workers, "1,000", "10")]
}

fn clients_targets(rows: &Rows<'_>) -> Vec<Target> {
    vec![flat(rows, Axis::Clients, "1,000", "10")]
}

/// How much more a request costs with many than with few.
fn flat(rows: &Rows<'_>, axis: Axis, many: &str, few: &str) -> Target {
    let measured = || Some(rows.find(OURS, many)?.broker_us()? / rows.find(OURS, few)?.broker_us()?);
    Target {
        text: format!("the broker's CPU for a request with {many} {}, of that with {few}", axis.name()),
        bound: Bound::AtMost(1.25),
        measured: measured(),
    }
}
