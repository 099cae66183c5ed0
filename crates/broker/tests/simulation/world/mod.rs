//! The world: who is there, what goes wrong, and the order of it all, decided by one seed.

mod dead_letter;
mod trouble;

use crate::cell::{Broken, Member, Shared};
use crate::client::Client;
use crate::disk::Disk;
use crate::ends::{End, Io, SERVICES};
use crate::history::{Event, History};
use crate::link::{LANE_BYTES, LinkId, Net, Packet};
use crate::node::{Fault, Log, Node, World};
use crate::real::{RealClient, RealWorker};
use crate::rng::Rng;
use crate::stock::{StockClient, StockWorker};
use crate::worker::Worker;
use towpath_broker::core::{Core, Millis, Settings};

/// Kind of a world.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub nodes: usize,
    pub journal: bool,
    /// The nodes share a log, of which one leads.
    pub shared: bool,
    pub fault: Fault,
    /// Whether anything goes wrong at all.
    pub chaos: bool,
    /// Milliseconds of it.
    pub length: Millis,
    /// From when on the first client reads nothing.
    pub first_stops: Option<Millis>,
}

/// A client or worker, and its connection.
struct Seat {
    end: Box<dyn End>,
    link: Option<LinkId>,
    connect_at: Millis,
    away_until: Millis,
    wake_at: Millis,
    nodes: Vec<usize>,
}

/// Result of a run.
#[derive(Debug, Default, Clone, Copy)]
pub struct Tally {
    pub steps: u64,
    pub accepted: u64,
    pub refused: u64,
    pub requeued: u64,
    pub late: u64,
    pub replied: u64,
    pub failed: u64,
    pub crashes: u64,
    pub stops: u64,
    pub kept_aside: u64,
    /// How often a node has won the leadership.
    pub terms: u64,
    /// Dead letters that operators sent again, or dropped.
    pub letters: u64,
    /// Outcomes of all but the first client, before everything was healed.
    pub of_others: u64,
}

pub struct Sim {
    plan: Plan,
    rng: Rng,
    pub net: Net,
    pub nodes: Vec<Node>,
    /// The log that the nodes share.
    stream: Option<Shared>,
    seats: Vec<Seat>,
    pub history: History,
    pub now: Millis,
    chaos_at: Millis,
    /// How likely each kind of trouble is in this world.
    weights: [u64; 13],
    pace: Millis,
    large_percent: u64,
    pub tally: Tally,
}

fn settings(plan: &Plan, rng: &mut Rng) -> Settings {
    Settings {
        journal: plan.journal,
        service_requests_max: 12,
        service_bytes_max: 20_000,
        requests_max: 60,
        bytes_max: 70_000,
        client_requests_max: 16,
        client_bytes_max: 16_000,
        window_bytes_max: if plan.seed.is_multiple_of(2) { 500 } else { 4 << 20 },
        reply_bytes_expected: if plan.seed.is_multiple_of(3) { 2_000 } else { 0 },
        services_max: 6,
        ttl_ms: [800, 3_000, 20_000][rng.index(3)],
        attempts_max: if plan.seed.is_multiple_of(4) { 1 } else { rng.between(2, 6) as u16 },
        busy_timeout_ms: rng.percent(40).then(|| rng.between(200, 700)),
        // Longer than all jumps of a clock together.
        absent_client_ms: 600_000,
        journal_retention_ms: 600_000,
        heartbeat_ms: 100,
        liveness: 3,
        ..Settings::default()
    }
}

