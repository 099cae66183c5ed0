//! Settings of a connection.

use crate::inbox::InboxLimits;
use crate::mechanism::{Mechanism, MechanismConfig};
use crate::metadata::Metadata;
use crate::socket_type::SocketType;
use bytes::Bytes;
use std::time::Duration;

/// Times of PING and PONG (RFC 37).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heartbeat {
    /// Interval between PINGs. None is sent behind a backlog. At least a millisecond.
    pub interval: Duration,
    /// The connection ends when nothing was received for this long after a PING.
    pub timeout: Duration,
    /// TTL announced by our PINGs, rounded up to tenths of a second: the peer may give this side up after as much silence. Zero: never.
    /// At most 65.5 seconds.
    pub ttl: Duration,
}

/// Settings that all connections of a socket have in common.
#[derive(Debug, Clone)]
pub struct Config {
    /// This side's socket type.
    pub socket_type: SocketType,
    /// This side's routing id. Empty: the peer generates one.
    pub routing_id: Bytes,
    /// Further properties for READY; names of applications begin with `X-`.
    pub metadata: Metadata,
    /// The security mechanism and role.
    pub mechanism: MechanismConfig,
    /// Time from the first byte to READY.
    pub handshake_timeout: Duration,
    /// Heartbeats that this side sends; `None`: none. PINGs are answered in any case.
    pub heartbeat: Option<Heartbeat>,
    /// Limits on what the peer may send.
    pub limits: InboxLimits,
}

/// The property in which a side says which version it saw in the other's greeting: major and minor, a byte each.
pub(crate) const GREETING_PROPERTY: &str = "X-Towpath-Greeting";

impl Config {
    /// The defaults: NULL, ten seconds for the handshake, no heartbeats.
    pub fn new(socket_type: SocketType) -> Config {
        Config {
            socket_type,
            routing_id: Bytes::new(),
            metadata: Metadata::new(),
            mechanism: MechanismConfig::Null,
            handshake_timeout: Duration::from_secs(10),
            heartbeat: None,
            limits: InboxLimits::default(),
        }
    }

    /// The properties for a peer with this version in its greeting.
    pub(crate) fn own_metadata(&self, mechanism: &dyn Mechanism, version: (u8, u8)) -> Metadata {
        let mut metadata = Metadata::new().with("Socket-Type", self.socket_type.name());
        if self.socket_type.announces_identity() {
            metadata = metadata.with("Identity", self.routing_id.clone());
        }
        if mechanism.protects_metadata() {
            metadata = metadata.with(GREETING_PROPERTY, vec![version.0, version.1]);
        }
        self.metadata.iter().fold(metadata, |metadata, (name, value)| metadata.with(name, value.clone()))
    }
}
