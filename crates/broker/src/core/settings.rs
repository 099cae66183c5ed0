//! What an operator may decide.

use towpath_requests::limits::MESSAGE_BYTES_MAX;

pub use towpath_requests::Millis;

/// Never.
pub(super) const NEVER: Millis = Millis::MAX;

/// How a broker behaves.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Another one after every start: what was said under an older one is out of date.
    pub epoch: u64,
    /// Makes tokens that nobody can invent. Random.
    pub secret: [u64; 2],
    /// Whether numbered requests are journalled.
    pub journal: bool,
    /// Requests of one service that wait for a worker.
    pub service_requests_max: usize,
    /// Bytes of them.
    pub service_bytes_max: usize,
    /// Requests in all, waiting, with workers, or settled and not yet confirmed.
    pub requests_max: usize,
    /// Bytes of memory of all requests and replies.
    pub bytes_max: usize,
    /// Bytes of bodies that aren't in memory. What keeps them bounds them; here it tells how much may be kept aside.
    pub large_bytes_max: u64,
    /// Requests that one client has here.
    pub client_requests_max: usize,
    /// Bytes of them; and bytes of replies that it has not confirmed before no more of its requests are given to workers.
    pub client_bytes_max: usize,
    /// Bytes that one peer is given before they are sent: after that, what follows from whether it takes more. Not an operator's
    /// business.
    pub window_bytes_max: usize,
    /// Bytes that a reply is expected to need as long as its service has had none. Nor is that.
    pub reply_bytes_expected: usize,
    /// Services in all.
    pub services_max: usize,
    /// Clients that are remembered while they aren't connected.
    pub absent_clients_max: usize,
    /// How long a request waits for its outcome if its client doesn't say, in milliseconds.
    pub ttl_ms: Millis,
    /// How often a request is given to a worker before it fails because they all died.
    pub attempts_max: u16,
    /// How long a worker may take for a request; `None`: as long as it is connected.
    pub busy_timeout_ms: Option<Millis>,
    /// How long what belongs to a client that isn't connected is kept.
    pub absent_client_ms: Millis,
    /// The same for what is in the journal; of what is restored, from then on.
    pub journal_retention_ms: Millis,
    /// How often stock workers are sent a heartbeat. At least 1.
    pub heartbeat_ms: Millis,
    /// Heartbeats that an idle stock worker may miss. At least 1.
    pub liveness: u32,
}

impl Settings {
    /// Services that requests alone may call into being: the others are for workers, whom no client may keep out.
    pub fn asked_services_max(&self) -> usize {
        self.services_max - self.services_max / 10
    }

    /// Requests that are kept aside: what each costs is looked at every second.
    pub fn dead_letters_max(&self) -> usize {
        self.absent_clients_max
    }

    /// Bytes of them: a quarter of all memory.
    pub fn dead_letter_bytes_max(&self) -> usize {
        self.bytes_max / 4
    }

    /// Bytes of messages that have begun and aren't whole, beside one message: a quarter of all memory.
    pub fn reassembly_bytes_max(&self) -> usize {
        self.bytes_max / 4
    }

    /// Bytes that may still come whole when there is no room for more, but at least a message's: what has begun, and what comes in a
    /// turn, which is half as much.
    pub fn late_bytes_max(&self) -> usize {
        (self.bytes_max / 8 * 3).max(MESSAGE_BYTES_MAX)
    }

    /// Bytes that sockets are to hold of what waits for peers: a quarter of all memory. What they don't take waits here, and follows
    /// from that: no more of a client's requests are given to workers.
    pub fn queued_bytes_max(&self) -> usize {
        self.bytes_max / 4
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            epoch: 1,
            secret: [0; 2],
            journal: false,
            service_requests_max: 1_000_000,
            service_bytes_max: 256 << 20,
            requests_max: 4_000_000,
            bytes_max: 1 << 30,
            large_bytes_max: u64::MAX,
            client_requests_max: 262_144,
            client_bytes_max: 128 << 20,
            window_bytes_max: 4 << 20,
            reply_bytes_expected: 16 << 10,
            services_max: 100_000,
            absent_clients_max: 100_000,
            ttl_ms: 60_000,
            attempts_max: 5,
            busy_timeout_ms: None,
            absent_client_ms: 5 * 60_000,
            journal_retention_ms: 7 * 24 * 3_600_000,
            heartbeat_ms: 2_000,
            liveness: 4,
        }
    }
}