impl Sim {
    pub fn new(plan: Plan) -> Sim {
        let mut rng = Rng::new(plan.seed);
        let settings = settings(&plan, &mut rng);
        let stream = plan.shared.then(Shared::default);
        let nodes = (0..plan.nodes).map(|index| {
            let log = match &stream {
                Some(stream) => {
                    let broken = if let Fault::Breaks(rule) = plan.fault { rule } else { Broken::Nothing };
                    Log::Shared(Box::new(Member::new(stream.clone(), broken, Rng::new(rng.next()))))
                }
                None => Log::Disk(Disk::default()),
            };
            Node::new(index, settings.clone(), log, plan.fault, Rng::new(rng.next()))
        });
        let nodes = nodes.collect();
        let all: Vec<usize> = (0..plan.nodes).collect();
        let mut seats = Vec::new();
        let mut sit = |end: Box<dyn End>, nodes: &[usize]| {
            seats.push(Seat { end, link: None, connect_at: 0, away_until: 0, wake_at: 0, nodes: nodes.to_vec() });
        };
        for index in 1..=3 {
            let requests = rng.between(20, 60);
            if index == 1 || rng.percent(30) {
                sit(Box::new(RealClient::new(index, requests)), &all);
            } else {
                sit(Box::new(Client::new(index, requests)), &all);
            }
        }
        for index in 11..=12 {
            sit(Box::new(StockClient::new(index, index == 12, 30)), &all);
        }
        for (index, node) in (0..plan.nodes).enumerate() {
            let own = if plan.shared { &all[..] } else { &[node] };
            for (of, service) in SERVICES.into_iter().enumerate() {
                let credit = rng.between(1, 5) as u32;
                let worker = 20 + 10 * index + of;
                if rng.percent(50) {
                    sit(Box::new(RealWorker::new(worker, service, credit)), own);
                } else {
                    sit(Box::new(Worker::new(worker, service, credit)), own);
                }
                sit(Box::new(StockWorker::new(worker + 5, service, of == index % 2)), own);
            }
        }
        let first = if plan.shared { &all[..] } else { &[0] };
        sit(Box::new(Worker::new(15, SERVICES[0], 2)), first);
        let weights =
            [25, 15, 12, 8, 6, 5, 8, 8, 6, 6, 2, 15, 3].map(|weight| if rng.percent(70) { weight } else { 0 });
        let pace = [15, 60, 250][rng.index(3)];
        let large_percent = [4, 10, 40][rng.index(3)];
        let may_be_slow = settings.busy_timeout_ms.is_some();
        let history = History { journal: plan.journal, shared: plan.shared, may_be_slow, ..History::default() };
        let net = Net::new(Rng::new(rng.next()));
        let tally = Tally::default();
        Sim { plan, rng, net, nodes, stream, seats, history, now: 0, chaos_at: 0, weights, pace, large_percent, tally }
    }

    /// Runs it to its end; the error says which promise was broken.
    pub fn run(&mut self) -> Result<(), String> {
        for node in &mut self.nodes {
            node.start(0, self.net.trace);
        }
        while self.now < self.plan.length {
            self.step(false)?;
            if self.plan.first_stops.is_some_and(|at| at <= self.now) {
                self.seats[0].away_until = self.plan.length;
            }
        }
        let of_others = self.history.events.iter().filter(|(_, event)| match event {
            Event::Outcome { key, .. } | Event::StockGot { key, .. } => key.0 != 1,
            _ => false,
        });
        self.tally.of_others = of_others.count() as u64;
        self.heal();
        let limit = self.now + 90_000;
        while !self.is_done() {
            self.step(true)?;
            if self.now > limit {
                break;
            }
        }
        self.history.check()?;
        // What was said last arrives, too.
        let end = self.now + 3_000;
        while self.now < end {
            self.step(true)?;
        }
        self.history.check()?;
        self.check_empty()
    }

    fn is_done(&self) -> bool {
        self.seats.iter().all(|seat| seat.end.is_done()) && self.net.links.values().all(|link| link.end_open)
    }

    fn check_empty(&mut self) -> Result<(), String> {
        // Before time passes in which it is kept no longer.
        if self.plan.shared {
            let leading: Vec<usize> = (0..self.nodes.len()).filter(|index| self.nodes[*index].is_leading()).collect();
            let &[leader] = &leading[..] else { return Err(format!("{leading:?} lead")) };
            let ended = self.nodes.iter_mut().flat_map(|node| std::mem::take(&mut node.ended_letters)).collect();
            self.nodes[leader].ended_letters = ended;
            self.check_aside(leader)?;
        } else {
            (0..self.nodes.len()).try_for_each(|index| self.check_aside(index))?;
        }
        for index in 0..self.nodes.len() {
            // A client leaves what it has asked of one broker to its time, once it has the outcome from another.
            if self.nodes.len() > 1 && !self.plan.shared {
                let (node, mut world) = self.world(index);
                node.lose_links(&mut world);
                self.now += 700_000;
                for _ in 0..3 {
                    self.now += 1_000;
                    self.turn(index);
                }
            }
            let is_alone = self.nodes.len() == 1;
            let node = &mut self.nodes[index];
            let core = node.core().expect("it is alive");
            core.check();
            // What is counted without a request are gaps between numbers that clients which are still there have confirmed.
            if core.load().0 != 0 {
                return Err(format!("something is left in the broker: {:?} {core:#?}", core.load()));
            }
            let left = match (node.log(), &self.stream) {
                (Log::Shared(_), Some(stream)) => stream.borrow().left().requests,
                (Log::Disk(disk), _) if is_alone => disk.restore().0,
                _ => Vec::new(),
            };
            if !left.is_empty() {
                return Err(format!("something is left in the journal: {left:?}"));
            }
        }
        Ok(())
    }

