//! Files received by programs in Python.

use std::fs;

use anyhow::Result;

use super::tree::small_files;
use super::{Bound, Content, Layout, Plan, Rows, Target, size_text, variant};
use crate::Bench;
use crate::folder::keep;
use crate::receivers;
use crate::series::Kind;
use crate::servers;
use crate::transfer::Transfer;

const BUFFER: &str = "into a buffer";
const TREE: &str = "a directory";

const PARTS: &str = "towpath, in parts";
const FETCH: &str = "examples/fetch.py, tow serve";
const BY_TOW: &str = "towpath with towpath-bin";
const TOW: &str = "tow get";

/// The package towpath-bin, as far as `towpath` looks at it.
const BIN: &str = "import os, pathlib\n\ndef path():\n    return pathlib.Path(os.environ['TOW'])\n";

pub fn plan(bench: &Bench) -> Result<Plan<'_>> {
    let size = bench.size;
    let source = keep(bench.folder.source("large", size)?);
    let programs = &bench.programs;
    let root = bench.folder.path();
    let mut variants = Vec::new();
    for (kind, name, library) in [
        (Kind::Ours, "towpath, verified", "towpath"),
        (Kind::Ours, PARTS, "towpath-parts"),
        (Kind::Peer, FETCH, "pyzmq"),
    ] {
        let server = move || servers::tow(programs, source);
        let receiver = move |port| receivers::python(programs, library, port, "large");
        variants.push(variant(kind, name, BUFFER, Transfer::new(bench, size, server, receiver)));
    }
    let nginx = move || servers::nginx(programs, root, root);
    let aiohttp = move |port| receivers::python(programs, "aiohttp", port, "large");
    variants.push(variant(Kind::Peer, "aiohttp, nginx", BUFFER, Transfer::new(bench, size, nginx, aiohttp)));

    let tree = small_files(bench)?;
    let to = keep(bench.folder.empty_destination()?);
    let bin: &std::path::Path = keep(bench.folder.join("bin"));
    fs::create_dir_all(bin)?;
    fs::write(bin.join("towpath_bin.py"), BIN)?;
    for (name, has_bin) in [("towpath alone", false), (BY_TOW, true)] {
        let receiver = move |port| {
            let mut command = receivers::python(programs, "towpath-get", port, "")?;
            command.arg("--to").arg(to);
            if has_bin {
                let tow = programs.command("tow")?;
                let package = crate::programs::workspace().join("python/src");
                command
                    .env("PYTHONPATH", format!("{}:{}", package.display(), bin.display()))
                    .env("TOW", tow.get_program());
            }
            Ok(command)
        };
        let transfer = Transfer::new(bench, tree.bytes, move || servers::tow(programs, tree.path), receiver);
        variants.push(variant(Kind::Ours, name, TREE, transfer.to(to, tree.path)));
    }
    let get = move |port| receivers::tow(programs, port, "", Some(to), &[]);
    let transfer = Transfer::new(bench, tree.bytes, move || servers::tow(programs, tree.path), get);
    variants.push(variant(Kind::Ours, TOW, TREE, transfer.to(to, tree.path)));
    Ok(Plan { content: content(size), variants, targets })
}

fn content(size: u64) -> Content {
    Content {
        title: "Files in Python".to_owned(),
        about: format!(
            "One file of {} into a buffer of 1 MiB, again and again, and a directory of 10,000 files of 4 KiB to disk, each by a process \
             from its start to its end. `towpath` verifies a file that is read from its beginning to its end, and a directory always; with \
             the package towpath-bin it leaves a directory to `tow get`.",
            size_text(size)
        ),
        peer: FETCH.to_owned(),
        layout: Layout::Full,
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    vec![
        rows.compared(
            "read in parts, CPU time of fetch.py's",
            Bound::AtMost(1.3),
            (PARTS, FETCH, BUFFER),
            |row, peer| Some(row.receiver_cpu()? / peer.receiver_cpu()?),
        ),
        rows.compared(
            "a directory by towpath-bin, wall time of tow get's",
            Bound::AtMost(1.1),
            (BY_TOW, TOW, TREE),
            |row, peer| Some(1.0 / row.times_faster(peer)?),
        ),
    ]
}
