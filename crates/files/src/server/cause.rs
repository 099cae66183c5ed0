//! Why a transfer is slow: the one cause, of what is known of both sides and of the connection between them.

use super::stats::Wait;
use crate::protocol::control::{Slow, TcpBuffer};
use crate::transfer::tcp::{Held, Tcp};
use std::time::Duration;

/// Rate from which a transfer counts as fast, in bytes a second: then only a limit that somebody has set is a cause.
const FULL_SPEED: u64 = 16 << 20;
/// Without progress for so long, it waits for what it waits for now, whatever it was before.
const STALLED: Duration = Duration::from_secs(2);
/// Without an answer for so long, a client is frozen.
pub(super) const FROZEN: Duration = Duration::from_secs(5);
/// Silent for so long while it takes nothing, it is frozen, too: `tow` sends a PING every 5 s.
const SILENT: Duration = Duration::from_secs(8);
/// Bytes that aren't taken, from which they hold a client up that gives no credit.
const MUCH_UNTAKEN: u64 = 64 << 10;

/// All that is known of a transfer.
#[derive(Clone, Debug, Default)]
pub(super) struct Look {
    /// Its wait now, as far as this side sees.
    pub(super) now: Option<Wait>,
    /// Its wait in most of the last seconds.
    pub(super) mostly: Option<Wait>,
    /// Since its last byte of progress.
    pub(super) stalled: Duration,
    /// Bytes a second.
    pub(super) rate: Option<u64>,
    /// Why its client is slow, as that says.
    pub(super) slow: Option<Slow>,
    /// Since when a PING is unanswered.
    pub(super) unanswered: Option<Duration>,
    /// Since bytes last came from the client.
    pub(super) silent: Duration,
    /// Of a connection over TCP.
    pub(super) tcp: Option<Tcp>,
}

/// The cause; `None`: it goes at full speed.
pub(super) fn cause(look: &Look) -> Option<Wait> {
    let is_stalled = look.stalled >= STALLED;
    let wait = if is_stalled { look.now } else { look.mostly.filter(|_| look.rate.is_some()) }?;
    let cause = match wait {
        Wait::Credit | Wait::Receiver | Wait::Sender if look.is_frozen() => Some(Wait::Frozen),
        Wait::Credit | Wait::Sender if look.slow == Some(Slow::Rate) => Some(Wait::ClientRate),
        Wait::Credit | Wait::Sender | Wait::Receiver if look.slow == Some(Slow::Disk) => Some(Wait::ClientDisk),
        Wait::Receiver => look.tcp.map_or(Some(wait), sending),
        // All that the client gave credit for is on its way.
        Wait::Credit if look.tcp.is_some_and(|tcp| tcp.untaken >= MUCH_UNTAKEN) => look.tcp.and_then(sending),
        Wait::Sender if look.tcp.is_some_and(|tcp| tcp.loses_received()) => Some(Wait::Network),
        wait => Some(wait),
    };
    let is_limit = matches!(cause, Some(Wait::ClientRate | Wait::ServerRate));
    let is_fast = !is_stalled && look.rate >= Some(FULL_SPEED);
    cause.filter(|_| is_limit || !is_fast)
}

/// The cause of what waits to be sent; `None`: this side hasn't given it to the kernel, or nothing is known against it.
fn sending(tcp: Tcp) -> Option<Wait> {
    tcp.held_by().map(|held| match held {
        Held::Network => Wait::Network,
        Held::Receiver => Wait::Receiver,
        Held::Buffer(TcpBuffer::Send) => Wait::SendBuffer,
        Held::Buffer(TcpBuffer::Receive) => Wait::ReceiveBuffer,
    })
}

