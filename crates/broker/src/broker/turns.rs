//! Who waits for room for the large body of a request, in the order in which they came.
//!
//! Stock clients wait in the middle of it, and aren't read meanwhile. Numbered ones were told to come again. Whoever comes while
//! others wait may have what room there is, since that is of no use to one who needs more; but not for long, or those who need little
//! would be served for ever before one who needs much. Whoever has waited for [`PATIENCE`] is not overtaken any more: what becomes
//! free is left to those who came first.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// For how long others may be taken before one who waits.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// For how long room is left to one who was told to come again, and for how long its place is remembered: what it sends until it is
/// told so again may take longer.
const COMES_AGAIN_WITHIN: Duration = Duration::from_secs(3);
const REMEMBERED: Duration = Duration::from_secs(60);

/// Room, in octets and in files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Space {
    pub octets: u64,
    pub files: u64,
}

impl Space {
    fn of(length: u64) -> Space {
        Space { octets: length, files: 1 }
    }

    fn and(self, other: Space) -> Space {
        Space { octets: self.octets.saturating_add(other.octets), files: self.files.saturating_add(other.files) }
    }

    fn fits_in(self, room: Space) -> bool {
        self.octets <= room.octets && self.files <= room.files
    }
}

#[derive(Debug)]
struct Waiting<Id> {
    id: Id,
    length: u64,
    since: Instant,
    /// When one that comes again was last told to. `None`: it waits here.
    refused: Option<Instant>,
}

impl<Id> Waiting<Id> {
    /// Whether room is left to it by those who came later.
    fn is_owed(&self, now: Instant) -> bool {
        let is_here = self.refused.is_none_or(|refused| now.duration_since(refused) < COMES_AGAIN_WITHIN);
        is_here && now.duration_since(self.since) >= PATIENCE
    }
}

/// Those who wait. Each has one place.
#[derive(Debug)]
pub(super) struct Turns<Id> {
    waiting: VecDeque<Waiting<Id>>,
}

impl<Id> Default for Turns<Id> {
    fn default() -> Self {
        Turns { waiting: VecDeque::new() }
    }
}

impl<Id: Copy + Eq> Turns<Id> {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many wait.
    pub fn count(&self) -> usize {
        self.waiting.len()
    }

    /// One waits from now on.
    pub fn wait(&mut self, id: Id, length: u64, now: Instant) {
        self.waiting.push_back(Waiting { id, length, since: now, refused: None });
    }

    /// One is told to come again. It keeps the place that it has; of several bodies, the largest has it.
    pub fn refuse(&mut self, id: Id, length: u64, now: Instant) {
        match self.waiting.iter_mut().find(|waiting| waiting.id == id) {
            Some(waiting) if waiting.refused.is_some() && length >= waiting.length => {
                (waiting.length, waiting.refused) = (length, Some(now));
            }
            Some(_) => {}
            None => self.waiting.push_back(Waiting { id, length, since: now, refused: Some(now) }),
        }
    }

    /// What somebody's body must leave to those whose turn is before its own.
    pub fn owed_before(&self, id: Id, length: u64, now: Instant) -> Space {
        let before = self.waiting.iter().take_while(|waiting| !(waiting.id == id && length >= waiting.length));
        before
            .filter(|waiting| waiting.is_owed(now))
            .fold(Space::default(), |sum, owed| sum.and(Space::of(owed.length)))
    }

    /// A body has its room. What its sender waited for was that, unless it was more.
    pub fn begun(&mut self, id: Id, length: u64) {
        self.waiting.retain(|waiting| !(waiting.id == id && length >= waiting.length));
    }

    /// Those who wait here and could have their room out of so much. They keep their places until it is theirs.
    pub fn whose_turn(&self, room: Space, now: Instant) -> Vec<Id> {
        let (mut used, mut whose) = (Space::default(), Vec::new());
        for waiting in &self.waiting {
            let with_it = used.and(Space::of(waiting.length));
            match waiting.refused {
                None if with_it.fits_in(room) => {
                    whose.push(waiting.id);
                    used = with_it;
                }
                _ if waiting.is_owed(now) => used = with_it,
                _ => {}
            }
        }
        whose
    }

    /// Forgets who isn't there any more: `is_here` says so of each, and whether it waits.
    pub fn retain(&mut self, now: Instant, mut is_here: impl FnMut(Id, bool) -> bool) {
        self.waiting.retain(|waiting| {
            let is_remembered = waiting.refused.is_none_or(|refused| now.duration_since(refused) < REMEMBERED);
            is_remembered && is_here(waiting.id, waiting.refused.is_none())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(octets: u64) -> Space {
        Space { octets, files: 100 }
    }

    #[test]
    fn small_ones_overtake_a_large_one_for_a_moment_only() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        turns.wait('l', 10, start);
        turns.wait('s', 2, start);
        assert_eq!(turns.whose_turn(room(5), start), ['s']);
        assert_eq!(turns.owed_before('n', 1, start), Space::default());
        let later = start + PATIENCE;
        assert_eq!(turns.whose_turn(room(5), later), []);
        assert_eq!(turns.whose_turn(room(11), later), ['l']);
        assert_eq!(turns.whose_turn(room(12), later), ['l', 's']);
        assert_eq!(turns.whose_turn(Space { octets: 100, files: 1 }, later), ['l']);
        assert_eq!(turns.owed_before('n', 1, later), Space { octets: 12, files: 2 });
        turns.begun('l', 10);
        assert_eq!(turns.whose_turn(room(5), later), ['s']);
        assert_eq!(turns.owed_before('n', 1, later), Space { octets: 2, files: 1 });
    }

    #[test]
    fn who_comes_again_has_its_turn_as_those_who_wait() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        turns.refuse('n', 4, start);
        turns.wait('s', 4, start + Duration::from_millis(1));
        // Refused again, it is still before the other.
        let later = start + PATIENCE + Duration::from_millis(100);
        turns.refuse('n', 4, later);
        assert_eq!(turns.whose_turn(room(4), later), []);
        assert_eq!(turns.owed_before('n', 4, later), Space::default());
        assert_eq!(turns.whose_turn(room(8), later), ['s']);
        // Its smaller ones don't overtake it either, nor do they take its place.
        assert_eq!(turns.owed_before('n', 1, later).octets, 8);
        turns.begun('n', 1);
        turns.refuse('n', 1, later);
        assert_eq!((turns.count(), turns.whose_turn(room(4), later)), (2, vec![]));
        turns.begun('n', 5);
        assert_eq!(turns.whose_turn(room(4), later), ['s']);
    }

    #[test]
    fn who_does_not_come_again_keeps_nobody_out() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        turns.refuse('n', 10, start);
        turns.wait('s', 4, start);
        let later = start + COMES_AGAIN_WITHIN;
        assert_eq!(turns.whose_turn(room(4), later), ['s']);
        assert_eq!(turns.owed_before('m', 1, later).octets, 4);
        // It still has its place if it comes late.
        assert_eq!(turns.owed_before('n', 10, later), Space::default());
        turns.retain(start + REMEMBERED, |_, _| true);
        assert_eq!(turns.owed_before('n', 10, later).octets, 4);
        turns.retain(later, |id, waits| !(id == 's' && waits));
        assert!(turns.is_empty());
    }
}
