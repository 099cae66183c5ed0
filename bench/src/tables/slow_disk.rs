//! Somebody reads a slow disk: what becomes of those who get what is in memory.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use towpath_slow_disk::{Pace, SlowDisk, UNCACHED_FILE};

use super::{Bound, Content, Layout, Plan, Rows, Target, size_text};
use crate::Bench;
use crate::process::{Running, Server, ServerSpec, run, show};
use crate::receivers;
use crate::series::{Kind, Sample, Variant};
use crate::servers;

/// Bytes that the disk reads in a second.
const DISK_RATE: u64 = 50_000_000;
/// More than it can read meanwhile.
const COLD_BYTES: u64 = 16 << 30;
/// Receivers of its file.
const COLD_RECEIVERS: &str = "2";
/// The part of the large file that the others get: who waits for the disk takes a while even for that.
const PART: u64 = 4;
const READ_LIMIT: Duration = Duration::from_secs(20);

const CACHED: &str = "cached";
const DISK: &str = "disk";
const ALONE: &str = "nobody reads it";
const BESIDE: &str = "two receivers read it";

const OURS: &str = "tow serve";

/// Makes a server of a folder.
type ServerMaker<'a> = Box<dyn Fn(&Path) -> Result<ServerSpec> + 'a>;

/// A server, and how its files are asked for.
struct Setup<'a> {
    kind: Kind,
    name: &'static str,
    protocol: &'static str,
    /// Of the file in memory, and of that on the disk.
    paths: [String; 2],
    server: ServerMaker<'a>,
}

pub fn plan(bench: &Bench) -> Result<Plan<'_>> {
    let size = bench.size / PART;
    bench.folder.source(&format!("slow/{CACHED}"), size)?;
    let by_name = [CACHED.to_owned(), format!("{DISK}/{UNCACHED_FILE}")];
    let programs = &bench.programs;
    let nginx = |more: &'static str| move |root: &Path| servers::nginx_with(programs, bench.folder.path(), root, more);
    let raw = move |root: &Path| {
        let files = [root.join(CACHED), root.join(DISK).join(UNCACHED_FILE)];
        servers::raw(programs, &["--how", "sendfile", "--congestion", "cubic"], &files)
    };
    let setups = [
        Setup {
            kind: Kind::Limit,
            name: "raw sendfile, a thread a receiver",
            protocol: "raw",
            paths: ["0".to_owned(), "1".to_owned()],
            server: Box::new(raw),
        },
        Setup {
            kind: Kind::Ours,
            name: OURS,
            protocol: "zmtp",
            paths: by_name.clone(),
            server: Box::new(move |root| servers::tow(programs, root)),
        },
        Setup {
            kind: Kind::Peer,
            name: "nginx",
            protocol: "http",
            paths: by_name.clone(),
            server: Box::new(nginx("")),
        },
        Setup {
            kind: Kind::Peer,
            name: "nginx, aio threads",
            protocol: "http",
            paths: by_name,
            server: Box::new(nginx("aio threads;")),
        },
    ];
    let variants = setups.into_iter().map(|setup| Variant {
        name: setup.name.to_owned(),
        kind: setup.kind,
        how: how(bench, &setup, size),
        groups: vec![ALONE.to_owned(), BESIDE.to_owned()],
        run: Box::new(move |_| Ok(vec![transfer(bench, &setup, size, false)?, transfer(bench, &setup, size, true)?])),
    });
    Ok(Plan { content: content(size), variants: variants.collect(), targets })
}

fn cached_receiver(bench: &Bench, setup: &Setup<'_>, port: u16, size: u64) -> Result<Command> {
    receivers::dropping(&bench.programs, setup.protocol, port, size, &["--path", &setup.paths[0], "--chunk", "1048576"])
}

fn cold_receivers(bench: &Bench, setup: &Setup<'_>, port: u16) -> Result<Command> {
    let options = ["--path", &setup.paths[1], "--chunk", "1048576", "--clients", COLD_RECEIVERS];
    receivers::dropping(&bench.programs, setup.protocol, port, COLD_BYTES, &options)
}

fn how(bench: &Bench, setup: &Setup<'_>, size: u64) -> String {
    let shown = || -> Result<String> {
        let server = (setup.server)(&bench.folder.join("slow"))?;
        let commands = [server.command, cold_receivers(bench, setup, 0)?, cached_receiver(bench, setup, 0, size)?];
        Ok(bench.anonymous(&commands.each_ref().map(show).join(" ; ")))
    };
    shown().unwrap_or_else(|why| format!("({why:#})"))
}

fn transfer(bench: &Bench, setup: &Setup<'_>, size: u64, beside: bool) -> Result<Sample> {
    let (root, logs) = (bench.folder.join("slow"), bench.folder.path());
    let mount = root.join(DISK);
    fs::create_dir_all(&mount)?;
    // Mounted again each time, and so read by nobody yet.
    let pace = Pace::BytesPerSecond(DISK_RATE);
    let disk = SlowDisk::mount(&mount, COLD_BYTES, pace).context("no FUSE file system can be mounted")?;
    let mut server = Server::start((setup.server)(&root)?, logs)?;
    let cold = if beside {
        let cold = Running::start(cold_receivers(bench, setup, server.port)?, logs)?;
        ensure!(disk.await_read(READ_LIMIT), "nobody reads the disk: {}", server.log_tail());
        Some(cold)
    } else {
        None
    };
    server.start_counting();
    let finished = run(cached_receiver(bench, setup, server.port, size)?, logs);
    server.stop_counting();
    // In this order: who waits for the disk can't be ended.
    disk.release();
    drop(cold);
    let usage = server.stop()?;
    let finished = finished?;
    Ok(Sample {
        seconds: finished.seconds,
        bytes: size,
        server_cpu_seconds: Some(usage.cpu_seconds),
        receiver_cpu_seconds: Some(finished.cpu_seconds),
        server_peak_bytes: usage.peak_bytes,
        ..Sample::default()
    })
}

fn content(size: u64) -> Content {
    Content {
        title: "A slow disk beside memory".to_owned(),
        about: format!(
            "A receiver gets {} that are in the page cache, while none or {COLD_RECEIVERS} others get a file from the same server, \
             from a disk of {} MB/s (a FUSE file system in the bench's own process, mounted anew for each run). The receivers of \
             all servers differ only in protocol. nginx has one process, like the others; with `aio threads` it reads what isn't in \
             memory in a pool.",
            size_text(size),
            DISK_RATE / 1_000_000
        ),
        peer: "nginx".to_owned(),
        layout: Layout::Full,
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let rate = || rows.find(OURS, BESIDE)?.times_faster(rows.find(OURS, ALONE)?);
    vec![Target {
        text: "the rate from memory beside two receivers of a slow disk, of that alone".to_owned(),
        bound: Bound::AtLeast(0.8),
        measured: rate(),
    }]
}
