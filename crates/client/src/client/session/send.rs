//! Records to the broker, and when they are sent.

use super::super::outstanding::State;
use super::{Delivery, HELD_MAX, Link, Session};
use std::cmp::Reverse;
use std::time::Duration;
use towpath_requests::body::Body;
use towpath_requests::numbered::{Block, FromClient, Sent, Status};

/// Longest margin between the broker's deadline and ours.
const TIME_KEPT_BACK_MOST: Duration = Duration::from_millis(50);

/// Shortest margin, unless that is over half of the time: the broker checks deadlines every 20 ms.
const TIME_KEPT_BACK_LEAST: Duration = Duration::from_millis(25);

/// Time to live for the broker, a little less than what is left: the broker knows whether a worker had the request, and its
/// verdict should arrive before our own deadline.
fn time_for_broker(left: Duration) -> u32 {
    let given = left - (left / 8).clamp(TIME_KEPT_BACK_LEAST, TIME_KEPT_BACK_MOST).min(left / 2);
    u32::try_from(given.as_millis()).unwrap_or(u32::MAX).max(1)
}

impl Session {
    /// The next request to a stock broker, if one may be sent now.
    pub fn pump_stock(&mut self) -> Option<(&[u8], Body)> {
        let Link::Stock(None) = self.link else { return None };
        let (number, entry) = self.table.next_waiting(self.cursor)?;
        self.cursor = number + 1;
        self.link = Link::Stock(Some(number));
        self.counters.resent += u64::from(entry.known);
        (entry.state, entry.sent_before, entry.known, entry.next_part) = (State::Sent, true, true, 0);
        self.in_flight += 1;
        self.in_flight_bytes += entry.body.length();
        Some((self.services.name(entry.service), entry.body.clone()))
    }

    /// Appends records that may be sent now, up to about `bytes`. Returns whether there are more.
    pub fn pump(&mut self, now: Duration, block: &mut Block, bytes: usize) -> bool {
        let Link::Numbered { requests_max, bytes_max, .. } = self.link else { return false };
        for number in self.cancels.drain(..) {
            FromClient::cancel(block, number);
        }
        // Acknowledgements first: they make space for requests at the broker.
        let sends = !block.is_empty() || !self.again.is_empty() || self.cursor < self.table.next_number();
        if self.acks.due().is_some_and(|due| due <= now || sends) {
            self.acks.put(block);
        }
        let mut more = false;
        loop {
            if block.memory_bytes() >= bytes {
                more = true;
                break;
            }
            if self.in_flight >= requests_max {
                break;
            }
            let next = match self.again.front() {
                Some(&number) => match self.table.find(number) {
                    Some(entry) if entry.state == State::Waiting => Some((number, entry)),
                    _ => {
                        self.again.pop_front();
                        continue;
                    }
                },
                None if self.held.len() >= HELD_MAX => break,
                None => self.table.next_waiting(self.cursor),
            };
            let Some((number, entry)) = next else {
                self.cursor = self.table.next_number();
                break;
            };
            let length = entry.body.length();
            if self.in_flight > 0 && self.in_flight_bytes + length > bytes_max {
                break;
            }
            if self.again.pop_front().is_none() {
                self.cursor = number + 1;
            }
            let left = entry.deadline.map_or(0, |at| time_for_broker(at.saturating_sub(now)));
            let sent = Sent { volatile: entry.volatile, resent: entry.elsewhere };
            FromClient::request(block, number, left, sent, self.services.name(entry.service), &entry.body);
            if entry.known {
                self.counters.resent += 1;
            } else if entry.sent_before {
                self.counters.retried += 1;
            }
            (entry.state, entry.sent_before, entry.known) = (State::Sent, true, true);
            self.in_flight += 1;
            self.in_flight_bytes += length;
        }
        more
    }

