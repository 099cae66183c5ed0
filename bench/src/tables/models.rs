//! One large file to a receiver that drops it: the three models of transferring a file, on libzmq, with our server, and with ours on
//! both sides.

use anyhow::Result;

use super::{Bound, Content, Layout, Plan, Rows, Target, size_text, variant};
use crate::Bench;
use crate::folder::keep;
use crate::receivers::{self, Asking};
use crate::series::Kind;
use crate::servers;
use crate::transfer::Transfer;

const CHUNK: u64 = 250_000;
const MIB: u64 = 1 << 20;

const RAW: &str = "raw sendfile, cubic";
const LIBZMQ: &str = "libzmq, model 3, 250,000 bytes a chunk";
const STOCK: &str = "tow serve to libzmq, model 3, 1 MiB";
const OURS: &str = "tow serve to tow get --no-verify";

/// A model, a chunk size, and what the row is called after the programs' names.
const ASKINGS: [(u8, u64, &str); 6] = [
    (1, CHUNK, "model 1"),
    (2, CHUNK, "model 2, 250,000 bytes a chunk"),
    (3, 64 << 10, "model 3, 64 KiB"),
    (3, CHUNK, "model 3, 250,000 bytes a chunk"),
    (3, MIB, "model 3, 1 MiB"),
    (3, 4 * MIB, "model 3, 4 MiB"),
];

pub fn plan(bench: &Bench) -> Result<Plan<'_>> {
    let size = bench.size;
    let source = keep(bench.folder.source("large", size)?);
    let programs = &bench.programs;
    let mut variants = Vec::new();
    for (name, options) in [
        (RAW, &["--how", "sendfile", "--congestion", "cubic"][..]),
        ("raw sendfile, the system's congestion control", &["--how", "sendfile"]),
    ] {
        let transfer = Transfer::new(
            bench,
            size,
            move || servers::raw(programs, options, &[source]),
            move |port| receivers::dropping(programs, "raw", port, size, &[]),
        );
        variants.push(variant(Kind::Limit, name, "", transfer));
    }
    for (model, chunk_bytes, name) in ASKINGS {
        let asking = Asking { model, chunk_bytes, clients: 1 };
        let receiver = move |port| receivers::libzmq(programs, port, size, asking, None);
        let libzmq = Transfer::new(bench, size, move || servers::libzmq(programs, CHUNK, source), receiver);
        variants.push(variant(Kind::Peer, &format!("libzmq, {name}"), "", libzmq));
        let ours = Transfer::new(bench, size, move || servers::tow(programs, source), receiver);
        variants.push(variant(Kind::Ours, &format!("tow serve to libzmq, {name}"), "", ours));
    }
    variants.push(variant(
        Kind::Ours,
        "tow serve to the receiver of raw sendfile, model 3, 1 MiB",
        "",
        Transfer::new(
            bench,
            size,
            move || servers::tow(programs, source),
            move |port| receivers::dropping(programs, "zmtp", port, size, &["--chunk", "1048576"]),
        ),
    ));
    let ours = Transfer::new(
        bench,
        size,
        move || servers::tow(programs, source),
        move |port| receivers::tow(programs, port, "large", None, &["--no-verify"]),
    );
    variants.push(variant(Kind::Ours, OURS, "", ours));
    variants.push(variant(
        Kind::Peer,
        "nginx to the receiver of raw sendfile",
        "",
        Transfer::new(
            bench,
            size,
            move || servers::nginx(programs, bench.folder.path(), bench.folder.path()),
            move |port| receivers::dropping(programs, "http", port, size, &["--path", "large"]),
        ),
    ));
    variants.push(variant(
        Kind::Peer,
        "nginx to curl, /dev/null",
        "",
        Transfer::new(
            bench,
            size,
            move || servers::nginx(programs, bench.folder.path(), bench.folder.path()),
            move |port| receivers::curl(programs, port, "large", "/dev/null".as_ref()),
        ),
    ));
    Ok(Plan { content: content(size), variants, targets })
}

fn content(size: u64) -> Content {
    Content {
        title: "The three models".to_owned(),
        about: format!(
            "One file of {}, to a receiver that drops it. Model 1 sends all chunks at once, model 2 sends one a request, model 3 keeps \
             {} requests ahead. With libzmq on the receiving side the program is the same, whatever serves. Times are of the \
             receiver's whole process, its start included.",
            size_text(size),
            receivers::AHEAD
        ),
        peer: LIBZMQ.to_owned(),
        layout: Layout::Full,
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let faster =
        |text, least, names| rows.compared(text, Bound::AtLeast(least), names, |row, peer| row.times_faster(peer));
    vec![
        faster("a stock client with 1 MiB chunks, times faster than libzmq's model 3", 1.8, (STOCK, LIBZMQ, "")),
        rows.compared("the server's CPU there, of libzmq's", Bound::AtMost(0.2), (STOCK, LIBZMQ, ""), |row, peer| {
            peer.times_less(row, |sample| sample.server_cpu_seconds)
        }),
        faster("our own receiver, times faster than libzmq's model 3", 2.2, (OURS, LIBZMQ, "")),
        faster("our own receiver's rate, of raw sendfile's", 0.9, (OURS, RAW, "")),
    ]
}
