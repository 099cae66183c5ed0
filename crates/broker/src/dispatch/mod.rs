//! The broker between its peers and the core: decodes messages of peers for the core, and carries out the core's actions.
//!
//! It has no sockets, files, threads or clocks of its own: [`Transport`] and [`Store`] are the system to it. The server runs it on a
//! real one, the tests on a simulated one. A broker that doesn't lead ([`Store::next_leadership`]) has no peers, requests or entries; one that loses
//! leadership silently drops them all, and starts over when it wins again. One round:
//!
//! 1. [`Dispatch::prepare`]: notices which broker leads, and decides what may be read and how long a poll may wait.
//! 2. A poll of the transport.
//! 3. [`Dispatch::take_events`]: each message is put together (`assembler`), decoded (`decode`), passed to the core, and what the core
//!    wants is carried out (`encode`), or goes to the store (`entry_queue`).
//! 4. [`Dispatch::finish`]: takes what the disk has done, then what is due by time, limits backlogs (`slow_consumers`), and sends
//!    blocks and batches of replies (`reply_batcher`).

mod assembler;
mod connection;
mod decode;
mod encode;
mod entry_queue;
mod half_closed;
mod judge;
mod progress;
mod read_budget;
mod reply_batcher;
mod slow_consumers;

use crate::core::{
    Core, LetterAction, LetterRun, LookAt, Millis, NotDone, NotEnded, Peer, Purge, QueuedAction, RequestInfo,
    RequestKey, Settings, WorkerInfo,
};
use crate::services::Services;
use crate::stats::{Activity, Concerns, RequestStats, Stats, WorkerStats};
use crate::store::{Leadership, Recovered, Store};
use crate::transport::Transport;
use connection::Connections;
use entry_queue::EntryQueue;
use read_budget::ReadBudget;
use reply_batcher::{IDLE_WAIT_MS, ReplyBatcher};
use slow_consumers::SlowConsumerMonitor;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::time::Duration;
use towpath_requests::numbered::BatchLimit;
use towpath_sockets::{Authenticator, Page, PeerId, Wanted};

/// A broker, but for its sockets and its disk.
pub struct Dispatch<T, S: Store> {
    /// Connections to peers.
    pub transport: T,
    /// The journal and the spool.
    pub store: S,
    /// All requests, and their clients and workers.
    pub core: Core,
    connections: Connections<S::Writer>,
    entries: EntryQueue,
    /// Whose bodies are being written, by the numbers of these.
    spooled_for: HashMap<u64, PeerId>,
    /// Half-closed connections that may have been sent their last reply.
    half_closed: Vec<PeerId>,
    /// Stock clients that wait for space in the spool, in this order.
    spool_queue: VecDeque<PeerId>,
    tasks: Vec<QueuedAction>,
    /// Whether actions are being carried out.
    is_acting: bool,
    batcher: ReplyBatcher,
    pub(crate) services: Services,
    read_budget: ReadBudget,
    held_bytes_max: usize,
    slow_consumers: SlowConsumerMonitor,
    authenticator: Option<Authenticator>,
    /// Whether this broker leads: it has peers, and appends to the store.
    is_leading: bool,
    is_stopping: bool,
}

/// Reason of the end of connections to a broker that doesn't lead.
const NOT_LEADING: &str = "another broker leads";

impl<T: fmt::Debug, S: Store + fmt::Debug> fmt::Debug for Dispatch<T, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Dispatch { transport, store, .. } = self;
        f.debug_struct("Dispatch").field("transport", transport).field("store", store).finish_non_exhaustive()
    }
}

