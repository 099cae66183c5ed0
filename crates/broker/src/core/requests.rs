//! The table of requests, and the lists that link them.

use super::StockEnvelope;
use super::dead_letter;
use super::letter::LETTER_BYTES;
use super::outcomes::OutcomeSize;
use super::reply_budget::ExpectedBytes;
use super::settings::Millis;
use super::{ServiceKey, SessionKey, WorkerKey};
use bytes::Bytes;
use towpath_requests::body::{Body, IncomingBody, RequestChecksum, memory_bytes_of_frames};
use towpath_requests::numbered::Status;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// Bytes of memory that a request counts beside its body: its slot, and its entry in its session's map.
pub(super) const REQUEST_BYTES: usize = 256;

/// Bytes of memory that free slots keep for their next bodies.
const SPARE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Of a request's marks: a reply in parts.
const HAS_PARTS: u8 = 1 << 7;

/// Slots in a block.
const BLOCK_SLOTS: usize = 512;

/// State of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Nowhere: the slot is free.
    Free,
    /// In its service's queue.
    Waiting,
    /// In its session's list of parked requests: its client has to confirm replies first.
    Parked,
    /// In the list of retries: a worker couldn't do it, and its next attempt comes later.
    Postponed,
    /// In its worker's list, with the size that is expected of its reply.
    Held(WorkerKey, ExpectedBytes),
    /// In no list: the broker answers it itself, or is about to end it.
    Detached,
    /// Ended. Its outcome is kept until the client confirms it.
    Settled,
}

/// Fields that few requests need.
#[derive(Debug, Default)]
pub(super) struct Extra {
    /// The envelope of a stock client's request.
    pub envelope: StockEnvelope,
    /// The service that a stock client asked for, if it has another name here.
    pub asked_service: Option<Bytes>,
    /// Parts of the reply, kept until the last one for a client that takes one reply.
    parts: Vec<Body>,
    /// Bytes of memory of the parts. There may be very many.
    parts_bytes: usize,
}

impl Extra {
    fn bytes(&self) -> usize {
        size_of::<Extra>()
            + envelope_bytes(&self.envelope)
            + self.parts_bytes
            + self.asked_service.as_ref().map_or(0, Bytes::len)
    }

    /// Keeps a part until the last one.
    pub fn add_part(&mut self, part: Body) {
        self.parts_bytes += part_bytes(&part);
        self.parts.push(part);
    }
}

/// Bytes of memory of an envelope.
pub(super) fn envelope_bytes(envelope: &StockEnvelope) -> usize {
    envelope.as_deref().map_or(0, memory_bytes_of_frames)
}

/// A request, in two cache lines. There are millions, and most of their cost is getting them into the cache.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Request {
    pub generation: u32,
    pub state: State,
    pub status: Status,
    /// Attempts so far, also those of other brokers and before it became a dead letter, as far as they are known.
    pub attempt: u16,
    /// Attempts that don't count against the broker's attempts at it.
    pub uncounted: u16,
    /// Of a numbered client's request.
    pub checksum: RequestChecksum,
    /// The id in the journal; 0: it isn't journalled.
    pub journal_id: u64,
    pub session: SessionKey,
    pub number: u64,
    pub service: ServiceKey,
    previous: u32,
    next: u32,
    /// When it expires; once settled, when its outcome may be dropped if its client is away.
    pub expires: Millis,
    /// When it was taken, or a worker last got it.
    pub since: Millis,
    /// The request; once settled, the reply or the reason.
    pub body: Body,
    extra: Option<Box<Extra>>,
    /// The client's connection to which parts of this attempt's reply were sent; 0: none.
    pub parts_on: u32,
    /// Bit 7: some worker has replied in parts. Below it, purges of its service that had begun when it was taken, wrapping around.
    marks: u8,
    /// Its journal entry is on the disk.
    pub is_durable: bool,
    /// The outcome doesn't wait for the disk.
    pub may_send_outcome: bool,
    /// In its session's list of pending outcomes.
    pub outcome_pending: bool,
}

