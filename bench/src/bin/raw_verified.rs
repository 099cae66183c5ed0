//! The least that moves a file from disk to disk over TCP and verifies it: sendfile(2), beside a thread that computes the digest unless
//! it is known; and a receiver that hashes. It receives into buffers that two threads hash and write, or it splices into the file, from
//! which another thread reads what it hashes. No protocol but the file's length before it and its BLAKE3 digest behind it. It's the
//! limit for a verified get.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, ScopedJoinHandle};

use blake3::hazmat::{self, ChainingValue, HasherExt, Mode};
use clap::{Parser, ValueEnum};
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::unistd::pipe2;
use rustix::fs::{FallocateFlags, fallocate, sendfile};
use rustix::net::sockopt;
use serde_json::json;
use towpath_buffers::{PageBuffer, buffer_bytes};

/// Buffers between the threads of a receiver.
const BLOCKS: usize = 6;
const WORKERS: usize = 2;
/// Bytes that the digest's thread reads at a time.
const READ_BYTES: usize = 256 << 10;
const SENDFILE_MOST: usize = 1 << 20;
/// The largest pipe that everybody may make.
const PIPE_BYTES: usize = 1 << 20;
const DIGEST_BYTES: usize = 32;

/// A file over plain TCP, hashed on both sides.
#[derive(Parser)]
enum Arguments {
    /// Sends a file to anyone who connects
    Serve {
        file: PathBuf,
        /// Compute the digest before the first connection, not during each
        #[arg(long)]
        known: bool,
    },
    /// Receives it
    Get {
        #[arg(long)]
        port: u16,
        #[arg(long)]
        to: PathBuf,
        #[arg(long, value_enum)]
        how: How,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum How {
    /// Into buffers, which other threads hash and write
    Buffers,
    /// Through a pipe into the file, from which another thread reads what it hashes
    Splice,
}

/// A file that is being received.
struct Received {
    file: File,
    size: u64,
    /// Bytes that a thread hashes on its own: a subtree of BLAKE3's.
    block_bytes: usize,
    values: Mutex<Vec<ChainingValue>>,
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    match Arguments::parse() {
        Arguments::Serve { file, known } => serve(&file, known),
        Arguments::Get { port, to, how } => {
            let bytes = get(port, &to, how)?;
            println!("{}", json!({ "bytes": bytes }));
            Ok(())
        }
    }
}

fn serve(path: &Path, known: bool) -> Outcome<()> {
    let digest = if known { Some(digest_of(&File::open(path)?)?) } else { None };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    sockopt::set_tcp_congestion(&listener, "cubic")?;
    println!("ready {}", listener.local_addr()?.port());
    loop {
        send(&listener.accept()?.0, &File::open(path)?, digest)?;
    }
}

fn send(mut stream: &TcpStream, file: &File, known: Option<[u8; DIGEST_BYTES]>) -> Outcome<()> {
    let size = file.metadata()?.len();
    stream.write_all(&size.to_be_bytes())?;
    let digest = thread::scope(|scope| {
        let computed = known.is_none().then(|| scope.spawn(|| digest_of(file)));
        let mut left = usize::try_from(size)?;
        let mut at = 0;
        while left > 0 {
            match sendfile(stream, file, Some(&mut at), left.min(SENDFILE_MOST))? {
                0 => return Err("the file is shorter than it was".into()),
                sent => left -= sent,
            }
        }
        match (known, computed) {
            (Some(digest), _) => Ok(digest),
            (None, Some(computed)) => joined(computed),
            (None, None) => Err("no digest".into()),
        }
    })?;
    stream.write_all(&digest)?;
    Ok(())
}

fn digest_of(file: &File) -> Outcome<[u8; DIGEST_BYTES]> {
    let mut hasher = blake3::Hasher::new();
    hash_range(&mut hasher, file, 0, file.metadata()?.len())?;
    Ok(*hasher.finalize().as_bytes())
}

/// Hashes a range of a file.
fn hash_range(hasher: &mut blake3::Hasher, file: &File, mut at: u64, end: u64) -> Outcome<()> {
    let mut buffer = PageBuffer::zeroed(READ_BYTES);
    while at < end {
        let most = usize::try_from(end - at)?.min(READ_BYTES);
        match file.read_at(buffer.get_mut(..most).unwrap_or_default(), at)? {
            0 => return Err("the file is shorter than it was".into()),
            got => {
                hasher.update(buffer.get(..got).unwrap_or_default());
                at += got as u64;
            }
        }
    }
    Ok(())
}

fn get(port: u16, to: &Path, how: How) -> Outcome<u64> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    let mut size = [0; 8];
    stream.read_exact(&mut size)?;
    let size = u64::from_be_bytes(size);
    let block_bytes = 1 << buffer_bytes().ilog2();
    let blocks = usize::try_from(size.div_ceil(block_bytes as u64))?;
    if blocks < 2 {
        return Err("files of a block are not measured".into());
    }
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(to)?;
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, size)?;
    let values = Mutex::new(vec![ChainingValue::default(); blocks]);
    let received = Received { file, size, block_bytes, values };
    match how {
        How::Buffers => received.through_buffers(&mut stream, blocks)?,
        How::Splice => received.by_splice(&stream)?,
    }
    let mut digest = [0; DIGEST_BYTES];
    stream.read_exact(&mut digest)?;
    let values = lock(&received.values);
    let (left, right) = values.split_at(left_half(values.len()));
    if *hazmat::merge_subtrees_root(&merge(left), &merge(right), Mode::Hash).as_bytes() != digest {
        return Err("the file isn't what was sent".into());
    }
    Ok(size)
}

