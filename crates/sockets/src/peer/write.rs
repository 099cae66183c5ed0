//! Writing: headers and small bodies gathered, large ones as they are, pieces of files by sendfile(2).

use crate::disk::page_cache::{self, Residency};
use crate::disk::prefetch::ColdPiece;
use crate::event::Event;
use crate::message::{FileRange, IfShort};
use crate::peer::{End, Peer};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use std::collections::VecDeque;
use std::io::IoSlice;
use towpath_zmtp::Transmit;
use towpath_zmtp::limits::SEALED_FRAME_BYTES_MAX;

/// Bytes that one sendfile moves at most, and that are looked for in memory at a time: a call on a fast path must not take the thread for long.
const CALL_BYTES_MAX: u64 = 1024 * 1024;

/// Bytes written for one peer before it is the next one's turn.
const TURN_BYTES: u64 = 1024 * 1024;

static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

enum Sent {
    /// So many bytes of what is in memory.
    Bytes(usize),
    /// So many bytes of the file.
    File(u64),
    /// The socket is full.
    Full,
    /// What is next in the file isn't in memory.
    Cold(ColdPiece),
    /// The kernel can't send this file itself.
    CantSendfile,
    /// The file is shorter than was promised.
    Short(IfShort),
    Idle,
}

impl Peer {
    /// Writes what waits, within the turn's budget.
    pub(crate) fn write(&mut self, scratch: &mut [u8], events: &mut VecDeque<Event>) -> Result<(), End> {
        let mut written = 0;
        while self.writable && !self.warming && written < TURN_BYTES {
            match self.write_some(scratch)? {
                Sent::Bytes(bytes) => {
                    written += bytes as u64;
                    self.connection.outbox().advance(bytes);
                }
                Sent::File(bytes) => {
                    written += bytes;
                    if let Some(range) = self.connection.outbox().advance_external(bytes) {
                        let whole = !std::mem::take(&mut self.padding);
                        self.resident_to = 0;
                        if range.tag != 0 {
                            events.push_back(Event::FileSent { peer: self.id, tag: range.tag, whole });
                        }
                    }
                }
                Sent::Full => self.writable = false,
                Sent::Cold(piece) => {
                    // Known as far as it can be when it has been read: it is looked for once.
                    self.resident_to += piece.length;
                    self.cold = Some(piece);
                    self.warming = true;
                }
                Sent::CantSendfile => self.copies = true,
                Sent::Short(IfShort::Pad) => self.padding = true,
                Sent::Short(IfShort::Close) => {
                    return Err(End::new("the file became shorter while it was sent; the peer was promised more"));
                }
                Sent::Idle => break,
            }
        }
        Ok(())
    }

