//! Bytes that are about to leave, and the permission to put them there.
//!
//! Fields are private to this module, so that a frame gets to the wire in one of two ways: as it is, with a [`Clear`], which is gone once a
//! mechanism seals; or through a [`Sealing`].

use crate::frame::{self, FrameFlags};
use crate::seal::{FrameNumbers, SealJob, Sealed, Sealer};
use bytes::Bytes;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Capacity of the gathering buffer that is kept while there is nothing to send.
const GATHERED_KEPT_BYTES: usize = 16 * 1024;

/// How frames leave.
#[derive(Debug)]
pub(super) enum Protection {
    Clear(Clear),
    Sealed(Sealing),
}

impl Protection {
    pub(super) fn sealing(&self) -> Option<&Sealing> {
        match self {
            Protection::Clear(_) => None,
            Protection::Sealed(sealing) => Some(sealing),
        }
    }

    pub(super) fn sealing_mut(&mut self) -> Option<&mut Sealing> {
        match self {
            Protection::Clear(_) => None,
            Protection::Sealed(sealing) => Some(sealing),
        }
    }
}

impl Default for Protection {
    fn default() -> Protection {
        Protection::Clear(Clear(()))
    }
}

/// Permission to write frames as they are.
#[derive(Debug)]
pub(super) struct Clear(());

/// Seals frames, and numbers them in the order of the wire, without gaps.
#[derive(Debug)]
pub(super) struct Sealing {
    overhead: usize,
    sealer: Arc<dyn Sealer>,
    numbers: Arc<FrameNumbers>,
    /// Number of the next frame on the wire.
    next_number: u64,
    last_number: u64,
    here_bytes_max: usize,
    ahead: Ahead,
}

/// The next frame of a message, if that is sealed elsewhere. Commands leave before it until it takes its number.
#[derive(Debug)]
enum Ahead {
    None,
    Awaited,
    Done(Sealed),
}

impl Sealing {
    pub(super) fn new(
        overhead: usize,
        numbers: RangeInclusive<u64>,
        here_bytes_max: usize,
        sealer: Arc<dyn Sealer>,
    ) -> Sealing {
        let (next_number, last_number) = numbers.into_inner();
        let numbers = FrameNumbers::from(next_number);
        Sealing { overhead, sealer, numbers, next_number, last_number, here_bytes_max, ahead: Ahead::None }
    }

    /// Bytes of a body up to which it is sealed as it is gathered.
    #[inline]
    pub(super) fn here_bytes_max(&self) -> usize {
        self.here_bytes_max
    }

    /// Whether too few numbers are left for another frame, of whichever kind. One is kept for a frame that is sealed elsewhere.
    pub(super) fn is_exhausted(&self) -> bool {
        self.next_number >= self.last_number
    }

    /// Whether a frame may leave now: not between the moment when the one that is sealed elsewhere takes its number, and the one when it leaves.
    pub(super) fn has_number(&self) -> bool {
        self.numbers.next_is(self.next_number)
    }

    /// Has the next frame sealed elsewhere. No other one may be.
    pub(super) fn begin(&mut self, flags: FrameFlags, body_bytes: usize) -> SealJob {
        debug_assert!(matches!(self.ahead, Ahead::None), "one at a time");
        self.ahead = Ahead::Awaited;
        let (sealer, numbers) = (Arc::clone(&self.sealer), Arc::clone(&self.numbers));
        SealJob::new(sealer, numbers, flags, self.overhead, body_bytes)
    }

    /// Whether a frame is sealed elsewhere, or has been and waits for its turn.
    pub(super) fn has_begun(&self) -> bool {
        !matches!(self.ahead, Ahead::None)
    }

    /// Whether the next frame isn't sealed yet.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self.ahead, Ahead::Awaited)
    }

    /// Takes the sealed frame in; false if it isn't the one that is awaited.
    pub(super) fn take_in(&mut self, sealed: Sealed) -> bool {
        let is_awaited = self.is_awaited() && sealed.number() == self.next_number;
        if is_awaited {
            self.ahead = Ahead::Done(sealed);
        }
        is_awaited
    }

    /// The frame that was sealed elsewhere, when it is its turn.
    fn next_sealed(&mut self) -> Option<Sealed> {
        match std::mem::replace(&mut self.ahead, Ahead::None) {
            Ahead::Done(sealed) => {
                self.next_number += 1;
                Some(sealed)
            }
            other => {
                self.ahead = other;
                None
            }
        }
    }

    /// Appends a sealed frame, with its header; false if none may leave now ([`Sealing::has_number`]).
    fn seal(&mut self, flags: FrameFlags, body: &[u8], out: &mut Vec<u8>) -> bool {
        let Some(number) = self.numbers.take_if(self.next_number) else { return false };
        self.next_number += 1;
        let length = self.overhead + body.len();
        frame::encode_header(out, 0, length as u64);
        let begin = out.len();
        out.resize(begin + self.overhead, 0);
        out.extend_from_slice(body);
        self.sealer.seal(number, flags, &mut out[begin..]);
        true
    }
}