    /// Acknowledges to the broker as soon as possible what it may forget, because this side ends: also requests that were cancelled
    /// and have no outcome yet.
    pub fn hurry(&mut self, now: Duration) {
        if matches!(self.link, Link::Numbered { .. }) {
            for (number, length) in std::mem::take(&mut self.abandoned) {
                self.in_flight = self.in_flight.saturating_sub(1);
                self.in_flight_bytes = self.in_flight_bytes.saturating_sub(length);
                self.acks.add(number, now);
            }
        }
        self.acks.hurry();
    }

    /// Whether everything for the broker was sent, or can't be.
    pub fn is_flushed(&self) -> bool {
        !matches!(self.link, Link::Numbered { .. }) || (self.acks.due().is_none() && self.cancels.is_empty())
    }

    /// When [`Session::on_time`] has something to do, or [`Session::pump`] if there is space for its records.
    pub fn deadline(&self, has_space: bool) -> Option<Duration> {
        let (welcome, acks) = match self.link {
            Link::Greeting(until) => (Some(until), None),
            Link::Numbered { .. } if has_space => (None, self.acks.due()),
            _ => (None, None),
        };
        let held = self.held.peek().map(|Reverse((at, _))| *at);
        let deadline = self.deadlines.next().map(|(at, _)| at);
        welcome.into_iter().chain(acks).chain(held).chain(deadline).min()
    }