impl<T: Transport, S: Store> Dispatch<T, S> {
    /// A broker that recovers the store's content as soon as it leads. `authenticator` decides which clients may connect.
    pub fn new(transport: T, store: S, settings: Settings, authenticator: Option<Authenticator>) -> Dispatch<T, S> {
        let held_bytes_max = settings.late_bytes_max();
        let mut dispatch = Dispatch {
            transport,
            store,
            core: Core::new(settings),
            connections: Connections::default(),
            entries: EntryQueue::default(),
            spooled_for: HashMap::new(),
            half_closed: Vec::new(),
            spool_queue: VecDeque::new(),
            tasks: Vec::new(),
            is_acting: false,
            batcher: ReplyBatcher::default(),
            services: Services::default(),
            read_budget: ReadBudget::default(),
            held_bytes_max,
            slow_consumers: SlowConsumerMonitor::default(),
            authenticator,
            is_leading: false,
            is_stopping: false,
        };
        dispatch.follow_leadership();
        dispatch
    }

    /// Takes over, or steps down, as the store says.
    fn follow_leadership(&mut self) {
        let now = self.now();
        while let Some(leadership) = self.store.next_leadership(now) {
            self.begin_term();
            match leadership {
                Leadership::Won(recovered) => self.take_over(now, recovered),
                Leadership::Lost => tracing::warn!("{NOT_LEADING}: all connections are ended"),
            }
        }
    }

    /// Drops everything that isn't in the store. What the store has not acknowledged was promised to nobody.
    fn begin_term(&mut self) {
        self.is_leading = false;
        for id in self.connections.ids().collect::<Vec<_>>() {
            self.transport.disconnect(id, NOT_LEADING);
        }
        for id in self.connections.take_all() {
            self.transport.release_slot(id);
        }
        self.core = Core::new(self.core.settings().next_term());
        let spool = self.store.spool_usage();
        self.core.set_large_max(spool.request_bytes_max, spool.request_files_max);
        if self.is_stopping {
            self.core.stop();
        }
        self.entries = EntryQueue::default();
        self.services = Services::default();
        self.batcher = ReplyBatcher::default();
        self.slow_consumers = SlowConsumerMonitor::default();
        self.spooled_for.clear();
        self.half_closed.clear();
        self.spool_queue.clear();
    }

    fn take_over(&mut self, now: Millis, Recovered { requests, last_id }: Recovered) {
        self.is_leading = true;
        // Not the marks.
        let all = requests.iter().filter(|request| !request.service.is_empty()).count();
        let settled = requests.iter().filter(|request| request.outcome.is_some()).count();
        requests.into_iter().for_each(|request| self.core.restore(now, request));
        self.core.restored_up_to(last_id);
        if self.core.settings().journal {
            tracing::info!(waiting = all - settled, settled, "requests of the journal");
        }
        for service in self.core.paused_services() {
            tracing::warn!(service = %service.escape_ascii(), "this service is paused; tow resume resumes it");
        }
    }

    /// Whether this broker leads.
    pub fn is_leading(&self) -> bool {
        self.is_leading
    }

    pub(crate) fn now(&self) -> Millis {
        millis(self.transport.now())
    }

    /// Before a poll: says how much may be read, and gives how long the poll may wait.
    pub fn prepare(&mut self) -> Duration {
        self.follow_leadership();
        let now = self.now();
        let most = if self.batcher.is_empty() { 200 } else { IDLE_WAIT_MS };
        let wait = self.core.next_deadline().saturating_sub(now).min(most);
        let limit = BatchLimit::among(self.core.load().0);
        self.connections.limit = limit;
        self.core.set_window_bytes_max(self.transport.queue_limit());
        self.transport.set_read_budget_bytes(self.read_budget.read_turn_bytes(limit));
        self.defer_large_messages(now);
        Duration::from_millis(wait)
    }

    /// After a poll: takes what has come.
    pub fn take_events(&mut self) {
        while let Some(event) = self.transport.next_event() {
            self.on_event(event);
        }
    }

