//! Faults at random, of brokers and of NATS, with clients and workers of all kinds at all brokers: what was accepted has one outcome, and none is lost.
//!
//! TOWPATH_CELL_FAULTS says how many faults, TOWPATH_SEED which.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::nats::Nats;
use crate::network::Network;
use crate::support::broker::Broker;
use crate::support::process::Process;
use crate::support::random::Random;
use crate::support::{skip, wait_until};
use crate::{ANY, Cell, LEADS, await_growth, expect_all, leads, load, worker};

const NODES: usize = 3;
const PEERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cell/peers.py");
/// Requests of one run of `tow call`.
const REQUESTS: u64 = 2_000;

#[derive(Debug, Clone, Copy)]
enum Fault {
    KillBroker(usize),
    StopBroker(usize),
    KillNode(usize),
    StopNode(usize),
    CutNode(usize),
    Fill,
}

struct World {
    cell: Cell,
    brokers: Vec<Broker>,
    endpoints: Vec<String>,
    random: Random,
    has_network: bool,
    size: u64,
}

impl World {
    /// One fault, or two at a time; now and then so that NATS has no quorum.
    fn choose(&mut self) -> Vec<Fault> {
        let count = 1 + self.random.below(3) / 2;
        let mut is_second = false;
        let (broker, node) = (self.random.below(NODES as u64) as usize, self.random.below(NODES as u64) as usize);
        let leader = self.brokers.iter().position(leads).unwrap_or(broker);
        (0..count as usize)
            .map(|index| {
                let node = (node + index) % NODES;
                // The second is one of NATS.
                let of_broker = if std::mem::replace(&mut is_second, true) { 4 } else { 0 };
                match of_broker + self.random.below(9 - of_broker) {
                    0 => Fault::KillBroker(leader),
                    1 => Fault::StopBroker(leader),
                    2 => Fault::KillBroker(broker),
                    3 => Fault::StopBroker(broker),
                    4 => Fault::KillNode(node),
                    5 => Fault::StopNode(node),
                    6 | 7 if self.has_network => Fault::CutNode(node),
                    6 | 7 => Fault::StopNode(node),
                    _ => Fault::Fill,
                }
            })
            .collect()
    }

    fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::KillBroker(broker) => self.brokers[broker].signal(Signal::KILL),
            Fault::StopBroker(broker) => self.brokers[broker].signal(Signal::STOP),
            Fault::KillNode(node) => self.cell.nats.kill_node(node),
            Fault::StopNode(node) => self.cell.nats.signal(node, Signal::STOP),
            Fault::CutNode(node) => self.cell.nats.cut(node, true),
            Fault::Fill => self.set_size(|used| used + 200_000),
        }
    }

    fn end(&mut self, fault: Fault) {
        match fault {
            Fault::KillBroker(broker) => self.start_broker(broker),
            Fault::StopBroker(broker) => self.brokers[broker].signal(Signal::CONT),
            Fault::KillNode(node) => self.cell.nats.start_node(node),
            Fault::StopNode(node) => self.cell.nats.signal(node, Signal::CONT),
            Fault::CutNode(node) => self.cell.nats.cut(node, false),
            Fault::Fill => {
                let size = self.size;
                self.set_size(|_| size);
            }
        }
    }

    /// Starts it until it runs, as a supervisor does: NATS may have no leader now.
    fn start_broker(&mut self, broker: usize) {
        let mut started = None;
        let starts = || {
            match Broker::try_start(&mut self.cell.broker_command(&self.endpoints[broker])) {
                Ok(broker) => started = Some(broker),
                Err(log) => println!("it doesn't start: {log}"),
            }
            started.is_some()
        };
        wait_until("the broker starts", starts);
        self.brokers[broker] = started.expect("it was waited for");
    }

    /// Gives the stream so many bytes, of which it has so many already.
    fn set_size(&mut self, size: impl Fn(u64) -> u64) {
        let is_set = || {
            let info = self.cell.nats.request("$JS.API.STREAM.INFO.TOW_test", "");
            let Ok(mut info) = serde_json::from_str::<serde_json::Value>(&info) else { return false };
            let Some(used) = info["state"]["bytes"].as_u64() else { return false };
            info["config"]["max_bytes"] = size(used).into();
            let updated = self.cell.nats.request("$JS.API.STREAM.UPDATE.TOW_test", &info["config"].to_string());
            updated.contains("\"config\"")
        };
        wait_until("the stream's size is set", is_set);
    }
}

/// A peer on pyzmq.
fn peer(python: &std::path::Path, role: &str, endpoints: &[String]) -> Process {
    Process::start(Command::new(python).arg(PEERS).arg(role).args(endpoints))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn random_faults_lose_nothing_and_no_request_has_two_outcomes() {
    let network = Network::new(NODES);
    let has_network = network.is_some();
    if !has_network {
        println!("without partitions: there are no network namespaces");
    }
    let Some(nats) = Nats::start_in(NODES, "", network) else { return skip("there is no nats-server") };
    let size = 64 << 20;
    let cell = Cell::on(nats, "3", &size.to_string());
    let brokers: Vec<Broker> = (0..3).map(|_| cell.broker(ANY)).collect();
    let endpoints: Vec<String> = brokers.iter().map(|broker| broker.endpoint().to_owned()).collect();
    wait_until("one leads", || brokers.iter().any(|broker| broker.log().contains(LEADS)));
    let python = cell.nats.python();
    if python.is_none() {
        println!("without stock clients and workers: there is no pyzmq");
    }
    let clients: Vec<Process> =
        python.iter().flat_map(|python| ["mdp", "numbered"].map(|role| peer(python, role, &endpoints))).collect();
    let _stock: Vec<Process> = python
        .iter()
        .flat_map(|python| [peer(python, "worker", &endpoints), peer(python, "worker", &endpoints)])
        .collect();
    let all: Vec<&Broker> = brokers.iter().collect();
    let _echo = worker(&all);
    let mut loads = load(&all, REQUESTS);
    let seed = number("TOWPATH_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    println!("TOWPATH_SEED={seed}");
    let mut world = World { cell, brokers, endpoints, random: Random::new(seed), has_network, size };
    for index in 0..number("TOWPATH_CELL_FAULTS").unwrap_or(20) {
        let faults = world.choose();
        let hold = Duration::from_millis(300 + 500 * world.random.below(7));
        println!("{index}: {faults:?} for {hold:?}");
        faults.iter().for_each(|fault| world.begin(*fault));
        let until = Instant::now() + hold;
        wait_until("the fault has lasted", || Instant::now() >= until);
        faults.iter().rev().for_each(|fault| world.end(*fault));
        if world.random.below(3) == 0 {
            await_growth(&world.cell);
        }
        if loads.ended() {
            let all: Vec<&Broker> = world.brokers.iter().collect();
            expect_all(std::mem::replace(&mut loads, load(&all, REQUESTS)).finish(), REQUESTS);
        }
    }
    expect_all(loads.finish(), REQUESTS);
    for client in clients {
        client.signal(Signal::TERM);
        let outcome = client.finish().expect_code(0);
        println!("{}", String::from_utf8_lossy(&outcome.stdout));
        assert_ne!(outcome.stdout.trim_ascii(), b"0", "nothing was answered");
    }
}
