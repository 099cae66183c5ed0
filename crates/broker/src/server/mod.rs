//! The broker on real sockets: one thread drives a hub, the core, and the journal.

mod assembler;
mod body_loader;
mod builtin;
mod coalesce;
mod connection;
mod decode;
mod encode;
mod journal_store;
mod options;
mod progress;
mod read_budget;
mod slow_consumers;
mod spooler;

pub use options::{BrokerOptions, Heartbeats};
pub use towpath_sockets::Admit;

use crate::core::{Core, Millis, Settings, Task};
use body_loader::Reading;
use builtin::Lists;
use coalesce::{Gathering, IDLE_WAIT_MS};
use connection::Connections;
use journal_store::Keeping;
use read_budget::Pace;
use slow_consumers::Watch;
use spooler::Spooling;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use towpath_journal::JournalError;
use towpath_journal::spool::BodyOf;
use towpath_requests::numbered::Extent;
use towpath_sockets::{Endpoint, Hub, SocketError, Waker};

/// Why a broker can't start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The sockets.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The system gives no random numbers.
    #[error("no random numbers can be had: {0}")]
    Random(std::io::Error),
    /// The place for large bodies.
    #[error("no place for large bodies: {}: {reason}", directory.display())]
    Spool {
        /// Where they should be.
        directory: PathBuf,
        /// Why they can't.
        reason: std::io::Error,
    },
}

/// What is on its way to peers after the grace time may take so long.
const LINGER: Duration = Duration::from_secs(1);

/// A broker that listens. [`Broker::run`] serves.
pub struct Broker {
    hub: Hub,
    core: Core,
    connections: Connections,
    spooling: Spooling,
    reading: Reading,
    keeping: Option<Keeping>,
    tasks: Vec<Task>,
    /// They are being done.
    is_acting: bool,
    endpoints: Vec<Endpoint>,
    grace: Duration,
    started: Instant,
    stop: Arc<AtomicBool>,
    stop_at_once: Arc<AtomicBool>,
    gathering: Gathering,
    lists: Lists,
    pace: Pace,
    held_bytes_max: usize,
    watch: Watch,
    admit: Option<Admit>,
}

/// Ends a broker from another thread.
#[derive(Debug, Clone)]
pub struct StopHandle {
    stop: Arc<AtomicBool>,
    stop_at_once: Arc<AtomicBool>,
    waker: Waker,
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").field("endpoints", &self.endpoints).field("hub", &self.hub).finish_non_exhaustive()
    }
}

impl StopHandle {
    /// Stops taking requests, lets workers finish for the grace time, and ends.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// The same without the grace time.
    pub fn stop_at_once(&self) {
        self.stop_at_once.store(true, Ordering::Release);
        self.stop();
    }
}

impl Broker {
    /// Opens the journal, takes up what is in it, and listens.
    pub fn bind(options: BrokerOptions) -> Result<Broker, BrokerError> {
        if options.endpoints.is_empty() {
            return Err(SocketError::NoEndpoint.into());
        }
        options.check()?;
        let mut hub = Hub::new(options.hub())?;
        let started = Instant::now();
        let mut core = Core::new(Settings {
            epoch: u64::from_be_bytes(random()?),
            secret: [u64::from_be_bytes(random()?), u64::from_be_bytes(random()?)],
            journal: options.journal.is_some(),
            ..options.settings.clone()
        });
        let opened = options.journal.as_ref().map(|directory| journal_store::open(directory, &hub)).transpose()?;
        let kept = opened.as_ref().map_or(0, |(_, recovered)| journal_store::large_bytes(recovered));
        let no_place = |reason| BrokerError::Spool { directory: spooler::directory(&options), reason };
        let (spool, room) = spooler::prepare(&options, kept).map_err(no_place)?;
        core.set_large_bytes_max(room.most_of(BodyOf::Request));
        let keeping = opened.map(|(journal, recovered)| Keeping::new(journal, recovered, &mut core, &room, started));
        let spooling = Spooling::start(spool, room, options.journal.is_some(), hub.waker()).map_err(no_place)?;
        let endpoints =
            options.endpoints.iter().map(|endpoint| hub.bind(endpoint)).collect::<Result<Vec<_>, SocketError>>()?;
        Ok(Broker {
            reading: Reading::new(hub.waker()),
            hub,
            core,
            connections: Connections::default(),
            spooling,
            keeping,
            tasks: Vec::new(),
            is_acting: false,
            endpoints,
            grace: options.grace,
            started,
            stop: Arc::new(AtomicBool::new(false)),
            stop_at_once: Arc::new(AtomicBool::new(false)),
            gathering: Gathering::default(),
            lists: Lists::default(),
            pace: Pace::default(),
            held_bytes_max: options.settings.late_bytes_max(),
            watch: Watch::default(),
            admit: options.admit,
        })
    }

