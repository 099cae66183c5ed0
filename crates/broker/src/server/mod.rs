//! The broker on real sockets and a real disk: one thread drives the dispatch.

mod handle;
mod operator;
mod options;
mod sockets;

pub use handle::{Handle, OperatorAction};
pub use operator::{Operator, OperatorError};
pub use options::{BrokerOptions, Heartbeats};
pub use towpath_sockets::Authenticator;

use crate::core::Settings;
use crate::dispatch::Dispatch;
use crate::store::{LocalStore, Place, StoreError};
use handle::Control;
use sockets::{Sockets, random};
use std::fmt;
use std::time::{Duration, Instant};
use towpath_sockets::{Endpoint, Hub, SocketError};

/// Why a broker can't start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BrokerError {
    /// The sockets.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The journal, or the place for large bodies.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system gives no random numbers.
    #[error("no random numbers can be had: {0}")]
    Random(std::io::Error),
}

/// Time for messages to leave after the grace time.
const LINGER: Duration = Duration::from_secs(1);

/// The dispatch that the server runs.
type ServedDispatch = Dispatch<Sockets, LocalStore>;

/// A broker that listens. [`Broker::run`] serves.
pub struct Broker {
    pub(crate) dispatch: ServedDispatch,
    endpoints: Vec<Endpoint>,
    grace: Duration,
    control: Control,
    operator: Operator,
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker")
            .field("endpoints", &self.endpoints)
            .field("dispatch", &self.dispatch)
            .finish_non_exhaustive()
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
        hub.set_gate(options.gate.clone());
        let started = Instant::now();
        let secret = || random().map(u64::from_be_bytes).map_err(BrokerError::Random);
        let has_log = options.journal.is_some() || options.cell.is_some();
        let settings =
            Settings { epoch: secret()?, secret: [secret()?, secret()?], journal: has_log, ..options.settings };
        let (journal, spool) = (options.journal.as_deref(), options.spool.as_deref());
        let store = LocalStore::open(
            journal,
            options.cell,
            options.repair_journal,
            spool,
            options.max_spool_bytes,
            hub.waker(),
        )?;
        let mut dispatch = Dispatch::new(Sockets { hub, started }, store, settings, options.authenticator);
        let hub = &mut dispatch.transport.hub;
        let endpoints =
            options.endpoints.iter().map(|endpoint| hub.bind(endpoint)).collect::<Result<Vec<_>, SocketError>>()?;
        let control = Control::new(hub.waker());
        let operator = Operator::new(control.handle(), has_log, options.heartbeats.interval);
        Ok(Broker { dispatch, endpoints, grace: options.grace, control, operator })
    }

    /// Endpoints that it listens on, with the real ports.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// Controls it from other threads.
    pub fn handle(&self) -> Handle {
        self.control.handle()
    }

    /// Pauses and purges services, from other threads.
    pub fn operator(&self) -> Operator {
        self.operator.clone()
    }

    /// The road to the leader of its cell, if it is in one.
    pub fn questions(&self) -> Option<towpath_cell::Questions> {
        self.dispatch.store.questions()
    }

    /// Serves until it is stopped.
    pub fn run(mut self) -> Result<(), BrokerError> {
        let mut stopping: Option<Instant> = None;
        loop {
            self.turn()?;
            if stopping.is_none() && self.control.is_shutdown {
                stopping = Some(Instant::now());
                let grace = self.grace.as_secs_f64();
                tracing::info!(grace, "stopping: no more requests are taken, workers may finish for so many seconds");
                self.dispatch.stop();
            }
            if self.control.at_once {
                self.grace = Duration::ZERO;
            }
            if let Some(since) = stopping
                && (self.dispatch.is_done() || since.elapsed() >= self.grace)
            {
                break;
            }
        }
        self.dispatch.end();
        let Dispatch { transport, store, .. } = self.dispatch;
        transport.hub.close(LINGER)?;
        store.close()?;
        tracing::info!("ended");
        Ok(())
    }

    /// Takes connections that other brokers of the cell relay, or relays them, or neither, as the log says who leads.
    fn follow_place(&mut self) {
        let Some(place) = self.dispatch.store.take_place() else { return };
        let hub = &mut self.dispatch.transport.hub;
        let key = if let Place::Here(key) = &place { Some(key.clone()) } else { None };
        hub.take_relayed(key);
        match place {
            Place::Here(_) => hub.end_relayed(),
            // The leader may well be the same.
            Place::Nowhere => hub.stop_relaying(),
            Place::There(to) => {
                tracing::info!(to = %to.endpoint, "connections are relayed to the broker that leads");
                if let Err(error) = hub.relay_to(to) {
                    tracing::error!(%error, "cannot relay connections");
                }
            }
        }
    }

    /// Waits for something to happen, and does what follows from it.
    pub(crate) fn turn(&mut self) -> Result<(), BrokerError> {
        let wait = self.dispatch.prepare();
        self.follow_place();
        self.dispatch.transport.hub.poll(Some(wait))?;
        self.dispatch.take_events();
        self.control.turn(&mut self.dispatch);
        self.dispatch.finish();
        self.control.answer_syncs(&self.dispatch);
        Ok(())
    }
}
