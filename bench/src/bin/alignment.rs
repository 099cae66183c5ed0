//! How fast the kernel copies file data to each place in a page: the table of docs/internals/performance.md.
//!
//! Reads a file in the page cache, piece by piece, into a buffer at page + n. The processor time of the best round counts; each round
//! has all places in turn, so that other work hits all of them alike.

use std::error::Error;
use std::io::Write;
use std::os::unix::fs::FileExt;

use clap::Parser;
use rustix::time::{ClockId, clock_gettime};
use towpath_buffers::{PAGE_BYTES, PageBuffer};

const PLACES: [usize; 9] = [0, 1, 8, 16, 31, 32, 64, 457, 4087];
const PIECES: [usize; 4] = [128 << 10, 256 << 10, 512 << 10, 1 << 20];

/// How fast the kernel copies file data to each place in a page.
#[derive(Parser)]
struct Arguments {
    /// Bytes of the file
    #[arg(long, default_value_t = 256 << 20)]
    size: usize,
    #[arg(long, default_value_t = 7)]
    rounds: usize,
}

fn main() -> Result<(), Box<dyn Error>> {
    let Arguments { size, rounds } = Arguments::parse();
    let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR"))?;
    let filling = vec![7; 1 << 20];
    for _ in 0..size.div_ceil(filling.len()) {
        file.write_all(&filling)?;
    }
    println!("| GB/s | {} |\n|---|{}", PLACES.map(|n| n.to_string()).join(" | "), "---|".repeat(PLACES.len()));
    for piece in PIECES {
        let mut buffer = PageBuffer::zeroed(piece + PAGE_BYTES);
        let mut best = PLACES.map(|_| f64::INFINITY);
        for _ in 0..rounds {
            for (place, best) in PLACES.into_iter().zip(&mut best) {
                let target = buffer.get_mut(place..place + piece).unwrap_or_default();
                let begin = thread_seconds();
                for at in (0..size - size % piece).step_by(piece) {
                    file.read_exact_at(target, at as u64)?;
                }
                *best = best.min(thread_seconds() - begin);
            }
        }
        let rates = best.map(|seconds| format!("{:.2}", (size - size % piece) as f64 / seconds / 1e9));
        println!("| {} KiB | {} |", piece >> 10, rates.join(" | "));
    }
    Ok(())
}

/// Processor time of this thread.
fn thread_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
