//! Who is read on while much has begun to arrive that isn't whole yet.
//!
//! A message that is taken whole needs memory for as long as it is on its way, and a peer that is cut off for want of it loses what it
//! sent without a word. So from half of the room on, a larger message goes on only if there is room for the rest of its frame, which is
//! kept for it. The others wait in line, their bytes in the kernel's buffers and then with their peers: as long as messages come to
//! an end the line moves, and nobody is cut off.
//!
//! Nobody is believed to come to an end. Who goes on and hasn't after a while gives its place to the next, and keeps what it has. Where the
//! line stands still, because peers are slow or don't want it to move, there is more room, up to as much as memory has for this; then one
//! goes on without room; and if that doesn't help either, those are sent away who have stopped in the middle, or whoever has the most.
//!
//! An application that has no room for more holds larger messages of those peers back from which it could only get more of the same.

use crate::options::HubOptions;
use crate::peer::{Peer, PeerId};
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use towpath_zmtp::limits::FRAME_OVERHEAD_BYTES;

/// Messages of up to so many bytes, as far as they are known, aren't held back, and hardly ever wait in line.
pub(super) const SMALL_BYTES: usize = 4 * 1024;
/// What they may take beyond all room.
pub(super) const SMALL_BYTES_MAX: usize = 8 << 20;
/// What is read at least, and what frames may cost that come with it: empty ones take two bytes each.
pub(super) const READ_BYTES: usize = 512;
pub(super) const READ_COST_BYTES: usize = READ_BYTES + READ_BYTES / 2 * FRAME_OVERHEAD_BYTES;
/// How long a place is kept while others wait.
pub(super) const PLACE: Duration = Duration::from_secs(1);
/// When the line has stood still for so long, there is more room. Whoever is the first for as long isn't overtaken any more.
pub(super) const RAISE: Duration = Duration::from_millis(100);
/// And if there can't be more, somebody is sent away after so long: those first who have been silent for as long.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);

/// Whether a peer may go on with its message.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub(crate) enum Passage {
    /// If there is enough room.
    #[default]
    Open,
    /// The application doesn't want it to begin.
    Held,
    /// It is in line; and the application has said that this one may begin.
    Waits { is_called: bool },
    /// So many bytes are kept for it, so long.
    Goes { kept: usize, until: Instant },
    /// There is no room for it, and it goes on all the same.
    Beyond,
}

/// Who is the first in line, and how long nothing was seen to come to an end since then, or since there is as much room as now.
#[derive(Copy, Clone, Debug)]
pub(super) struct Standing {
    first: PeerId,
    since: Instant,
    looked_at: Instant,
    stood: Duration,
}

impl Passage {
    /// Whether its peer may be read.
    pub(crate) fn is_clear(self) -> bool {
        !matches!(self, Passage::Held | Passage::Waits { .. })
    }
}

/// Which messages of more than 4 KiB may begin, of those that the application may hold back ([`crate::Hub::set_deferrable`]).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum LargeMessages {
    /// All.
    #[default]
    Allow,
    /// One more if the former has begun: that of whoever has waited longest. To be said again for the next.
    AllowOne,
    /// None.
    Defer,
}

/// A message on its way: what it takes, and the bytes that its frame lacks.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Underway {
    pub(super) bytes: usize,
    pub(super) wanted: usize,
    /// Those before it that came whole.
    pub(super) count: u64,
    /// More of it may be here.
    pub(super) has_more: bool,
    /// It is read on when it may be: its peer isn't stopped, nor in the middle of a body that is streamed.
    pub(super) is_read: bool,
    /// The application may hold it back.
    pub(super) yields: bool,
}

impl Underway {
    pub(super) fn of(peer: &Peer) -> Underway {
        let is_read = !peer.is_stopped() && peer.connection.body_remaining() == 0;
        let (bytes, wanted, count) = (peer.begun_bytes(), peer.connection.wanted(), peer.messages_in);
        Underway { bytes, wanted, count, has_more: peer.readable, is_read, yields: peer.yields }
    }

    pub(super) fn is_small(self) -> bool {
        self.bytes.saturating_add(self.wanted) <= SMALL_BYTES
    }

    /// What is read next: the rest of the frame, so that the next message isn't begun in its place.
    pub(super) fn next_bytes(self) -> usize {
        self.wanted.max(READ_BYTES)
    }

