//! Who is read on while much has begun to arrive that isn't whole yet.
//!
//! A message that is taken whole needs memory for as long as it is on its way, and a peer that is cut off for want of it loses what it
//! sent without a word. So from half of the bound on, a larger message goes on only if there is room for the rest of its frame, which is
//! kept for it; and one at a time goes on for which there isn't. The others wait in line, their octets in the kernel's buffers and then
//! with their peers. Memory stays below the bound and one message, and whoever goes on comes to an end.
//!
//! An application that has no room for more holds larger messages of those peers back from which it could only get more of the same.
//!
//! Nobody is believed to come to an end. Who goes on and hasn't after a while gives its place to the next, and keeps what it has; where
//! others have waited for seconds, who has been silent as long is sent away.

mod line;

use crate::options::HubOptions;
use crate::peer::{Peer, PeerId};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Messages of up to so many octets, as far as they are known, never wait in line.
const SMALL_BYTES: usize = 4 * 1024;
/// How long a place is kept while others wait.
const PLACE: Duration = Duration::from_secs(1);
/// How long others wait until those are sent away who have been silent in the middle of a message for as long.
const PATIENCE: Duration = Duration::from_secs(3);
/// Who goes on without room brings a frame within that time, and so much longer for what it lacks, if others wait for that.
const BEYOND_BYTES_A_SECOND: usize = 1 << 20;

/// Whether a peer may go on with its message.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub(crate) enum Passage {
    /// If there is enough room.
    #[default]
    Open,
    /// The application doesn't want it to begin.
    Held,
    /// It is in line; and the application has said that this one may begin.
    Waits { is_called: bool, since: Instant },
    /// So many octets are kept for it, so long.
    Goes { kept: usize, until: Instant },
    /// There is no room for it, and it goes on all the same.
    Beyond,
}

impl Passage {
    /// Whether its peer may be read.
    pub(crate) fn is_clear(self) -> bool {
        !matches!(self, Passage::Held | Passage::Waits { .. })
    }
}

/// Which larger messages may begin, of those that the application may hold back ([`Hub::yields`]).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum LargeMessages {
    /// All.
    #[default]
    Begin,
    /// One after the other, by who has waited longest.
    BeginOneByOne,
    /// None.
    Wait,
}

/// A message on its way: what it takes, and the octets that its frame lacks.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Underway {
    bytes: usize,
    wanted: usize,
    /// It is read on when it may be: its peer isn't stopped, nor in the middle of a body that is streamed.
    is_read: bool,
    /// The application may hold it back.
    yields: bool,
}

impl Underway {
    fn of(peer: &Peer) -> Underway {
        let is_read = !peer.is_stopped() && peer.connection.body_remaining() == 0;
        Underway { bytes: peer.begun_bytes(), wanted: peer.connection.wanted(), is_read, yields: peer.yields }
    }

    /// What is read next, and so kept for it: the rest of the frame, but no less than is read at a time.
    fn needs(self) -> usize {
        self.wanted.max(SMALL_BYTES)
    }
}

/// What has begun and isn't whole, over all peers.
#[derive(Debug)]
pub(super) struct Begun {
    bytes: usize,
    /// [`HubOptions::unfinished_bytes_max`].
    bytes_max: usize,
    /// What is kept for those that go on.
    kept: usize,
    /// Those, the one that has gone on longest first; some have come to an end since.
    going: VecDeque<(PeerId, Instant)>,
    /// The one that goes on without room, what its frame lacks, and how long others wait for that.
    beyond: Option<(PeerId, usize, Instant)>,
    beyond_bytes: usize,
    line: VecDeque<PeerId>,
    /// Somebody in line may go on now.
    is_freed: bool,
    /// When to look next whether the first in line has waited too long.
    look_at: Option<Instant>,
    /// What the application holds back, and the peers that wait for that.
    large: LargeMessages,
    held: VecDeque<PeerId>,
    /// The one of these that was to begin last.
    called: Option<PeerId>,
}

