//! A system that runs, with its directories; and how a step is measured.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::systems::{Places, Processes, System, reset_peaks, used};
use crate::Bench;
use crate::folder::{remove, write_random};
use crate::seed::Seed;
use crate::series::Sample;

/// How long a step may take.
const STEP_LIMIT: Duration = Duration::from_secs(180);
/// How long nothing is done after a step, so that what a system does late isn't counted as part of the next.
const REST: Duration = Duration::from_millis(1500);
const QUICK_REST: Duration = Duration::from_millis(200);
/// Subfolders of many files.
const FOLDERS: usize = 100;
/// Free space without which nothing is kept: a round takes 10 GB.
const FREE_BYTES_MIN: u64 = 20 << 30;
/// Size of files that aren't kept.
const LARGE_BYTES: u64 = 1 << 20;
/// The file that shows that a system works.
const MARKER: &str = "marker";

/// See the [module](self).
pub struct World<'a> {
    bench: &'a Bench,
    system: System,
    root: PathBuf,
    pub places: Places,
    pub processes: Processes,
    seed: Seed,
}

impl<'a> World<'a> {
    /// Directories with nothing in them.
    pub fn new(bench: &'a Bench, system: System, subscribers: usize) -> Result<Self> {
        let root = bench.folder.join("follow");
        remove(&root)?;
        let places = Places {
            source: root.join("source"),
            destinations: (0..subscribers).map(|index| root.join(format!("destination-{index}"))).collect(),
            state: root.join("state"),
        };
        fs::create_dir_all(root.join("staging"))?;
        fs::create_dir_all(&places.source)?;
        let seed = Seed::new(20_261_128);
        Ok(Self { bench, system, root, places, processes: Processes::default(), seed })
    }

    /// Starts the system.
    pub fn start(&mut self) -> Result<()> {
        self.processes = self.system.start(self.bench, &self.places)?;
        Ok(())
    }

    pub fn stop(&mut self) {
        self.processes = Processes::default();
    }

    /// Starts the system, and waits until a first file has arrived.
    pub fn begin(&mut self) -> Result<()> {
        fs::write(self.places.source.join(MARKER), b"first")?;
        self.start()?;
        self.wait(&|destination| Ok(is_file(&destination.join(MARKER), 5))).context("at the start")?;
        thread::sleep(if self.bench.quick { QUICK_REST } else { REST });
        Ok(())
    }

    /// A file that is to be moved into the source.
    pub fn staged_file(&mut self, bytes: u64) -> Result<PathBuf> {
        let path = self.root.join("staging/file");
        write_random(&path, bytes, &mut self.seed)?;
        self.bench.folder.flush()?;
        Ok(path)
    }

    /// A directory that is to be moved into the source.
    pub fn staged_files(&mut self, count: usize, bytes: u64) -> Result<PathBuf> {
        let path = self.root.join("staging/files");
        self.make_files(&path, count, bytes)?;
        self.bench.folder.flush()?;
        Ok(path)
    }

    /// Makes small files in subfolders.
    pub fn make_files(&mut self, path: &Path, count: usize, bytes: u64) -> Result<()> {
        for folder in 0..FOLDERS {
            fs::create_dir_all(path.join(format!("{folder:02}")))?;
        }
        let mut content = vec![0_u8; usize::try_from(bytes)?];
        for index in 0..count {
            for word in content.chunks_mut(8) {
                word.iter_mut().zip(self.seed.next().to_ne_bytes()).for_each(|(to, from)| *to = from);
            }
            fs::write(path.join(format!("{:02}/{index:06}", index % FOLDERS)), &content)?;
        }
        Ok(())
    }