    /// Handles everything that is due.
    pub fn on_time(&mut self, now: Duration, sink: &mut impl FnMut(Delivery)) {
        if matches!(self.link, Link::Greeting(until) if until <= now) {
            self.link = Link::Spoiled("the broker doesn't answer");
        }
        while let Some((at, number)) = self.deadlines.next().filter(|(at, _)| *at <= now) {
            self.deadlines.pop();
            let Some(entry) = self.table.find(number).filter(|entry| entry.deadline == Some(at)) else { continue };
            let was_refused = entry.sent_before && !entry.known;
            let (status, mut reason) = match entry.known || entry.elsewhere {
                true => (Status::TIMED_OUT, "no outcome came within its time".to_owned()),
                false => (Status::EXPIRED, "no broker took it within its time".to_owned()),
            };
            if let Some(refused) = self.refused.as_ref().filter(|_| was_refused) {
                reason = format!("{reason}; the last refusal was {refused}");
            }
            if let Some(delivery) = self.abandon(number, now, status, &reason) {
                sink(delivery);
            }
        }
        while let Some(Reverse((_, number))) = self.held.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.held.pop();
            if let Some(entry) = self.table.find(number).filter(|entry| entry.state == State::Held) {
                entry.state = State::Waiting;
                self.again.push_back(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::NewRequest;
    use super::*;
    use towpath_requests::numbered::{ClientId, ToClient};

    const AT: fn(u64) -> Duration = Duration::from_millis;

    fn receives(session: &mut Session, say: impl FnOnce(&mut Block)) -> Vec<(u64, Status)> {
        let (mut said, mut received) = (Block::default(), Vec::new());
        say(&mut said);
        let block = said.drain().next().unwrap().block;
        session
            .on_block(&block, None, AT(30), &mut |delivery| received.push((delivery.number, delivery.status)))
            .unwrap();
        received
    }

    /// With two requests, sent to a broker.
    fn asking() -> Session {
        let mut session = Session::new(ClientId([7; 16]), 10, usize::MAX, AT(5_000));
        for _ in 0..2 {
            let (body, ttl) = (Body::default(), Some(AT(1_000)));
            session.submit(NewRequest { service: b"echo", body, ttl, volatile: false, owner: 0 }, AT(0));
        }
        connect(&mut session);
        session
    }

    fn connect(session: &mut Session) {
        session.connected(AT(10), &mut Block::default());
        receives(session, |said| ToClient::welcome(said, 1, 1000, 1 << 20, false));
        session.pump(AT(20), &mut Block::default(), 10_000);
    }

    #[test]
    fn the_broker_gets_a_shorter_deadline() {
        for (left, given) in [(10_000, 9_950), (400, 350), (240, 210), (160, 135), (60, 35), (40, 20), (1, 1), (0, 1)] {
            assert_eq!(time_for_broker(AT(left)), given, "{left} ms");
        }
        assert_eq!(time_for_broker(Duration::MAX), u32::MAX);
    }

    #[test]
    fn expiry_after_failover_is_reported_as_uncertain() {
        let mut session = asking();
        let expired = |said: &mut Block, number| ToClient::reply(said, number, Status::EXPIRED, None, &Body::default());
        assert_eq!(receives(&mut session, |said| expired(said, 1)), [(1, Status::EXPIRED)]);
        session.disconnected();
        connect(&mut session);
        assert_eq!(receives(&mut session, |said| expired(said, 2)), [(2, Status::TIMED_OUT)]);
    }

    #[test]
    fn parts_on_another_connection_make_a_reply_incomplete() {
        let mut session = asking();
        let says =
            |said: &mut Block, number, status, part| ToClient::reply(said, number, status, part, &Body::default());
        for number in [1, 2] {
            assert_eq!(receives(&mut session, |said| says(said, number, Status::OK, Some(0))), [(number, Status::OK)]);
        }
        assert_eq!(receives(&mut session, |said| says(said, 1, Status::IN_PARTS, None)), [(1, Status::IN_PARTS)]);
        session.disconnected();
        connect(&mut session);
        assert_eq!(receives(&mut session, |said| says(said, 2, Status::IN_PARTS, None)), [(2, Status::LOST)]);
    }

    #[test]
    fn expiry_names_the_last_refusal() {
        let mut session = asking();
        let refused = |said: &mut Block| ToClient::refused(said, 1, Status::UNAVAILABLE, 60_000, "the queue is full");
        assert_eq!(session.refused(), None);
        assert_eq!(receives(&mut session, refused), []);
        let refusal = session.refused().unwrap().to_string();
        assert_eq!(refusal, format!("{}: the queue is full", Status::UNAVAILABLE));
        let mut received = Vec::new();
        session.on_time(AT(1_000), &mut |delivery| received.push((delivery.number, delivery.status, delivery.body)));
        let [(1, Status::EXPIRED, first), (2, Status::TIMED_OUT, second)] = &received[..] else {
            panic!("{received:?}")
        };
        let first = Body::from(format!("no broker took it within its time; the last refusal was {refusal}")) == *first;
        assert!(first && *second == Body::from("no outcome came within its time"), "{received:?}");
    }

    #[test]
    fn cancelled_requests_are_acknowledged_on_close() {
        let mut session = asking();
        assert!(session.cancel(2, AT(40)).is_some());
        session.hurry(AT(50));
        let mut block = Block::default();
        session.pump(AT(50), &mut block, 10_000);
        let said = block.drain().next().unwrap().block;
        // CANCEL of number 2, and CONFIRM of one number from there.
        assert_eq!(said[..], [&[4, 0, 0, 0, 0, 0, 0, 0, 2][..], &[3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1]].concat());
        assert!(session.is_flushed());
    }

    #[test]
    fn cancelled_requests_that_are_refused_are_acknowledged() {
        let mut session = asking();
        assert!(session.cancel(2, AT(40)).is_some());
        session.pump(AT(40), &mut Block::default(), 10_000);
        receives(&mut session, |said| ToClient::refused(said, 2, Status::UNAVAILABLE, 60_000, "later"));
        session.hurry(AT(50));
        let mut block = Block::default();
        session.pump(AT(50), &mut block, 10_000);
        assert_eq!(block.drain().next().unwrap().block[..], [3, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1]);
    }

    #[test]
    fn due_records_wait_for_space() {
        let mut session = asking();
        receives(&mut session, |said| ToClient::reply(said, 1, Status::OK, None, &Body::default()));
        // Request 2 has its time; request 1 is to be confirmed before.
        assert_eq!(session.deadline(false), Some(AT(1_000)));
        let due = session.deadline(true).unwrap();
        assert!(due < AT(100), "{due:?}");
        session.pump(due, &mut Block::default(), 10_000);
        assert_eq!(session.deadline(true), Some(AT(1_000)));
    }
}
