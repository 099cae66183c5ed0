//! ZMTP and the files protocol by hand, without code of the product, as a hostile peer writes them.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::Value;

use super::DEADLINE;

pub const MORE: u8 = 1;
pub const LONG: u8 = 2;
pub const COMMAND: u8 = 4;

/// Flags of an entry in a data message.
pub const END: u8 = 1;
pub const ZSTD: u8 = 2;
pub const HOLE: u8 = 4;

/// Greeting of 64 bytes.
pub fn greeting(mechanism: &str) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[0] = 0xff;
    bytes[9] = 0x7f;
    bytes[10] = 3;
    bytes[11] = 1;
    bytes[12..12 + mechanism.len()].copy_from_slice(mechanism.as_bytes());
    bytes
}

/// A frame, in the short form where it fits.
pub fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = match u8::try_from(body.len()) {
        Ok(length) => vec![flags, length],
        Err(_) => long_header(flags, body.len() as u64),
    };
    bytes.extend_from_slice(body);
    bytes
}

/// The header of a frame in the long form, for a body that may never come.
pub fn long_header(flags: u8, length: u64) -> Vec<u8> {
    let mut bytes = vec![flags | LONG];
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

/// A command frame.
pub fn command(name: &str, data: &[u8]) -> Vec<u8> {
    let mut body = vec![name.len() as u8];
    body.extend_from_slice(name.as_bytes());
    body.extend_from_slice(data);
    frame(COMMAND, &body)
}

/// The READY of a socket of this type.
pub fn ready(socket_type: &str) -> Vec<u8> {
    let mut data = Vec::new();
    for (name, value) in [("Socket-Type", socket_type), ("Identity", "")] {
        data.push(name.len() as u8);
        data.extend_from_slice(name.as_bytes());
        data.extend_from_slice(&(value.len() as u32).to_be_bytes());
        data.extend_from_slice(value.as_bytes());
    }
    command("READY", &data)
}

/// One piece of a file in a data message.
#[derive(Clone, Debug)]
pub struct Piece {
    pub n: u32,
    pub flags: u8,
    pub offset: u64,
    pub length: u64,
    /// As the header announces it.
    pub body_length: u64,
    pub body: Vec<u8>,
}

impl Piece {
    /// A piece whose header fits `body`.
    pub fn of(n: u32, flags: u8, offset: u64, body: &[u8]) -> Self {
        let length = body.len() as u64;
        Self { n, flags, offset, length, body_length: length, body: body.to_vec() }
    }
}

/// The frames of a data message.
pub fn data_message(id: u32, pieces: &[Piece]) -> Vec<Vec<u8>> {
    let mut header = b"TOWD\x01\x00".to_vec();
    header.extend_from_slice(&(pieces.len() as u16).to_be_bytes());
    header.extend_from_slice(&id.to_be_bytes());
    for piece in pieces {
        header.extend_from_slice(&piece.n.to_be_bytes());
        header.extend_from_slice(&[piece.flags, 0, 0, 0]);
        for number in [piece.offset, piece.length, piece.body_length] {
            header.extend_from_slice(&number.to_be_bytes());
        }
    }
    let mut frames = vec![header];
    frames.extend(pieces.iter().map(|piece| piece.body.clone()));
    frames
}

/// Parses a data message.
pub fn parse_data_message(frames: &[Vec<u8>]) -> (u32, Vec<Piece>) {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let (header, bodies) = frames.split_first().expect("a message has a frame");
    assert!(header.starts_with(b"TOWD\x01\x00"), "not a data message: {header:?}");
    let entries = header[12..].chunks(32).zip(bodies).map(|(entry, body)| Piece {
        n: number(&entry[..4]) as u32,
        flags: entry[4],
        offset: number(&entry[8..16]),
        length: number(&entry[16..24]),
        body_length: number(&entry[24..32]),
        body: body.clone(),
    });
    let pieces: Vec<_> = entries.collect();
    assert_eq!(number(&header[6..8]) as usize, pieces.len());
    assert_eq!(bodies.len(), pieces.len());
    (number(&header[8..12]) as u32, pieces)
}

/// One TCP connection that speaks ZMTP, or whatever the test writes.
pub struct Wire {
    stream: TcpStream,
}

impl Wire {
    /// A connection on which nothing was said yet.
    pub fn connect(port: u16) -> Self {
        Self::on(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connect"))
    }

    /// The same on a connection that was accepted.
    pub fn on(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(DEADLINE)).expect("set a timeout");
        stream.set_write_timeout(Some(DEADLINE)).expect("set a timeout");
        stream.set_nodelay(true).expect("set nodelay");
        Self { stream }
    }

    /// A DEALER after the NULL handshake with a server.
    pub fn dealer(port: u16) -> Self {
        let mut wire = Self::connect(port);
        wire.handshake("DEALER").expect("handshake");
        wire
    }

    /// The NULL handshake, as a socket of this type.
    pub fn handshake(&mut self, socket_type: &str) -> io::Result<()> {
        self.write(&greeting("NULL"))?;
        let mut theirs = [0; 64];
        self.stream.read_exact(&mut theirs)?;
        self.write(&ready(socket_type))?;
        let (flags, body) = self.read_frame()?;
        if flags & COMMAND == 0 || !body.starts_with(b"\x05READY") {
            return Err(io::Error::other(format!("no READY but {body:?}")));
        }
        Ok(())
    }

    /// Writes bytes as they are.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Reads bytes as they are.
    pub fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        self.stream.read_exact(bytes)
    }

    /// Sends a message.
    pub fn send<F: AsRef<[u8]>>(&mut self, frames: &[F]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for (index, body) in frames.iter().enumerate() {
            bytes.extend(frame(if index + 1 < frames.len() { MORE } else { 0 }, body.as_ref()));
        }
        self.write(&bytes)
    }

    /// Sends a control message.
    pub fn request(&mut self, request: &Value) -> io::Result<()> {
        self.send(&[b"TOW1".as_slice(), request.to_string().as_bytes()])
    }

    /// Reads a frame: its flags and its body.
    pub fn read_frame(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut flags = [0];
        self.stream.read_exact(&mut flags)?;
        let mut size = [0; 8];
        let bytes = if flags[0] & LONG == 0 { &mut size[7..] } else { &mut size[..] };
        self.stream.read_exact(bytes)?;
        let mut body = Vec::new();
        let length = u64::from_be_bytes(size);
        if (&self.stream).take(length).read_to_end(&mut body)? as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok((flags[0], body))
    }

    /// Waits until the peer has sent something, and leaves it where it is.
    pub fn await_bytes(&self) -> io::Result<()> {
        self.stream.peek(&mut [0]).map(drop)
    }

    /// Whether the peer has sent something that wasn't read.
    pub fn has_bytes(&self) -> bool {
        self.stream.set_nonblocking(true).expect("set nonblocking");
        let has = self.stream.peek(&mut [0]).is_ok_and(|count| count > 0);
        self.stream.set_nonblocking(false).expect("set blocking");
        has
    }

    /// Reads a message; answers PINGs on the way.
    pub fn receive(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let mut frames = Vec::new();
        loop {
            let (flags, body) = self.read_frame()?;
            if flags & COMMAND != 0 {
                if let Some(context) = body.strip_prefix(b"\x04PING").and_then(|data| data.get(2..)) {
                    self.write(&command("PONG", context))?;
                }
                continue;
            }
            frames.push(body);
            if flags & MORE == 0 {
                return Ok(frames);
            }
        }
    }

    /// Reads a message that must be a control message, and gives its object.
    #[track_caller]
    pub fn control(&mut self) -> Value {
        let frames = self.receive().expect("a message");
        assert_eq!(frames[0], b"TOW1", "not a control message");
        serde_json::from_slice(&frames[1]).expect("JSON")
    }

    /// Sends a request and reads the control message that follows.
    #[track_caller]
    pub fn ask(&mut self, request: &Value) -> Value {
        self.request(request).expect("send");
        self.control()
    }

    /// Reads, and throws away, until the peer closes. Panics if it doesn't within the deadline.
    #[track_caller]
    pub fn expect_closed(mut self) {
        let mut piece = [0; 65_536];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    panic!("the peer kept the connection open for {DEADLINE:?}");
                }
                Err(_) => return,
            }
        }
    }
}

/// A server whose words are the test's: it serves one connection after another until it is dropped.
pub struct WireServer {
    pub port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl WireServer {
    /// `serve` is given each connection after the NULL handshake. Its errors end the connection, as the client does at
    /// any time.
    pub fn start(serve: impl Fn(&mut Wire) -> io::Result<()> + Send + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let port = listener.local_addr().expect("address").port();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let mut wire = Wire::on(stream);
                let _ = wire.handshake("ROUTER").and_then(|()| serve(&mut wire));
            }
        });
        Self { port, stop, thread: Some(thread) }
    }
}

impl Drop for WireServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the listener, so that its thread ends.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        let is_panic = self.thread.take().is_some_and(|thread| thread.join().is_err());
        assert!(!is_panic || std::thread::panicking(), "the server panicked");
    }
}