    fn heal(&mut self) {
        if let Some(stream) = &self.stream {
            stream.borrow_mut().is_calm = true;
        }
        for index in 0..self.nodes.len() {
            self.nodes[index].away_until = self.now;
            *self.nodes[index].log().failing() = false;
            if self.nodes[index].broker.is_none() {
                self.nodes[index].start(self.now, self.net.trace);
            }
            let (node, mut world) = self.world(index);
            node.drain(&mut world, false);
        }
        for seat in &mut self.seats {
            (seat.away_until, seat.wake_at) = (self.now, self.now);
        }
    }

    /// The next moment at which anything happens, and all that happens then.
    fn step(&mut self, calm: bool) -> Result<(), String> {
        self.tally.steps += 1;
        let mut next = if calm { self.now + 500 } else { self.chaos_at };
        for node in self.nodes.iter() {
            next = next.min(node.due(&self.net, self.now));
        }
        for link in self.net.links.values() {
            if link.node_open {
                let due = link.received_at();
                next = next.min(due.map_or(Millis::MAX, |due| due.max(self.nodes[link.node].away_until)));
            }
            if link.end_open {
                let away = self.seats[link.end].away_until;
                next = next.min(link.down.due().map_or(Millis::MAX, |due| due.max(away)));
            }
        }
        for seat in &self.seats {
            let due = if seat.link.is_some() { seat.wake_at } else { seat.connect_at.min(seat.wake_at) };
            next = next.min(due.max(seat.away_until));
        }
        self.now = next.max(self.now + 1);

        if !calm && self.plan.chaos && self.now >= self.chaos_at {
            self.trouble();
            self.chaos_at = self.now + 1 + self.rng.below(2 * self.pace);
        }
        self.chaos_at = self.chaos_at.max(self.now + 1);
        for index in 0..self.nodes.len() {
            if self.nodes[index].away_until <= self.now {
                if self.nodes[index].broker.is_none() {
                    self.nodes[index].start(self.now, self.net.trace);
                }
                self.round(index);
                if calm {
                    self.resume(index);
                }
            }
        }
        for index in 0..self.seats.len() {
            if self.seats[index].away_until <= self.now {
                self.live(index, calm);
            }
        }
        self.check_bounds()
    }

    /// The operator resumes what is paused, on whichever node leads by now.
    fn resume(&mut self, index: usize) {
        for service in SERVICES {
            let (node, mut world) = self.world(index);
            let is_paused = |core: &Core| core.paused_services().any(|name| name == service);
            if node.is_leading() && node.core().is_some_and(is_paused) {
                node.pause(&mut world, service, false);
            }
        }
    }

    fn world(&mut self, index: usize) -> (&mut Node, World<'_>) {
        (&mut self.nodes[index], World { now: self.now, net: &mut self.net, history: &mut self.history })
    }

    fn turn(&mut self, index: usize) {
        let (node, mut world) = self.world(index);
        node.begin(&mut world);
        node.turn(&mut world);
    }

    /// A round of a node, with all that has come.
    fn round(&mut self, index: usize) {
        let (node, mut world) = self.world(index);
        node.begin(&mut world);
        self.deliver_up(index);
        let (node, mut world) = self.world(index);
        node.turn(&mut world);
    }

