//! The beginning of an accepted connection: a greeting, or the header of one that was relayed.
//!
//! No byte behind a header is read before the hub knows who the peer is.

use super::{End, Peer};
use crate::relay::header::{FIRST_BYTE, FIXED_BYTES, Header};
use bytes::Bytes;
use std::time::Instant;

/// How an accepted connection begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// Nothing has come, or too little.
    Unknown,
    /// With a header of that many bytes, which aren't all there.
    Incomplete(usize),
    /// With a header, about which the hub decides.
    Header,
    /// With a greeting, or after a header.
    Over,
}

impl Peer {
    /// Reads the beginning, and no more than a header if there is one.
    pub(super) fn read_beginning(&mut self, scratch: &mut [u8], now: Instant) -> Result<(), End> {
        loop {
            let wanted = match self.beginning {
                Beginning::Unknown => FIXED_BYTES,
                Beginning::Incomplete(length) => length,
                Beginning::Header | Beginning::Over => return Ok(()),
            };
            let left = wanted.saturating_sub(self.read.input.len());
            let bytes = self.receive(&mut scratch[..left])?;
            self.read.input.extend_from_slice(&scratch[..bytes]);
            self.read.bytes_in += bytes as u64;
            self.connection.on_received(bytes, now);
            self.beginning = match (self.beginning, self.read.input.first_chunk::<FIXED_BYTES>()) {
                _ if self.read.input.first().is_some_and(|first| *first != FIRST_BYTE) => {
                    self.read.is_withheld = true;
                    Beginning::Over
                }
                (Beginning::Unknown, Some(begin)) => {
                    Header::length(begin).map(Beginning::Incomplete).map_err(bad_header)?
                }
                (Beginning::Incomplete(length), _) if self.read.input.len() == length => Beginning::Header,
                (same, _) => same,
            };
            if bytes < left {
                return Ok(());
            }
        }
    }

    /// The header, if there is one about which nobody has decided yet.
    pub(crate) fn take_header(&mut self) -> Option<Bytes> {
        let is_whole = self.beginning == Beginning::Header;
        is_whole.then(|| std::mem::take(&mut self.read.input).freeze())
    }

    /// Goes on after the header.
    pub(crate) fn go_on_after_header(&mut self) {
        self.beginning = Beginning::Over;
    }
}

/// The end of a connection whose header isn't taken.
pub(crate) fn bad_header(why: &str) -> End {
    End::misbehaviour(&format!("a header of the PROXY protocol isn't taken: {why}"))
}
