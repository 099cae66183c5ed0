//! Settings of a broker.

use towpath_requests::limits::MESSAGE_BYTES_MAX;

pub use towpath_requests::Millis;

/// Never.
pub(super) const NEVER: Millis = Millis::MAX;

/// Limits and times of a broker. Bytes are bytes of memory, times are milliseconds, unless a field says otherwise.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Different at every start: acknowledgements of an earlier one are void.
    pub epoch: u64,
    /// The random secret of this process, from which tokens and seeds are made.
    pub secret: [u64; 2],
    /// Whether requests of numbered clients are journalled.
    pub journal: bool,
    /// Queued requests of one service.
    pub service_requests_max: usize,
    /// Bytes of the queued requests of one service.
    pub service_bytes_max: usize,
    /// Requests in all: queued, dispatched, or settled and not confirmed.
    pub requests_max: usize,
    /// Bytes of all requests and replies.
    pub bytes_max: usize,
    /// Bytes of bodies that aren't in memory. The spool's quota limits them; a quarter of it is for dead letters.
    pub large_bytes_max: u64,
    /// The same of their files.
    pub large_files_max: u64,
    /// Requests of one client.
    pub client_requests_max: usize,
    /// Bytes of the requests of one client. When it has as many bytes of unconfirmed replies, no more of its requests are
    /// dispatched.
    pub client_bytes_max: usize,
    /// Bytes that one peer is sent between flushes. Not an option of the command line.
    pub window_bytes_max: usize,
    /// Bytes expected of a service's first reply. Not an option of the command line.
    pub reply_bytes_expected: usize,
    /// Services in all.
    pub services_max: usize,
    /// Clients without a connection that are remembered.
    pub absent_clients_max: usize,
    /// Time after which a request expires, if its client doesn't say.
    pub ttl_ms: Millis,
    /// The most that a client may ask for. A request that asks for more gets this.
    pub ttl_max_ms: Millis,
    /// Attempts at a request before it is given up, because each time its worker went or asked for another attempt.
    pub attempts_max: u16,
    /// How long a worker may have a request. `None`: as long as it is connected.
    pub busy_timeout_ms: Option<Millis>,
    /// How long a client without a connection is remembered, with its requests and outcomes.
    pub absent_client_ms: Millis,
    /// How long an outcome is kept for a client without a connection after its request would have expired.
    pub outcome_grace_ms: Millis,
    /// How long a client without a connection that has something in the journal is remembered, and dead letters and stored requests are
    /// kept; restored ones from the restart on.
    pub journal_retention_ms: Millis,
    /// The interval of heartbeats to stock workers. At least 1.
    pub heartbeat_ms: Millis,
    /// Heartbeats that an idle stock worker may miss. At least 1.
    pub liveness: u32,
}

impl Settings {
    /// The same for another core of this process: clients learn that its acknowledgements are void, and tokens of the former one aren't taken.
    pub fn next_term(&self) -> Settings {
        let [first, second] = self.secret;
        Settings { epoch: self.epoch.wrapping_add(1), secret: [first, second.wrapping_add(1)], ..self.clone() }
    }

    /// Services that requests may add. The rest is for workers, which no client may keep out.
    pub fn asked_services_max(&self) -> usize {
        self.services_max - self.services_max / 10
    }

    /// Clients without a connection give way to others while they have more than this of the requests in all: a quarter.
    pub fn absent_requests_max(&self) -> usize {
        self.requests_max / 4
    }

    /// The same of the memory.
    pub fn absent_bytes_max(&self) -> usize {
        self.bytes_max / 4
    }

    /// Dead letters in all. All of them are looked at every second.
    pub fn dead_letters_max(&self) -> usize {
        self.absent_clients_max
    }

    /// Bytes of dead letters: a quarter of all memory.
    pub fn dead_letter_bytes_max(&self) -> usize {
        self.bytes_max / 4
    }

    /// Bytes of incomplete messages, beside one message: a quarter of all memory.
    pub fn reassembly_bytes_max(&self) -> usize {
        self.bytes_max / 4
    }

    /// Bytes by which the limit may be exceeded, since messages that have begun are completed: the incomplete ones and half as
    /// much again in one poll. At least one message.
    pub fn late_bytes_max(&self) -> usize {
        (self.bytes_max / 8 * 3).max(MESSAGE_BYTES_MAX)
    }

    /// Bytes that sockets queue for peers: a quarter of all memory. The rest stays in the core, which dispatches fewer requests
    /// then.
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
            large_files_max: u64::MAX,
            client_requests_max: 262_144,
            client_bytes_max: 128 << 20,
            window_bytes_max: 4 << 20,
            reply_bytes_expected: 16 << 10,
            services_max: 100_000,
            absent_clients_max: 100_000,
            ttl_ms: 60_000,
            ttl_max_ms: 7 * 24 * 3_600_000,
            attempts_max: 5,
            busy_timeout_ms: None,
            absent_client_ms: 5 * 60_000,
            outcome_grace_ms: 5 * 60_000,
            journal_retention_ms: 7 * 24 * 3_600_000,
            heartbeat_ms: 2_000,
            liveness: 4,
        }
    }
}