impl Begun {
    pub(super) fn new(options: &HubOptions) -> Begun {
        Begun {
            bytes: 0,
            bytes_max: options.unfinished_bytes_max,
            kept: 0,
            going: VecDeque::new(),
            beyond: None,
            beyond_bytes: 0,
            line: VecDeque::new(),
            is_freed: false,
            look_at: None,
            large: LargeMessages::Begin,
            held: VecDeque::new(),
            called: None,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether there is room for whatever comes.
    fn is_open(&self) -> bool {
        self.bytes <= self.bytes_max / 2
    }

    /// What one may read where all may.
    fn left(&self) -> usize {
        self.bytes_max.saturating_sub(self.bytes).max(SMALL_BYTES)
    }

    /// Whether this may go on without a place.
    fn is_free(&self, message: Underway) -> bool {
        self.is_open() && !self.holds(message)
    }

    fn holds(&self, message: Underway) -> bool {
        message.yields && self.large != LargeMessages::Begin
    }

    fn fits(&self, octets: usize) -> bool {
        (self.bytes - self.beyond_bytes).saturating_add(self.kept).saturating_add(octets) <= self.bytes_max
    }

    /// Octets that a peer may read now. If there are none, it is in line.
    fn may_read(&mut self, id: PeerId, passage: &mut Passage, message: Underway, now: Instant) -> usize {
        let is_small = message.bytes.saturating_add(message.wanted) <= SMALL_BYTES;
        match passage {
            // To the end of the frame, so that the next message isn't begun in its place.
            Passage::Goes { .. } | Passage::Beyond => message.needs(),
            Passage::Open if !message.is_read => usize::MAX,
            Passage::Open if self.is_free(message) => self.left(),
            // What they leave is for those in line.
            Passage::Open if is_small && self.fits(self.bytes_max / 4) => SMALL_BYTES,
            Passage::Open if self.holds(message) => {
                *passage = Passage::Held;
                self.held.push_back(id);
                0
            }
            Passage::Open => {
                *passage = Passage::Waits { is_called: false, since: now };
                self.line.push_back(id);
                self.is_freed = true;
                0
            }
            Passage::Waits { .. } | Passage::Held => 0,
        }
    }

    /// Takes in what a peer's message has come to, that counted `before`, with a look at what has arrived or without.
    fn recount(
        &mut self,
        id: PeerId,
        passage: &mut Passage,
        before: usize,
        message: Underway,
        was_read: bool,
        now: Instant,
    ) {
        self.bytes = self.bytes - before + message.bytes;
        let is_over = (was_read && message.bytes == 0) || !message.is_read || self.is_free(message);
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
                    *passage = Passage::Waits { is_called: true, since: now };
                    self.line.push_front(id);
                }
                self.is_freed = true;
            }
            Passage::Beyond if is_over => {
                (self.beyond, self.beyond_bytes) = (None, 0);
                self.open(passage);
            }
            Passage::Beyond => self.go_beyond(id, message, now),
            Passage::Open | Passage::Waits { .. } | Passage::Held => self.is_freed |= message.bytes < before,
        }
    }

    fn open(&mut self, passage: &mut Passage) {
        *passage = Passage::Open;
        self.is_freed = true;
    }

    /// A peer is gone, with what it had begun.
    fn forget(&mut self, passage: Passage, before: usize) {
        self.bytes -= before;
        self.is_freed = true;
        match passage {
            Passage::Goes { kept, .. } => self.kept -= kept,
            Passage::Beyond => (self.beyond, self.beyond_bytes) = (None, 0),
            // Its place in line is found to be nobody's.
            Passage::Waits { .. } | Passage::Held | Passage::Open => {}
        }
    }

    fn go_beyond(&mut self, id: PeerId, message: Underway, now: Instant) {
        let lacks = Duration::from_secs((message.wanted / BEYOND_BYTES_A_SECOND) as u64);
        let until = match self.beyond {
            Some((_, wanted, until)) if message.wanted <= wanted => until,
            // Another frame.
            _ => now + PATIENCE + lacks,
        };
        self.beyond = Some((id, message.wanted, until));
        self.beyond_bytes = message.bytes;
    }

    /// Whether somebody in line may go on, or somebody that goes on has had its time.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        !self.line.is_empty() && (self.is_freed || self.deadline().is_some_and(|at| at <= now))
    }

    /// When the next place is to be given up.
    fn deadline(&self) -> Option<Instant> {
        let first = self.going.front().map(|(_, until)| *until);
        let beyond = self.beyond.map(|(_, _, until)| until);
        [first, beyond, self.look_at].into_iter().flatten().min().filter(|_| !self.line.is_empty())
    }

    /// Who has gone on until now.
    fn had_its_time(&mut self, now: Instant) -> Option<PeerId> {
        let (id, _) = *self.going.front().filter(|(_, until)| *until <= now)?;
        self.going.pop_front();
        Some(id)
    }

    /// Takes the place of a peer that has had its time.
    fn take_place(&mut self, passage: &mut Passage, now: Instant) {
        if let Passage::Goes { kept, until } = *passage
            && until <= now
        {
            self.kept -= kept;
            self.open(passage);
        }
    }

    /// Whether the first in line may go on, or one that comes later.
    fn admit(&mut self, id: PeerId, passage: &mut Passage, message: Underway, now: Instant) -> bool {
        if self.is_free(message) || !message.is_read {
            *passage = Passage::Open;
        } else if self.fits(message.needs()) {
            let until = now + PLACE;
            *passage = Passage::Goes { kept: message.needs(), until };
            self.kept += message.needs();
            self.going.push_back((id, until));
        } else if self.beyond.is_none() {
            *passage = Passage::Beyond;
            self.go_beyond(id, message, now);
        } else {
            return false;
        }
        true
    }
}
