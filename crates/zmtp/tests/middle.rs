//! A man in the middle who drops, repeats, swaps, delays, cuts, changes, reflects and adds frames, during the handshake and after it.
//!
//! With CURVE, whatever is done: each end takes only what the other has sent, in its order; and it takes all of it, or the connection ends.

#![allow(clippy::unwrap_used, reason = "a failure fails the test")]

mod harness;

use bytes::Bytes;
use harness::curve::{client_with, server_with};
use harness::{End, Part, at, command, config, frame, heartbeat};
use proptest::prelude::*;
use std::ops::Range;
use towpath_zmtp::{Config, Error, Event, Header, MechanismConfig, SocketType};

/// An attack on one unit: the greeting, or a frame.
#[derive(Debug, Clone)]
enum Deed {
    LeaveOut,
    Double,
    /// Delivered behind as many later ones.
    Delay(usize),
    /// Delivered, and once more behind as many later ones.
    Replay(usize),
    /// Only its first bytes come, and the connection is closed.
    Cut(usize),
    /// Nothing is delivered from then on, and nobody is informed.
    Hold,
    Flip {
        byte: usize,
        bit: u8,
    },
    /// Returned to its sender.
    Reflect,
    /// Preceded by these bytes.
    Add(Vec<u8>),
}

/// One direction.
#[derive(Debug, Default)]
struct Way {
    /// The beginning of the next unit.
    rest: Vec<u8>,
    /// Units so far.
    units: usize,
    deeds: Vec<(usize, Deed)>,
    /// Units that come before the one of this number.
    later: Vec<(usize, Vec<u8>)>,
    is_closed: bool,
    is_held: bool,
}

impl Way {
    /// The bytes that leave on the other side, and those that go back.
    fn pass(&mut self, bytes: &[u8]) -> [Vec<u8>; 2] {
        self.rest.extend_from_slice(bytes);
        let (mut there, mut back) = (Vec::new(), Vec::new());
        while let Some(length) = self.next_length() {
            let mut unit: Vec<u8> = self.rest.drain(..length).collect();
            let number = self.units;
            self.units += 1;
            let mut copies = 1;
            for (_, deed) in self.deeds.iter().filter(|(at, _)| *at == number) {
                match deed {
                    Deed::LeaveOut => copies = 0,
                    Deed::Double => copies += 1,
                    Deed::Delay(by) | Deed::Replay(by) => {
                        copies -= usize::from(copies > 0 && matches!(deed, Deed::Delay(_)));
                        self.later.push((number + by, unit.clone()));
                    }
                    Deed::Cut(at) => {
                        unit.truncate(*at);
                        self.is_closed = true;
                    }
                    Deed::Hold => self.is_held = true,
                    Deed::Flip { byte, bit } => {
                        if let Some(byte) = unit.get_mut(*byte) {
                            *byte ^= 1 << bit;
                        }
                    }
                    Deed::Reflect => {
                        copies = 0;
                        back.extend_from_slice(&unit);
                    }
                    Deed::Add(bytes) => there.extend_from_slice(bytes),
                }
            }
            if self.is_held {
                return [there, back];
            }
            (0..copies).for_each(|_| there.extend_from_slice(&unit));
            self.later.retain(|(at, unit)| {
                let is_due = *at <= number;
                if is_due {
                    there.extend_from_slice(unit);
                }
                !is_due
            });
        }
        [there, back]
    }

    fn next_length(&self) -> Option<usize> {
        let length = match self.units {
            0 => 64,
            _ => Header::decode(&self.rest).map(|(header, bytes)| bytes + header.length as usize)?,
        };
        (self.rest.len() >= length && !self.is_closed && !self.is_held).then_some(length)
    }
}

/// Client and server with somebody between them.
struct Link {
    ends: [End; 2],
    ways: [Way; 2],
    ended: [Option<Error>; 2],
}

impl Link {
    fn new(mechanisms: [MechanismConfig; 2], streams: bool) -> Link {
        let [client, server] = mechanisms;
        let end = |mechanism, socket_type| {
            let mut config = Config { mechanism, heartbeat: heartbeat(1_000, 500, 0), ..config(socket_type) };
            config.limits.stream_over_bytes = streams.then_some(1_000);
            End::new(config)
        };
        let ends = [end(client, SocketType::Dealer), end(server, SocketType::Router)];
        Link { ends, ways: Default::default(), ended: [None, None] }
    }

    fn receive(&mut self, end: usize, bytes: &[u8], now: u64) {
        let this = &mut self.ends[end];
        if self.ended[end].is_some() {
            return;
        }
        let mut outcome = this.receive(bytes, at(now));
        if outcome.is_ok() && matches!(this.events.last(), Some(Event::Authenticate(_))) {
            this.events.pop();
            this.connection.accept();
            outcome = this.receive(b"", at(now));
        }
        self.ended[end] = outcome.err();
    }

