//! Options of a broker.

use crate::core::Settings;
use crate::store::CellOptions;
use bytes::Bytes;
use std::path::PathBuf;
use std::time::Duration;
use towpath_requests::numbered::{PROPERTY, PROPERTY_VALUE};
use towpath_sockets::{
    Authenticator, Endpoint, Gate, Heartbeat, HubOptions, MechanismConfig, Metadata, SocketError, SocketType,
    check_openness,
};

/// Bytes of a frame above which it goes to disk instead of into memory.
pub(crate) const STREAM_OVER_BYTES: u64 = 1024 * 1024;

/// The same in a cell, whose log takes no larger ones.
const CELL_BODY_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// When peers that speak ZMTP 3.1 are asked whether they are there, and given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeats {
    /// Between two PINGs.
    pub interval: Duration,
    /// After a PING without an answer. Not zero.
    pub timeout: Duration,
}

impl Default for Heartbeats {
    fn default() -> Heartbeats {
        Heartbeats { interval: Duration::from_secs(2), timeout: Duration::from_secs(8) }
    }
}

/// Options of a broker.
#[derive(Debug, Clone)]
pub struct BrokerOptions {
    /// Endpoints to listen on.
    pub endpoints: Vec<Endpoint>,
    /// Directory of its journal, if it has one.
    pub journal: Option<PathBuf>,
    /// The cell that it is in, instead of a journal.
    pub cell: Option<CellOptions>,
    /// Whether it starts although a part of the journal is damaged, without the requests that were in it.
    pub repair_journal: bool,
    /// Directory for large bodies; `None`: in the journal's directory, or else where the system has temporary
    /// files.
    pub spool: Option<PathBuf>,
    /// Bytes of large bodies that may be there at a time, and of those in the journal; requests may have three quarters of it.
    /// `None`: half of what the file system has space for at the start, so that bodies alone never fill it.
    pub max_spool_bytes: Option<u64>,
    /// Limits and times. `epoch`, `secret` and `journal` are set by the broker itself.
    pub settings: Settings,
    /// PINGs to all peers.
    pub heartbeats: Heartbeats,
    /// How long workers may finish what they have when the broker is stopped.
    pub grace: Duration,
    /// Connections in all.
    pub max_peers: usize,
    /// Connections from one IPv4 address, IPv6 network (/64), or user of ipc.
    pub max_peers_per_address: usize,
    /// Keeps peers out, whatever their credentials.
    pub gate: Option<Gate>,
    /// Security mechanism, as the server's side; NULL by default.
    pub mechanism: MechanismConfig,
    /// Asked for each peer if the mechanism is PLAIN or CURVE, and what each may do. None admits nobody then.
    pub authenticator: Option<Authenticator>,
    /// Whether other machines may connect though the mechanism is NULL; otherwise such an endpoint is refused. An authenticator still says what they may do.
    pub open_to_all: bool,
    /// How long the broker looks again before it sleeps, where the last waits were as short ([`HubOptions::busy_poll`]).
    pub busy_poll: Duration,
}

impl BrokerOptions {
    /// The defaults.
    pub fn new(endpoints: Vec<Endpoint>) -> BrokerOptions {
        BrokerOptions {
            endpoints,
            journal: None,
            cell: None,
            repair_journal: false,
            spool: None,
            max_spool_bytes: None,
            settings: Settings::default(),
            heartbeats: Heartbeats::default(),
            grace: Duration::from_secs(10),
            max_peers: 16_384,
            max_peers_per_address: 1_024,
            gate: None,
            mechanism: MechanismConfig::Null,
            authenticator: None,
            open_to_all: false,
            busy_poll: Duration::from_micros(50),
        }
    }

    /// Rejects options that can't work, but for the hub's, which it checks itself.
    pub(super) fn check(&self) -> Result<(), SocketError> {
        check_openness(&self.endpoints, &self.mechanism, self.open_to_all)?;
        let Settings { heartbeat_ms, liveness, .. } = self.settings;
        let counts = [("settings.heartbeat_ms", heartbeat_ms), ("settings.liveness", u64::from(liveness))];
        match counts.iter().find(|(_, count)| *count == 0) {
            Some((option, _)) => Err(SocketError::Option { option, why: "it is at least 1".to_owned() }),
            None => Ok(()),
        }
    }

    pub(super) fn hub(&self) -> HubOptions {
        let mut hub = HubOptions::new(SocketType::Router);
        // Programs that were copied have the same, and each is to have its replies.
        hub.routing_ids_are_unique = false;
        hub.metadata = Metadata::new().with(PROPERTY, Bytes::from_static(PROPERTY_VALUE));
        hub.heartbeat = Some(Heartbeat {
            interval: self.heartbeats.interval,
            timeout: self.heartbeats.timeout,
            // A stock peer's library would end the connection by itself, and what its owner waits for would be lost.
            ttl: Duration::ZERO,
        });
        hub.keep_half_closed = true;
        hub.stream_over_bytes = Some(if self.cell.is_some() { CELL_BODY_BYTES_MAX } else { STREAM_OVER_BYTES });
        hub.max_frame_bytes = towpath_requests::limits::LARGE_BODY_BYTES_MAX;
        hub.max_message_bytes = towpath_requests::limits::MESSAGE_BYTES_MAX as u64;
        hub.reassembly_bytes_max = self.settings.reassembly_bytes_max();
        hub.send_queue_bytes = 4 * 1024 * 1024;
        hub.queued_bytes_max = self.settings.queued_bytes_max();
        hub.busy_poll = self.busy_poll;
        hub.max_peers = self.max_peers;
        hub.max_peers_per_address = self.max_peers_per_address;
        hub.mechanism = self.mechanism.clone();
        // When a broker comes back, all its peers do so at once: none of them may push another out.
        hub.max_handshakes = self.max_peers;
        hub
    }
}
