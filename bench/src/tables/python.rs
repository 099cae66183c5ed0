//! Clients and workers in Python.

use super::{Bound, Content, Layout, Plan, Rows, Target, count_text};
use crate::Bench;
use crate::brokers::Broker;
use crate::ends::{Ends, Load, Setup};
use crate::exchange::variant;
use crate::series::Kind;

const SIZE: u64 = 250;
const AHEAD: u64 = 1000;

const MANY: &str = "many ahead";
const ASYNC: &str = "asyncio, 1000 tasks";
const ONE: &str = "one after another";
const WORKER: &str = "the worker in Python";

const OURS: &str = "towpath";
const NATS: &str = "nats-py";
const CELERY: &str = "celery with Redis";
const MAJORTOMO: &str = "majortomo";

pub fn plan(bench: &Bench) -> Plan<'_> {
    let (many, one) = (bench.requests(200_000), bench.requests(10_000));
    // So that a run of the slowest takes seconds.
    let few = bench.requests(2000);
    let tow = Broker::Tow { journal: false };
    let ours = |client| Setup::new(tow, Ends::Tow).workers(0).client_ends(Ends::Python(client));
    let python = |broker, worker, client| Setup::new(broker, Ends::Python(worker)).client_ends(Ends::Python(client));
    let celery = |client| python(Broker::RedisCore, "celery", client);
    let majortomo = python(Broker::Majortomo, "majortomo", "majortomo-one");
    let variants = [
        (Kind::Ours, OURS, MANY, ours("towpath"), many, AHEAD),
        (Kind::Peer, CELERY, MANY, celery("celery"), few, 100),
        (Kind::Ours, OURS, ASYNC, ours("towpath-async"), many, AHEAD),
        (
            Kind::Peer,
            NATS,
            ASYNC,
            Setup::new(Broker::NatsCore, Ends::Nats).client_ends(Ends::Python("nats-async")),
            many / 4,
            AHEAD,
        ),
        (Kind::Ours, OURS, ONE, ours("towpath-one"), one, 1),
        (Kind::Peer, "majortomo, tow broker and worker", ONE, ours("majortomo-one"), one, 1),
        (Kind::Peer, MAJORTOMO, ONE, majortomo, one, 1),
        (Kind::Peer, NATS, ONE, Setup::new(Broker::NatsCore, Ends::Nats).client_ends(Ends::Python("nats-one")), one, 1),
        (Kind::Peer, CELERY, ONE, celery("celery-one"), few, 1),
        (Kind::Ours, OURS, WORKER, Setup::new(tow, Ends::Python("towpath")).client_ends(Ends::Tow), many, AHEAD),
        (
            Kind::Peer,
            NATS,
            WORKER,
            Setup::new(Broker::NatsCore, Ends::Python("nats")).client_ends(Ends::Nats),
            many / 4,
            AHEAD,
        ),
        (
            Kind::Peer,
            MAJORTOMO,
            WORKER,
            Setup::new(Broker::Majortomo, Ends::Python("majortomo")).client_ends(Ends::Python("majortomo-one")),
            one,
            1,
        ),
        (Kind::Peer, CELERY, WORKER, celery("celery"), few, 100),
    ]
    .into_iter()
    .map(|(kind, name, group, setup, requests, ahead)| {
        variant(bench, kind, name, group, setup, Load { requests, ahead, size: SIZE })
    })
    .collect();
    Plan { content: content(many, one), variants, targets }
}

fn content(many: u64, one: u64) -> Content {
    Content {
        title: "Requests from Python".to_owned(),
        about: format!(
            "The package `towpath` beside others of its kind: up to {} requests of {SIZE} bytes with {AHEAD} in flight, or {} one after \
             another, to a worker that echoes. Celery has 2,000 requests, 100 of them in flight, so that a run takes seconds, and majortomo's client has one in flight: rows \
             with fewer in flight are no measure of the others. The client's processor time is that of its process without its start. The other end is the \
             fastest that there is (`tow work`, `tow call`, a program in C for NATS), unless the row's library has only its own. \
             Nothing is kept on a disk.",
            count_text(many),
            count_text(one),
        ),
        peer: CELERY.to_owned(),
        layout: Layout::Rates,
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let own = |text, bound, group, figure: fn(&crate::series::Row) -> Option<f64>| {
        rows.compared(text, bound, (OURS, OURS, group), |row, _| figure(row))
    };
    vec![
        own("map: us of the client's CPU time a request", Bound::AtMost(2.5), MANY, crate::series::Row::clients_us),
        own(
            "asyncio: us of the client's CPU time a request",
            Bound::AtMost(7.0),
            ASYNC,
            crate::series::Row::clients_us,
        ),
        rows.compared(
            "one call after another, times as fast as majortomo's client with the same broker and worker",
            Bound::AtLeast(1.0),
            (OURS, "majortomo, tow broker and worker", ONE),
            |row, peer| row.times_faster(peer),
        ),
        own("us of a worker's CPU time a request", Bound::AtMost(3.0), WORKER, crate::series::Row::workers_us),
    ]
}
