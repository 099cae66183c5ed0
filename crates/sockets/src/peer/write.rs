//! Writing: headers and small bodies gathered, large ones as they are, file ranges by sendfile(2).

use crate::disk::page_cache::{self, Residency};
use crate::disk::prefetch::UncachedRange;
use crate::event::Event;
use crate::message::{FileRange, IfShort};
use crate::peer::sealing::{PlainBody, SealRequest};
use crate::peer::{End, Peer};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags};
use std::collections::VecDeque;
use std::io::IoSlice;
use towpath_zmtp::limits::SEALED_FRAME_BYTES_MAX;
use towpath_zmtp::{Body, Transmit};

/// Maximum bytes that one sendfile moves, and that are probed at a time: a call must not take the thread for long.
const CALL_BYTES_MAX: u64 = 1024 * 1024;

/// Bytes written to one peer before it is the next one's turn.
const WRITE_BUDGET_BYTES: u64 = 1024 * 1024;

static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// Progress of writing to a peer.
#[derive(Default)]
pub(crate) struct WriteState {
    /// The socket may take more.
    pub(crate) is_writable: bool,
    /// The file of the current frame was too short: the rest is zeros.
    pads: bool,
    /// Position in the current file range up to which it is known to be cached.
    cached_to: u64,
    prefetch: PrefetchState,
    /// The next frame that is to be sealed.
    pub(crate) to_seal: Option<SealRequest>,
    /// Bytes that the peer's system had taken when that was last looked at.
    pub(crate) taken_bytes: u64,
    /// sendfile doesn't work between this kind of file and socket.
    copies: bool,
    /// Bytes that sendfile has moved.
    pub(crate) sendfile_bytes: u64,
}

/// Whether the next range of a file has to be read from the disk before anything else leaves.
#[derive(Default)]
enum PrefetchState {
    #[default]
    None,
    /// The hub is to have it read.
    Due(UncachedRange),
    Running,
}

impl WriteState {
    /// Whether writing may get something out now.
    pub(crate) fn is_possible(&self) -> bool {
        self.is_writable && !self.is_prefetching()
    }

    /// Whether the next range is being read from the disk.
    pub(crate) fn is_prefetching(&self) -> bool {
        !matches!(self.prefetch, PrefetchState::None)
    }

    /// The range that the hub is to have read, once.
    pub(crate) fn start_prefetch(&mut self) -> Option<UncachedRange> {
        match std::mem::replace(&mut self.prefetch, PrefetchState::None) {
            PrefetchState::Due(range) => {
                self.prefetch = PrefetchState::Running;
                Some(range)
            }
            other => {
                self.prefetch = other;
                None
            }
        }
    }

    /// The range has been read, as far as it can be.
    pub(crate) fn prefetched(&mut self) {
        self.prefetch = PrefetchState::None;
    }

    /// Asks for a range. It then counts as cached, so that it is probed once.
    fn request_prefetch(&mut self, range: UncachedRange) {
        self.cached_to += range.length;
        self.prefetch = PrefetchState::Due(range);
    }

    /// The last byte of a file range has left; false if it ended in zeros.
    fn finish_range(&mut self) -> bool {
        self.cached_to = 0;
        !std::mem::take(&mut self.pads)
    }
}

enum Sent {
    /// Bytes from memory.
    Bytes(usize),
    /// Bytes of the file.
    File(u64),
    /// The socket is full.
    Full,
    /// The next range of the file isn't in the page cache.
    Uncached(UncachedRange),
    /// The kernel can't send this file itself.
    CantSendfile,
    /// The file is shorter than was promised.
    Short(IfShort),
    Idle,
}

