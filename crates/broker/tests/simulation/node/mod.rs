//! One broker: the dispatch of the real one, on simulated links, with a disk that outlives it.

mod store;
mod transport;
mod wire;

use crate::cell::Broken;
use crate::ends::key_of;
use crate::history::{Event, History};
use crate::link::{LinkId, Net, Packet};
use crate::rng::Rng;
use bytes::Bytes;
pub use store::Log;
use store::SimStore;
use towpath_broker::core::{Core, LetterAction, Millis, Settings};
use towpath_broker::dispatch::Dispatch;
use towpath_requests::Body;
use towpath_requests::numbered::ClientId;
use transport::{Effect, SimTransport};
use wire::Wire;

/// Deliberate faults of a broker, to see that the checks find them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    None,
    /// A reply goes to the next request instead of its own.
    SwapReplies,
    /// An entry is acknowledged that isn't durable.
    LoseEntries,
    /// Another outcome follows the first one.
    AnswerTwice,
    /// An outcome is never sent.
    SwallowReplies,
    /// A stock client's reply comes without its parts.
    LoseParts,
    /// A member of the cell breaks a rule.
    Breaks(Broken),
    /// The slot of a disconnected worker is reused while its last reply is on its way to the disk.
    ReuseSlots,
}

type Broker = Dispatch<SimTransport, SimStore>;

pub struct Node {
    pub index: usize,
    pub life: u64,
    pub broker: Option<Box<Broker>>,
    /// The log, while the broker is dead.
    log: Option<Log>,
    /// How far its clock is ahead of everybody's, after a jump.
    pub ahead: Millis,
    /// Stopped (SIGSTOP), or dead, until then.
    pub away_until: Millis,
    settings: Settings,
    /// Dead letters that are here, and those that ended although it lived: a worker has done them, or the operator dropped them.
    letters: Vec<Body>,
    pub ended_letters: Vec<Body>,
    /// Replies and other ends so far.
    ends: u64,
    fault: Fault,
    rng: Rng,
    /// Set while it stops: it ends when it is idle, or then; and how many requests it had taken before.
    stopping: Option<(Millis, u64)>,
}

/// The surroundings of a node.
pub struct World<'a> {
    pub now: Millis,
    pub net: &'a mut Net,
    pub history: &'a mut History,
}

impl Node {
    pub fn new(index: usize, settings: Settings, log: Log, fault: Fault, rng: Rng) -> Node {
        Node {
            index,
            life: 0,
            broker: None,
            log: Some(log),
            ahead: 0,
            away_until: 0,
            settings,
            letters: Vec::new(),
            ended_letters: Vec::new(),
            ends: 0,
            fault,
            rng,
            stopping: None,
        }
    }

    pub fn start(&mut self, now: Millis, trace: bool) {
        self.life += 1;
        let secret = [self.life * 1_000 + self.index as u64, 77];
        let settings = Settings { epoch: (self.life << 8 | self.index as u64) << 16, secret, ..self.settings.clone() };
        let log = self.log.take().expect("it was dead");
        // All brokers that share a log are one to their clients.
        let index = if matches!(log, Log::Shared(_)) { 0 } else { self.index };
        let wire = Wire::new(index, self.life << 4 | self.index as u64, self.fault, trace);
        let mut transport = SimTransport::new(wire, usize::MAX);
        transport.now = now + self.ahead;
        let store = SimStore::new(log, self.fault, Rng::new(self.rng.next()));
        let broker = Dispatch::new(transport, store, settings, None);
        (self.letters, self.ends) = (broker.core.letter_bodies(), 0);
        self.broker = Some(Box::new(broker));
    }

    pub fn core(&self) -> Option<&Core> {
        self.broker.as_ref().map(|broker| &broker.core)
    }

    pub fn is_leading(&self) -> bool {
        self.broker.as_ref().is_some_and(|broker| broker.is_leading())
    }

    pub fn log(&mut self) -> &mut Log {
        let log = self.broker.as_mut().map(|broker| &mut broker.store.log).or(self.log.as_mut());
        log.expect("the broker has it, or the node")
    }

    fn broker(&mut self) -> &mut Broker {
        self.broker.as_mut().expect("it is alive")
    }

    pub fn crash(&mut self, world: &mut World) {
        self.vanish(world);
        self.log = self.log.take().map(|log| log.crash(&mut world.net.rng));
    }

    /// Begins to stop: it takes no more, and workers may finish what they have until then.
    pub fn stop(&mut self, world: &mut World, until: Millis) {
        if self.stopping.is_none() {
            self.stopping = Some((until, self.broker().core.counters().accepted));
            self.broker().stop();
            self.apply(world);
        }
    }

    /// Ends in good order: all that was written is on the disk.
    fn end(&mut self, world: &mut World) {
        self.broker().end();
        self.apply(world);
        self.vanish(world);
        self.log = self.log.take().map(Log::close);
        self.away_until = world.now + world.net.rng.between(1, 400);
    }

    fn vanish(&mut self, world: &mut World) {
        self.stopping = None;
        if let Some(broker) = self.broker.take() {
            self.log = Some(broker.store.log);
        }
        let open = world.net.links.iter().filter(|(_, link)| link.node == self.index && link.node_open);
        for id in open.map(|(id, _)| *id).collect::<Vec<_>>() {
            world.net.close_by_node(world.now, id);
        }
    }

    /// The operator pauses a service, or resumes it.
    pub fn pause(&mut self, world: &mut World, service: &'static str, paused: bool) {
        assert!(self.broker().pause_service(service.as_bytes(), paused));
        self.apply(world);
    }

