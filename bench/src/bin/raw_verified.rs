//! The least that moves a file from disk to disk over TCP with both sides hashing it: sendfile(2) beside a thread that computes the
//! digest, and a thread that receives beside two that hash and write. No protocol but the file's length before it and its
//! BLAKE3 digest behind it. It's the limit for the first verified get of a file.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;

use blake3::hazmat::{self, ChainingValue, HasherExt, Mode};
use clap::Parser;
use rustix::fs::{FallocateFlags, fallocate, sendfile};
use rustix::net::sockopt;
use serde_json::json;

/// What goes from thread to thread, and what a worker hashes on its own: a subtree of BLAKE3's.
const BLOCK_BYTES: usize = 512 << 10;
const BLOCKS: usize = 6;
const WORKERS: usize = 2;
/// What the digest's thread reads at a time.
const READ_BYTES: usize = 256 << 10;
const SENDFILE_MOST: usize = 1 << 20;
const DIGEST_BYTES: usize = 32;

/// A file over plain TCP, hashed on both sides.
#[derive(Parser)]
enum Arguments {
    /// Sends a file to whoever connects
    Serve { file: PathBuf },
    /// Receives it
    Get {
        #[arg(long)]
        port: u16,
        #[arg(long)]
        to: PathBuf,
    },
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Outcome<()> {
    match Arguments::parse() {
        Arguments::Serve { file } => serve(&file),
        Arguments::Get { port, to } => {
            let bytes = get(port, &to)?;
            println!("{}", json!({ "bytes": bytes }));
            Ok(())
        }
    }
}

fn serve(path: &Path) -> Outcome<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    sockopt::set_tcp_congestion(&listener, "cubic")?;
    println!("ready {}", listener.local_addr()?.port());
    loop {
        send(&listener.accept()?.0, &File::open(path)?)?;
    }
}

fn send(mut stream: &TcpStream, file: &File) -> Outcome<()> {
    let size = file.metadata()?.len();
    stream.write_all(&size.to_be_bytes())?;
    let digest = thread::scope(|scope| {
        let digest = scope.spawn(|| digest_of(file, size));
        let mut left = usize::try_from(size)?;
        let mut at = 0;
        while left > 0 {
            match sendfile(stream, file, Some(&mut at), left.min(SENDFILE_MOST))? {
                0 => return Err("the file is shorter than it was".into()),
                sent => left -= sent,
            }
        }
        digest.join().map_err(|_| "the digest's thread panicked")?
    })?;
    stream.write_all(&digest)?;
    Ok(())
}

fn digest_of(file: &File, size: u64) -> Outcome<[u8; DIGEST_BYTES]> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; READ_BYTES];
    let mut at = 0;
    while at < size {
        match file.read_at(&mut buffer, at)? {
            0 => return Err("the file is shorter than it was".into()),
            got => {
                hasher.update(buffer.get(..got).unwrap_or_default());
                at += got as u64;
            }
        }
    }
    Ok(*hasher.finalize().as_bytes())
}

fn get(port: u16, to: &Path) -> Outcome<u64> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    let mut size = [0; 8];
    stream.read_exact(&mut size)?;
    let size = u64::from_be_bytes(size);
    let blocks = usize::try_from(size.div_ceil(BLOCK_BYTES as u64))?;
    if blocks < 2 {
        return Err("files of a block are not measured".into());
    }
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(to)?;
    fallocate(&file, FallocateFlags::KEEP_SIZE, 0, size)?;
    let values = Mutex::new(vec![ChainingValue::default(); blocks]);
    let writing = Mutex::new(());
    let (free, empty) = mpsc::channel();
    let (full, filled) = mpsc::channel::<(Vec<u8>, usize)>();
    for _ in 0..BLOCKS {
        free.send(vec![0; BLOCK_BYTES])?;
    }
    let filled = Mutex::new(filled);
    let work = |free: mpsc::Sender<Vec<u8>>| -> Outcome<()> {
        loop {
            let Ok((block, index)) = lock(&filled).recv() else { return Ok(()) };
            let at = index as u64 * BLOCK_BYTES as u64;
            let mut hasher = blake3::Hasher::new();
            let value = hasher.set_input_offset(at).update(&block).finalize_non_root();
            if let Some(place) = lock(&values).get_mut(index) {
                *place = value;
            }
            // The kernel lets one at a time write to a file, and others spin meanwhile.
            let turn = lock(&writing);
            file.write_all_at(&block, at)?;
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
            let left = size - index as u64 * BLOCK_BYTES as u64;
            block.truncate(usize::try_from(left).unwrap_or(BLOCK_BYTES));
            stream.read_exact(&mut block)?;
            full.send((block, index))?;
        }
        drop(full);
        workers.into_iter().try_for_each(|worker| worker.join().map_err(|_| "a worker panicked")?)
    })?;
    let mut digest = [0; DIGEST_BYTES];
    stream.read_exact(&mut digest)?;
    let values = lock(&values);
    let (left, right) = values.split_at(left_half(values.len()));
    if *hazmat::merge_subtrees_root(&merge(left), &merge(right), Mode::Hash).as_bytes() != digest {
        return Err("the file isn't what was sent".into());
    }
    Ok(size)
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
