//! One large file to disk, beside what people use to copy files.

use anyhow::Result;

use super::{Bound, Content, Layout, Plan, Rows, Target, size_text, variant};
use crate::Bench;
use crate::folder::keep;
use crate::receivers::{self, Asking};
use crate::series::Kind;
use crate::servers;
use crate::transfer::Transfer;

const CP: &str = "cp";
const RAW_THREADS: &str = "raw sendfile to a reader and a writer thread";
const RAW_SPLICE: &str = "raw sendfile to splice";
const RAW_VERIFIED: &str = "raw sendfile, both sides hashing";
const RAW_VERIFIED_SPLICE: &str = "raw sendfile to splice, both sides hashing";
const RAW_KNOWN: &str = "raw sendfile, the receiver hashing";
const RAW_KNOWN_SPLICE: &str = "raw sendfile to splice, the receiver hashing";
const UNVERIFIED: &str = "tow get --no-verify";
const VERIFIED: &str = "tow get, verified";
const VERIFIED_KNOWN: &str = "tow get, verified, digest known";
const CURL: &str = "nginx to curl";
const RSYNC: &str = "rsync daemon, --whole-file --inplace";
const RSYNC_NO_DELAY: &str = "rsync daemon, --whole-file --inplace, TCP_NODELAY";
const LIBZMQ: &str = "libzmq, model 3, 250,000 bytes a chunk";

pub fn plan(bench: &Bench) -> Result<Plan<'_>> {
    let size = bench.size;
    let source = keep(bench.folder.source("large", size)?);
    let to = keep(bench.folder.empty_destination()?);
    let programs = &bench.programs;
    let root = bench.folder.path();
    let mut variants = vec![variant(
        Kind::Peer,
        CP,
        "",
        Transfer::local(bench, size, move || {
            let mut command = programs.command("cp")?;
            command.args([source, to]);
            Ok(command)
        })
        .to(to, source),
    )];
    for (name, how) in [(RAW_THREADS, "threads"), (RAW_SPLICE, "splice")] {
        let transfer = Transfer::new(
            bench,
            size,
            move || servers::raw(programs, &["--how", "sendfile", "--congestion", "cubic"], &[source]),
            move |port| receivers::raw_to_file(programs, port, how, to),
        );
        variants.push(variant(Kind::Limit, name, "", transfer.to(to, source)));
    }
    for (name, options, how) in [
        (RAW_VERIFIED, &[][..], "buffers"),
        (RAW_VERIFIED_SPLICE, &[], "splice"),
        (RAW_KNOWN, &["--known"], "buffers"),
        (RAW_KNOWN_SPLICE, &["--known"], "splice"),
    ] {
        let transfer = Transfer::new(
            bench,
            size,
            move || servers::raw_verified(programs, source, options),
            move |port| receivers::raw_verified(programs, port, how, to),
        );
        variants.push(variant(Kind::Limit, name, "", transfer.to(to, source)));
    }
    for (name, options) in [(UNVERIFIED, &["--no-verify"][..]), (VERIFIED, &[])] {
        let transfer = Transfer::new(
            bench,
            size,
            move || servers::tow(programs, source),
            move |port| receivers::tow(programs, port, "large", Some(to), options),
        );
        variants.push(variant(Kind::Ours, name, "", transfer.to(to, source)));
    }
    let remembered = Transfer::new(
        bench,
        size,
        move || servers::tow(programs, source),
        move |port| receivers::tow(programs, port, "large", Some(to), &[]),
    )
    .rehearsed(move |port| receivers::tow_digest(programs, port, "large"));
    variants.push(variant(Kind::Ours, VERIFIED_KNOWN, "", remembered.to(to, source)));
    let curl = Transfer::new(
        bench,
        size,
        move || servers::nginx(programs, root, root),
        move |port| receivers::curl(programs, port, "large", to),
    );
    variants.push(variant(Kind::Peer, CURL, "", curl.to(to, source)));
    for (name, no_delay, options) in [
        (RSYNC, false, &["-t", "--whole-file", "--inplace"][..]),
        (RSYNC_NO_DELAY, true, &["-t", "--whole-file", "--inplace", "--sockopts=TCP_NODELAY"]),
    ] {
        let transfer = Transfer::new(
            bench,
            size,
            move || servers::rsync(programs, root, root, no_delay),
            move |port| receivers::rsync(programs, port, "large", to, options),
        );
        variants.push(variant(Kind::Peer, name, "", transfer.to(to, source)));
    }
    let asking = Asking { model: 3, chunk_bytes: 250_000, clients: 1 };
    let libzmq = Transfer::new(
        bench,
        size,
        move || servers::libzmq(programs, asking.chunk_bytes, source),
        move |port| receivers::libzmq(programs, port, size, asking, Some(to)),
    );
    variants.push(variant(Kind::Peer, LIBZMQ, "", libzmq.to(to, source)));
    let stock = Transfer::new(
        bench,
        size,
        move || servers::tow(programs, source),
        move |port| receivers::libzmq(programs, port, size, asking, Some(to)),
    );
    variants.push(variant(Kind::Ours, "tow serve to libzmq, model 3, 250,000 bytes a chunk", "", stock.to(to, source)));
    Ok(Plan { content: content(size), variants, targets })
}

fn content(size: u64) -> Content {
    Content {
        title: "To a file".to_owned(),
        about: format!(
            "One file of {} from the page cache to a new file on the same disk. `tow get` verifies against the file's BLAKE3 \
             digest: a server that has just started computes it meanwhile, one that has served the file before knows it. Before \
             each run the destination is removed, the disk is idle, and as much memory as the file needs has been used and freed.",
            size_text(size)
        ),
        peer: CP.to_owned(),
        layout: Layout::Full,
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let mut targets: Vec<Target> = [
        ("unverified, wall time of cp's", UNVERIFIED, 1.0),
        ("verified, the server hashing meanwhile, wall time of cp's", VERIFIED, 1.2),
        ("verified, the digest known to the server, wall time of cp's", VERIFIED_KNOWN, 1.2),
    ]
    .into_iter()
    .map(|(text, name, most)| rows.compared(text, Bound::AtMost(most), (name, CP, ""), |row, cp| cp.times_faster(row)))
    .collect();
    for (text, peer) in [
        ("verified, times faster than nginx and curl", CURL),
        ("verified, times faster than the rsync daemon", RSYNC),
        ("verified, times faster than the rsync daemon with TCP_NODELAY", RSYNC_NO_DELAY),
        ("verified, times faster than libzmq's model 3", LIBZMQ),
    ] {
        targets
            .push(rows.compared(text, Bound::AtLeast(1.0), (VERIFIED, peer, ""), |row, peer| row.times_faster(peer)));
    }
    for (text, name, most) in [("unverified", UNVERIFIED, 1.1), ("verified, the digest known", VERIFIED_KNOWN, 1.25)] {
        let of_best = [RAW_THREADS, RAW_SPLICE]
            .into_iter()
            .filter_map(|raw| rows.find(raw, "")?.times_faster(rows.find(name, "")?))
            .reduce(f64::max);
        let text = format!("{text}, wall time of the best raw receiver's");
        targets.push(Target { text, bound: Bound::AtMost(most), measured: of_best });
    }
    targets.push(rows.compared(
        "verified, the server hashing meanwhile, wall time of the raw pair's that hashes",
        Bound::AtMost(1.0),
        (VERIFIED, RAW_VERIFIED, ""),
        |row, raw| raw.times_faster(row),
    ));
    targets
}