    /// Takes what the disk has done, does what is due, and sends what follows from all that.
    pub fn finish(&mut self) {
        // Before anything that follows from what was appended.
        self.follow_leadership();
        self.take_spooled();
        self.services.take_loaded(&mut self.core, &mut self.store);
        let now = self.now();
        if self.keeps_entries() {
            self.entries.take_durable(now, &mut self.core, &mut self.store);
        }
        self.core.tick(now);
        self.act();
        self.make_space();
        self.disconnect_slow_consumers();
        self.send_batches(false);
        self.flush();
        while self.core.flushed(now) {
            self.core.set_window_bytes_max(self.transport.queue_limit());
            self.act();
            self.flush();
        }
        self.end_half_closed();
        let now = self.transport.now();
        self.services.end_round(now);
    }

    /// Whether entries go to the store.
    fn keeps_entries(&self) -> bool {
        self.is_leading && self.core.settings().journal
    }

    /// Statistics for an operator, but for those of connections.
    pub fn stats(&self, wanted: Wanted) -> Stats {
        let core = &self.core;
        let ((requests, bytes), (service_count, worker_count)) = (core.load(), core.counts());
        let mut stats = Stats {
            requests,
            bytes,
            outcomes: core.outcomes(),
            is_full: core.is_full(),
            bytes_max: core.settings().bytes_max,
            counters: core.counters(),
            spool: self.store.spool_usage(),
            service_count,
            worker_count,
            is_journalled: core.settings().journal,
            has_storage_failed: core.has_storage_failed(),
            paused: core.paused_services().cloned().collect(),
            is_draining: core.is_draining(),
            waiting: core.waiting(),
            left: core.left(),
            restart: core.restart_cost(),
            dead_letters: core.dead_letters(),
            now: self.now(),
            ..Stats::default()
        };
        match wanted {
            Wanted::Services(from) => {
                stats.services = Page::of(core.services_from(from).map(|(number, service)| (number, Some(service))));
            }
            Wanted::Workers(from) => {
                let workers = core.workers_from(from);
                stats.workers = Page::of(workers.map(|(number, info)| (number, Some(self.worker_stats(info)))));
            }
            _ => {}
        }
        stats
    }

    fn worker_stats(&self, worker: WorkerInfo) -> WorkerStats {
        let id = self.connections.id_of(worker.peer);
        let principal = id.map(|id| self.transport.principal(id)).unwrap_or_default();
        WorkerStats { worker, id, address: id.and_then(|id| self.transport.address(id)), principal, silent_for: None }
    }

    /// A step of what an operator may have to look at: [`Core::look`]. Who has the most is said in the first one.
    pub fn look(&self, at: LookAt) -> (Concerns, Option<LookAt>) {
        let (core, now) = (&self.core, self.now());
        let look = core.look(now, at);
        let concerns = Concerns {
            services: look.services,
            workers: look.workers.into_iter().map(|worker| self.worker_stats(worker)).collect(),
            largest: core.largest_client().filter(|_| at == LookAt::Services(0)),
            refusal: core.last_refusal().cloned(),
            now,
            heartbeat: Duration::ZERO,
        };
        (concerns, look.next)
    }

    /// Pauses a service, or resumes it: [`Core::pause_service`].
    pub fn pause_service(&mut self, service: &[u8], paused: bool) -> bool {
        let is_done = self.core.pause_service(self.now(), service, paused);
        self.act();
        is_done
    }

    /// A part of a purge: [`Core::purge`].
    pub fn purge(&mut self, service: &[u8], purge: Purge, most: usize) -> usize {
        let ended = self.core.purge(self.now(), service, purge, most);
        self.act();
        ended
    }

    /// A step of a list of requests: [`Core::requests_from`].
    pub fn list_requests(&self, service: &[u8], from: u32) -> Page<RequestStats> {
        let end = |peer: Option<Peer>| {
            let id = peer.and_then(|peer| self.connections.id_of(peer));
            (id, id.and_then(|id| self.transport.address(id)))
        };
        let listed = |request: RequestInfo| {
            let ((peer, address), (worker, worker_address)) = (end(request.peer), end(request.worker));
            [RequestStats { request, peer, address, worker, worker_address }]
        };
        self.core.requests_from(service, from).flat_map(listed)
    }

