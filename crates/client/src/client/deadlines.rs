//! Deadlines of requests. Most have the same time to live and so come in order: a queue holds these, a heap the others.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

/// Deadlines by request number. The request may have its outcome already.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    in_order: VecDeque<(Duration, u64)>,
    others: BinaryHeap<Reverse<(Duration, u64)>>,
}

impl Deadlines {
    #[inline]
    pub fn add(&mut self, at: Duration, number: u64) {
        if self.in_order.back().is_none_or(|(last, _)| *last <= at) {
            self.in_order.push_back((at, number));
        } else {
            self.others.push(Reverse((at, number)));
        }
    }

    /// The earliest.
    #[inline]
    pub fn next(&self) -> Option<(Duration, u64)> {
        let (one, other) = (self.in_order.front().copied(), self.others.peek().map(|Reverse(next)| *next));
        one.into_iter().chain(other).min()
    }

    /// Removes the earliest.
    pub fn pop(&mut self) {
        match (self.in_order.front(), self.others.peek()) {
            (Some(one), Some(Reverse(other))) if other < one => drop(self.others.pop()),
            (Some(_), _) => drop(self.in_order.pop_front()),
            (None, _) => drop(self.others.pop()),
        }
    }

    /// Drops deadlines that aren't wanted, if those are the majority.
    pub fn tidy(&mut self, outstanding: usize, mut wanted: impl FnMut(u64) -> bool) {
        if self.in_order.len() + self.others.len() > 1024 + 4 * outstanding {
            self.in_order.retain(|(_, number)| wanted(*number));
            self.others.retain(|Reverse((_, number))| wanted(*number));
        }
    }
}