/// Staged bytes: gathered ones with a large body behind them, or a large frame with gathered ones behind it.
#[derive(Debug, Default)]
pub(super) struct Staged {
    gathered: Vec<u8>,
    written: usize,
    large: Bytes,
    large_is_first: bool,
}

impl Staged {
    /// Appends bytes as they are.
    pub(super) fn put(&mut self, _: &Clear, wire: &[u8]) {
        self.gathered.extend_from_slice(wire);
    }

    /// Appends the header of a frame.
    #[inline]
    pub(super) fn put_header(&mut self, _: &Clear, more: bool, length: u64) {
        frame::encode_header(&mut self.gathered, if more { frame::MORE } else { 0 }, length);
    }

    /// Puts a large body behind what was gathered.
    pub(super) fn put_large(&mut self, _: &Clear, body: Bytes) {
        self.large = body;
        self.large_is_first = false;
    }

    /// Appends a frame, sealed; false if none may leave now.
    pub(super) fn put_sealed(&mut self, sealing: &mut Sealing, flags: FrameFlags, body: &[u8]) -> bool {
        sealing.seal(flags, body, &mut self.gathered)
    }

    /// Puts the frame that was sealed elsewhere before what is gathered from now on; false if it isn't sealed yet.
    pub(super) fn put_ahead(&mut self, sealing: &mut Sealing) -> bool {
        let Some(sealed) = sealing.next_sealed() else { return false };
        debug_assert!(self.is_empty(), "it was the next frame before anything was gathered");
        self.large = sealed.into_wire();
        self.large_is_first = true;
        true
    }

    /// Bytes gathered and not cleared yet.
    #[inline]
    pub(super) fn gathered_bytes(&self) -> usize {
        self.gathered.len()
    }

    pub(super) fn has_large(&self) -> bool {
        !self.large.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.written >= self.gathered.len() && self.large.is_empty()
    }

    /// Bytes left to write.
    pub(super) fn len(&self) -> usize {
        self.gathered.len() - self.written + self.large.len()
    }

    pub(super) fn slices(&self) -> [&[u8]; 2] {
        let (gathered, large) = (&self.gathered[self.written..], &self.large[..]);
        if self.large_is_first { [large, gathered] } else { [gathered, large] }
    }

    /// Begins again, when all has been written.
    pub(super) fn clear(&mut self) {
        self.gathered.clear();
        self.written = 0;
    }

    /// Gives memory back that is kept for what is gathered next.
    pub(super) fn shrink(&mut self) {
        if self.gathered.is_empty() {
            self.gathered.shrink_to(GATHERED_KEPT_BYTES);
        }
    }

    /// Takes written bytes off the front.
    pub(super) fn advance(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.len(), "more written than there was");
        let gathered = self.gathered.len() - self.written;
        let of_large = if self.large_is_first { bytes } else { bytes.saturating_sub(gathered) }.min(self.large.len());
        self.written += (bytes - of_large).min(gathered);
        let _ = self.large.split_to(of_large);
    }
}

/// An external body that the driver writes, or whose bytes have been staged.
#[derive(Debug)]
pub(super) struct External<F> {
    source: F,
    position: u64,
    length: u64,
}

impl<F> External<F> {
    /// A body that leaves as it is.
    pub(super) fn new(_: &Clear, source: F, length: u64) -> External<F> {
        External { source, position: 0, length }
    }

    /// A body whose bytes have been staged: only the source is to be returned behind them.
    pub(super) fn staged(source: F) -> External<F> {
        External { source, position: 0, length: 0 }
    }

    pub(super) fn source(&self) -> &F {
        &self.source
    }

    pub(super) fn into_source(self) -> F {
        self.source
    }

    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn remaining(&self) -> u64 {
        self.length - self.position
    }

    pub(super) fn advance(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.remaining(), "more written than there was");
        self.position = self.length.min(self.position.saturating_add(bytes));
    }
}
