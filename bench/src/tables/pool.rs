//! A pool of workers that take a while for each request: how near it comes to what they could do.

use super::{Bound, Content, Layout, Plan, Rows, Target, count_text};
use crate::Bench;
use crate::brokers::Broker;
use crate::ends::{Ends, Load, Setup};
use crate::exchange::variant;
use crate::series::{Kind, Variant};

const CLIENTS: u64 = 10;
const WORKERS: u64 = 2;
const WORK_MS: u64 = 2;
const SIZE: u64 = 1024;
/// Requests a second that the workers could do.
const IDEAL: f64 = 1e3 / WORK_MS as f64 * WORKERS as f64;

const SOCKETS: &str = "plain sockets, a thread a connection";
const OURS: &str = "tow broker, tow call, worker on our library";
const OURS_INPROC: &str = "our library in one process, inproc";
const OURS_IPC: &str = "our library in one process, ipc";
const OURS_TCP: &str = "our library in one process, tcp";
const OURS_STOCK: &str = "tow broker, libzmq workers";

pub fn plan(bench: &Bench) -> Plan<'_> {
    let requests = bench.requests(1000);
    let setup = |broker, ends| Setup::new(broker, ends).clients(CLIENTS).workers(WORKERS).work_ms(WORK_MS);
    let stock = |broker| setup(broker, Ends::Libzmq).client_ends(Ends::Light);
    let tow = Broker::Tow { journal: false };
    let variants: Vec<Variant<'_>> = [
        (Kind::Peer, SOCKETS, setup(Broker::None, Ends::ThreadPool)),
        (Kind::Peer, "libzmq's proxy, inproc", setup(Broker::None, Ends::LibzmqPool("inproc"))),
        (Kind::Peer, "libzmq's proxy, ipc", setup(Broker::None, Ends::LibzmqPool("ipc"))),
        (Kind::Peer, "libzmq's proxy, tcp", setup(Broker::None, Ends::LibzmqPool("tcp"))),
        (Kind::Peer, "Majordomo broker in C, libzmq workers", stock(Broker::Libzmq)),
        (Kind::Peer, "majortomo, libzmq workers", stock(Broker::Majortomo)),
        (Kind::Ours, OURS_STOCK, stock(tow)),
        (Kind::Ours, OURS, setup(tow, Ends::Library)),
        (Kind::Ours, OURS_INPROC, setup(Broker::None, Ends::OwnPool("inproc"))),
        (Kind::Ours, OURS_IPC, setup(Broker::None, Ends::OwnPool("ipc"))),
        (Kind::Ours, OURS_TCP, setup(Broker::None, Ends::OwnPool("tcp"))),
    ]
    .into_iter()
    .map(|(kind, name, setup)| variant(bench, kind, name, "", setup, Load { requests, ahead: CLIENTS, size: SIZE }))
    .collect();
    Plan { content: content(requests), variants, targets }
}

fn content(requests: u64) -> Content {
    Content {
        title: "A pool of workers".to_owned(),
        about: format!(
            "{CLIENTS} clients ask {WORKERS} workers, which take {WORK_MS} ms for each request of {SIZE} bytes: {} requests, at \
             most {IDEAL:.0} a second if the workers never wait. Plain sockets and libzmq's proxy are one process with a thread for \
             each client and worker. With a broker, the clients are connections of an epoll program (or of `tow call`) with one \
             request at a time each. Our library's rows are one process too, with a broker in it; each of its workers may have its \
             next request before it has finished one. Work is a thread that sleeps, then spins for the last 150 us, so that late \
             wake-ups add nothing.",
            count_text(requests)
        ),
        peer: SOCKETS.to_owned(),
        layout: Layout::Rates,
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let of_ideal = |text, name| {
        rows.compared(text, Bound::AtLeast(0.98), (name, name, ""), |row, _| Some(row.per_second()? / IDEAL))
    };
    vec![
        of_ideal("our library, inproc, of what the workers could do", OURS_INPROC),
        of_ideal("our library, ipc, of what they could do", OURS_IPC),
        of_ideal("our library, tcp, of what they could do", OURS_TCP),
        of_ideal("tow broker, tow call, a worker on our library, of what they could do", OURS),
        of_ideal("tow broker, stock workers, of what they could do", OURS_STOCK),
    ]
}