    /// Waits until all subscribers have something, one after the other: looking costs time too.
    pub fn wait(&mut self, has: &dyn Fn(&Path) -> Result<bool>) -> Result<()> {
        let deadline = Instant::now() + STEP_LIMIT;
        for destination in &self.places.destinations {
            loop {
                let begin = Instant::now();
                if has(destination)? {
                    break;
                }
                if begin > deadline {
                    bail!("not everything arrived in {} s", STEP_LIMIT.as_secs());
                }
                self.processes.check()?;
                // A tenth of the time at most.
                let looked = begin.elapsed();
                thread::sleep((looked * 10).clamp(Duration::from_micros(200), Duration::from_millis(200)));
            }
        }
        Ok(())
    }

    /// Measures from something that is done until all subscribers have it.
    pub fn measure(
        &mut self,
        bytes: u64,
        act: impl FnOnce(&mut Self) -> Result<()>,
        has: &dyn Fn(&Path) -> Result<bool>,
    ) -> Result<Sample> {
        reset_peaks(&self.processes.source);
        let before = (used(&self.processes.source), used(&self.processes.subscribers), loopback_bytes()?);
        let begin = Instant::now();
        act(self)?;
        self.wait(has)?;
        let seconds = begin.elapsed().as_secs_f64();
        // What was started meanwhile has used nothing before.
        let after = (used(&self.processes.source), used(&self.processes.subscribers), loopback_bytes()?);
        let sample = Sample {
            seconds,
            bytes: bytes * self.places.destinations.len() as u64,
            server_cpu_seconds: Some((after.0.cpu_seconds - before.0.cpu_seconds).max(0.0)),
            receiver_cpu_seconds: Some((after.1.cpu_seconds - before.1.cpu_seconds).max(0.0)),
            server_peak_bytes: Some(after.0.peak_bytes),
            wire_bytes: Some(after.2.saturating_sub(before.2)),
            ..Sample::default()
        };
        thread::sleep(if self.bench.quick { QUICK_REST } else { REST });
        Ok(sample)
    }

    /// Moves something to a name in the source, and measures until all have it.
    pub fn moved(
        &mut self,
        from: &Path,
        name: &str,
        bytes: u64,
        has: &dyn Fn(&Path) -> Result<bool>,
    ) -> Result<Sample> {
        let to = self.places.source.join(name);
        self.measure(bytes, |_| fs::rename(from, &to).context("mv"), has)
    }
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        self.stop();
        // Gigabytes aren't kept until the end. Small files are: for a minute ext4 takes long to make new ones where many were removed.
        let has_space =
            rustix::fs::statvfs(&self.root).is_ok_and(|disk| disk.f_bavail * disk.f_frsize > FREE_BYTES_MIN);
        let _ = match has_space {
            true => remove_large(&self.root).and_then(|()| self.bench.folder.put_aside(&self.root)),
            false => remove(&self.root),
        };
    }
}

/// Removes the large files below a directory.
fn remove_large(directory: &Path) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let facts = entry.metadata()?;
        if facts.is_dir() {
            remove_large(&entry.path())?;
        } else if facts.len() >= LARGE_BYTES {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Whether a file is there, of this size.
pub fn is_file(path: &Path, bytes: u64) -> bool {
    path.metadata().is_ok_and(|facts| facts.is_file() && facts.len() == bytes)
}

/// Whether all of this many small files are there. Those in progress have names that begin with a dot or a tilde.
pub fn are_files(path: &Path, count: usize) -> Result<bool> {
    let mut found = 0;
    for folder in 0..FOLDERS {
        let Ok(entries) = fs::read_dir(path.join(format!("{folder:02}"))) else { return Ok(false) };
        for entry in entries {
            let name = entry?.file_name();
            found += usize::from(!matches!(name.as_encoded_bytes().first(), Some(b'.' | b'~')));
        }
    }
    Ok(found == count)
}

/// Bytes that were sent over loopback, by whatever program.
fn loopback_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/net/dev")?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("lo:")).context("no loopback")?;
    line.split_whitespace().nth(8).and_then(|bytes| bytes.parse().ok()).context("no count of bytes")
}
