//! State of this process for the list of problems: descriptors, the disk of its state, and what the log left out.

use super::problems::{Process, Suppressed};
use crate::runtime::log;
use rustix::process::{Resource, getrlimit};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between two looks at the disk.
const DISK_INTERVAL: Duration = Duration::from_secs(10);

/// Looks now. It waits for no disk.
pub fn look(disk: &Disk) -> Process {
    let suppressed = log::last_suppressed();
    Process {
        descriptors: open_files().zip(getrlimit(Resource::Nofile).current),
        disk: disk.usage(),
        suppressed: suppressed.map(|(at, count, message)| Suppressed { ago: at.elapsed(), count, message }),
    }
}

/// Descriptors that are open, but for the one that is needed to count them.
fn open_files() -> Option<u64> {
    let entries = std::fs::read_dir("/proc/self/fd").ok()?;
    Some((entries.count() as u64).saturating_sub(1))
}

/// The disk of a directory. It may hang, so that a thread of its own asks it.
pub struct Disk {
    path: Option<PathBuf>,
    last: Arc<Mutex<Usage>>,
}

#[derive(Default)]
struct Usage {
    /// When it was last asked.
    asked: Option<Instant>,
    /// A thread waits for the answer.
    is_asking: bool,
    /// Bytes used, and all bytes.
    bytes: Option<(u64, u64)>,
}

impl Disk {
    pub fn of(path: Option<&Path>) -> Disk {
        Disk { path: path.map(Path::to_owned), last: Arc::default() }
    }

    /// As it was a little while ago.
    fn usage(&self) -> Option<(u64, u64)> {
        let path = self.path.clone()?;
        let mut last = lock(&self.last);
        let is_recent = last.asked.is_some_and(|asked| asked.elapsed() < DISK_INTERVAL);
        if !is_recent && !last.is_asking {
            let to = Arc::clone(&self.last);
            let ask = move || {
                let bytes = ask(&path);
                let mut last = lock(&to);
                (last.bytes, last.is_asking) = (bytes, false);
            };
            last.is_asking = std::thread::Builder::new().name("disk".to_owned()).spawn(ask).is_ok();
            last.asked = Some(Instant::now());
        }
        last.bytes
    }
}

fn lock(usage: &Mutex<Usage>) -> MutexGuard<'_, Usage> {
    usage.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes used, of those that this user could use.
fn ask(path: &Path) -> Option<(u64, u64)> {
    let stat = rustix::fs::statvfs(path).ok()?;
    let used = stat.f_blocks.saturating_sub(stat.f_bfree);
    Some((used.saturating_mul(stat.f_frsize), (used + stat.f_bavail).saturating_mul(stat.f_frsize)))
}