impl Peer {
    /// Writes what is queued, within the budget.
    pub(crate) fn write_queued(&mut self, scratch: &mut [u8], events: &mut VecDeque<Event>) -> Result<(), End> {
        let mut written = 0;
        while self.write.is_possible() && written < WRITE_BUDGET_BYTES {
            self.connection.outbox().stage();
            if self.request_seal()? {
                // It is sealed while this thread is busy with the frame before it.
                break;
            }
            match self.write_some(scratch)? {
                Sent::Bytes(bytes) => {
                    written += bytes as u64;
                    self.connection.outbox().advance(bytes);
                }
                Sent::File(bytes) => {
                    written += bytes;
                    if let Some(range) = self.connection.outbox().advance_external(bytes) {
                        let whole = self.write.finish_range() && !range.was_short;
                        if range.tag != 0 {
                            events.push_back(Event::FileSent { peer: self.id, tag: range.tag, whole });
                        }
                    }
                }
                Sent::Full => self.write.is_writable = false,
                Sent::Uncached(range) => self.write.request_prefetch(range),
                Sent::CantSendfile => self.write.copies = true,
                Sent::Short(IfShort::Pad) => self.write.pads = true,
                Sent::Short(IfShort::Close) => {
                    return Err(End::file_became_short());
                }
                Sent::Idle if self.connection.outbox_ref().is_exhausted() => {
                    return Err(End::new("this connection has sent as much as may be encrypted with its key"));
                }
                Sent::Idle => break,
            }
        }
        Ok(())
    }

    /// Asks for the next frame to be sealed, if that is due.
    fn request_seal(&mut self) -> Result<bool, End> {
        let Some((job, body)) = self.connection.outbox().seal_job() else { return Ok(false) };
        let body = match body {
            Body::Bytes(bytes) => PlainBody::Bytes(bytes.clone()),
            Body::External { length, .. } if *length > SEALED_FRAME_BYTES_MAX => {
                return Err(End::new(
                    "a piece of a file is over 16 MiB, which is too much for a sealed frame; send smaller ones",
                ));
            }
            Body::External { source, .. } => PlainBody::File(source.clone()),
        };
        self.write.to_seal = Some(SealRequest { job, body });
        Ok(true)
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
            Transmit::External { remaining, .. } if self.write.pads => {
                let now = ZEROS.len().min(usize::try_from(remaining).unwrap_or(usize::MAX));
                let sent = rustix::net::send(&self.fd, &ZEROS[..now], SendFlags::NOSIGNAL);
                outcome(sent, |bytes| Sent::File(bytes as u64))
            }
            Transmit::External { source, position, remaining } => {
                let mut now = remaining.min(CALL_BYTES_MAX);
                if !source.assume_cached {
                    if position >= self.write.cached_to {
                        let offset = source.offset + position;
                        self.write.cached_to = position;
                        let is_there = source.file.coming().is_none_or(|coming| coming.there() >= offset + now);
                        if !is_there || page_cache::probe(&*source.file, offset, now) == Residency::Uncached {
                            let file = source.file.clone();
                            return Ok(Sent::Uncached(UncachedRange { file, offset, length: now }));
                        }
                        self.write.cached_to += now;
                    }
                    now = now.min(self.write.cached_to - position);
                }
                let now = now as usize;
                if self.write.copies {
                    return copy_some(&self.fd, source, position, now, scratch);
                }
                let mut offset = source.offset + position;
                match rustix::fs::sendfile(&self.fd, &source.file, Some(&mut offset), now) {
                    Ok(0) => Ok(Sent::Short(source.if_short)),
                    Ok(bytes) => {
                        self.write.sendfile_bytes += bytes as u64;
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

/// Sends a part of a file through memory, where the kernel can't move it itself.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_range_is_prefetched_once_and_nothing_leaves_meanwhile() {
        let mut write = WriteState { is_writable: true, ..WriteState::default() };
        let file = Arc::new(tempfile::tempfile().unwrap());
        write.request_prefetch(UncachedRange { file, offset: 7, length: 100 });
        assert!(!write.is_possible() && write.is_prefetching());
        assert_eq!(write.start_prefetch().map(|range| range.offset), Some(7));
        assert!(write.start_prefetch().is_none() && !write.is_possible());
        write.prefetched();
        assert!(write.is_possible());
        assert_eq!(write.cached_to, 100);
        assert!(write.finish_range());
        assert_eq!(write.cached_to, 0);
    }

    #[test]
    fn padding_ends_with_its_range() {
        let mut write = WriteState { pads: true, ..WriteState::default() };
        assert!(!write.finish_range());
        assert!(write.finish_range());
    }
}
