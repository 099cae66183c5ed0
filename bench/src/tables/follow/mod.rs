//! Directories that are kept as another one is: how long from a `mv` at the source until all subscribers have it.

mod connections;
mod steps;
mod systems;
mod world;

use anyhow::Result;

use super::{Bound, Content, Layout, Plan, Rows, Target, count_text, size_text};
use crate::Bench;
use crate::series::{Kind, Row, Sample, Variant};
use systems::System;

/// The steps of a system after one start.
type Steps = for<'a> fn(&'a Bench, System, bool) -> Result<Vec<Sample>>;

const OURS: &str = System::Tow.name();
const LSYNCD: &str = System::Lsyncd.name();

/// How much there is of everything.
#[derive(Clone, Copy)]
struct Scale {
    subscribers: usize,
    connections: usize,
    /// Small files that come at a time.
    files: usize,
    /// Files of the large directory, and files that come while nobody looks.
    many: usize,
    idle_seconds: u64,
}

impl Scale {
    fn of(bench: &Bench) -> Scale {
        if bench.quick {
            return Scale { subscribers: 3, connections: 20, files: 200, many: 2_000, idle_seconds: 1 };
        }
        Scale { subscribers: 20, connections: 1_000, files: 10_000, many: 100_000, idle_seconds: 10 }
    }
}

/// The groups of the table.
struct Groups {
    one: [String; 5],
    several: [String; 3],
    many: [String; 3],
    connections: [String; 4],
}

impl Groups {
    fn of(bench: &Bench) -> Groups {
        let Scale { subscribers, connections, files, many, idle_seconds } = Scale::of(bench);
        let (large, medium) = (size_text(bench.size), size_text(bench.size / 8));
        let count = |number: usize| count_text(number as u64);
        let (files, many, connections) = (count(files), count(many), count(connections));
        Groups {
            one: [
                "4 KiB, 1 subscriber".to_owned(),
                format!("{files} files of 4 KiB, 1 subscriber"),
                format!("{large}, 1 subscriber"),
                format!("2 bytes changed in {large}"),
                format!("{large} renamed"),
            ],
            several: [
                format!("4 KiB, {subscribers} subscribers"),
                format!("{files} files of 4 KiB, {subscribers} subscribers"),
                format!("{medium}, {subscribers} subscribers"),
            ],
            many: [
                format!("{many} known files: from the start until what came meanwhile is there"),
                format!("{many} files: {idle_seconds} s in which nothing happens"),
                format!("{many} files created while the source is stopped"),
            ],
            connections: [
                format!("4 KiB, {connections} connections"),
                format!("{many} files: 1 connection is up to date"),
                format!("{many} files: 100 connections are up to date"),
                format!("{many} files: {connections} connections are up to date"),
            ],
        }
    }
}

pub fn plan(bench: &Bench) -> Plan<'_> {
    let groups = Groups::of(bench);
    let mut variants = Vec::new();
    for system in System::ALL {
        let mut add = |groups: &[String], steps: Steps| variants.push(variant(bench, system, groups, steps));
        add(&groups.one, steps::one);
        add(&groups.several, steps::several);
        add(&groups.many, steps::many);
        if system == System::Tow {
            add(&groups.connections, steps::connections);
        }
    }
    Plan { content: content(bench), variants, targets }
}

fn variant<'a>(bench: &'a Bench, system: System, groups: &[String], steps: Steps) -> Variant<'a> {
    Variant {
        name: system.name().to_owned(),
        kind: if system == System::Tow { Kind::Ours } else { Kind::Peer },
        how: system.how().to_owned(),
        groups: groups.to_vec(),
        run: Box::new(move |check| steps(bench, system, check)),
    }
}

