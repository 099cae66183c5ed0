//! MESSAGE: a frame of a message, or a command, behind the handshake.

use super::counted_nonce;
use crate::crypto::{Crypto, Dryoc, SharedKey, TAG_BYTES};
use crate::error::Error;
use crate::frame::FrameFlags;
use crate::seal::{FrameNumber, FrameSeal, Opener, Sealer};
use bytes::{Buf, BytesMut};
use std::sync::Arc;

const NAME: &[u8; 8] = b"\x07MESSAGE";
const NUMBER_BYTES: usize = 8;
const HEAD_BYTES: usize = NAME.len() + NUMBER_BYTES + TAG_BYTES;
/// Bytes by which a MESSAGE is longer than its body: flags are sealed with it.
const OVERHEAD_BYTES: usize = HEAD_BYTES + 1;

// Not those of a frame's header: RFC 26 has COMMAND as 2.
const MORE: u8 = 1;
const COMMAND: u8 = 2;

/// One direction of a connection.
#[derive(Debug)]
pub(super) struct Direction {
    key: SharedKey,
    prefix: &'static [u8; 16],
    /// The number of its last command, or of the last message received.
    last: u64,
}

impl Direction {
    pub(super) fn new(key: SharedKey, prefix: &'static [u8; 16], last: u64) -> Direction {
        Direction { key, prefix, last }
    }

    /// Both directions: this one is ours.
    pub(super) fn seal_with(self, theirs: Direction) -> FrameSeal {
        FrameSeal {
            overhead: OVERHEAD_BYTES,
            first_number: self.last + 1,
            sealer: Arc::new(self),
            opener: Box::new(theirs),
        }
    }
}

impl Sealer for Direction {
    fn seal(&self, number: FrameNumber, flags: FrameFlags, frame: &mut [u8]) {
        let (head, text) = frame.split_at_mut(HEAD_BYTES);
        let (name, rest) = head.split_at_mut(NAME.len());
        let (number_bytes, tag) = rest.split_at_mut(NUMBER_BYTES);
        name.copy_from_slice(NAME);
        number_bytes.copy_from_slice(&number.value().to_be_bytes());
        text[0] = if flags.more { MORE } else { 0 } | if flags.command { COMMAND } else { 0 };
        tag.copy_from_slice(&Dryoc::seal(&self.key, &counted_nonce(self.prefix, number.value()), text));
    }
}

impl Opener for Direction {
    fn open(&mut self, mut sealed: BytesMut) -> Result<(FrameFlags, BytesMut), Error> {
        if !sealed.starts_with(NAME) || sealed.len() < OVERHEAD_BYTES {
            return Err(Error::NotSealed);
        }
        sealed.advance(NAME.len());
        let number = sealed.get_u64();
        if number <= self.last {
            return Err(Error::SealBroken);
        }
        let mut tag = [0; TAG_BYTES];
        sealed.copy_to_slice(&mut tag);
        if !Dryoc::open(&self.key, &counted_nonce(self.prefix, number), &mut sealed, &tag) {
            return Err(Error::SealBroken);
        }
        // Only now: what can't be opened must not make us refuse what can.
        self.last = number;
        let flags = sealed.get_u8();
        Ok((FrameFlags { more: flags & MORE != 0, command: flags & COMMAND != 0 }, sealed))
    }
}
