//! Connections: in order in each direction, late by chance, and cut at any moment.

use crate::rng::Rng;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use towpath_broker::core::Millis;

pub type Frames = Vec<Bytes>;
pub type LinkId = u64;

/// Bytes that the network holds in each direction before the sender notices.
pub const LANE_BYTES: usize = 12_000;

/// Bytes of a frame above which it arrives in pieces, and of each piece.
const STREAM_OVER_BYTES: usize = 2_500;
const PIECE_BYTES: usize = 1_500;

#[derive(Debug, Clone)]
pub enum Packet {
    Open,
    Frames(Frames),
    /// A large frame, behind these of the same message.
    BodyStart {
        head: Frames,
        length: u64,
        more: bool,
    },
    BodyData(Bytes),
    BodyEnd {
        more: bool,
    },
    /// The frames behind the last large one.
    Rest(Frames),
    Close,
}

/// A message as it arrives.
fn packets(frames: Frames) -> Vec<Packet> {
    let count = frames.len();
    let (mut packets, mut head) = (Vec::new(), Frames::new());
    for (index, frame) in frames.into_iter().enumerate() {
        if frame.len() <= STREAM_OVER_BYTES {
            head.push(frame);
            continue;
        }
        let more = index + 1 < count;
        packets.push(Packet::BodyStart { head: std::mem::take(&mut head), length: frame.len() as u64, more });
        let pieces = (0..frame.len()).step_by(PIECE_BYTES);
        packets.extend(pieces.map(|at| Packet::BodyData(frame.slice(at..frame.len().min(at + PIECE_BYTES)))));
        packets.push(Packet::BodyEnd { more });
    }
    match (packets.is_empty(), head.is_empty()) {
        (true, _) => packets.push(Packet::Frames(head)),
        (false, false) => packets.push(Packet::Rest(head)),
        (false, true) => {}
    }
    packets
}

impl Packet {
    pub fn bytes(&self) -> usize {
        match self {
            Packet::Frames(frames) | Packet::Rest(frames) | Packet::BodyStart { head: frames, .. } => {
                frames.iter().map(Bytes::len).sum()
            }
            Packet::BodyData(bytes) => bytes.len(),
            Packet::Open | Packet::BodyEnd { .. } | Packet::Close => 0,
        }
    }
}

/// One direction.
#[derive(Debug, Default)]
pub struct Lane {
    queue: VecDeque<(Millis, Packet)>,
    last: Millis,
    pub bytes: usize,
}

impl Lane {
    pub fn push(&mut self, now: Millis, packet: Packet, rng: &mut Rng) {
        // Mostly soon; now and then something is lost on the way and sent again by the transport.
        let delay = if rng.percent(4) { rng.between(50, 600) } else { rng.below(8) };
        self.last = self.last.max(now + delay);
        self.bytes += packet.bytes();
        self.queue.push_back((self.last, packet));
    }

    pub fn due(&self) -> Option<Millis> {
        self.queue.front().map(|(at, _)| *at)
    }

    pub fn pop(&mut self, now: Millis) -> Option<Packet> {
        self.due().filter(|at| *at <= now)?;
        let (_, packet) = self.queue.pop_front()?;
        self.bytes -= packet.bytes();
        Some(packet)
    }

    /// When its end arrives, whatever is before that.
    pub fn close_due(&self) -> Option<Millis> {
        self.queue.back().filter(|(_, packet)| matches!(packet, Packet::Close)).map(|(at, _)| *at)
    }

    pub fn next(&self) -> Option<&Packet> {
        self.queue.front().map(|(_, packet)| packet)
    }

    pub fn lose(&mut self, keep: usize) {
        self.queue.truncate(keep);
        self.bytes = self.queue.iter().map(|(_, packet)| packet.bytes()).sum();
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }
}

/// A connection between an end (a client or worker) and a node (a broker).
#[derive(Debug)]
pub struct Link {
    pub node: usize,
    pub end: usize,
    pub up: Lane,
    pub down: Lane,
    /// Each side stops caring when it believes the connection to be gone.
    pub end_open: bool,
    pub node_open: bool,
    /// The broker doesn't read from it.
    pub paused: bool,
}

impl Link {
    /// When the broker looks at it next. One that isn't read from is looked at now and then all the same, for its end.
    pub fn received_at(&self) -> Option<Millis> {
        if self.paused { None } else { self.up.due() }
    }
}

/// All connections, and what decides their fate.
pub struct Net {
    pub links: BTreeMap<LinkId, Link>,
    next: LinkId,
    pub rng: Rng,
    /// Whether everything that is said is shown.
    pub trace: bool,
}

impl Net {
    pub fn new(rng: Rng) -> Net {
        Net { links: BTreeMap::new(), next: 1, rng, trace: std::env::var_os("TOWPATH_TRACE").is_some() }
    }

    pub fn connect(&mut self, now: Millis, node: usize, end: usize) -> LinkId {
        let id = self.next;
        self.next += 1;
        let (up, down) = (Lane::default(), Lane::default());
        let mut link = Link { node, end, up, down, end_open: true, node_open: true, paused: false };
        link.up.push(now, Packet::Open, &mut self.rng);
        self.links.insert(id, link);
        id
    }

    pub fn send_up(&mut self, now: Millis, id: LinkId, frames: Frames) {
        if let Some(link) = self.links.get_mut(&id).filter(|link| link.end_open && link.node_open) {
            for packet in packets(frames) {
                link.up.push(now, packet, &mut self.rng);
            }
        }
    }

    pub fn send_down(&mut self, now: Millis, id: LinkId, frames: Frames) {
        if let Some(link) = self.links.get_mut(&id).filter(|link| link.end_open && link.node_open) {
            link.down.push(now, Packet::Frames(frames), &mut self.rng);
        }
    }

    /// The end lets go. What it has sent may still arrive, all of it or the beginning, long after it has connected again.
    pub fn close_by_end(&mut self, now: Millis, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.end_open = false;
        link.down.lose(0);
        if link.node_open {
            if self.rng.percent(50) {
                let keep = self.rng.index(link.up.len() + 1);
                // The broker has to know of the connection to learn of its end.
                link.up.lose(keep.max(1).min(link.up.len()));
            }
            link.up.push(now, Packet::Close, &mut self.rng);
        }
        self.tidy(id);
    }

    /// The broker lets go.
    pub fn close_by_node(&mut self, now: Millis, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.node_open = false;
        link.up.lose(0);
        if link.end_open {
            if self.rng.percent(30) {
                let keep = self.rng.index(link.down.len() + 1);
                link.down.lose(keep);
            }
            link.down.push(now, Packet::Close, &mut self.rng);
        }
        self.tidy(id);
    }

    /// Cuts it: what was on its way is gone, and each side learns of that some time.
    pub fn cut(&mut self, now: Millis, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let is_open = link.up.len() == 0 || !matches!(link.up.queue[0].1, Packet::Open);
        let (up, down) = (self.rng.index(link.up.len() + 1), self.rng.index(link.down.len() + 1));
        link.up.lose(if is_open { up } else { up.max(1) });
        link.down.lose(down);
        if link.node_open {
            link.up.push(now, Packet::Close, &mut self.rng);
        }
        if link.end_open {
            link.down.push(now, Packet::Close, &mut self.rng);
        }
    }

    pub fn tidy(&mut self, id: LinkId) {
        if self.links.get(&id).is_some_and(|link| !link.end_open && !link.node_open) {
            self.links.remove(&id);
        }
    }
}