    /// The operator ends what waits for a service, and drops the outcomes of clients that are away.
    pub fn purge(&mut self, world: &mut World, service: &str) {
        let broker = self.broker();
        let purge = broker.core.begin_purge(service.as_bytes());
        while broker.purge(service.as_bytes(), purge, 3) > 0 {}
        assert_eq!(broker.core.service(service.as_bytes()).map_or(0, |service| service.waiting), 0);
        while broker.core.drop_absent_outcomes() > 0 {}
        self.apply(world);
    }

    /// The operator ends a request of a service, in whatever state.
    pub fn end_one(&mut self, world: &mut World, service: &str, which: usize) {
        let broker = self.broker();
        let listed = broker.core.requests_from(service.as_bytes(), 0).entries;
        if !listed.is_empty() {
            // Unless it has ended.
            let _ = broker.end_request(service.as_bytes(), listed[which % listed.len()].1.key);
            self.apply(world);
        }
    }

    /// The operator sends the dead letters of a service to it again, or drops them.
    pub fn act_on_letters(&mut self, world: &mut World, service: &str, action: LetterAction) -> usize {
        let broker = self.broker();
        let mut run = broker.core.begin_letters(action);
        while run.ended.is_none() {
            run = broker.go_on_with_letters(service.as_bytes(), run, 3);
        }
        self.apply(world);
        run.done
    }

    /// The same with one of them.
    pub fn act_on_letter(&mut self, world: &mut World, service: &str, which: usize, action: LetterAction) -> usize {
        let broker = self.broker();
        let letters = broker.core.letters_from(service.as_bytes(), 0);
        let ids: Vec<u64> = letters.filter_map(|(_, letter)| Some(letter?.id)).collect();
        let Some(id) = ids.get(which % ids.len().max(1)) else { return 0 };
        let done = broker.act_on_letter(service.as_bytes(), *id, action).is_ok();
        self.apply(world);
        usize::from(done)
    }

    /// The operator drains it, or doesn't any more.
    pub fn drain(&mut self, world: &mut World, on: bool) {
        self.broker().core.drain(on);
        self.apply(world);
    }

    /// Notes which dead letters have ended. None goes without a reply, or something else that is counted.
    fn note_letters(&mut self, history: &mut History) {
        let Some(core) = self.core() else { return };
        let (letters, counters) = (core.letter_bodies(), core.counters());
        history.letters.extend(letters.iter().filter_map(key_of));
        let ends = counters.replied + counters.failed + counters.purged;
        let mut gone: Vec<Body> = self.letters.iter().filter(|letter| !letters.contains(letter)).cloned().collect();
        if ends > self.ends {
            self.ended_letters.append(&mut gone);
        }
        (self.letters, self.ends) = (letters, ends);
    }

    /// A round begins.
    pub fn begin(&mut self, world: &mut World) {
        let now = world.now + self.ahead;
        let broker = self.broker();
        broker.transport.now = now;
        broker.store.poll(world.now);
        broker.prepare();
        let terms = broker.store.log.terms();
        broker.transport.set_term(terms);
        broker.transport.begin_poll(world.net, world.now);
        broker.take_events();
        self.apply(world);
    }

    /// Whether a packet has to wait.
    pub fn defers(&mut self, link: LinkId, next: &Packet) -> bool {
        self.broker().transport.defers(link, next)
    }

    pub fn receive(&mut self, world: &mut World, link: LinkId, packet: Packet) {
        let broker = self.broker();
        broker.transport.receive(link, packet);
        broker.take_events();
        self.apply(world);
    }

    /// Loses all connections.
    pub fn lose_links(&mut self, world: &mut World) {
        for link in self.broker().transport.links() {
            self.receive(world, link, Packet::Close);
        }
    }

    /// Does all that is due, after all that has come was handled.
    pub fn turn(&mut self, world: &mut World) {
        self.broker().finish();
        // It may have ended connections.
        self.broker().take_events();
        self.apply(world);
        if let Some((until, accepted)) = self.stopping {
            let broker = self.broker();
            // Fewer if leadership was lost.
            assert!(broker.core.counters().accepted <= accepted, "a request was taken while it was stopping");
            if broker.is_done() || world.now >= until {
                self.end(world);
            }
        }
    }

    /// Does to the world what the broker has done.
    fn apply(&mut self, world: &mut World) {
        self.note_letters(world.history);
        if std::mem::take(&mut self.broker().store.gave_up) {
            world.history.add(world.now, Event::LogFull);
        }
        let transport = &mut self.broker().transport;
        for happened in transport.happened.drain(..) {
            world.history.add(world.now, happened);
        }
        for effect in transport.effects.drain(..) {
            match effect {
                Effect::Send(link, frames) => world.net.send_down(world.now, link, frames),
                Effect::Close(link) => world.net.close_by_node(world.now, link),
                Effect::Pause(link, paused) => {
                    if let Some(link) = world.net.links.get_mut(&link) {
                        link.paused = paused;
                    }
                }
            }
        }
    }

    /// When it has something to do, if nothing comes.
    pub fn due(&self, net: &Net, now: Millis) -> Millis {
        let Some(broker) = &self.broker else { return self.away_until };
        let ends_at = self.stopping.map_or(Millis::MAX, |(until, _)| until);
        let deadline = broker.core.next_deadline().saturating_sub(self.ahead).min(ends_at);
        let deadline = if broker.transport.has_events(net) { now + 1 } else { deadline };
        deadline.min(broker.store.due().unwrap_or(Millis::MAX)).max(self.away_until)
    }
}

pub fn frames_of(body: &Body) -> Vec<Bytes> {
    body.to_frames().into_iter().flatten().collect()
}

/// Clients are numbered in the first byte of their names.
pub fn client_index(client: Option<ClientId>) -> usize {
    usize::from(client.unwrap_or_default().0[0])
}
