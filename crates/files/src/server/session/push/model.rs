//! Pushes of clients that send anything, against a model of what each may send.

use super::super::{Action, Part, Session, Ticket};
use crate::digest::Digest;
use crate::limits::{PIECE_COST_MIN, PUSHES_MAX};
use crate::protocol::control::{Expected, PushRequest, Range, Reply, Request};
use crate::protocol::data::{Body, DataEntry, DataHeader};
use crate::root::Timestamp;
use crate::server::jobs::{Answer, Job, PushJob, PushUpdate};
use crate::server::quota::Quotas;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use towpath_quota::{Permit, Quota};
use towpath_sockets::Principal;

/// Zeros for bodies.
const BODY: &[u8] = &[0; 1 << 16];

/// Little memory for pieces.
const FEW_BYTES: u64 = 160 << 10;

/// A push that the session hasn't ended.
struct Pushed {
    ticket: Ticket,
    size: u64,
    window: Permit,
    /// Missing bytes, in order, once it has begun.
    missing: Option<Vec<Range>>,
    /// Bytes that its client may still send.
    credit: u64,
    /// Credit of pieces that aren't written.
    writing: Vec<u64>,
}

struct Model {
    session: Session<()>,
    windows: Arc<Quota>,
    /// Bytes of the windows that others have, so that there is little.
    others: u64,
    pushes: BTreeMap<u32, Pushed>,
    tape: Vec<u8>,
}

/// The body of the fuzz target `files_push`, and of the property test.
pub fn fuzz_body(tape: &[u8]) {
    let quotas = Quotas::new(usize::MAX).client();
    let windows = Arc::clone(&quotas.push_window);
    let session = Session::new(Principal::Anonymous, quotas).taking_pushes(true);
    let is_short = tape.first().is_some_and(|first| first % 2 == 1);
    let others = windows.acquire(if is_short { windows.max() - FEW_BYTES } else { 0 });
    let tape = tape.iter().rev().copied().collect();
    let mut model = Model { session, windows, others: others.units(), pushes: BTreeMap::new(), tape };
    while !model.tape.is_empty() {
        model.step();
        model.check();
    }
}

impl Model {
    fn byte(&mut self) -> u8 {
        self.tape.pop().unwrap_or(0)
    }

    fn number(&mut self) -> u64 {
        u64::from(self.byte()) << 9 | u64::from(self.byte())
    }

    fn step(&mut self) {
        let (what, id) = (self.byte() % 8, u32::from(self.byte() % 10));
        match what {
            0 => self.offer(id),
            1 => self.begin(id),
            2 | 3 => self.send(id, true),
            4 => self.send(id, false),
            5 => {
                if let Some(pushed) = self.pushes.get_mut(&id)
                    && let Some(credit) = pushed.writing.pop()
                {
                    let ticket = pushed.ticket;
                    self.session.finish(ticket, Answer::Push(PushUpdate::Written { credit }));
                }
            }
            6 => self.session.request(Vec::new(), Ok(Request::Cancel { id })),
            _ => {
                let bytes: Vec<u8> = (0..44).map(|_| self.byte()).collect();
                self.session.data(&Vec::new(), DataHeader::decode(&bytes), &[Bytes::from_static(b"x")]);
            }
        }
    }

    fn offer(&mut self, id: u32) {
        let size = self.number() << 3;
        let push = PushRequest {
            id,
            path: b"x".to_vec().into(),
            size,
            mtime: Timestamp::default(),
            mode: 0,
            digest: Digest([0; 32]),
            expected: Expected::Anything,
            durable: false,
            content: None,
        };
        self.session.request(Vec::new(), Ok(Request::Push(push)));
    }

