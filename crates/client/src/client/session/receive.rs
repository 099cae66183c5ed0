//! Records from the broker, and the end of requests.

use super::super::outstanding::State;
use super::{Delivery, ENTRY_BYTES, Link, RETRY_MOST, Refused, Session};
use crate::connection::assembler::status_of_lost;
use bytes::Bytes;
use std::cmp::Reverse;
use std::time::Duration;
use towpath_requests::assembler::Received;
use towpath_requests::body::{Body, IncomingBody};
use towpath_requests::majordomo::peer::ClientMessage;
use towpath_requests::message::block_of;
use towpath_requests::numbered::{CLIENT_HEADER, Content, Status, ToClient, WireError};

/// Why a request may have been executed though the broker says that no worker had it.
const MAYBE_ELSEWHERE: &str = "the broker that had it before may have given it to one";

/// Why the end of a reply is useless.
const PARTS_ELSEWHERE: &str = "they came on an earlier connection, not all of them perhaps";

/// Remains of a request that has its outcome.
struct Finished {
    owner: u32,
    /// Another broker may have executed it, or this one before it forgot the request.
    elsewhere: bool,
    service: u32,
    /// Counts at the broker.
    was_sent: bool,
    length: u64,
    memory_bytes: usize,
    /// Body of the request, whose memory may be reused for the reply.
    body: Body,
}

impl Session {
    /// Takes a message of numbered requests. An error means that the connection has to end.
    pub fn on_message(
        &mut self,
        message: Received<String>,
        now: Duration,
        sink: &mut impl FnMut(Delivery),
    ) -> Result<(), String> {
        let (block, attached) = block_of(message, CLIENT_HEADER)?;
        self.on_block(&block, attached, now, sink).map_err(|error| error.to_string())
    }

    /// Takes a block of records, and the attached body or why it is lost.
    pub fn on_block(
        &mut self,
        block: &Bytes,
        attached: Option<Result<Body, String>>,
        now: Duration,
        sink: &mut impl FnMut(Delivery),
    ) -> Result<(), WireError> {
        let mut attached = attached;
        let mut rest = &block[..];
        while !rest.is_empty() {
            match ToClient::decode(&mut rest)? {
                ToClient::Reply { number, status, part, content } => {
                    let (status, body) = match (content, attached.take_if(|_| content.is_attached())) {
                        (Content::Attached { .. }, Some(Err(why))) => (status_of_lost(&why), Body::from(why).into()),
                        (_, attached) => (status, content.incoming(block, attached.and_then(Result::ok))?),
                    };
                    self.on_reply(number, status, part, body, now, sink);
                }
                ToClient::Welcome { epoch, requests_max, bytes_max, journal } => {
                    self.on_welcome(epoch, requests_max, bytes_max, journal, now);
                }
                ToClient::Accepted { first, count } => {
                    self.is_served();
                    for entry in self.table.range_mut(first, u64::from(count)) {
                        entry.accepted = true;
                    }
                }
                ToClient::Refused { number, status, retry_ms, reason } => {
                    self.on_refused(number, status, retry_ms, reason, now, sink);
                }
            }
        }
        if attached.is_some() { Err(WireError::Attachment) } else { Ok(()) }
    }

    fn on_welcome(&mut self, epoch: u64, requests_max: u32, bytes_max: u64, journal: bool, now: Duration) {
        let same = self.epoch.replace(epoch).is_none_or(|before| before == epoch);
        if matches!(self.link, Link::Greeting(_)) {
            // The broker may have lost the last acknowledgements, or be another one. Cancelled requests are among these
            // numbers: an acknowledgement ends them there.
            for (first, count) in self.table.done_ranges() {
                self.acks.add_range(first, count, now);
            }
            // HELLO named this number as outstanding, but it has ended meanwhile.
            if let Some(count) = self.table.lowest().checked_sub(self.greeted_with).filter(|count| *count > 0) {
                self.acks.add_range(self.greeted_with, count, now);
            }
        }
        if !same {
            self.counters.restarts += 1;
            // The broker will announce again what is durable.
            self.table.iter_mut().for_each(|(_, entry)| entry.accepted = false);
        }
        self.link = Link::Numbered { requests_max: requests_max.max(1) as usize, bytes_max, journal };
    }

    #[inline]
    fn on_reply(
        &mut self,
        number: u64,
        status: Status,
        part: Option<u32>,
        body: IncomingBody<'_>,
        now: Duration,
        sink: &mut impl FnMut(Delivery),
    ) {
        if let Some(part) = part {
            if let Some(entry) = self.table.find(number)
                && (part >= entry.next_part || part == 0)
            {
                entry.next_part = part.saturating_add(1);
                sink(Delivery { number, owner: entry.owner, status, part: Some(part), body: body.into_body() });
            }
            return;
        }
        self.is_served();
        let has_parts = self.table.find(number).is_some_and(|entry| entry.next_part > 0);
        if let Some(mut entry) = self.finish(number) {
            self.acks.add(number, now);
            if status == Status::IN_PARTS && !has_parts {
                let (status, body) = (Status::LOST, Body::from(PARTS_ELSEWHERE));
                return sink(Delivery { number, owner: entry.owner, status, part: None, body });
            }
            if status == Status::EXPIRED && entry.elsewhere {
                let (status, body) = (Status::TIMED_OUT, Body::from(MAYBE_ELSEWHERE));
                return sink(Delivery { number, owner: entry.owner, status, part: None, body });
            }
            body.replace(&mut entry.body);
            sink(Delivery { number, owner: entry.owner, status, part: None, body: entry.body });
        } else if number < self.table.next_number() {
            self.counters.duplicates += 1;
            self.acks.add(number, now);
            if let Some(length) = self.abandoned.remove(&number) {
                self.in_flight = self.in_flight.saturating_sub(1);
                self.in_flight_bytes = self.in_flight_bytes.saturating_sub(length);
            }
        } else {
            tracing::warn!(number, "a reply to a request that was never made is left out");
        }
    }