    /// Moves bytes until nothing moves.
    fn settle(&mut self, now: u64) {
        loop {
            let mut is_moving = false;
            for from in [0, 1] {
                let bytes = self.ends[from].write_all();
                let [there, back] = self.ways[from].pass(&bytes);
                is_moving |= !bytes.is_empty();
                self.receive(1 - from, &there, now);
                self.receive(from, &back, now);
            }
            if !is_moving {
                return;
            }
        }
    }

    /// The whole conversation, and the heartbeats behind it.
    fn run(&mut self) {
        let mut is_sent = false;
        for now in (0..15_000).step_by(500) {
            self.settle(now);
            if !is_sent && self.ends.iter().all(|end| end.connection.is_ready()) {
                is_sent = true;
                for end in [0, 1] {
                    conversation(end).iter().for_each(|message| self.ends[end].send(message));
                }
                self.settle(now);
            }
            if self.is_over() {
                return;
            }
            for end in [0, 1] {
                self.ended[end] = self.ends[end].connection.on_timeout(at(now + 499)).err();
            }
        }
    }

    fn is_over(&self) -> bool {
        self.ended.iter().any(Option::is_some) || self.ways.iter().any(|way| way.is_closed)
    }

    /// Whether all that was sent has been taken, and only that.
    fn is_complete(&self) -> bool {
        (0..2).all(|end| transcript(&self.ends[end].events) == expected(1 - end))
    }

    /// Whether nothing was taken but the beginning of what was sent.
    fn is_right(&self) -> bool {
        (0..2).all(|end| expected(1 - end).starts_with(&transcript(&self.ends[end].events)))
    }
}

/// The messages of each end when both are ready: one frame less would be something else.
fn conversation(end: usize) -> Vec<Vec<Part>> {
    let text = |text: &str| Part::Inside(text.to_owned().into());
    let of = if end == 0 { "client" } else { "server" };
    vec![
        vec![text(of), text("rm"), text("--dry-run"), text("/data")],
        vec![text("a"), Part::Outside(vec![b'x'; 3_000].into()), text("")],
        vec![Part::Inside(vec![b'y'; 17_000].into())],
        vec![text("end")],
    ]
}

/// Frames as bytes: length, body, and whether more follows.
fn put(out: &mut Vec<u8>, body: &Bytes, more: bool) {
    out.extend_from_slice(&(body.len() as u64).to_be_bytes());
    out.extend_from_slice(body);
    out.push(u8::from(more));
}

fn expected(end: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for message in conversation(end) {
        for (index, part) in message.iter().enumerate() {
            put(&mut out, part.bytes(), index + 1 < message.len());
        }
    }
    out
}

/// The data of the events, the beginning of a streamed body included.
fn transcript(events: &[Event]) -> Vec<u8> {
    let mut out = Vec::new();
    for event in events {
        match event {
            Event::Authenticate(_) | Event::Ready(_) => {}
            Event::Message { frames, .. } => {
                for (index, body) in frames.iter().enumerate() {
                    put(&mut out, body, index + 1 < frames.len());
                }
            }
            Event::BodyStart { head, length, .. } => {
                head.iter().for_each(|body| put(&mut out, body, true));
                out.extend_from_slice(&length.to_be_bytes());
            }
            Event::BodyData(data) => out.extend_from_slice(data),
            Event::BodyEnd { more } => out.push(u8::from(*more)),
        }
    }
    out
}

fn curve(aes: bool) -> [MechanismConfig; 2] {
    [client_with(aes), server_with(aes)]
}

fn plain() -> [MechanismConfig; 2] {
    let client = MechanismConfig::PlainClient { user: "ada".into(), password: "lovelace".into() };
    [client, MechanismConfig::PlainServer]
}

fn run(mechanisms: [MechanismConfig; 2], streams: bool, deeds: [Vec<(usize, Deed)>; 2]) -> Link {
    let mut link = Link::new(mechanisms, streams);
    for (way, deeds) in link.ways.iter_mut().zip(deeds) {
        way.deeds = deeds;
    }
    link.run();
    link
}

/// Units of a conversation with these mechanisms, in each direction, without the heartbeats.
fn units(mechanisms: [MechanismConfig; 2]) -> [usize; 2] {
    let link = run(mechanisms, false, [vec![], vec![]]);
    assert!(link.is_complete() && !link.is_over(), "{:?}", link.ended);
    let frames = conversation(0).iter().map(Vec::len).sum::<usize>();
    assert!(link.ways.iter().all(|way| way.units > frames + 2));
    [0, 1].map(|end| link.ways[end].units)
}

/// All that is done to each unit, but flips.
fn deeds() -> Vec<Deed> {
    let added =
        [frame(0, b"rm"), frame(1, b"rm"), command(b"PING", b"\0\0"), command(b"ERROR", b"\x03400"), vec![0; 64]];
    let deeds = [
        Deed::LeaveOut,
        Deed::Double,
        Deed::Delay(1),
        Deed::Delay(3),
        Deed::Replay(2),
        Deed::Cut(0),
        Deed::Cut(1),
        Deed::Cut(20),
        Deed::Hold,
        Deed::Reflect,
    ];
    deeds.into_iter().chain(added.map(Deed::Add)).collect()
}