impl Request {
    fn new(session: SessionKey, number: u64, service: ServiceKey, expires: Millis) -> Request {
        Request {
            generation: 0,
            state: State::Waiting,
            status: Status::OK,
            attempt: 0,
            uncounted: 0,
            checksum: RequestChecksum::default(),
            journal_id: 0,
            session,
            number,
            service,
            previous: NONE,
            next: NONE,
            expires,
            since: 0,
            body: Body::default(),
            extra: None,
            parts_on: 0,
            marks: 0,
            is_durable: false,
            may_send_outcome: true,
            outcome_pending: false,
        }
    }

    /// Attempts that count against the broker's.
    #[inline]
    pub fn attempts(&self) -> u16 {
        self.attempt - self.uncounted
    }

    /// Makes it one of another service, as if it were taken now. Its attempts so far don't count.
    pub fn move_to(&mut self, service: ServiceKey, now: Millis, purges: u8) {
        self.service = service;
        self.since = now;
        self.uncounted = self.attempt;
        self.parts_on = 0;
        self.marks = purges & !HAS_PARTS;
    }

    /// Some worker has replied in parts.
    pub fn has_parts(&self) -> bool {
        self.marks & HAS_PARTS != 0
    }

    pub fn set_has_parts(&mut self) {
        self.marks |= HAS_PARTS;
    }

    /// Notes how many purges of its service had begun when it was taken.
    #[inline]
    pub fn set_purges_before(&mut self, purges: u8) {
        self.marks = (self.marks & HAS_PARTS) | (purges & !HAS_PARTS);
    }

    /// Whether it was taken before a purge of its service began. Earlier purges ended all that waited then, so the numbers may wrap around.
    pub fn is_before_purge(&self, number: u8) -> bool {
        (1..1 << 6).contains(&(number.wrapping_sub(self.marks) & !HAS_PARTS))
    }

    #[inline]
    pub fn bytes(&self) -> usize {
        let letter = if self.number == dead_letter::NUMBER { LETTER_BYTES } else { 0 };
        REQUEST_BYTES + letter + self.body.memory_bytes() + self.extra.as_ref().map_or(0, |extra| extra.bytes())
    }

    /// Its cost as an outcome.
    #[inline]
    pub fn outcome_size(&self) -> OutcomeSize {
        OutcomeSize { bytes: self.bytes(), large_bytes: self.body.large_bytes() }
    }

    /// The envelope of a stock client's request.
    pub fn envelope(&self) -> StockEnvelope {
        self.extra.as_ref().and_then(|extra| extra.envelope.clone())
    }

    /// The service that a stock client asked for, if it has another name here.
    pub fn asked_service(&self) -> Option<Bytes> {
        self.extra.as_ref().and_then(|extra| extra.asked_service.clone())
    }

    /// Parts that are kept until the last one.
    #[inline]
    pub fn parts(&self) -> &[Body] {
        self.extra.as_ref().map_or(&[], |extra| &extra.parts)
    }

    pub fn extra_mut(&mut self) -> &mut Extra {
        self.extra.get_or_insert_default()
    }

    /// Takes the parts that are kept, if there are any.
    #[inline]
    pub fn take_parts(&mut self) -> Vec<Body> {
        self.extra.as_mut().map_or_else(Vec::new, |extra| {
            extra.parts_bytes = 0;
            std::mem::take(&mut extra.parts)
        })
    }
}

fn part_bytes(part: &Body) -> usize {
    size_of::<Body>() + part.memory_bytes()
}

/// A doubly linked list of requests, each of which is in one list at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    head: u32,
    tail: u32,
    pub len: usize,
}

impl Default for List {
    fn default() -> List {
        List { head: NONE, tail: NONE, len: 0 }
    }
}

impl List {
    pub fn first(&self) -> Option<u32> {
        (self.head != NONE).then_some(self.head)
    }

    pub fn last(&self) -> Option<u32> {
        (self.tail != NONE).then_some(self.tail)
    }
}

