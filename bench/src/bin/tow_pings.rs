//! How soon a file server answers PINGs while it sends frames of 16 MiB, to another connection or to the same one.
//!
//! Prints one JSON object, named as `tow call --json` names its own.

use std::cell::Cell;
use std::error::Error;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use clap::Parser;
use serde_json::json;
use towpath_sockets::system_random;
use towpath_zmtp::{
    Body, Config, Connection, Error as Wire, Event, FrameFlags, FrameSeal, Mechanism, MechanismConfig, Metadata,
    Opener, PublicKey, SecretKey, SocketType, Step, Transmit, has_aes_instructions,
};

const PIECE_BYTES: u64 = 16 << 20;
/// Pieces that are asked for ahead.
const AHEAD: u64 = 2;
const PAUSE: Duration = Duration::from_millis(3);
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(20);

/// PINGs to `tow serve` of one file, beside large frames.
#[derive(Parser, Clone)]
struct Arguments {
    #[arg(long)]
    port: u16,
    #[arg(long, allow_hyphen_values = true)]
    server_key: PublicKey,
    /// The file's bytes
    #[arg(long)]
    size: u64,
    #[arg(long)]
    pings: usize,
    /// Over the connection that gets the frames
    #[arg(long)]
    same: bool,
    /// With CURVE's own cipher
    #[arg(long)]
    without_aes: bool,
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The server's key, and whether to offer AES.
static CURVE: OnceLock<(PublicKey, bool)> = OnceLock::new();

thread_local! {
    /// When the last PONG came to this thread.
    static PONG: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// CURVE as a client, noting PONGs, which a connection keeps to itself.
#[derive(Debug)]
struct Watched<T>(T);

impl Mechanism for Watched<Box<dyn Mechanism>> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn start(&mut self, metadata: &Metadata) -> Result<Option<Bytes>, Wire> {
        self.0.start(metadata)
    }

    fn command(&mut self, body: Bytes, metadata: &Metadata) -> Result<Step, Wire> {
        self.0.command(body, metadata)
    }

    fn frame_seal(&mut self) -> Option<FrameSeal> {
        self.0.frame_seal().map(|seal| FrameSeal { opener: Box::new(Watched(seal.opener)), ..seal })
    }
}

impl Opener for Watched<Box<dyn Opener>> {
    fn open(&mut self, sealed: BytesMut) -> Result<(FrameFlags, BytesMut), Wire> {
        let opened = self.0.open(sealed)?;
        if opened.0.command && opened.1.starts_with(b"\x04PONG") {
            PONG.set(Some(Instant::now()));
        }
        Ok(opened)
    }
}

fn begin() -> Box<dyn Mechanism> {
    let (server, aes) = *CURVE.get().expect("set at the beginning");
    let random = system_random();
    let key = SecretKey::generate(&random).expect("the system has randomness");
    Box::new(Watched(MechanismConfig::CurveClient { key, server, random, aes }.begin()))
}

struct Peer {
    stream: TcpStream,
    connection: Connection<()>,
    input: BytesMut,
    buffer: Vec<u8>,
    size: u64,
    offset: u64,
}

impl Peer {
    fn connect(arguments: &Arguments) -> Outcome<Peer> {
        let stream = TcpStream::connect(("127.0.0.1", arguments.port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_millis(1)))?;
        let config = Config {
            mechanism: MechanismConfig::Custom { name: "CURVE", begin: Arc::new(begin) },
            handshake_timeout: LIMIT,
            ..Config::new(SocketType::Dealer)
        };
        let connection = Connection::new(Arc::new(config), Instant::now());
        let (input, buffer) = (BytesMut::new(), vec![0; 256 << 10]);
        let mut peer = Peer { stream, connection, input, buffer, size: arguments.size, offset: 0 };
        let deadline = Instant::now() + LIMIT;
        while !peer.connection.is_ready() {
            peer.go_on()?;
            if Instant::now() > deadline {
                return Err("no handshake".into());
            }
        }
        Ok(peer)
    }