    fn on_refused(
        &mut self,
        number: u64,
        status: Status,
        retry_ms: u32,
        reason: &[u8],
        now: Duration,
        sink: &mut impl FnMut(Delivery),
    ) {
        let Some(entry) = self.table.find(number).filter(|entry| entry.state == State::Sent) else {
            if let Some(length) = self.abandoned.remove(&number) {
                self.in_flight = self.in_flight.saturating_sub(1);
                self.in_flight_bytes = self.in_flight_bytes.saturating_sub(length);
                // It isn't sent again, and the broker must not wait for the number.
                if status != Status::CONFLICT {
                    self.acks.add(number, now);
                }
            }
            return;
        };
        entry.known = false;
        if retry_ms == 0 {
            if let Some(entry) = self.finish(number) {
                // The broker doesn't know the number, and must not wait for it. Or it is another one's of the same id, to whom the outcome belongs.
                if status != Status::CONFLICT {
                    self.acks.add(number, now);
                }
                sink(Delivery { number, owner: entry.owner, status, part: None, body: Body::copied(reason) });
            }
            return;
        }
        entry.state = State::Held;
        self.lacks_storage |= status == Status::NO_STORAGE;
        self.refused = Some(Refused { status, reason: String::from_utf8_lossy(reason).into_owned() });
        self.in_flight = self.in_flight.saturating_sub(1);
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(entry.body.length());
        let wait = Duration::from_millis(u64::from(retry_ms)).min(RETRY_MOST);
        self.held.push(Reverse((now + wait, number)));
    }

    /// Ends a request that has its outcome.
    #[inline]
    fn finish(&mut self, number: u64) -> Option<Finished> {
        let finished = self.table.finish(number, |entry| Finished {
            owner: entry.owner,
            elsewhere: entry.elsewhere,
            service: entry.service,
            was_sent: entry.state == State::Sent,
            length: entry.body.length(),
            memory_bytes: entry.body.memory_bytes(),
            body: std::mem::take(&mut entry.body),
        })?;
        self.services.release(finished.service);
        self.bytes -= ENTRY_BYTES + finished.memory_bytes;
        if finished.was_sent {
            self.in_flight = self.in_flight.saturating_sub(1);
            self.in_flight_bytes = self.in_flight_bytes.saturating_sub(finished.length);
        }
        Some(finished)
    }

    /// Ends a request on this side, and cancels it at the broker.
    pub fn cancel(&mut self, number: u64, now: Duration) -> Option<Delivery> {
        self.abandon(number, now, Status::CANCELLED, "cancelled")
    }

    pub(super) fn abandon(&mut self, number: u64, now: Duration, status: Status, reason: &str) -> Option<Delivery> {
        let entry = self.finish(number)?;
        match self.link {
            Link::Stock(Some(out)) if out == number => {
                self.link = Link::Spoiled("a reply that nobody waits for could be taken for another's");
            }
            Link::Numbered { .. } if entry.was_sent => {
                let length = entry.length;
                self.abandoned.insert(number, length);
                self.in_flight += 1;
                self.in_flight_bytes += length;
                self.cancels.push(number);
            }
            // The broker must not wait for a number that never comes.
            Link::Numbered { .. } => self.acks.add(number, now),
            // Acknowledged or skipped when the next connection begins.
            _ => {}
        }
        Some(Delivery { number, owner: entry.owner, status, part: None, body: Body::from(reason) })
    }

    /// Takes a reply of a stock broker.
    pub fn on_stock(&mut self, received: ClientMessage, sink: &mut impl FnMut(Delivery)) {
        let Link::Stock(out) = &mut self.link else { return };
        let Some(number) = *out else {
            tracing::warn!("a reply that answers no request is left out");
            return;
        };
        let Some(entry) = self.table.find(number) else { return };
        if received.service.is_some_and(|service| *service != *self.services.name(entry.service)) {
            tracing::warn!("a reply of another service is left out");
            return;
        }
        let owner = entry.owner;
        let ends_parts = !received.partial && entry.next_part > 0;
        let (status, body) = match received.body {
            Ok(body) if ends_parts => (Status::IN_PARTS, body),
            Ok(body) => (Status::OK, body),
            Err(why) => (status_of_lost(&why), Body::from(why)),
        };
        if received.partial {
            let part = entry.next_part;
            entry.next_part = part.saturating_add(1);
            sink(Delivery { number, owner, status, part: Some(part), body });
            return;
        }
        *out = None;
        if self.finish(number).is_some() {
            sink(Delivery { number, owner, status, part: None, body });
        }
    }
}
