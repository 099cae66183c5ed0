//! Many files, one after another, over one connection: what a request costs, by size of the file.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::{Content, Figure, Layout, Plan, size_text};
use crate::Bench;
use crate::folder::keep;
use crate::process::{Server, ServerSpec, run, show};
use crate::receivers;
use crate::series::{Kind, Sample, Variant, median};
use crate::servers;

const SIZES: [u64; 6] = [1 << 10, 4 << 10, 8 << 10, 16_385, 64 << 10, 1 << 20];
/// How often each file is fetched in a run.
const REPEAT: &str = "10";
const TRADITIONAL: &str = "read and write in pieces of 1 KiB";

pub fn plan(bench: &Bench) -> Result<Plan<'_>> {
    let programs = &bench.programs;
    let root = keep(bench.folder.join("files"));
    let mut sources = Vec::new();
    for size in SIZES {
        sources.push(bench.folder.source(&format!("files/{size}"), size)?);
    }
    let sources = &*sources.leak();
    let mut variants = Vec::new();
    for (kind, name, options) in [
        (Kind::Peer, TRADITIONAL, &["--how", "copy", "--buffer", "1024"][..]),
        (Kind::Peer, "read and write, the whole file in one buffer", &["--how", "copy", "--buffer", "1048576"]),
        (Kind::Limit, "sendfile, the header gathered in", &["--how", "sendfile"]),
        (Kind::Limit, "sendfile, the header gathered in, cubic", &["--how", "sendfile", "--congestion", "cubic"]),
    ] {
        let raw = move || servers::raw(programs, options, sources);
        variants.push(file_by_file(bench, kind, name, "raw", |index, _| index.to_string(), raw));
    }
    let by_name = |_, size: u64| size.to_string();
    let nginx = move || servers::nginx(programs, bench.folder.path(), root);
    variants.push(file_by_file(bench, Kind::Peer, "nginx, keep-alive", "http", by_name, nginx));
    variants.push(file_by_file(bench, Kind::Ours, "tow serve", "zmtp", by_name, move || servers::tow(programs, root)));
    Ok(Plan { content: content(), variants, targets: |_| Vec::new() })
}

fn file_by_file<'a>(
    bench: &'a Bench,
    kind: Kind,
    name: &str,
    protocol: &'static str,
    path: impl Fn(usize, u64) -> String,
    server: impl Fn() -> Result<ServerSpec> + 'a,
) -> Variant<'a> {
    let files: Vec<String> =
        SIZES.into_iter().enumerate().map(|(index, size)| format!("{}:{size}", path(index, size))).collect();
    let shown = server().map_or_else(|why| format!("({why:#})"), |spec| show(&spec.command));
    let how = format!("{shown} ; receiver --protocol {protocol} --port PORT --repeat {REPEAT} {}", files.join(" "));
    let measure = move |_check| {
        let logs = bench.folder.path();
        let server = Server::start(server()?, logs)?;
        let options = ["--repeat", REPEAT];
        let receiver = receivers::dropping_files(&bench.programs, protocol, server.port, &options, &files)?;
        let finished = run(receiver, logs)?;
        server.stop()?;
        samples(&serde_json::from_str(&finished.stdout)?)
    };
    Variant {
        name: name.to_owned(),
        kind,
        how: bench.anonymous(&how),
        groups: SIZES.into_iter().map(size_text).collect(),
        run: Box::new(measure),
    }
}

/// The median time of each file in the receiver's report.
fn samples(report: &Value) -> Result<Vec<Sample>> {
    let each = report.get("each").and_then(Value::as_array).context("no times reported")?;
    if each.len() != SIZES.len() {
        bail!("times of {} files reported", each.len());
    }
    let sample = |(size, times): (u64, &Value)| {
        let times: Vec<f64> = times.as_array()?.iter().filter_map(Value::as_f64).collect();
        Some(Sample { seconds: median(times)?, bytes: size, ..Sample::default() })
    };
    SIZES.into_iter().zip(each).map(sample).collect::<Option<_>>().context("a file without times")
}

fn content() -> Content {
    Content {
        title: "One connection, many files".to_owned(),
        about: format!(
            "Six files, each requested {REPEAT} times over one connection, one after another: the time from a request to the last \
             byte. The server opens the file for each request. Shown is the median over runs of a run's median of {REPEAT}."
        ),
        peer: TRADITIONAL.to_owned(),
        layout: Layout::Grid { groups: "size".to_owned(), figures: vec![Figure::Microseconds], log_y: true },
    }
}
