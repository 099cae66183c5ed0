//! Why a TCP connection doesn't send faster, as the kernel counts it, and whether a buffer of it is too small for a far link.

use crate::protocol::control::TcpBuffer;
use std::time::{Duration, Instant};
use towpath_sockets::TcpInfo;

/// Round-trip time from which the network or a buffer may be a cause.
const LONG_ROUND_TRIP: Duration = Duration::from_millis(10);
/// Of so many bytes that are sent, or segments that come, one may be lost.
const LOST_ONE_OF: u64 = 200;
/// Time between two looks at a connection.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Largest buffer that is advised, in bytes.
const BUFFER_BYTES_ADVISED: u64 = 128 << 20;

/// A TCP connection now, and since it was last looked at.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Tcp {
    pub(crate) now: TcpInfo,
    /// As it was then; at first all zeros.
    pub(crate) before: TcpInfo,
    /// Bytes that the other side's system hasn't acknowledged.
    pub(crate) untaken: u64,
}

/// The cause for which bytes wait in a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// The network: it loses data, or takes long.
    Network,
    /// The other side doesn't read as fast as it could be sent.
    Receiver,
    /// A buffer is too small for the round-trip time.
    Buffer(TcpBuffer),
}

impl Tcp {
    /// The same after a look back, so that what was long ago doesn't count.
    pub(crate) fn new(now: TcpInfo, before: Option<TcpInfo>, untaken: u64) -> Tcp {
        Tcp { now, before: before.unwrap_or_default(), untaken }
    }

    /// Whether the other side's system takes nothing.
    pub(crate) fn is_closed(&self) -> bool {
        let is_small = self.now.window_bytes.is_some_and(|bytes| bytes < self.now.segment_bytes);
        is_small && self.now.unsent_bytes > 0
    }

    /// The cause for which bytes wait to be sent; `None`: none do, or nothing is known against it.
    pub(crate) fn held_by(&self) -> Option<Held> {
        let (now, before) = (&self.now, &self.before);
        if self.is_closed() {
            return Some(Held::Receiver);
        }
        if self.untaken == 0 {
            return None;
        }
        let resent = now.resent_bytes.saturating_sub(before.resent_bytes);
        let sent = now.sent_bytes.saturating_sub(before.sent_bytes);
        if now.timeouts > 0 || is_share(resent, sent) {
            return Some(Held::Network);
        }
        let busy = now.busy.saturating_sub(before.busy);
        let is_part = |limited: Duration, parts| !busy.is_zero() && limited >= busy / parts;
        let is_long = now.round_trip >= LONG_ROUND_TRIP;
        let window_limited = now.window_limited.saturating_sub(before.window_limited);
        // All that fits is on its way, or it waits there for a program to read it.
        let in_flight = u64::from(now.unacked_segments) * u64::from(now.segment_bytes);
        let is_full = now.window_bytes.is_some_and(|window| in_flight >= u64::from(window) / 2);
        // BBR takes a window that is full for the rate of the network, and paces itself to it: only now and then does it meet the window.
        if is_long && is_full && is_part(window_limited, 4) {
            return Some(Held::Buffer(TcpBuffer::Receive));
        }
        if is_part(window_limited, 2) {
            return Some(Held::Receiver);
        }
        if is_long && is_part(now.buffer_limited.saturating_sub(before.buffer_limited), 2) {
            return Some(Held::Buffer(TcpBuffer::Send));
        }
        is_long.then_some(Held::Network)
    }

    /// Whether what comes has holes.
    pub(crate) fn loses_received(&self) -> bool {
        let late = self.now.out_of_order_segments.saturating_sub(self.before.out_of_order_segments);
        let all = self.now.received_segments.saturating_sub(self.before.received_segments);
        is_share(late.into(), all.into())
    }
}

/// Whether this many were lost of so many.
fn is_share(lost: u64, all: u64) -> bool {
    lost > 0 && lost >= all / LOST_ONE_OF
}

/// Looks at a connection each second, for a buffer that is too small.
#[derive(Debug, Default)]
pub(crate) struct BufferWatch {
    last: Option<(TcpInfo, Instant)>,
    /// Those that were found, by buffer.
    found: [bool; 2],
}

impl BufferWatch {
    /// Whether it is time for a look.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|(_, at)| now.saturating_duration_since(at) >= LOOK_EVERY)
    }

    /// Takes a look. Returns the buffer that limits what is sent, if that wasn't known.
    pub(crate) fn look(&mut self, (tcp, untaken): (TcpInfo, u64), now: Instant) -> Option<TcpBuffer> {
        let (before, _) = self.last.replace((tcp, now))?;
        match Tcp::new(tcp, Some(before), untaken).held_by()? {
            Held::Buffer(buffer) => {
                let found = self.found.get_mut(buffer as usize)?;
                (!std::mem::replace(found, true)).then_some(buffer)
            }
            Held::Network | Held::Receiver => None,
        }
    }
}

/// Logs that a buffer limits a transfer, with the line that makes it larger. `sends`: this side does.
pub(crate) fn log_buffer(buffer: TcpBuffer, sends: bool, round_trip: Duration) {
    let (option, least) = match buffer {
        TcpBuffer::Send => ("tcp_wmem", "4096 16384"),
        TcpBuffer::Receive => ("tcp_rmem", "4096 131072"),
    };
    let place = if sends == (buffer == TcpBuffer::Send) { "here" } else { "on the server" };
    let (name, milliseconds) = (buffer.name(), round_trip.as_millis());
    tracing::info!(
        "TCP's {name} limits the rate, since a round trip takes {milliseconds} ms; {place}: \
         sysctl -w net.ipv4.{option}='{least} {BUFFER_BYTES_ADVISED}'"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_buffer_that_limits_is_found_once() {
        let start = Instant::now();
        let at = |seconds: u64| (start + Duration::from_secs(seconds), Duration::from_secs(seconds));
        let tcp = |busy, buffer_limited, window_limited| TcpInfo {
            busy,
            buffer_limited,
            window_limited,
            window_bytes: Some(64 << 10),
            unacked_segments: 40,
            round_trip: Duration::from_millis(300),
            segment_bytes: 1448,
            ..TcpInfo::default()
        };
        let mut watch = BufferWatch::default();
        let mut found = Vec::new();
        for second in 0..30 {
            let (now, busy) = at(second);
            assert!(watch.is_due(now));
            // The network; then the buffer that sends; then now this one, now the other.
            let window_limited = second.saturating_sub(20) / 2;
            let limited = second.saturating_sub(10) - window_limited;
            let of = tcp(busy, Duration::from_secs(limited), Duration::from_secs(window_limited));
            found.extend(watch.look((of, 1 << 20), now).map(|buffer| (second, buffer)));
            assert!(!watch.is_due(now + LOOK_EVERY / 2));
        }
        assert_eq!(found, [(11, TcpBuffer::Send), (22, TcpBuffer::Receive)]);
        // Nothing waits.
        assert_eq!(BufferWatch::default().look((tcp(Duration::ZERO, Duration::ZERO, Duration::ZERO), 0), start), None);
    }
}