impl Look {
    /// Whether the client takes nothing and doesn't answer.
    fn is_frozen(&self) -> bool {
        let is_unanswered = self.unanswered.is_some_and(|since| since >= FROZEN);
        // An answer may be late behind bytes that are still on their way.
        let has_all = self.tcp.is_none_or(|tcp| tcp.untaken == 0);
        let is_closed = match &self.tcp {
            Some(tcp) => tcp.is_closed(),
            None => self.now == Some(Wait::Receiver),
        };
        is_unanswered && has_all || is_closed && self.stalled >= SILENT && self.silent >= SILENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_sockets::TcpInfo;

    const SECOND: Duration = Duration::from_secs(1);

    /// One that waits for this, now and before, and moves slowly.
    fn waits(wait: Wait) -> Look {
        Look { now: Some(wait), mostly: Some(wait), rate: Some(100 << 10), ..Look::default() }
    }

    fn over(tcp: TcpInfo) -> Look {
        let tcp = TcpInfo { segment_bytes: 1448, ..tcp };
        Look { tcp: Some(Tcp::new(tcp, None, 100_000)), ..waits(Wait::Receiver) }
    }

    /// A connection with a window, in which data is on its way.
    fn open(round_trip_ms: u64) -> TcpInfo {
        TcpInfo {
            window_bytes: Some(1 << 20),
            round_trip: Duration::from_millis(round_trip_ms),
            busy: 10 * SECOND,
            sent_bytes: 1 << 20,
            unacked_segments: 10,
            unsent_bytes: 50_000,
            ..TcpInfo::default()
        }
    }

    fn closed() -> TcpInfo {
        TcpInfo { window_bytes: Some(0), unsent_bytes: 1, window_limited: 9 * SECOND, unacked_segments: 0, ..open(1) }
    }

    #[test]
    fn each_cause_is_found() {
        use Wait::*;
        let slow = |wait, slow| Look { slow: Some(slow), ..waits(wait) };
        let silent = |look: Look, seconds| Look { stalled: seconds * SECOND, silent: seconds * SECOND, ..look };
        let unanswered = |look: Look| Look { unanswered: Some(FROZEN), ..look };
        let lossy = TcpInfo { resent_bytes: 10_000, ..open(1) };
        let full = TcpInfo { window_limited: 6 * SECOND, unacked_segments: 700, ..open(80) };
        let received = TcpInfo { received_segments: 1000, out_of_order_segments: 9, ..open(1) };
        let cases = [
            ("its own limit", slow(Credit, Slow::Rate), Some(ClientRate)),
            ("its own limit, of a push", slow(Sender, Slow::Rate), Some(ClientRate)),
            (
                "its own limit, although fast",
                Look { rate: Some(FULL_SPEED), ..slow(Credit, Slow::Rate) },
                Some(ClientRate),
            ),
            ("this server's limit", waits(ServerRate), Some(ServerRate)),
            ("its disk", slow(Credit, Slow::Disk), Some(ClientDisk)),
            ("its disk, so that it doesn't read", Look { slow: Some(Slow::Disk), ..over(closed()) }, Some(ClientDisk)),
            ("no credit, unsaid", waits(Credit), Some(Credit)),
            ("stopped with a closed window", silent(over(closed()), 9), Some(Frozen)),
            (
                "the same with all that it gave credit for",
                Look { now: Some(Credit), ..silent(over(closed()), 9) },
                Some(Frozen),
            ),
            ("no credit, and all of it is on its way", Look { mostly: Some(Credit), ..over(open(300)) }, Some(Network)),
            ("a closed window, but it speaks", Look { stalled: 60 * SECOND, ..over(closed()) }, Some(Receiver)),
            ("a window that has just closed", silent(over(closed()), 6), Some(Receiver)),
            ("stopped without credit", unanswered(silent(slow(Credit, Slow::Rate), 9)), Some(Frozen)),
            ("a stopped push", unanswered(silent(waits(Sender), 9)), Some(Frozen)),
            ("the answer is behind data", unanswered(silent(over(open(30)), 9)), Some(Network)),
            ("a unix socket that isn't read", waits(Receiver), Some(Receiver)),
            ("the same, and stopped", silent(waits(Receiver), 9), Some(Frozen)),
            ("losses", over(lossy), Some(Network)),
            ("timeouts", over(TcpInfo { timeouts: 1, ..open(1) }), Some(Network)),
            ("long round trips", over(open(300)), Some(Network)),
            ("losses of a push", Look { now: Some(Sender), mostly: Some(Sender), ..over(received) }, Some(Network)),
            ("a small receive buffer", over(full), Some(ReceiveBuffer)),
            ("one that BBR paces itself to", over(TcpInfo { window_limited: 3 * SECOND, ..full }), Some(ReceiveBuffer)),
            ("one that is read slowly", over(TcpInfo { unacked_segments: 9, ..full }), Some(Receiver)),
            ("a small send buffer", over(TcpInfo { buffer_limited: 6 * SECOND, ..open(80) }), Some(SendBuffer)),
            ("nothing against it", over(TcpInfo { buffer_limited: 6 * SECOND, ..open(1) }), None),
            ("our disk", waits(Disk), Some(Disk)),
            ("hashing", waits(Hash), Some(Hash)),
            ("open files", waits(OpenFiles), Some(OpenFiles)),
            ("no thread", waits(Pool), Some(Pool)),
            ("fast", Look { rate: Some(FULL_SPEED), ..waits(Credit) }, None),
            ("fast until it stalled", Look { rate: Some(FULL_SPEED), stalled: STALLED, ..waits(Disk) }, Some(Disk)),
            ("one thing now and then", Look { mostly: None, ..waits(Disk) }, None),
            ("stalled, and another thing before", Look { mostly: None, stalled: STALLED, ..waits(Disk) }, Some(Disk)),
            ("it has just begun", Look { rate: None, ..waits(Disk) }, None),
            ("nothing", Look::default(), None),
        ];
        for (what, look, expected) in cases {
            assert_eq!(cause(&look), expected, "{what}: {look:?}");
        }
    }

    #[test]
    fn losses_before_the_last_look_dont_count() {
        let before = TcpInfo { resent_bytes: 500_000, busy: 9 * SECOND, window_limited: 9 * SECOND, ..open(1) };
        let now = TcpInfo { sent_bytes: 2 << 20, busy: 12 * SECOND, segment_bytes: 1448, ..before };
        let look = |tcp| Look { tcp: Some(tcp), ..waits(Wait::Receiver) };
        assert_eq!(cause(&look(Tcp::new(now, None, 1))), Some(Wait::Network));
        assert_eq!(cause(&look(Tcp::new(now, Some(before), 1))), None);
        assert_eq!(cause(&look(Tcp::new(now, Some(before), 0))), None);
    }
}