    /// Ends a request: [`Core::end_request`].
    pub fn end_request(&mut self, service: &[u8], key: RequestKey) -> Result<(), NotEnded> {
        let ended = self.core.end_request(self.now(), service, key);
        self.act();
        ended
    }

    /// A part of dropping outcomes of absent clients: [`Core::drop_absent_outcomes`].
    pub fn drop_absent_outcomes(&mut self) -> usize {
        let dropped = self.core.drop_absent_outcomes();
        self.act();
        dropped
    }

    /// A part of an action on dead letters: [`Core::go_on_with_letters`].
    pub fn go_on_with_letters(&mut self, service: &[u8], run: LetterRun, most: usize) -> LetterRun {
        let run = self.core.go_on_with_letters(self.now(), service, run, most);
        self.act();
        run
    }

    /// An action on one dead letter: [`Core::act_on_letter`].
    pub fn act_on_letter(&mut self, service: &[u8], id: u64, action: LetterAction) -> Result<(), NotDone> {
        let done = self.core.act_on_letter(self.now(), service, id, action);
        self.act();
        done
    }

    /// A connection's activity; `None` if there is no such connection.
    pub fn activity(&self, id: PeerId) -> Option<Activity> {
        let (core, peer) = (&self.core, id.slot());
        Some(Activity {
            protocol: self.connections.protocol_of(id)?.name(),
            has_role: core.has_role(peer),
            requests: core.outstanding(peer),
            worker: core.worker(peer),
        })
    }

    /// Takes no more requests from now on. Workers may finish what they have.
    pub fn stop(&mut self) {
        self.is_stopping = true;
        self.core.stop();
        self.act();
    }

    /// Whether nothing is left to do after [`Dispatch::stop`]: what workers replied goes out, too, as long as it is read.
    pub fn is_done(&self) -> bool {
        self.core.is_idle() && !self.connections.has_pending() && !self.transport.has_output()
    }

    /// Says the last there is to say. The transport and the store are to be closed after it.
    pub fn end(&mut self) {
        let now = self.now();
        self.core.end_stock_requests(now);
        self.act();
        let (requests, _) = self.core.load();
        if requests > 0 {
            tracing::warn!(
                requests,
                "ended with requests that have no confirmed outcome; clients that number them send them again"
            );
        }
        self.send_batches(true);
        self.flush();
    }
}

fn millis(time: Duration) -> Millis {
    time.as_millis() as Millis
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::server::{Broker, BrokerOptions};
    use std::time::{Duration, Instant};
    use towpath_sockets::{Hub, HubOptions, SocketType};

    /// A broker with this many silent connections, in slots from 0, and the other side of them.
    pub fn connected(count: usize) -> (Broker, Hub) {
        connected_with(count, |_| ())
    }

    /// The same, with options of its own.
    pub fn connected_with(count: usize, change: impl FnOnce(&mut BrokerOptions)) -> (Broker, Hub) {
        let mut options = BrokerOptions::new(vec!["tcp://127.0.0.1:0".parse().unwrap()]);
        change(&mut options);
        let mut broker = Broker::bind(options).unwrap();
        let mut peers = Hub::new(HubOptions::new(SocketType::Dealer)).unwrap();
        (0..count).for_each(|_| peers.connect_once(&broker.endpoints()[0].clone()));
        let start = Instant::now();
        while (0..count as u32).any(|peer| broker.dispatch.connections.find(peer).is_none()) {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody is connected");
            broker.turn().unwrap();
            peers.poll(Some(Duration::ZERO)).unwrap();
            while peers.next_event().is_some() {}
        }
        (broker, peers)
    }
}
