//! Bytes of a stream socket that the other side hasn't taken.
//!
//! A crate of its own, because it is the one system call that no safe crate has.

use rustix::fd::AsFd;
use rustix::ioctl::{Getter, Opcode, ioctl};
use std::ffi::c_int;

/// SIOCOUTQ, which has the number of the same question about a terminal.
const SIOCOUTQ: Opcode = libc::TIOCOUTQ as Opcode;

/// Bytes written to a socket that the other side's system hasn't acknowledged (TCP) or its process hasn't read (unix sockets, where they count
/// with the kernel's overhead). One system call, whatever other sockets there are. `None`: not such a socket.
#[allow(unsafe_code)]
pub fn untaken_bytes(socket: impl AsFd) -> Option<u64> {
    // SAFETY: SIOCOUTQ writes one int, and nothing else, to where its argument points (tcp(7), unix(7)).
    let bytes = unsafe { ioctl(socket, Getter::<SIOCOUTQ, c_int>::new()) };
    bytes.ok().and_then(|bytes| u64::try_from(bytes).ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    /// Unacknowledged bytes before and after the other side reads.
    fn before_and_after(mut writer: impl Write + AsFd, mut reader: impl Read) -> (u64, u64) {
        assert_eq!(untaken_bytes(&writer), Some(0));
        writer.write_all(&[7; 1000]).unwrap();
        let before = untaken_bytes(&writer).unwrap();
        reader.read_exact(&mut [0; 1000]).unwrap();
        (before, untaken_bytes(&writer).unwrap())
    }

    #[test]
    fn what_the_peer_has_not_taken_is_counted() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (before, after) = before_and_after(ours, theirs);
        assert!(before >= 1000 && after == 0, "{before}, {after}");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // On loopback the other side's system acknowledges what it has at once.
        let (before, after) = before_and_after(ours, listener.accept().unwrap().0);
        assert!(before <= 1000 && after == 0, "{before}, {after}");
    }

    #[test]
    fn what_is_no_socket_has_no_answer() {
        assert_eq!(untaken_bytes(File::open("/dev/null").unwrap()), None);
    }
}
