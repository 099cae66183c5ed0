//! Brokers that a client has left for another one. They keep its outcomes until it confirms them, so it does that as soon as it reaches them
//! again: over a short connection of its own, beside the one that it works with.

use crate::connection::{LinkOptions, encoder};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};
use towpath_requests::numbered::{self, Block, CLIENT_HEADER};
use towpath_sockets::{Endpoint, Event, Hub, Message, SocketError, Waker};

/// Delay before the second attempt to reach a broker; doubled each time.
const RETRY_FIRST: Duration = Duration::from_millis(100);

/// Longest delay between attempts.
const RETRY_MOST: Duration = Duration::from_secs(5);

/// Longest time for an attempt.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The same of a client that is being closed.
const LAST_TIMEOUT: Duration = Duration::from_secs(1);

/// A broker that was left.
#[derive(Debug)]
struct Left {
    /// Its endpoint.
    index: usize,
    /// Only numbers below may be there.
    until: u64,
    /// The process that was left.
    epoch: u64,
    /// Whether it was sent, since it was left, which numbers had ended by then.
    is_notified: bool,
    /// An attempt was begun when the client was being closed: the last one.
    is_last: bool,
    next: Instant,
    failures: u32,
    /// An attempt that goes on: the lowest number without an outcome when it began, and its end.
    attempt: Option<(u64, Receiver<bool>)>,
}

/// All brokers that were left and may have something.
#[derive(Debug, Default)]
pub(super) struct LeftBrokers(Vec<Left>);

impl LeftBrokers {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The connection to a broker is lost. Numbers below `until` may have been sent there.
    pub fn add(&mut self, index: usize, until: u64, epoch: u64, now: Instant) {
        self.0.retain(|left| left.index != index);
        if until <= 1 {
            return;
        }
        let left =
            Left { index, until, epoch, is_notified: false, is_last: false, next: now, failures: 0, attempt: None };
        self.0.push(left);
    }

    /// The client works with this broker now, which learns everything over that connection. It may be one that was left under another endpoint.
    pub fn returned(&mut self, index: usize, epoch: Option<u64>) {
        self.0.retain(|left| left.index != index && Some(left.epoch) != epoch);
    }

    /// Takes the ends of attempts.
    fn take_ends(&mut self, now: Instant) {
        self.0.retain_mut(|left| {
            let Some((began_with, end)) = &left.attempt else { return true };
            let is_reached = match end.try_recv() {
                Err(TryRecvError::Empty) => return true,
                Ok(is_reached) => is_reached,
                Err(TryRecvError::Disconnected) => false,
            };
            let is_over = is_reached && *began_with >= left.until;
            left.attempt = None;
            if is_reached {
                (left.is_notified, left.failures, left.next) = (true, 0, now);
            } else {
                let delay = RETRY_FIRST.saturating_mul(1 << left.failures.min(16)).min(RETRY_MOST);
                left.failures = left.failures.saturating_add(1);
                left.next = now + delay;
            }
            !is_over
        });
    }

    /// Goes on. `at`: the broker that the client works with. `lowest`: the lowest number without an outcome. `put_ended`: appends the records that a broker is
    /// sent about the numbers below one.
    #[expect(clippy::too_many_arguments, reason = "the client's state in parts")]
    pub fn turn(
        &mut self,
        now: Instant,
        closing: bool,
        at: Option<usize>,
        lowest: u64,
        link: &LinkOptions,
        endpoints: &[Endpoint],
        waker: &Waker,
        put_ended: impl Fn(u64, &mut Block),
    ) {
        self.take_ends(now);
        for left in &mut self.0 {
            let is_due = if closing {
                !left.is_last
            } else {
                at.is_some() && left.next <= now && (!left.is_notified || lowest >= left.until)
            };
            let Some(endpoint) = endpoints.get(left.index).filter(|_| is_due && left.attempt.is_none()) else {
                continue;
            };
            left.is_last = closing;
            let mut block = Block::default();
            put_ended(left.until, &mut block);
            let messages: Vec<_> = block.drain().map(|message| encoder::numbered(CLIENT_HEADER, message)).collect();
            let (link, endpoint, waker) = (link.clone(), endpoint.clone(), waker.clone());
            let timeout = if closing { LAST_TIMEOUT } else { TIMEOUT }.min(link.connect_timeout);
            let (done, end) = sync_channel(1);
            let started = std::thread::Builder::new().name("confirm".to_owned()).spawn(move || {
                let reached = notify_broker(&link, &endpoint, messages, timeout);
                tracing::debug!(%endpoint, ?reached, "notified a broker that was left of the outcomes that are here");
                let _ = done.send(reached.unwrap_or(false));
                waker.wake();
            });
            if started.is_ok() {
                left.attempt = Some((lowest, end));
            } else {
                (left.next, left.failures) = (now + RETRY_MOST, left.failures.saturating_add(1));
            }
        }
    }

    /// When [`LeftBrokers::turn`] next has something to do, if nothing happens before.
    pub fn deadline(&self, lowest: u64) -> Option<Instant> {
        let wants = |left: &&Left| left.attempt.is_none() && (!left.is_notified || lowest >= left.until);
        self.0.iter().filter(wants).map(|left| left.next).min()
    }

    /// Whether a client that is being closed has tried to reach each of them.
    pub fn is_over(&self) -> bool {
        self.0.iter().all(|left| left.is_last && left.attempt.is_none())
    }
}

/// Connects to a broker and sends it a block. Returns whether it was reached.
fn notify_broker(
    link: &LinkOptions,
    endpoint: &Endpoint,
    mut messages: Vec<Message>,
    timeout: Duration,
) -> Result<bool, SocketError> {
    let mut hub = Hub::new(link.hub_options()?)?;
    hub.connect_once(endpoint);
    let start = Instant::now();
    while let Some(left) = timeout.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) {
        hub.poll(Some(left))?;
        while let Some(event) = hub.next_event() {
            match event {
                Event::Ready { peer } => {
                    let is_numbered = |peer| Some(hub.peer(peer)?.metadata.find(numbered::PROPERTY).is_some());
                    if is_numbered(peer) == Some(false) {
                        // Another program is there now.
                        return Ok(true);
                    }
                    for message in messages.drain(..) {
                        if hub.send(peer, message).is_err() {
                            return Ok(false);
                        }
                    }
                }
                // WELCOME: it has read what came with the greeting.
                Event::Message { .. } => {
                    hub.close(timeout)?;
                    return Ok(true);
                }
                Event::Failed { .. } | Event::Gone { .. } => return Ok(false),
                _ => {}
            }
        }
    }
    Ok(false)
}
