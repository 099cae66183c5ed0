//! Outcomes and parts that callers haven't taken yet.

use super::Completed;
use super::session::Delivery;
use std::collections::VecDeque;
use std::task::Waker;
use towpath_requests::body::Body;
use towpath_requests::numbered::Status;

/// Owner of requests whose outcome goes to [`super::Client::receive`]. Other owners are slots in the table of calls, from
/// 1.
pub(super) const RECEIVER: u32 = 0;

/// Memory of a queued delivery beside its body: there may be very many small ones.
const DELIVERY_BYTES: usize = size_of::<Delivery>();

/// Bytes of memory of a queued delivery with this body.
#[inline]
fn cost(body: &Body) -> usize {
    DELIVERY_BYTES + body.memory_bytes()
}

/// Converts the final part of a reply to what the caller gets: the whole reply, or an error. `has_parts`: parts came
/// before, perhaps of another attempt.
#[inline]
fn conclude(delivery: &mut Delivery, streams: bool, has_parts: bool) {
    if delivery.part.is_some() {
        return;
    }
    let why = match delivery.status {
        Status::IN_PARTS if streams => {
            delivery.status = Status::OK;
            return;
        }
        Status::IN_PARTS => "it came in parts, and was asked for as one",
        Status::OK if has_parts => "the request was executed again, and what came before is void",
        _ => return,
    };
    (delivery.status, delivery.body) = (Status::LOST, Body::from(why));
}

/// A call or a stream.
#[derive(Debug, Default)]
struct Call {
    waker: Option<Waker>,
    /// The outcome of a call; the parts and outcome of a stream.
    arrived: VecDeque<Delivery>,
    streams: bool,
    /// Parts have come.
    has_parts: bool,
}

/// Outcomes for [`super::Client::receive`], and for calls.
#[derive(Debug)]
pub(super) struct Inbox {
    completed: VecDeque<Completed>,
    completed_bytes: usize,
    bytes: usize,
    calls: Vec<Call>,
    free: Vec<u32>,
    parts_dropped: u64,
    wakers: Vec<Waker>,
}

impl Inbox {
    pub fn new() -> Inbox {
        Inbox {
            completed: VecDeque::new(),
            completed_bytes: 0,
            bytes: 0,
            // Slot 0 is the receiver's and unused here.
            calls: vec![Call::default()],
            free: Vec::new(),
            parts_dropped: 0,
            wakers: Vec::new(),
        }
    }

    /// Outcomes for the receiver.
    #[inline]
    pub fn completed(&self) -> usize {
        self.completed.len()
    }

    /// Bytes of memory of everything queued.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Parts that were dropped because nobody streams that reply.
    pub fn parts_dropped(&self) -> u64 {
        self.parts_dropped
    }

    /// Tasks to wake.
    pub fn wakers(&mut self) -> &mut Vec<Waker> {
        &mut self.wakers
    }

    /// Allocates a slot for a call.
    pub fn add_call(&mut self, streams: bool) -> u32 {
        let call = Call { streams, ..Call::default() };
        if let Some(place) = self.free.pop() {
            self.calls[place as usize] = call;
            return place;
        }
        self.calls.push(call);
        (self.calls.len() - 1) as u32
    }

    /// Frees the slot of a call.
    pub fn remove_call(&mut self, place: u32) {
        while self.take(place).is_some() {}
        self.calls[place as usize] = Call::default();
        self.free.push(place);
    }

    /// Takes the next delivery of a call.
    pub fn take(&mut self, place: u32) -> Option<Delivery> {
        let delivery = self.calls[place as usize].arrived.pop_front()?;
        self.bytes -= cost(&delivery.body);
        Some(delivery)
    }

    /// Registers the waker of a call.
    pub fn wait(&mut self, place: u32, waker: &Waker) {
        match &mut self.calls[place as usize].waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// Takes one outcome for the receiver.
    pub fn take_completed(&mut self) -> Option<Completed> {
        let completed = self.completed.pop_front()?;
        let bytes = cost(&completed.body);
        self.bytes -= bytes;
        self.completed_bytes -= bytes;
        Some(completed)
    }

    /// Takes all outcomes for the receiver and returns their count.
    pub fn take_all_completed(&mut self, out: &mut Vec<Completed>) -> usize {
        let count = self.completed.len();
        self.bytes -= std::mem::take(&mut self.completed_bytes);
        if out.is_empty() {
            // Swaps the buffers: both keep their memory, and nothing is copied.
            let empty = VecDeque::from(std::mem::take(out));
            *out = std::mem::replace(&mut self.completed, empty).into();
        } else {
            out.extend(self.completed.drain(..));
        }
        count
    }

    /// Queues an outcome or a part for its owner.
    #[inline]
    pub fn deliver(&mut self, mut delivery: Delivery) {
        if delivery.owner == RECEIVER {
            if delivery.part.is_some() {
                self.parts_dropped += 1;
                return;
            }
            conclude(&mut delivery, false, false);
            let bytes = cost(&delivery.body);
            self.bytes += bytes;
            self.completed_bytes += bytes;
            let Delivery { number, status, body, .. } = delivery;
            self.completed.push_back(Completed { number, status, body });
            return;
        }
        let Some(call) = self.calls.get_mut(delivery.owner as usize) else { return };
        if delivery.part.is_some() && !call.streams {
            self.parts_dropped += 1;
            return;
        }
        conclude(&mut delivery, call.streams, call.has_parts);
        call.has_parts |= delivery.part.is_some();
        self.bytes += cost(&delivery.body);
        self.wakers.extend(call.waker.take());
        call.arrived.push_back(delivery);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Status that a caller gets for an outcome after this many parts.
    fn final_status(streams: bool, parts: u32, status: Status) -> Status {
        let mut inbox = Inbox::new();
        let owner = inbox.add_call(streams);
        let delivery = |part, status| Delivery { number: 1, owner, status, part, body: Body::from("some") };
        (0..parts).for_each(|part| inbox.deliver(delivery(Some(part), Status::OK)));
        inbox.deliver(delivery(None, status));
        let mut last = None;
        while let Some(delivery) = inbox.take(owner) {
            last = Some(delivery);
        }
        assert_eq!(inbox.bytes(), 0);
        last.unwrap().status
    }

    #[test]
    fn callers_get_whole_replies_or_an_error() {
        for (streams, parts, status, expected) in [
            (true, 0, Status::OK, Status::OK),
            (true, 2, Status::IN_PARTS, Status::OK),
            // Another attempt replied as a whole.
            (true, 2, Status::OK, Status::LOST),
            (true, 2, Status::FAILED, Status::FAILED),
            (false, 2, Status::OK, Status::OK),
            (false, 2, Status::IN_PARTS, Status::LOST),
        ] {
            assert_eq!(final_status(streams, parts, status), expected, "{streams} {parts} {status}");
        }
    }
}