    /// Where it listens, with the real ports.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// What ends it from another thread.
    pub fn stop_handle(&self) -> StopHandle {
        StopHandle { stop: self.stop.clone(), stop_at_once: self.stop_at_once.clone(), waker: self.hub.waker() }
    }

    fn now(&self) -> Millis {
        self.started.elapsed().as_millis() as Millis
    }

    /// Serves until it is stopped.
    pub fn run(mut self) -> Result<(), BrokerError> {
        let mut stopping: Option<Instant> = None;
        loop {
            self.turn()?;
            if stopping.is_none() && self.stop.load(Ordering::Acquire) {
                stopping = Some(Instant::now());
                let grace = self.grace.as_secs_f64();
                tracing::info!(grace, "stopping: no more requests are taken, workers may finish for so many seconds");
                self.core.stop();
                self.act();
            }
            if self.stop_at_once.load(Ordering::Acquire) {
                self.grace = Duration::ZERO;
            }
            // What workers replied goes out, too, as long as it is read.
            if let Some(since) = stopping
                && ((self.core.is_idle() && !self.is_sending()) || since.elapsed() >= self.grace)
            {
                break;
            }
        }
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
        self.release_gathered(true);
        self.flush();
        self.hub.close(LINGER)?;
        if let Some(keeping) = self.keeping {
            keeping.close()?;
        }
        tracing::info!("ended");
        Ok(())
    }

    /// Whether anything is on its way to a peer.
    fn is_sending(&self) -> bool {
        self.connections.has_pending() || self.hub.has_output()
    }

    /// Waits for something to happen, and does what follows from it.
    fn turn(&mut self) -> Result<(), BrokerError> {
        let now = self.now();
        let most = if self.gathering.is_empty() { 200 } else { IDLE_WAIT_MS };
        let wait = self.core.next_deadline().saturating_sub(now).min(most);
        let extent = Extent::among(self.core.load().0);
        self.connections.extent = extent;
        self.core.set_given_bytes_max(self.hub.queue_limit());
        self.hub.set_read_budget_bytes(self.pace.read_turn_bytes(extent));
        self.hold_back(now);
        self.hub.poll(Some(Duration::from_millis(wait)))?;
        while let Some(event) = self.hub.next_event() {
            self.on_event(event);
        }
        self.take_spooled();
        self.take_read();
        let now = self.now();
        if let Some(keeping) = &mut self.keeping {
            keeping.take_durable(now, &mut self.core);
        }
        self.core.tick(now);
        self.act();
        self.make_room();
        self.bound_waiting();
        self.release_gathered(false);
        self.flush();
        while self.core.flushed(now) {
            self.core.set_given_bytes_max(self.hub.queue_limit());
            self.act();
            self.flush();
        }
        self.lists.turn();
        Ok(())
    }
}

/// Not to be guessed by peers.
fn random<const N: usize>() -> Result<[u8; N], BrokerError> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(BrokerError::Random(errno.into())),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use towpath_sockets::{HubOptions, SocketType};

    /// A broker with so many connections, in the places from 0 on, that have said nothing yet; and their other side.
    pub fn connected(count: usize) -> (Broker, Hub) {
        let mut broker = Broker::bind(BrokerOptions::new(vec!["tcp://127.0.0.1:0".parse().unwrap()])).unwrap();
        let mut peers = Hub::new(HubOptions::new(SocketType::Dealer)).unwrap();
        (0..count).for_each(|_| peers.connect_once(&broker.endpoints()[0].clone()));
        let start = Instant::now();
        while (0..count as u32).any(|peer| broker.connections.find(peer).is_none()) {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody is connected");
            broker.turn().unwrap();
            peers.poll(Some(Duration::ZERO)).unwrap();
            while peers.next_event().is_some() {}
        }
        (broker, peers)
    }
}