/// All requests, in slots. A slot is reused under another generation.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Blocks, so that the table grows without moving requests.
    blocks: Vec<Vec<Request>>,
    slots: usize,
    free: Vec<u32>,
    /// Bytes of memory that free slots keep.
    spare_bytes: usize,
}

impl Requests {
    pub fn len(&self) -> usize {
        self.slots - self.free.len()
    }

    /// Adds a request that is in no list. Written in place: a request is large, and they come by the million.
    #[inline]
    pub fn insert(
        &mut self,
        session: SessionKey,
        number: u64,
        service: ServiceKey,
        expires: Millis,
        body: IncomingBody<'_>,
    ) -> u32 {
        let Some(slot) = self.free.pop() else {
            let mut request = Request::new(session, number, service, expires);
            body.replace(&mut request.body);
            return self.push(request);
        };
        let spare = self.at(slot).body.reusable_bytes();
        self.spare_bytes -= spare;
        let request = self.at_mut(slot);
        request.state = State::Waiting;
        request.status = Status::OK;
        request.attempt = 0;
        request.journal_id = 0;
        request.session = session;
        request.number = number;
        request.service = service;
        request.expires = expires;
        request.since = 0;
        body.replace(&mut request.body);
        request.parts_on = 0;
        request.marks = 0;
        request.is_durable = false;
        request.may_send_outcome = true;
        request.outcome_pending = false;
        slot
    }

    fn push(&mut self, request: Request) -> u32 {
        let slot = self.slots;
        if slot.is_multiple_of(BLOCK_SLOTS) {
            self.blocks.push(Vec::with_capacity(BLOCK_SLOTS));
        }
        self.blocks[slot / BLOCK_SLOTS].push(request);
        self.slots += 1;
        slot as u32
    }

    /// Frees a slot that is in no list. Its generation ends: tokens of it find nothing any more.
    #[inline]
    pub fn remove(&mut self, slot: u32) {
        let space = SPARE_BYTES_MAX - self.spare_bytes;
        let request = self.at_mut(slot);
        debug_assert_ne!(request.state, State::Free, "freed twice");
        request.state = State::Free;
        request.generation = request.generation.wrapping_add(1);
        if request.extra.is_some() {
            request.extra = None;
        }
        let mut spare = request.body.reusable_bytes();
        if spare == 0 || spare > space {
            request.body.release();
            spare = 0;
        }
        self.spare_bytes += spare;
        self.free.push(slot);
    }

    #[inline]
    pub fn at(&self, slot: u32) -> &Request {
        &self.blocks[slot as usize / BLOCK_SLOTS][slot as usize % BLOCK_SLOTS]
    }

    #[inline]
    pub fn at_mut(&mut self, slot: u32) -> &mut Request {
        &mut self.blocks[slot as usize / BLOCK_SLOTS][slot as usize % BLOCK_SLOTS]
    }

    /// The request of that slot and generation, if it is still there.
    #[inline]
    pub fn find(&self, slot: u32, generation: u32) -> Option<&Request> {
        self.blocks
            .get(slot as usize / BLOCK_SLOTS)?
            .get(slot as usize % BLOCK_SLOTS)
            .filter(|request| request.generation == generation && request.state != State::Free)
    }

    /// Slots, also free ones.
    pub fn slots(&self) -> u32 {
        self.slots as u32
    }

    /// The requests in slots from `from` to `end`, exclusive.
    pub fn iter_range(&self, from: u32, end: u32) -> impl Iterator<Item = (u32, &Request)> {
        let slots = from..end.min(self.slots());
        slots.map(|slot| (slot, self.at(slot))).filter(|(_, request)| request.state != State::Free)
    }

