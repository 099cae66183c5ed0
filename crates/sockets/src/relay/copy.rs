//! Copying between two sockets, both ways, until both sides have ended.

use super::Counters;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tokio::io::unix::AsyncFd;

/// Bytes that are read at a time.
const READ_BYTES_MAX: usize = 64 * 1024;
/// The same while [`HELD_BYTES_MAX`] are held.
const READ_BYTES_MIN: usize = 4 * 1024;
/// Bytes of all connections that the other side hasn't taken, above which each may have few.
const HELD_BYTES_MAX: usize = 64 * 1024 * 1024;

thread_local! {
    /// Buffer of a read, whose bytes go on at once or into memory of their own: a connection that waits for nothing holds none.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BYTES_MAX]);
}

/// Copies until both sides have ended what they send, or one has failed.
pub(super) async fn both_ways(
    peer: &AsyncFd<OwnedFd>,
    leader: &AsyncFd<OwnedFd>,
    counters: &Counters,
) -> io::Result<()> {
    let inwards = one_way(peer, leader, &counters.bytes_in, &counters.held);
    let outwards = one_way(leader, peer, &counters.bytes_out, &counters.held);
    tokio::try_join!(inwards, outwards).map(|_| ())
}

/// Outcome of a read.
enum Step {
    /// There is nothing now.
    Nothing,
    /// The sender has ended.
    End,
    /// Bytes came; these of them weren't taken. False: there may be more.
    Bytes(Vec<u8>, bool),
}

async fn one_way(
    from: &AsyncFd<OwnedFd>,
    to: &AsyncFd<OwnedFd>,
    count: &AtomicU64,
    held: &AtomicUsize,
) -> io::Result<()> {
    loop {
        let mut ready = from.readable().await?;
        let most = if held.load(Ordering::Relaxed) < HELD_BYTES_MAX { READ_BYTES_MAX } else { READ_BYTES_MIN };
        let (rest, is_empty) = match step(from.get_ref(), to.get_ref(), most, count)? {
            Step::Nothing => {
                ready.clear_ready();
                continue;
            }
            Step::End => {
                rustix::net::shutdown(to.get_ref(), Shutdown::Write)?;
                return Ok(());
            }
            Step::Bytes(rest, is_empty) => (rest, is_empty),
        };
        if is_empty {
            ready.clear_ready();
        }
        drop(ready);
        if !rest.is_empty() {
            let _held = Held::new(held, rest.len());
            send_all(to, &rest).await?;
        } else if !is_empty {
            // Others have their turn.
            tokio::task::yield_now().await;
        }
    }
}

/// Reads once, and passes on what the other side takes at once.
fn step(from: &OwnedFd, to: &OwnedFd, most: usize, count: &AtomicU64) -> io::Result<Step> {
    SCRATCH.with(|scratch| {
        let scratch = &mut *scratch.borrow_mut();
        let received = match rustix::net::recv(from, &mut scratch[..most], RecvFlags::empty()) {
            Ok((_, 0)) => return Ok(Step::End),
            Ok((_, received)) => received,
            Err(Errno::AGAIN) => return Ok(Step::Nothing),
            Err(Errno::INTR) => return Ok(Step::Bytes(Vec::new(), false)),
            Err(errno) => return Err(errno.into()),
        };
        count.fetch_add(received as u64, Ordering::Relaxed);
        let sent = send(to, &scratch[..received])?;
        Ok(Step::Bytes(scratch[sent..received].to_vec(), received < most))
    })
}

/// Sends all of it as the other side takes it.
pub(super) async fn send_all(to: &AsyncFd<OwnedFd>, bytes: &[u8]) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() {
        let mut ready = to.writable().await?;
        match send(to.get_ref(), &bytes[sent..])? {
            0 => ready.clear_ready(),
            more => sent += more,
        }
    }
    Ok(())
}

/// Sends what is taken at once.
fn send(to: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    match rustix::net::send(to, bytes, SendFlags::NOSIGNAL) {
        Ok(sent) => Ok(sent),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}

/// Counts bytes that are held.
struct Held<'a>(&'a AtomicUsize, usize);

impl Held<'_> {
    fn new(held: &AtomicUsize, bytes: usize) -> Held<'_> {
        held.fetch_add(bytes, Ordering::Relaxed);
        Held(held, bytes)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}