impl Received {
    fn start_of(&self, index: usize) -> u64 {
        index as u64 * self.block_bytes as u64
    }

    fn hasher_of(&self, index: usize) -> blake3::Hasher {
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(self.start_of(index));
        hasher
    }

    fn note(&self, index: usize, hasher: &blake3::Hasher) {
        if let Some(place) = lock(&self.values).get_mut(index) {
            *place = hasher.finalize_non_root();
        }
    }

    fn through_buffers(&self, stream: &mut TcpStream, blocks: usize) -> Outcome<()> {
        let writing = Mutex::new(());
        let (free, empty) = mpsc::channel();
        let (full, filled) = mpsc::channel::<(PageBuffer, usize)>();
        for _ in 0..BLOCKS {
            free.send(PageBuffer::zeroed(self.block_bytes))?;
        }
        let filled = Mutex::new(filled);
        let work = |free: mpsc::Sender<PageBuffer>| -> Outcome<()> {
            loop {
                let Ok((block, index)) = lock(&filled).recv() else { return Ok(()) };
                let mut hasher = self.hasher_of(index);
                hasher.update(&block);
                self.note(index, &hasher);
                // The kernel lets one at a time write to a file, and others spin meanwhile.
                let turn = lock(&writing);
                self.file.write_all_at(&block, self.start_of(index))?;
                drop(turn);
                free.send(block)?;
            }
        };
        thread::scope(|scope| {
            let work = &work;
            let workers: Vec<_> = (0..WORKERS)
                .map(|_| {
                    let free = free.clone();
                    scope.spawn(move || work(free))
                })
                .collect();
            drop(free);
            for index in 0..blocks {
                let mut block = empty.recv()?;
                let left = self.size - self.start_of(index);
                block.truncate(usize::try_from(left).unwrap_or(self.block_bytes));
                stream.read_exact(&mut block)?;
                full.send((block, index))?;
            }
            drop(full);
            workers.into_iter().try_for_each(joined)
        })
    }

    fn by_splice(&self, stream: &TcpStream) -> Outcome<()> {
        let (from, into) = pipe2(OFlag::O_CLOEXEC)?;
        fcntl(&into, FcntlArg::F_SETPIPE_SZ(i32::try_from(PIPE_BYTES)?))?;
        let (spliced, blocks) = mpsc::channel::<usize>();
        let hash = || -> Outcome<()> {
            for index in blocks {
                let start = self.start_of(index);
                let mut hasher = self.hasher_of(index);
                hash_range(&mut hasher, &self.file, start, self.size.min(start + self.block_bytes as u64))?;
                self.note(index, &hasher);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let hashing = scope.spawn(hash);
            let (mut at, mut index) = (0, 0);
            while at < self.size {
                let most = usize::try_from(self.size - at)?.min(PIPE_BYTES);
                let mut in_pipe = splice(stream, None, &into, None, most, SpliceFFlags::SPLICE_F_MOVE)?;
                if in_pipe == 0 {
                    return Err("the connection ended early".into());
                }
                while in_pipe > 0 {
                    // To the file's own position.
                    let moved = splice(&from, None, &self.file, None, in_pipe, SpliceFFlags::SPLICE_F_MOVE)?;
                    in_pipe -= moved;
                    at += moved as u64;
                }
                while at == self.size && self.start_of(index) < at || self.start_of(index + 1) <= at {
                    spliced.send(index)?;
                    index += 1;
                }
            }
            drop(spliced);
            joined(hashing)
        })
    }
}

fn joined<T>(thread: ScopedJoinHandle<'_, Outcome<T>>) -> Outcome<T> {
    thread.join().map_err(|_| "a thread panicked")?
}

/// BLAKE3's tree: the left half has the largest power of two of blocks that leaves any for the right.
fn left_half(blocks: usize) -> usize {
    blocks.next_power_of_two() / 2
}

fn merge(values: &[ChainingValue]) -> ChainingValue {
    match values {
        [] => ChainingValue::default(),
        [only] => *only,
        more => {
            let (left, right) = more.split_at(left_half(more.len()));
            hazmat::merge_subtrees_non_root(&merge(left), &merge(right), Mode::Hash)
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