    /// What that may cost.
    pub(super) fn needs(self) -> usize {
        self.wanted.saturating_add(FRAME_OVERHEAD_BYTES).max(READ_COST_BYTES)
    }
}

/// What has begun and isn't whole, over all peers.
#[derive(Debug)]
pub(in crate::hub) struct Begun {
    pub(super) bytes: usize,
    /// What it may come to, beside one message; it changes between these.
    pub(super) room: usize,
    pub(super) room_min: usize,
    pub(super) room_max: usize,
    /// What is kept for those that go on.
    pub(super) kept: usize,
    /// Those, the one that has gone on longest first; some have come to an end since.
    pub(super) going: VecDeque<(PeerId, Instant)>,
    /// The one that goes on without room, and what its message takes.
    pub(super) beyond: Option<(PeerId, usize)>,
    pub(super) line: VecDeque<PeerId>,
    /// Somebody in line may go on now.
    pub(super) is_freed: bool,
    pub(super) standing: Option<Standing>,
    /// What the application holds back, and the peers that wait for that.
    pub(super) large: LargeMessages,
    pub(super) held: VecDeque<PeerId>,
    /// The one of these that was to begin last.
    pub(super) called: Option<PeerId>,
}

impl Begun {
    pub(in crate::hub) fn new(options: &HubOptions) -> Begun {
        // What no memory has needn't be reckoned with.
        const MOST: usize = usize::MAX / 8;
        let room = options.reassembly_bytes_max.min(MOST);
        Begun {
            bytes: 0,
            room,
            room_min: room,
            room_max: options.reassembly_bytes_most().clamp(room, MOST),
            kept: 0,
            going: VecDeque::new(),
            beyond: None,
            line: VecDeque::new(),
            is_freed: false,
            standing: None,
            large: LargeMessages::Allow,
            held: VecDeque::new(),
            called: None,
        }
    }

    pub(in crate::hub) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether there is room for whatever comes.
    pub(super) fn is_open(&self) -> bool {
        self.bytes <= self.room / 2
    }

    /// What one may read where all may.
    pub(super) fn left(&self) -> usize {
        self.room.saturating_sub(self.bytes).max(SMALL_BYTES)
    }

    /// Whether this may go on without a place.
    pub(super) fn is_free(&self, message: Underway) -> bool {
        self.is_open() && !self.may_hold(message)
    }

    pub(super) fn may_hold(&self, message: Underway) -> bool {
        message.yields && self.large != LargeMessages::Allow
    }

    pub(super) fn holds(&self, message: Underway) -> bool {
        self.may_hold(message) && !message.is_small()
    }

    pub(super) fn fits(&self, bytes: usize) -> bool {
        let beyond = self.beyond.map_or(0, |(_, bytes)| bytes);
        (self.bytes - beyond).saturating_add(self.kept).saturating_add(bytes) <= self.room
    }

    /// Bytes that a peer may read now. If there are none, it is in line.
    pub(super) fn may_read(&mut self, id: PeerId, passage: &mut Passage, message: Underway) -> usize {
        match passage {
            Passage::Goes { .. } | Passage::Beyond => message.next_bytes(),
            Passage::Open if self.is_free(message) => self.left(),
            // They would be the last to fill it.
            Passage::Open if message.is_small() && self.bytes <= self.room_max.saturating_add(SMALL_BYTES_MAX) => {
                if self.fits(self.room / 4) {
                    SMALL_BYTES
                } else {
                    READ_BYTES
                }
            }
            Passage::Open if self.holds(message) => {
                *passage = Passage::Held;
                self.held.push_back(id);
                0
            }
            Passage::Open => {
                *passage = Passage::Waits { is_called: false };
                self.line.push_back(id);
                self.is_freed = true;
                0
            }
            Passage::Waits { .. } | Passage::Held => 0,
        }
    }