    /// All requests.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Request)> {
        (0..).zip(self.blocks.iter().flatten()).filter(|(_, request)| request.state != State::Free)
    }

    /// The slots of a list, in its order.
    pub fn listed(&self, list: &List) -> impl Iterator<Item = u32> {
        std::iter::successors(list.first(), |&slot| Some(self.at(slot).next).filter(|&next| next != NONE))
    }

    #[inline]
    pub fn push_back(&mut self, list: &mut List, slot: u32) {
        let tail = list.tail;
        let request = self.at_mut(slot);
        (request.previous, request.next) = (tail, NONE);
        match tail {
            NONE => list.head = slot,
            tail => self.at_mut(tail).next = slot,
        }
        list.tail = slot;
        list.len += 1;
    }

    #[inline]
    pub fn push_front(&mut self, list: &mut List, slot: u32) {
        let head = list.head;
        let request = self.at_mut(slot);
        (request.previous, request.next) = (NONE, head);
        match head {
            NONE => list.tail = slot,
            head => self.at_mut(head).previous = slot,
        }
        list.head = slot;
        list.len += 1;
    }

    /// Removes a request from the list that it is in.
    #[inline]
    pub fn unlink(&mut self, list: &mut List, slot: u32) {
        let request = self.at_mut(slot);
        let (previous, next) = (request.previous, request.next);
        (request.previous, request.next) = (NONE, NONE);
        match previous {
            NONE => list.head = next,
            previous => self.at_mut(previous).next = next,
        }
        match next {
            NONE => list.tail = previous,
            next => self.at_mut(next).previous = previous,
        }
        list.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(requests: &Requests, list: &List) -> Vec<u32> {
        let slots: Vec<u32> = requests.listed(list).collect();
        assert_eq!(slots.len(), list.len);
        assert_eq!(slots.last().copied(), list.last());
        slots
    }

    #[test]
    fn a_request_fills_two_cache_lines() {
        assert_eq!(size_of::<Request>(), 128);
    }

    #[test]
    fn free_slots_keep_limited_memory() {
        let mut requests = Requests::default();
        let body = [0; 1024];
        let most = (SPARE_BYTES_MAX / body.len()) as u64 + 2;
        let mut slots = Vec::new();
        for _ in 0..2 {
            slots.extend((0..most).map(|number| requests.insert(0, number, 0, 0, Body::copied(&body).into())));
            assert_eq!(requests.spare_bytes, 0);
            slots.drain(..).for_each(|slot| requests.remove(slot));
            assert_eq!(requests.spare_bytes, SPARE_BYTES_MAX);
            let kept: usize = (0..most as u32).map(|slot| requests.at(slot).body.reusable_bytes()).sum();
            assert_eq!(kept, SPARE_BYTES_MAX);
        }
        // Two slots had to free theirs, and are reused first.
        let mut slots = (0..3).map(|number| requests.insert(0, number, 0, 0, Body::default().into()));
        let third = slots.nth(2).expect("a slot");
        assert_eq!(requests.spare_bytes, SPARE_BYTES_MAX - body.len());
        assert_eq!(requests.at(third).bytes(), REQUEST_BYTES);
    }

    #[test]
    fn lists_keep_order_and_slots_change_generation() {
        let mut requests = Requests::default();
        let mut list = List::default();
        let slots: Vec<u32> = (0..4).map(|number| requests.insert(0, number, 0, 0, Body::default().into())).collect();
        for &slot in &slots[..3] {
            requests.push_back(&mut list, slot);
        }
        requests.push_front(&mut list, slots[3]);
        assert_eq!(listed(&requests, &list), [3, 0, 1, 2]);
        requests.unlink(&mut list, 1);
        requests.unlink(&mut list, 3);
        requests.unlink(&mut list, 2);
        assert_eq!(listed(&requests, &list), [0]);
        assert!(requests.find(1, 0).is_some());
        requests.remove(1);
        assert!(requests.find(1, 0).is_none());
        assert_eq!(requests.insert(0, 9, 0, 0, Body::default().into()), 1);
        assert!(requests.find(1, 0).is_none() && requests.find(1, 1).is_some());
        assert_eq!(requests.len(), 4);
        requests.unlink(&mut list, 0);
        assert!(listed(&requests, &list).is_empty());
    }
}