fn content(bench: &Bench) -> Content {
    let Scale { subscribers, idle_seconds, .. } = Scale::of(bench);
    Content {
        title: "Following a directory".to_owned(),
        about: format!(
            "From `mv` into the source until all subscribers have all of it under its final name; in the first round contents are \
             compared. Each system is started once for the steps with one subscriber, once for {subscribers}, and once for the large \
             directory. *server* is the source's side (lsyncd with its rsync; the first Syncthing; `tow serve`), *receiver* all \
             subscribers' (the rsync daemon; the other Syncthing; `inotifywait` with all `tow get`). *wire* is what crossed loopback \
             both ways, of whatever program. *memory* is the server's highest in the step. lsyncd has `delay = 1`, its rsync TCP_NODELAY; \
             Syncthing watches with a delay of 1 s, without discovery, relays and low priority; the script gathers events for 10 ms. Only \
             tow and Syncthing verify. Only `tow follow`, lsyncd and Syncthing also delete. Twenty-one Syncthings don't fit this machine. *Connections* are the \
             plain dialect, from one process that drops what it gets. Nothing happens for {idle_seconds} s: that row's CPU and memory are \
             what it costs. The source is stopped by SIGSTOP while the files are created, and time begins with SIGCONT: the kernel's queue \
             of events is full."
        ),
        peer: LSYNCD.to_owned(),
        layout: Layout::Full,
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let all = rows.0;
    let ours = |begin: &str, figure: fn(&Row) -> Option<f64>| {
        all.iter().find(|row| row.name == OURS && row.group.starts_with(begin)).and_then(figure)
    };
    let group_of = |part: &str, end: &str| {
        all.iter().find(|row| row.name == OURS && row.group.contains(part) && row.group.ends_with(end))
    };
    let at_most = |text: &str, most: f64, measured: Option<f64>| Target {
        text: text.to_owned(),
        bound: Bound::AtMost(most),
        measured,
    };
    let ms = |row: &Row| row.seconds().map(|seconds| seconds * 1e3);
    let mib = |row: &Row| row.server_peak().map(|bytes| bytes / f64::from(1 << 20));
    let wire = |row: &Row| row.wire_bytes().map(|bytes| bytes / f64::from(1 << 20));
    let idle = |row: &Row| Some(row.server_cpu()? / row.seconds()? * 100.0);
    let memory = |part: &str| group_of(part, "up to date").and_then(|row| row.server_peak());
    let each = || {
        let thousand = all.iter().rfind(|row| row.name == OURS && row.group.contains(": 1,000 connections are"))?;
        let count: f64 = thousand.group.split(": ").nth(1)?.split(' ').next()?.replace(',', "").parse().ok()?;
        Some((thousand.server_peak()? - memory(": 1 connection")?) / (count - 1.0) / 1024.0)
    };
    vec![
        at_most("4 KiB, 1 subscriber: ms", 5.0, ours("4 KiB, 1 sub", ms)),
        at_most("4 KiB, 20 subscribers: ms", 20.0, ours("4 KiB, 20 subscribers", ms)),
        at_most("4 KiB, 1,000 connections: ms", 500.0, ours("4 KiB, 1,000", ms)),
        at_most("10,000 files, 1 subscriber: ms", 800.0, group_of("10,000 files", "1 subscriber").and_then(ms)),
        at_most("10,000 files, 20 subscribers: ms", 7000.0, group_of("10,000 files", "20 subscribers").and_then(ms)),
        at_most("1 GiB, 1 subscriber: ms", 2200.0, ours("1 GiB, 1 sub", ms)),
        at_most("128 MiB, 20 subscribers: ms", 4000.0, ours("128 MiB, 20", ms)),
        at_most("2 bytes changed in 1 GiB: MiB on the wire", 2.04, ours("2 bytes", wire)),
        at_most("1 GiB renamed: MiB on the wire", 0.01, ours("1 GiB renamed", wire)),
        at_most("100,000 known files, start: ms", 2000.0, ours("100,000 known", ms)),
        at_most(
            "100,000 files, idle: MiB of the server",
            30.0,
            group_of("100,000 files", "nothing happens").and_then(mib),
        ),
        at_most("100,000 files, idle: % of a core", 0.1, group_of("100,000 files", "nothing happens").and_then(idle)),
        at_most("1 to 1,000 connections: KiB of the server for each", 10.0, each()),
    ]
}