    /// Takes in what a peer's message has come to, that counted `before`, with a look at what has arrived or without.
    pub(super) fn recount(&mut self, id: PeerId, passage: &mut Passage, before: Underway, message: Underway) {
        self.bytes = self.bytes - before.bytes + message.bytes;
        let is_whole = message.count != before.count || (message.bytes == 0 && !message.has_more);
        let is_over = is_whole || !message.is_read || self.is_free(message);
        if let (true, Passage::Goes { .. } | Passage::Beyond, Some(standing)) = (is_whole, &passage, &mut self.standing)
        {
            standing.stood = Duration::ZERO;
        }
        match passage {
            Passage::Goes { kept, .. } => {
                self.kept -= std::mem::take(kept);
                if is_over {
                    self.open(passage);
                } else if self.fits(message.needs()) {
                    *kept = message.needs();
                    self.kept += message.needs();
                } else {
                    // Its next frame is larger.
                    *passage = Passage::Waits { is_called: true };
                    self.line.push_front(id);
                }
                self.is_freed = true;
            }
            Passage::Beyond if is_over => {
                self.beyond = None;
                self.open(passage);
            }
            Passage::Beyond => self.beyond = Some((id, message.bytes)),
            Passage::Open | Passage::Waits { .. } | Passage::Held => self.is_freed |= message.bytes < before.bytes,
        }
    }

    pub(super) fn open(&mut self, passage: &mut Passage) {
        *passage = Passage::Open;
        self.is_freed = true;
    }

    /// A peer is gone, with what it had begun.
    pub(super) fn forget(&mut self, passage: Passage, before: usize) {
        self.bytes -= before;
        self.is_freed = true;
        match passage {
            Passage::Goes { kept, .. } => self.kept -= kept,
            Passage::Beyond => self.beyond = None,
            // Its place in line is found to be nobody's.
            Passage::Waits { .. } | Passage::Held | Passage::Open => {}
        }
    }

    /// There is less room again when hardly any is needed.
    pub(super) fn relax(&mut self) {
        if self.room > self.room_min && self.bytes.saturating_add(self.kept) <= self.room / 8 {
            self.room = (self.room / 2).max(self.room_min);
        }
    }

    /// Looks how long the line has stood still, and whether that is too long although there is as much room as there can be.
    pub(super) fn is_stuck(&mut self, now: Instant) -> bool {
        let first = self.line.front().copied();
        let Some(standing) = self.standing.as_mut().filter(|standing| first == Some(standing.first)) else {
            self.standing = first.map(|first| Standing { first, since: now, looked_at: now, stood: Duration::ZERO });
            return false;
        };
        // While nobody looked it may have moved.
        standing.stood += now.saturating_duration_since(standing.looked_at).min(2 * RAISE);
        standing.looked_at = now;
        if self.room < self.room_max && standing.stood >= RAISE {
            self.room = self.room.saturating_mul(2).max(self.room_max / 16).min(self.room_max);
            standing.stood = Duration::ZERO;
            self.is_freed = true;
        }
        self.room == self.room_max && standing.stood >= PATIENCE
    }

    /// Whether what becomes free is for this one, who has been the first in line for a while.
    pub(super) fn is_next(&self, id: PeerId, now: Instant) -> bool {
        self.standing.is_some_and(|first| first.first == id && now.saturating_duration_since(first.since) >= RAISE)
    }

    /// Whether somebody in line may go on, or somebody that goes on has had its time.
    pub(in crate::hub) fn is_due(&self, now: Instant) -> bool {
        !self.line.is_empty() && (self.is_freed || self.deadline().is_some_and(|at| at <= now))
    }

    /// When the next place is to be given up.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let going = self.going.front().map(|(_, until)| *until);
        let look = self.standing.map(|standing| standing.looked_at + RAISE);
        going.into_iter().chain(look).min().filter(|_| !self.line.is_empty())
    }

    /// Who has gone on until now.
    pub(super) fn had_its_time(&mut self, now: Instant) -> Option<PeerId> {
        let (id, _) = *self.going.front().filter(|(_, until)| *until <= now)?;
        self.going.pop_front();
        Some(id)
    }

    /// Takes the place of a peer that has had its time.
    pub(super) fn take_place(&mut self, passage: &mut Passage, now: Instant) {
        if let Passage::Goes { kept, until } = *passage
            && until <= now
        {
            self.kept -= kept;
            self.open(passage);
        }
    }

    /// Whether the first in line may go on, or one that comes later.
    pub(super) fn admit(&mut self, id: PeerId, passage: &mut Passage, message: Underway, now: Instant) -> bool {
        if self.is_free(message) || !message.is_read {
            *passage = Passage::Open;
        } else if self.fits(message.needs()) {
            let until = now + PLACE;
            *passage = Passage::Goes { kept: message.needs(), until };
            self.kept += message.needs();
            self.going.push_back((id, until));
        } else if self.room == self.room_max && self.beyond.is_none() {
            *passage = Passage::Beyond;
            self.beyond = Some((id, message.bytes));
        } else {
            return false;
        }
        true
    }
}