    fn deliver_up(&mut self, index: usize) {
        let mut links: Vec<LinkId> =
            self.net.links.iter().filter(|(_, l)| l.node == index).map(|(id, _)| *id).collect();
        // Connections have no order among each other.
        for last in (1..links.len()).rev() {
            let with = self.rng.index(last + 1);
            links.swap(last, with);
        }
        for id in links {
            loop {
                let now = self.now;
                let Some(link) = self.net.links.get_mut(&id).filter(|link| link.node_open) else { break };
                if link.received_at().is_none_or(|at| at > now) {
                    break;
                }
                if link.up.next().is_some_and(|next| self.nodes[index].defers(id, next)) {
                    break;
                }
                let Some(packet) = link.up.pop(now) else { break };
                let is_close = matches!(packet, Packet::Close);
                let (node, mut world) = self.world(index);
                node.receive(&mut world, id, packet);
                if is_close {
                    if let Some(link) = self.net.links.get_mut(&id) {
                        link.node_open = false;
                    }
                    self.net.tidy(id);
                }
            }
        }
    }

    /// One client or worker does what it has to do.
    fn live(&mut self, index: usize, calm: bool) {
        let now = self.now;
        if self.seats[index].link.is_none() && self.seats[index].connect_at <= now {
            let choices = &self.seats[index].nodes;
            let node = choices[self.rng.index(choices.len())];
            if self.nodes[node].broker.is_some() {
                self.seats[index].link = Some(self.net.connect(now, node, index));
                self.with(index, calm, |end, io| end.connected(io));
                self.seats[index].wake_at = now;
            } else {
                self.seats[index].connect_at = now + self.rng.between(5, 100);
            }
        }
        while let Some(id) = self.seats[index].link {
            let Some(packet) = self.net.links.get_mut(&id).and_then(|link| link.down.pop(now)) else { break };
            self.seats[index].wake_at = now;
            match packet {
                Packet::Frames(frames) => self.with(index, calm, |end, io| end.receive(io, &frames)),
                Packet::Close => self.let_go(index, calm),
                _ => {}
            }
        }
        if self.seats[index].wake_at <= now {
            let mut next = Millis::MAX;
            self.with(index, calm, |end, io| next = end.wake(io));
            self.seats[index].wake_at = next.max(now + 1);
        }
    }

    /// Calls an end, sends what it says, and lets go of its connection if it says so.
    fn with(&mut self, index: usize, calm: bool, call: impl FnOnce(&mut dyn End, &mut Io)) {
        let seat = &mut self.seats[index];
        let open = seat.link.and_then(|id| self.net.links.get(&id)).filter(|link| link.end_open);
        let has_space = open.is_some_and(|link| link.up.bytes < LANE_BYTES);
        let (now, rng, history) = (self.now, &mut self.rng, &mut self.history);
        let large_percent = self.large_percent;
        let mut io = Io { now, rng, history, calm, large_percent, has_space, out: Vec::new(), close: false };
        call(&mut *seat.end, &mut io);
        let Io { out, close, .. } = io;
        if let Some(id) = seat.link {
            for frames in out {
                self.net.send_up(now, id, frames);
            }
            if close {
                self.let_go(index, calm);
            }
        }
    }

    fn let_go(&mut self, index: usize, calm: bool) {
        if let Some(id) = self.seats[index].link.take() {
            self.net.close_by_end(self.now, id);
            let soon = if self.rng.percent(50) { 0 } else { self.rng.between(1, 300) };
            self.seats[index].connect_at = self.now + soon;
            self.with(index, calm, |end, io| end.disconnected(io));
        }
    }

    fn count(&mut self, node: usize) {
        if let Some(core) = self.nodes[node].core() {
            let counters = core.counters();
            self.tally.accepted += counters.accepted;
            self.tally.refused += counters.refused;
            self.tally.requeued += counters.requeued;
            self.tally.late += counters.late_replies;
            self.tally.replied += counters.replied;
            self.tally.failed += counters.failed;
        }
    }

    /// Adds up what the brokers have counted.
    pub fn totals(&mut self) -> Tally {
        for node in 0..self.nodes.len() {
            self.count(node);
            self.tally.terms += self.nodes[node].log().terms();
        }
        self.tally
    }
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.steps += other.steps;
        self.accepted += other.accepted;
        self.refused += other.refused;
        self.requeued += other.requeued;
        self.late += other.late;
        self.replied += other.replied;
        self.failed += other.failed;
        self.crashes += other.crashes;
        self.stops += other.stops;
        self.kept_aside += other.kept_aside;
        self.terms += other.terms;
        self.letters += other.letters;
        self.of_others += other.of_others;
    }
}
