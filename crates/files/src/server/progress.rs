//! The progress of a client's transfers, and why each is slow.

use super::cause::{Look, cause};
use super::pace::Meter;
use super::session::Ticket;
use super::stats::{RequestKind, TransferStats, Wait};
use crate::transfer::tcp::Tcp;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use towpath_sockets::{PeerInfo, TcpInfo};

/// Least time between two looks at a connection that are compared.
const COMPARED_MIN: Duration = Duration::from_secs(5);
/// Bytes from a client that are more than a few PONGs.
const DATA_BYTES_MIN: u64 = 4096;

/// Meters of a client's transfers, and when its connection was looked at.
#[derive(Debug, Default)]
pub(super) struct Progress {
    meters: HashMap<Ticket, Meter>,
    /// The connection when it was looked at some seconds ago, and after that.
    before: Option<TcpInfo>,
    last: Option<(TcpInfo, Instant)>,
    /// Bytes that had come from it when that was last progress.
    came: u64,
}

impl Progress {
    /// Notes what each transfer waits for.
    pub(super) fn note(&mut self, waits: impl Iterator<Item = (Ticket, Option<Wait>, u64)>, awaits_rate: bool) {
        let (mut count, mut now) = (0, None);
        for (ticket, wait, moved) in waits {
            count += 1;
            let now = *now.get_or_insert_with(Instant::now);
            let wait = match wait {
                None | Some(Wait::Receiver) if awaits_rate => Some(Wait::ServerRate),
                wait => wait,
            };
            self.meters.entry(ticket).or_insert_with(|| Meter::new(now)).note(wait, moved, now);
        }
        if self.meters.len() > count {
            self.forget(count, now);
        }
    }

    /// Forgets those that are over: the `count` others were just noted.
    fn forget(&mut self, count: usize, now: Option<Instant>) {
        match now {
            Some(now) if count > 0 => self.meters.retain(|_, meter| meter.is_of(now)),
            _ => self.meters.clear(),
        }
    }

    /// Adds to each transfer its rates, and why it is slow.
    pub(super) fn explain(
        &mut self,
        transfers: &mut [(Ticket, TransferStats)],
        info: &PeerInfo,
        tcp: Option<(TcpInfo, u64)>,
        now: Instant,
    ) {
        // A message may take minutes to come.
        let has_come = info.bytes_in.saturating_sub(self.came) >= DATA_BYTES_MIN;
        let receives = has_come && std::mem::replace(&mut self.came, info.bytes_in) > 0;
        // And what the kernel has may take minutes to leave.
        let sent = tcp.filter(|(tcp, untaken)| *untaken > 0 && tcp.timeouts == 0).map(|(tcp, _)| tcp.last_sent);
        let tcp = tcp.map(|(tcp, untaken)| Tcp::new(tcp, self.compared(tcp, now), untaken));
        let since = |at: Instant| now.saturating_duration_since(at);
        for (ticket, transfer) in transfers {
            let meter = self.meters.entry(*ticket).or_insert_with(|| Meter::new(now));
            let wait = meter.wait().or(transfer.wait);
            meter.note(wait, transfer.sent_bytes + transfer.received_bytes, now);
            if transfer.kind == RequestKind::Push && receives {
                meter.progressed(info.last_received);
            } else if transfer.kind != RequestKind::Push
                && let Some(at) = sent.and_then(|sent| now.checked_sub(sent))
            {
                meter.progressed(at);
            }
            transfer.pace = meter.pace(now);
            transfer.wait = cause(&Look {
                now: wait,
                mostly: meter.main_wait(now),
                stalled: transfer.pace.stalled,
                rate: transfer.pace.rate,
                slow: transfer.slow,
                unanswered: info.unanswered_since.map(since),
                silent: since(info.last_received),
                tcp,
            });
        }
    }

    /// The connection some seconds ago.
    fn compared(&mut self, tcp: TcpInfo, now: Instant) -> Option<TcpInfo> {
        match self.last {
            Some((_, at)) if now.saturating_duration_since(at) < COMPARED_MIN => {}
            last => {
                self.before = last.map(|(tcp, _)| tcp);
                self.last = Some((tcp, now));
            }
        }
        self.before
    }
}
