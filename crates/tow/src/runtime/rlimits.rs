//! Resources of a process: what it has used, and limits of its memory and files.

use crate::cli::exit::Failure;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::unix::net::UnixStream;
use sysinfo::{Process, ProcessRefreshKind, ProcessesToUpdate, System};

/// CPU seconds and peak memory of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// In user and system mode.
    pub cpu_seconds: f64,
    /// Peak resident memory, in bytes.
    pub peak_memory_bytes: u64,
}

/// Usage of a process so far; zeros where /proc doesn't say.
pub fn usage_of(pid: u32) -> Usage {
    let cpu_ticks = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok().and_then(|stat| {
        // The second field, the name, may contain anything; numbers follow its last parenthesis.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
    });
    let peak_kib = std::fs::read_to_string(format!("/proc/{pid}/status")).ok().and_then(|status| {
        let line = status.lines().find(|line| line.starts_with("VmHWM:"))?.to_owned();
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    });
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1) as f64;
    Usage {
        cpu_seconds: cpu_ticks.unwrap_or(0) as f64 / ticks_per_second,
        peak_memory_bytes: peak_kib.unwrap_or(0) * 1024,
    }
}

/// Usage of this process so far.
pub fn own_usage() -> Usage {
    usage_of(std::process::id())
}

/// Memory that this process may use, in bytes: the machine's, or the limit of its control groups. `None` if unknown.
pub fn memory_limit() -> Option<u64> {
    let mut system = System::new().ok()?;
    let grouped = sysinfo::get_current_pid().ok().and_then(|pid| {
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), false, ProcessRefreshKind::nothing());
        system.process(pid).and_then(Process::cgroup_limits)
    });
    system.refresh_memory();
    let totals = [Some(system.total_memory()), grouped.map(|limits| limits.total_memory)];
    totals.into_iter().flatten().filter(|total| *total > 0).min()
}

/// Raises the soft limit of open files to the hard limit: each client and each file being sent takes a descriptor. The default is low
/// for the sake of select(2).
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "cannot raise the limit of open files");
    }
}

/// Descriptor pairs that a command needs at its start, for runtimes, signals and a hub.
const STARTUP_PAIRS: usize = 10;

/// Fails if hardly any file can be opened, since later code could only panic.
pub fn check_descriptors() -> Result<(), Failure> {
    let pairs: Result<Vec<_>, _> = (0..STARTUP_PAIRS).map(|_| UnixStream::pair()).collect();
    pairs.map(drop).map_err(|error| {
        let needed = 2 * STARTUP_PAIRS;
        Failure::failed(format!("cannot open {needed} files (raise ulimit -n): {error}"))
    })
}

/// Half of the freed memory that the allocator keeps.
const KEPT_BYTES: usize = 512 * 1024;

/// Makes the allocator keep some freed memory. glibc returns the end of its heap to the system as soon as 128 KiB of it are free and
/// faults in new pages for the next block of requests, which takes up to a quarter of the processor time. After the first free of a
/// large block it keeps twice that size (mallopt(3), M_MMAP_THRESHOLD). No page of this block is touched.
pub fn keep_freed_memory() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(KEPT_BYTES)));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn memory_limit_is_at_most_the_machine() {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
        let kib: u64 = meminfo.lines().next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
        let memory = memory_limit().unwrap();
        assert!((1 << 20..=kib * 1024).contains(&memory), "{memory}");
    }
}