    /// Writes what is queued, and reads for a millisecond at most: messages that have come.
    fn go_on(&mut self) -> Outcome<u64> {
        while let Transmit::Bytes { slices, .. } = self.connection.outbox().transmit() {
            let bytes = slices.concat();
            self.stream.write_all(&bytes)?;
            self.connection.outbox().advance(bytes.len());
        }
        match self.stream.read(&mut self.buffer) {
            Ok(0) => return Err("the server closed the connection".into()),
            Ok(bytes) => self.input.extend_from_slice(&self.buffer[..bytes]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
        let mut messages = 0;
        while let Some(event) = self.connection.input(&mut self.input, Instant::now())? {
            if let Event::Message { frames, .. } = event {
                if frames.len() != 1 {
                    return Err(format!("the server says {frames:?}").into());
                }
                messages += 1;
            }
        }
        Ok(messages)
    }

    fn ask(&mut self) {
        let text = |number: u64| Body::Bytes(Bytes::from(number.to_string()));
        let fetch = Body::Bytes(Bytes::from_static(b"fetch"));
        self.connection.send([fetch, text(self.offset), text(PIECE_BYTES)], 0);
        self.offset = if self.offset + 2 * PIECE_BYTES > self.size { 0 } else { self.offset + PIECE_BYTES };
    }

    fn ping(&mut self) {
        self.connection.outbox().push_command(Bytes::from_static(b"\x04\x07\x04PING\0\0"));
    }
}

/// Gets pieces until it is stopped.
fn pull(mut peer: Peer, stop: &AtomicBool) -> Outcome<u64> {
    (0..AHEAD).for_each(|_| peer.ask());
    let mut got = 0;
    while !stop.load(Ordering::Relaxed) {
        let pieces = peer.go_on()?;
        (0..pieces).for_each(|_| peer.ask());
        got += pieces;
    }
    Ok(got)
}

/// The time of each PING until its PONG, and how many pieces came meanwhile.
fn ping(mut peer: Peer, arguments: &Arguments) -> Outcome<(Vec<Duration>, u64)> {
    if arguments.same {
        (0..AHEAD).for_each(|_| peer.ask());
    }
    let (mut times, mut got) = (Vec::new(), 0);
    while times.len() < arguments.pings {
        PONG.set(None);
        peer.ping();
        let begin = Instant::now();
        let mut next = None;
        while next.is_none_or(|next| Instant::now() < next) {
            let pieces = peer.go_on()?;
            (0..pieces).for_each(|_| peer.ask());
            got += pieces;
            if let Some(pong) = PONG.take() {
                times.push(pong - begin);
                next = Some(Instant::now() + PAUSE);
            }
            if begin.elapsed() > LIMIT {
                return Err("no PONG".into());
            }
        }
    }
    Ok((times, got))
}

fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    let aes = has_aes_instructions() && !arguments.without_aes;
    CURVE.get_or_init(|| (arguments.server_key, aes));
    let peer = Peer::connect(&arguments)?;
    let stop = Arc::new(AtomicBool::new(false));
    let other = match arguments.same {
        true => None,
        false => {
            let (peer, stop) = (Peer::connect(&arguments)?, Arc::clone(&stop));
            Some(thread::spawn(move || pull(peer, &stop)))
        }
    };
    let begin = Instant::now();
    let (mut times, mut pieces) = ping(peer, &arguments)?;
    let seconds = begin.elapsed().as_secs_f64();
    stop.store(true, Ordering::Relaxed);
    if let Some(other) = other {
        pieces += other.join().map_err(|_| "the other connection failed")??;
    }
    if pieces == 0 {
        return Err("no piece of the file came meanwhile".into());
    }
    times.sort_unstable();
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
    let report = json!({
        "requests": arguments.pings, "replies": times.len(), "failed": 0, "seconds": seconds,
        "p50_us": at(0.5), "p99_us": at(0.99), "max_us": at(1.0), "pieces": pieces,
    });
    println!("{report}");
    Ok(())
}