    fn begin(&mut self, id: u32) {
        let (gap, length) = (self.number(), self.number());
        let Some(pushed) = self.pushes.get_mut(&id).filter(|pushed| pushed.missing.is_none()) else { return };
        let (offset, size) = (gap.min(pushed.size), pushed.size);
        let length = length.min(size - offset);
        let have: Vec<Range> = Some(Range { offset, length }).filter(|range| range.length > 0).into_iter().collect();
        let ranges = [(0, if length > 0 { offset } else { size }), (offset + length, size - offset - length)];
        let ranges = ranges.into_iter().take(if length > 0 { 2 } else { 1 });
        let missing = ranges.map(|(offset, length)| Range { offset, length }).filter(|range| range.length > 0);
        pushed.missing = Some(missing.collect());
        let ticket = pushed.ticket;
        self.session.finish(ticket, Answer::Push(PushUpdate::Begun { have }));
    }

    /// Sends a piece: the next one, or any.
    fn send(&mut self, id: u32, is_next: bool) {
        let (offset, length) = (self.number(), self.number().min(BODY.len() as u64));
        let next = self.pushes.get(&id).and_then(|pushed| pushed.missing.as_ref()?.first().copied());
        let (offset, length) = match next.filter(|_| is_next) {
            Some(next) => (next.offset, length.clamp(1, next.length)),
            None => (offset, length),
        };
        let entry = DataEntry { n: 0, end: length == 0, body: Body::Plain, offset, length, body_length: length };
        let body = Bytes::from_static(&BODY[..length as usize]);
        self.session.data(&Vec::new(), Ok(DataHeader { id, entries: vec![entry] }), &[body]);
    }

    /// Takes what the session wants and says, and compares.
    fn check(&mut self) {
        while let Some(action) = self.session.next_action() {
            match action {
                Action::Start(ticket, Job::Push(PushJob::Begin(request, _, window))) => {
                    let pushed =
                        Pushed { ticket, size: request.size, window, missing: None, credit: 0, writing: Vec::new() };
                    assert!(self.pushes.insert(request.id, pushed).is_none(), "an id is used once at a time");
                }
                Action::Start(ticket, Job::Push(PushJob::Write(write))) => {
                    let pushed = self.pushes.values_mut().find(|pushed| pushed.ticket == ticket);
                    let pushed = pushed.expect("a push that isn't over");
                    let length = write.data.len() as u64;
                    let missing = pushed.missing.as_mut().expect("it has begun");
                    let next = missing.first_mut().expect("something is missing");
                    assert!(write.offset == next.offset && length > 0 && length <= next.length, "the next piece");
                    (next.offset, next.length) = (next.offset + length, next.length - length);
                    missing.retain(|range| range.length > 0);
                    assert_eq!(write.credit, length.max(PIECE_COST_MIN));
                    pushed.credit = pushed.credit.checked_sub(write.credit).expect("never more than the credit");
                    pushed.writing.push(write.credit);
                }
                Action::Release { ticket, .. } => self.pushes.retain(|_, pushed| pushed.ticket != ticket),
                _ => {}
            }
        }
        while let Some(message) = self.session.next_message() {
            let Some(Part::Bytes(json)) = message.parts.get(1) else { panic!("a control message") };
            match Reply::decode(json).expect("a reply") {
                Reply::Push(push) => {
                    let pushed = self.pushes.get_mut(&push.id).expect("a push");
                    assert!(push.credit_bytes == pushed.window.units() && push.chunk_bytes <= push.credit_bytes);
                    pushed.credit += push.credit_bytes;
                }
                Reply::Credit(credit) => {
                    self.pushes.get_mut(&credit.id).expect("a push").credit += credit.bytes;
                }
                _ => {}
            }
        }
        assert!(self.pushes.len() <= PUSHES_MAX);
        let windows: u64 = self.pushes.values().map(|pushed| pushed.window.units()).sum();
        assert!(windows <= self.windows.max() && windows + self.others == self.windows.used());
        for pushed in self.pushes.values() {
            let held = pushed.credit + pushed.writing.iter().sum::<u64>();
            assert!(held <= pushed.window.units(), "memory is bounded by the window");
            // Nobody waits for ever: with nothing to write there is credit for a whole chunk.
            let waits = pushed.missing.as_ref().is_some_and(|missing| !missing.is_empty());
            assert!(!waits || !pushed.writing.is_empty() || pushed.credit >= pushed.window.units() / 2);
        }
    }
}