    fn write_some(&mut self, scratch: &mut [u8]) -> Result<Sent, End> {
        match self.connection.outbox().transmit() {
            Transmit::Idle => Ok(Sent::Idle),
            Transmit::Bytes { slices: [first, second], more_follows } => {
                // The header travels with the body behind it instead of in a packet of its own.
                let more = if more_follows { SendFlags::MORE } else { SendFlags::empty() };
                let slices = [IoSlice::new(first), IoSlice::new(second)];
                let mut no_control = SendAncillaryBuffer::default();
                let sent = rustix::net::sendmsg(&self.fd, &slices, &mut no_control, SendFlags::NOSIGNAL | more);
                outcome(sent, Sent::Bytes)
            }
            Transmit::External { remaining: 0, .. } => Ok(Sent::File(0)),
            Transmit::Load { source, length } => {
                if !source.assume_cached && self.resident_to < length {
                    self.resident_to = 0;
                    if page_cache::probe(&*source.file, source.offset, length) == Residency::Uncached {
                        let (file, offset) = (source.file.clone(), source.offset);
                        return Ok(Sent::Cold(ColdPiece { file, offset, length }));
                    }
                }
                let mut bytes = Vec::new();
                let is_short = read_whole(source, length, &mut bytes)?;
                if is_short && source.if_short == IfShort::Close {
                    return Ok(Sent::Short(IfShort::Close));
                }
                self.padding = is_short;
                self.connection.outbox().load(bytes.into());
                Ok(Sent::Bytes(0))
            }
            Transmit::External { remaining, .. } if self.padding => {
                let now = ZEROS.len().min(usize::try_from(remaining).unwrap_or(usize::MAX));
                let sent = rustix::net::send(&self.fd, &ZEROS[..now], SendFlags::NOSIGNAL);
                outcome(sent, |bytes| Sent::File(bytes as u64))
            }
            Transmit::External { source, position, remaining } => {
                let mut now = remaining.min(CALL_BYTES_MAX);
                if !source.assume_cached {
                    if position >= self.resident_to {
                        let offset = source.offset + position;
                        self.resident_to = position;
                        if page_cache::probe(&*source.file, offset, now) == Residency::Uncached {
                            return Ok(Sent::Cold(ColdPiece { file: source.file.clone(), offset, length: now }));
                        }
                        self.resident_to += now;
                    }
                    now = now.min(self.resident_to - position);
                }
                let now = now as usize;
                if self.copies {
                    return copy_some(&self.fd, source, position, now, scratch);
                }
                let mut offset = source.offset + position;
                match rustix::fs::sendfile(&self.fd, &source.file, Some(&mut offset), now) {
                    Ok(0) => Ok(Sent::Short(source.if_short)),
                    Ok(bytes) => {
                        self.sendfile_bytes += bytes as u64;
                        Ok(Sent::File(bytes as u64))
                    }
                    Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => Ok(Sent::CantSendfile),
                    // A failing disk must not leave a frame that never ends.
                    Err(Errno::IO) => Ok(Sent::Short(source.if_short)),
                    Err(errno) => outcome(Err(errno), |_| Sent::Full),
                }
            }
        }
    }
}

/// Reads a whole piece, up to the limit for sealed frames. If the file is shorter, the rest is zeros, and the result is true.
fn read_whole(source: &FileRange, length: u64, bytes: &mut Vec<u8>) -> Result<bool, End> {
    let length = usize::try_from(length.min(SEALED_FRAME_BYTES_MAX + 1)).unwrap_or(usize::MAX);
    if length as u64 > SEALED_FRAME_BYTES_MAX {
        return Err(End::new(
            "a piece of a file is over 16 MiB, which is too much for a sealed frame; send smaller ones",
        ));
    }
    bytes.resize(length, 0);
    let mut filled = 0;
    while filled < length {
        match rustix::io::pread(&source.file, &mut bytes[filled..], source.offset + filled as u64) {
            Ok(0) | Err(Errno::IO) => break,
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(End::system("reading the file failed", errno)),
        }
    }
    Ok(filled < length)
}

/// The way for filesystems and sockets between which the kernel can't move data itself.
fn copy_some(
    fd: &rustix::fd::OwnedFd,
    source: &FileRange,
    position: u64,
    most: usize,
    scratch: &mut [u8],
) -> Result<Sent, End> {
    let most = most.min(scratch.len());
    match rustix::io::pread(&source.file, &mut scratch[..most], source.offset + position) {
        Ok(0) | Err(Errno::IO) => Ok(Sent::Short(source.if_short)),
        Ok(read) => {
            let sent = rustix::net::send(fd, &scratch[..read], SendFlags::NOSIGNAL);
            outcome(sent, |bytes| Sent::File(bytes as u64))
        }
        Err(Errno::INTR) => Ok(Sent::File(0)),
        Err(errno) => Err(End::system("reading the file failed", errno)),
    }
}

fn outcome(sent: Result<usize, Errno>, as_sent: impl FnOnce(usize) -> Sent) -> Result<Sent, End> {
    match sent {
        Ok(bytes) => Ok(as_sent(bytes)),
        Err(Errno::AGAIN) => Ok(Sent::Full),
        Err(Errno::INTR) => Ok(as_sent(0)),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(End::new("the peer closed the connection")),
        Err(errno) => Err(End::system("sending failed", errno)),
    }
}
