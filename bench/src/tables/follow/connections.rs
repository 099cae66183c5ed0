//! Connections that follow everything in the plain dialect: from now on, and with credit for all that comes.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LIMIT: Duration = Duration::from_secs(60);
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
/// Larger frames than any that comes.
const FRAME_BYTES_MAX: u64 = 1 << 20;

/// Open connections, each up to date.
pub struct Connections(Vec<BufReader<TcpStream>>);

impl Connections {
    /// Connects this many times, and waits until each is up to date.
    pub fn open(port: u16, count: usize) -> Result<Self> {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
        let mut streams = Vec::with_capacity(count);
        for _ in 0..count {
            let mut stream = connect(port)?;
            stream.set_read_timeout(Some(LIMIT))?;
            let mut hello = greeting();
            hello.extend(frame(COMMAND, b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER"));
            hello.extend([frame(MORE, b"credit"), frame(0, b"1000000")].concat());
            hello.extend([frame(MORE, b"follow"), frame(MORE, b""), frame(0, b"now")].concat());
            stream.write_all(&hello)?;
            streams.push(BufReader::with_capacity(8192, stream));
        }
        let mut connections = Self(streams);
        for stream in &mut connections.0 {
            let mut greeting = [0; 64];
            stream.read_exact(&mut greeting)?;
            let ready = read_frame(stream)?;
            ensure!(ready.0 & COMMAND != 0 && ready.1.starts_with(b"\x05READY"), "no handshake");
            loop {
                let message = read_message(stream)?;
                if message.first().is_some_and(|kind| kind == b"live") {
                    break;
                }
            }
        }
        Ok(connections)
    }

    /// Waits until a file has arrived on each.
    pub fn await_file(&mut self, name: &str, bytes: u64) -> Result<()> {
        for stream in &mut self.0 {
            loop {
                let message = read_message(stream)?;
                let [kind, path, _, size, _, content] = message.as_slice() else { bail!("not a change") };
                if kind == b"file" && path == name.as_bytes() {
                    ensure!(size == bytes.to_string().as_bytes() && content.len() as u64 == bytes, "another size");
                    break;
                }
            }
        }
        Ok(())
    }
}

/// The greeting of a peer without a login.
fn greeting() -> Vec<u8> {
    let (signature, version, mechanism) = ([0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f], [3, 1], *b"NULL");
    let mut greeting = [&signature[..], &version, &mechanism].concat();
    greeting.resize(64, 0);
    greeting
}

/// Connects to a server that is being started.
fn connect(port: u16) -> Result<TcpStream> {
    for _ in 0..2000 {
        if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
            return Ok(stream);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    bail!("nothing listens")
}

/// A short frame.
fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let length = u8::try_from(body.len()).unwrap_or(u8::MAX);
    [&[flags, length], body].concat()
}

fn read_frame(stream: &mut BufReader<TcpStream>) -> Result<(u8, Vec<u8>)> {
    let mut flags = [0];
    stream.read_exact(&mut flags).context("the connection ended, or nothing came")?;
    let length = if flags[0] & LONG == 0 {
        let mut length = [0];
        stream.read_exact(&mut length)?;
        u64::from(length[0])
    } else {
        let mut length = [0; 8];
        stream.read_exact(&mut length)?;
        u64::from_be_bytes(length)
    };
    ensure!(length <= FRAME_BYTES_MAX, "a frame of {length} bytes");
    let mut body = vec![0; usize::try_from(length)?];
    stream.read_exact(&mut body)?;
    Ok((flags[0], body))
}

/// The frames of the next message.
fn read_message(stream: &mut BufReader<TcpStream>) -> Result<Vec<Vec<u8>>> {
    let mut frames = Vec::new();
    loop {
        let (flags, body) = read_frame(stream)?;
        if flags & COMMAND != 0 {
            continue;
        }
        frames.push(body);
        if flags & MORE == 0 {
            return Ok(frames);
        }
    }
}
