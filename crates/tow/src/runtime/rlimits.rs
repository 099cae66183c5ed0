//! What a process has used, from /proc, and how much memory and how many files it may have.

use crate::cli::exit::Failure;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::unix::net::UnixStream;
use sysinfo::{Process, ProcessRefreshKind, ProcessesToUpdate, System};

/// CPU seconds and peak memory of a process.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// In user and system mode together.
    pub cpu_seconds: f64,
    /// The most that was resident at a time, in bytes.
    pub peak_memory_bytes: u64,
}

/// What a process has used so far; zeros where /proc can't tell.
pub fn usage_of(pid: u32) -> Usage {
    let cpu_ticks = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok().and_then(|stat| {
        // The second field, the name, may hold anything; what follows its last parenthesis is numbers.
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

/// What this process has used so far.
pub fn own_usage() -> Usage {
    usage_of(std::process::id())
}

/// How much memory this process may have, in bytes: all of the machine's, or of its control group and those above it, where they
/// have a limit. `None` where the system can't tell.
pub fn memory_bytes() -> Option<u64> {
    let mut system = System::new().ok()?;
    let grouped = sysinfo::get_current_pid().ok().and_then(|pid| {
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), false, ProcessRefreshKind::nothing());
        system.process(pid).and_then(Process::cgroup_limits)
    });
    system.refresh_memory();
    let totals = [Some(system.total_memory()), grouped.map(|limits| limits.total_memory)];
    totals.into_iter().flatten().filter(|total| *total > 0).min()
}

/// Lets this process open as many files as the system allows it: clients take a descriptor each, and one for each file that is
/// sent. The soft limit is made for programs that use select(2).
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}

/// Pairs of descriptors that there must be when a command begins: what the runtimes, their signals and a hub need together, and some.
const PAIRS_AT_FIRST: usize = 10;

/// Fails where this process may open next to no files, and what needs them could only panic.
pub fn check_descriptors() -> Result<(), Failure> {
    let pairs: Result<Vec<_>, _> = (0..PAIRS_AT_FIRST).map(|_| UnixStream::pair()).collect();
    pairs.map(drop).map_err(|error| {
        let needed = 2 * PAIRS_AT_FIRST;
        Failure::failed(format!("it must be able to open at least {needed} files at a time (ulimit -n): {error}"))
    })
}

/// What the allocator keeps of freed memory is twice this.
const KEPT_BYTES: usize = 512 * 1024;

/// Lets the allocator keep some of the memory that is freed. Blocks of requests are taken and given back all the time; glibc gives
/// what is free at the end of its heap back to the system at once if it is over 128 KiB, and takes it again, as new pages, for the
/// next block: up to a quarter of the processor time. It learns from the first large block that is freed to keep twice that much
/// (mallopt(3), M_MMAP_THRESHOLD). No page of this one is ever touched.
pub fn keep_freed_memory() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(KEPT_BYTES)));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_process_has_no_more_memory_than_the_machine() {
        let told = std::fs::read_to_string("/proc/meminfo").unwrap();
        let kib: u64 = told.lines().next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
        let memory = memory_bytes().unwrap();
        assert!((1 << 20..=kib * 1024).contains(&memory), "{memory}");
    }
}
