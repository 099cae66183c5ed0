//! The traditional copy against zero copy, by size of the file.

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Content, Figure, Layout, Plan, size_text};
use crate::Bench;
use crate::folder::keep;
use crate::process::{Server, ServerSpec, run, show};
use crate::receivers;
use crate::series::{Kind, Sample, Variant};
use crate::servers;

const MB: u64 = 1_000_000;
const SIZES: [u64; 8] = [7 * MB, 21 * MB, 63 * MB, 98 * MB, 200 * MB, 350 * MB, 700 * MB, 1 << 30];
/// Transfers before those that count.
const RUN_IN: usize = 3;
const TRADITIONAL: &str = "read and write, 4 KiB";

/// Names of rows and the options of raw_server.
const RAW: [(Kind, &str, &[&str]); 7] = [
    (Kind::Peer, TRADITIONAL, &["--how", "copy", "--buffer", "4096"]),
    (Kind::Peer, "read and write, 64 KiB", &["--how", "copy", "--buffer", "65536"]),
    (Kind::Peer, "read and write, 1 MiB", &["--how", "copy", "--buffer", "1048576"]),
    (Kind::Peer, "mmap and write", &["--how", "mmap"]),
    (Kind::Limit, "splice", &["--how", "splice"]),
    (Kind::Limit, "sendfile", &["--how", "sendfile"]),
    (Kind::Limit, "sendfile, cubic", &["--how", "sendfile", "--congestion", "cubic"]),
];

pub fn plan(bench: &Bench) -> Result<Plan<'_>> {
    let source = keep(bench.folder.source("large", bench.size)?);
    let programs = &bench.programs;
    let mut variants = Vec::new();
    for (kind, name, options) in RAW {
        variants.push(by_size(bench, kind, name, "raw", move || servers::raw(programs, options, &[source])));
    }
    for (name, how) in [("Java, streams and 4 KiB", "copy"), ("Java, FileChannel.transferTo", "transfer")] {
        variants.push(by_size(bench, Kind::Peer, name, "raw", move || servers::java(programs, how, &[source])));
    }
    variants.push(by_size(bench, Kind::Ours, "tow serve", "zmtp", move || servers::tow(programs, source)));
    Ok(Plan { content: content(), variants, targets: |_| Vec::new() })
}

/// One server for all sizes; the receiver's own clock, from before it connects, so that no start of a process counts.
fn by_size<'a>(
    bench: &'a Bench,
    kind: Kind,
    name: &str,
    protocol: &'static str,
    server: impl Fn() -> Result<ServerSpec> + 'a,
) -> Variant<'a> {
    let sizes: Vec<u64> = SIZES.into_iter().filter(|&size| size <= bench.size).collect();
    let programs = &bench.programs;
    let shown = |spec: Result<ServerSpec>| spec.map_or_else(|why| format!("({why:#})"), |spec| show(&spec.command));
    let how = format!("{} ; receiver --protocol {protocol} --port PORT --size SIZE", shown(server()));
    let groups = sizes.iter().map(|&size| size_text(size)).collect();
    let measure = move |_check| {
        let logs = bench.folder.path();
        let server = Server::start(server()?, logs)?;
        let once = |size| -> Result<Sample> {
            let cpu_before = server.cpu_now();
            let finished = run(receivers::dropping(programs, protocol, server.port, size, &[])?, logs)?;
            let report: Value = serde_json::from_str(&finished.stdout)?;
            Ok(Sample {
                seconds: report.get("seconds").and_then(Value::as_f64).context("no time reported")?,
                bytes: size,
                server_cpu_seconds: Some(server.cpu_now() - cpu_before),
                receiver_cpu_seconds: Some(finished.cpu_seconds),
                server_peak_bytes: None,
                ..Sample::default()
            })
        };
        // The first transfers compile, where the server is Java, and fill caches elsewhere.
        for &size in sizes.iter().take(RUN_IN) {
            once(size)?;
        }
        let samples = sizes.iter().map(|&size| once(size)).collect();
        server.stop()?;
        samples
    };
    Variant { name: name.to_owned(), kind, how: bench.anonymous(&how), groups, run: Box::new(measure) }
}

fn content() -> Content {
    Content {
        title: "The traditional copy against zero copy".to_owned(),
        about: "One file, from the page cache over TCP to a receiver that drops it, in the ways that a server can send it. The receiver is the \
                same program for all; its own clock is shown, from before it connects. `tow serve` is asked for chunks of 1 MiB, 10 ahead; \
                the others answer one request with the whole file."
            .to_owned(),
        peer: TRADITIONAL.to_owned(),
        layout: Layout::Grid {
            groups: "size".to_owned(),
            figures: vec![Figure::Milliseconds, Figure::ServerCpuMilliseconds],
            log_y: true,
        },
    }
}
