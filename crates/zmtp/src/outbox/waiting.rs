//! Frames that wait to be staged, and what they amount to.

use super::{Body, Queued};
use crate::limits::FRAME_OVERHEAD_BYTES;

#[derive(Debug)]
pub(super) struct Waiting<F> {
    pub(super) body: Body<F>,
    pub(super) more: bool,
    pub(super) first: bool,
    pub(super) tag: u64,
}

impl<F> Waiting<F> {
    pub(super) fn memory_bytes(&self) -> usize {
        FRAME_OVERHEAD_BYTES
            + match &self.body {
                Body::Bytes(bytes) => bytes.len(),
                Body::External { .. } => 0,
            }
    }

    pub(super) fn external_bytes(&self) -> u128 {
        match &self.body {
            Body::Bytes(_) => 0,
            Body::External { length, .. } => u128::from(*length),
        }
    }
}

/// [`Queued`] of the frames in `waiting`. The sum of external bodies may pass 2^64: nothing of them is in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) messages: usize,
    pub(super) memory_bytes: usize,
    pub(super) external_bytes: u128,
}

impl Sums {
    pub(super) fn add<F>(&mut self, frame: &Waiting<F>) {
        self.messages += usize::from(frame.first);
        self.memory_bytes += frame.memory_bytes();
        self.external_bytes += frame.external_bytes();
    }

    pub(super) fn public(self) -> Queued {
        let external_bytes = u64::try_from(self.external_bytes).unwrap_or(u64::MAX);
        Queued { messages: self.messages, memory_bytes: self.memory_bytes, external_bytes }
    }
}
