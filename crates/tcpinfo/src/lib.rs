//! State of a TCP connection: round trips, losses, and how long each side's buffers have held it up.
//!
//! A crate of its own, because it is the one system call that no safe crate has.

use rustix::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Bytes of the kernel's `struct tcp_info` that are read. Longer ones of later kernels are cut.
const INFO_BYTES: usize = 256;

/// A TCP connection at one moment. What an older kernel doesn't say is 0.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Retransmission timeouts in a row without an answer.
    pub timeouts: u8,
    /// Bytes of a segment at most.
    pub segment_bytes: u32,
    /// Segments that are on their way, as far as is known.
    pub unacked_segments: u32,
    /// Round-trip time, smoothed.
    pub round_trip: Duration,
    /// Since data was last sent, probes of a closed window excepted.
    pub last_sent: Duration,
    /// Bytes of data that the other side's system has acknowledged, in all.
    pub acked_bytes: u64,
    /// Bytes that are in this side's buffer and were not sent.
    pub unsent_bytes: u32,
    /// Bytes of data that were sent, in all, with those sent again.
    pub sent_bytes: u64,
    /// Bytes of these that were sent again.
    pub resent_bytes: u64,
    /// Time with data to send, in all.
    pub busy: Duration,
    /// Time of this in which the other side's window was full.
    pub window_limited: Duration,
    /// Time of this in which this side's send buffer was too small.
    pub buffer_limited: Duration,
    /// Bytes that the other side's system takes at the moment; `None`: the kernel doesn't say.
    pub window_bytes: Option<u32>,
    /// Segments of data that came, in all.
    pub received_segments: u32,
    /// Segments of these that came before an earlier one.
    pub out_of_order_segments: u32,
}

/// The state of a TCP socket; `None`: it is no such socket. One system call.
#[allow(unsafe_code)]
pub fn tcp_info(socket: impl AsFd) -> Option<TcpInfo> {
    let mut bytes = [0_u8; INFO_BYTES];
    let mut length = INFO_BYTES as libc::socklen_t;
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: TCP_INFO writes at most `length` bytes to where its argument points, and their number to `length` (tcp(7)).
    let done = unsafe {
        libc::getsockopt(descriptor, libc::IPPROTO_TCP, libc::TCP_INFO, bytes.as_mut_ptr().cast(), &raw mut length)
    };
    (done == 0).then(|| of_bytes(&bytes, length as usize))
}

/// By the offsets in `struct tcp_info` (linux/tcp.h), which never change.
fn of_bytes(bytes: &[u8; INFO_BYTES], length: usize) -> TcpInfo {
    let u32_at = |at: usize| bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_ne_bytes);
    let u64_at = |at: usize| bytes.get(at..at + 8).and_then(|all| all.try_into().ok()).map_or(0, u64::from_ne_bytes);
    let micros_at = |at: usize| Duration::from_micros(u64_at(at));
    TcpInfo {
        timeouts: bytes[2],
        segment_bytes: u32_at(16),
        unacked_segments: u32_at(24),
        last_sent: Duration::from_millis(u32_at(44).into()),
        round_trip: Duration::from_micros(u32_at(68).into()),
        acked_bytes: u64_at(120),
        unsent_bytes: u32_at(144),
        received_segments: u32_at(152),
        busy: micros_at(168),
        window_limited: micros_at(176),
        buffer_limited: micros_at(184),
        sent_bytes: u64_at(200),
        resent_bytes: u64_at(208),
        out_of_order_segments: u32_at(224),
        window_bytes: (length >= 232).then(|| u32_at(228)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    /// A connection, and the listener's end of it.
    fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (stream, listener.accept().unwrap().0)
    }

    #[test]
    fn bytes_and_segments_are_counted() {
        let (mut ours, mut theirs) = connection();
        ours.write_all(&[7; 100_000]).unwrap();
        theirs.read_exact(&mut [0; 100_000]).unwrap();
        let (sent, received) = (tcp_info(&ours).unwrap(), tcp_info(&theirs).unwrap());
        assert!(sent.sent_bytes - sent.resent_bytes >= 100_000 && sent.segment_bytes >= 500, "{sent:?}");
        // With the SYN.
        assert!((1..=100_001).contains(&sent.acked_bytes), "{sent:?}");
        assert!(received.received_segments >= 1 && received.received_segments <= 100_000, "{received:?}");
        assert!(sent.round_trip > Duration::ZERO && sent.round_trip < Duration::from_secs(60), "{sent:?}");
    }

    #[test]
    fn a_window_that_closes_is_seen_with_the_time_that_it_takes() {
        let (mut ours, theirs) = connection();
        ours.set_nonblocking(true).unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        loop {
            // Until neither side's system takes more.
            while ours.write(&[7; 65_536]).is_ok() {}
            let info = tcp_info(&ours).unwrap();
            if info.unsent_bytes > 0
                && info.window_bytes < Some(info.segment_bytes)
                && info.window_limited > Duration::ZERO
            {
                assert!(info.window_limited <= info.busy && info.acked_bytes > 0, "{info:?}");
                break;
            }
            assert!(std::time::Instant::now() < deadline, "{info:?}");
            std::thread::yield_now();
        }
        drop(theirs);
    }

    #[test]
    fn what_is_no_tcp_socket_has_no_state() {
        assert_eq!(tcp_info(UnixStream::pair().unwrap().0), None);
        assert_eq!(tcp_info(std::fs::File::open("/dev/null").unwrap()), None);
    }
}