fn assert_right(link: &Link, what: &dyn std::fmt::Debug) {
    assert!(link.is_right(), "{what:?}: something wrong was taken");
    assert!(link.is_over() || link.is_complete(), "{what:?}: something is missing, and nobody noticed");
}

fn try_each(aes: bool, deeds: impl Fn(usize) -> Vec<Deed>) {
    let units = units(curve(aes));
    for direction in [0, 1] {
        for unit in 0..units[direction] {
            for deed in deeds(unit) {
                let mut both = [vec![], vec![]];
                both[direction] = vec![(unit, deed.clone())];
                let link = run(curve(aes), unit % 2 == 0, both);
                assert_right(&link, &(aes, direction, unit, deed));
            }
        }
    }
}

#[test]
fn with_curve_whatever_is_done_to_a_frame_ends_the_connection_before_anything_wrong_is_taken() {
    for aes in [false, true] {
        try_each(aes, |_| deeds());
    }
}

#[test]
fn with_curve_changed_bits_of_a_header_and_of_what_is_behind_it_are_noticed() {
    let bits = |bytes: Range<usize>| bytes.flat_map(|byte| (0..8).map(move |bit| Deed::Flip { byte, bit }));
    // Bytes of the greeting: the version, the mechanism's name, its padding and the role. Of frames: flags, length, and bits of the name, the number,
    // the tag and the text.
    try_each(true, |unit| match unit {
        0 => bits(0..1).chain(bits(9..14)).chain(bits(31..34)).collect(),
        _ => bits(0..2).chain((2..60).step_by(3).map(|byte| Deed::Flip { byte, bit: (byte % 8) as u8 })).collect(),
    });
}

#[test]
fn a_changed_version_in_a_greeting_is_noticed_by_the_one_who_sent_it() {
    for direction in [0, 1] {
        for minor in [0, 2, 9] {
            let mut both = [vec![], vec![]];
            let bits = (0..8).filter(|bit| (1 ^ minor) >> bit & 1 == 1);
            both[direction] = bits.map(|bit| (0, Deed::Flip { byte: 11, bit })).collect();
            let link = run(curve(false), false, both);
            assert_eq!(link.ended[direction], Some(Error::GreetingChanged), "{direction}, 3.{minor}");
            assert!(link.ends.iter().all(|end| transcript(&end.events).is_empty()));
        }
    }
}

/// As the security guide says. If this fails, the guide has to be changed.
#[test]
fn without_keys_nobody_notices_that_a_frame_is_left_out() {
    for mechanisms in [[MechanismConfig::Null, MechanismConfig::Null], plain()] {
        let handshake = units(mechanisms.clone())[0] - units_of_traffic();
        let link = run(mechanisms, false, [vec![(handshake + 2, Deed::LeaveOut)], vec![]]);
        assert!(!link.is_over() && !link.is_right());
        let Some(Event::Message { frames, .. }) = link.ends[1].events.get(1) else { panic!("no message") };
        assert_eq!(frames[..], ["client", "rm", "/data"]);
    }
}

/// Frames of one side, with its heartbeats.
fn units_of_traffic() -> usize {
    let null = units([MechanismConfig::Null, MechanismConfig::Null])[0];
    // Greeting and READY.
    null - 2
}

#[test]
fn without_keys_nothing_that_is_done_does_harm_to_an_end_itself() {
    for mechanisms in [[MechanismConfig::Null, MechanismConfig::Null], plain()] {
        let units = units(mechanisms.clone());
        for direction in [0, 1] {
            for unit in 0..units[direction] {
                for deed in deeds().into_iter().chain([Deed::Flip { byte: 0, bit: 0 }, Deed::Flip { byte: 1, bit: 3 }])
                {
                    let mut both = [vec![], vec![]];
                    both[direction] = vec![(unit, deed)];
                    run(mechanisms.clone(), unit % 2 == 0, both);
                }
            }
        }
    }
}

fn any_deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        Just(Deed::LeaveOut),
        Just(Deed::Double),
        (1..8_usize).prop_map(Deed::Delay),
        (1..8_usize).prop_map(Deed::Replay),
        (0..300_usize).prop_map(Deed::Cut),
        Just(Deed::Hold),
        (0..300_usize, 0..8_u8).prop_map(|(byte, bit)| Deed::Flip { byte, bit }),
        Just(Deed::Reflect),
        proptest::collection::vec(any::<u8>(), 0..80).prop_map(Deed::Add),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn with_curve_several_deeds_together_do_no_more(
        there in proptest::collection::vec((0..20_usize, any_deed()), 0..4),
        back in proptest::collection::vec((0..20_usize, any_deed()), 0..4),
        aes in any::<bool>(),
        streams in any::<bool>(),
    ) {
        let link = run(curve(aes), streams, [there.clone(), back.clone()]);
        assert_right(&link, &(there, back));
    }
}
