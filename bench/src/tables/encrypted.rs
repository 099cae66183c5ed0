//! One large file, encrypted: by CURVE with our ends and libzmq's, and with what people use otherwise.

use std::path::Path;

use anyhow::Result;

use super::{Bound, Content, Layout, Plan, Rows, Target, size_text, variant};
use crate::Bench;
use crate::folder::keep;
use crate::keys::Keys;
use crate::receivers::{self, Asking};
use crate::series::{Kind, Row, Variant};
use crate::servers;
use crate::transfer::Transfer;

const DISCARDED: &str = "discarded";
const TO_DISK: &str = "to disk";
const CLIENTS: &str = "100 clients";

const OURS: &str = "tow serve to tow get --no-verify";
const VERIFIED: &str = "tow serve to tow get";
const PLAIN: &str = "tow serve to tow get --no-verify, without keys";
const STOCK: &str = "tow serve to libzmq, 1 MiB a chunk";
const LIBZMQ: &str = "libzmq to libzmq, 1 MiB a chunk";
const LIBZMQ_SMALL: &str = "libzmq to libzmq, 250,000 bytes a chunk";
const NGINX: &str = "nginx to curl, TLS 1.3";
const RSYNC: &str = "rsync over ssh";

const MIB: u64 = 1 << 20;
const MANY: u64 = 100;

pub fn plan(bench: &Bench) -> Result<Plan<'_>> {
    let size = bench.size;
    let source: &Path = keep(bench.folder.source("large", size)?);
    let to: &Path = keep(bench.folder.empty_destination()?);
    let keys: &Keys = keep(Keys::make(&bench.programs, bench.folder.path())?);
    let programs = &bench.programs;
    let root = bench.folder.path();
    let asking = |chunk_bytes| Asking { model: 3, chunk_bytes, clients: 1 };
    let mut variants = Vec::new();
    for (group, file) in [(DISCARDED, None), (TO_DISK, Some(to))] {
        let mut rows = Vec::new();
        for (name, options) in [(OURS, &["--no-verify"][..]), (VERIFIED, &[])] {
            let server = move || servers::tow_encrypted(programs, source, keys);
            let receiver = move |port| receivers::tow_encrypted(programs, port, "large", file, options, keys);
            rows.push((Kind::Ours, name, Transfer::new(bench, size, server, receiver)));
        }
        let server = move || servers::tow(programs, source);
        let receiver = move |port| receivers::tow(programs, port, "large", file, &["--no-verify"]);
        rows.push((Kind::Ours, PLAIN, Transfer::new(bench, size, server, receiver)));
        let server = move || servers::tow_encrypted(programs, source, keys);
        let receiver = move |port| receivers::libzmq_encrypted(programs, port, size, asking(MIB), file, keys);
        rows.push((Kind::Ours, STOCK, Transfer::new(bench, size, server, receiver)));
        for (name, chunk_bytes) in [(LIBZMQ, MIB), (LIBZMQ_SMALL, 250_000)] {
            let server = move || servers::libzmq_encrypted(programs, chunk_bytes, source, keys);
            let receiver =
                move |port| receivers::libzmq_encrypted(programs, port, size, asking(chunk_bytes), file, keys);
            rows.push((Kind::Peer, name, Transfer::new(bench, size, server, receiver)));
        }
        let server = move || servers::nginx_encrypted(programs, root, root, keys);
        let place = file.unwrap_or_else(|| Path::new("/dev/null"));
        let receiver = move |port| receivers::curl_encrypted(programs, port, "large", place, keys);
        rows.push((Kind::Peer, NGINX, Transfer::new(bench, size, server, receiver)));
        if let Some(to) = file {
            let server = move || servers::ssh(programs, keys);
            let receiver = move |port| receivers::rsync_ssh(programs, port, source, to, keys);
            rows.push((Kind::Peer, RSYNC, Transfer::new(bench, size, server, receiver)));
        }
        for (kind, name, transfer) in rows {
            let transfer = if file.is_some() { transfer.to(to, source) } else { transfer };
            variants.push(variant(kind, name, group, transfer));
        }
    }
    variants.extend(with_many(bench, keys)?);
    for variant in &mut variants {
        variant.how = variant.how.replace(&keys.public, "PUBLIC_KEY").replace(&keys.secret, "SECRET_KEY");
    }
    Ok(Plan { content: content(size), variants, targets })
}

/// Many clients, of which each gets a part.
fn with_many<'a>(bench: &'a Bench, keys: &'static Keys) -> Result<Vec<Variant<'a>>> {
    let size = bench.size / MANY;
    let source: &Path = keep(bench.folder.source("part", size)?);
    let programs = &bench.programs;
    let asking = Asking { model: 3, chunk_bytes: MIB, clients: MANY };
    let receiver = move |port| receivers::libzmq_encrypted(programs, port, size, asking, None, keys);
    let ours = move || servers::tow_encrypted(programs, source, keys);
    let libzmq = move || servers::libzmq_encrypted(programs, MIB, source, keys);
    Ok(vec![
        variant(Kind::Ours, STOCK, CLIENTS, Transfer::new(bench, size * MANY, ours, receiver)),
        variant(Kind::Peer, LIBZMQ, CLIENTS, Transfer::new(bench, size * MANY, libzmq, receiver)),
    ])
}

fn content(size: u64) -> Content {
    Content {
        title: "Encrypted".to_owned(),
        about: format!(
            "One file of {}, dropped by its receiver or written to a new file, and a hundred receivers in one process that get a hundredth \
             each. CURVE's cipher is XSalsa20-Poly1305; TLS and ssh choose AES-256-GCM or ChaCha20-Poly1305 themselves. `tow get` verifies \
             against the file's digest, which the server computes meanwhile, unless the row says otherwise. All receivers on libzmq \
             keep {} requests ahead.",
            size_text(size),
            receivers::AHEAD
        ),
        peer: LIBZMQ.to_owned(),
        layout: Layout::Full,
    }
}

/// Processor time of both sides.
fn cpu_seconds(row: &Row) -> Option<f64> {
    Some(row.server_cpu()? + row.receiver_cpu()?)
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let of = |text, bound, name, group, figure: fn(&Row) -> Option<f64>| {
        rows.compared(text, bound, (name, name, group), move |row, _| figure(row))
    };
    vec![
        rows.compared(
            "our ends, times faster than libzmq's",
            Bound::AtLeast(1.4),
            (OURS, LIBZMQ, DISCARDED),
            |row, peer| row.times_faster(peer),
        ),
        of("both of our ends' CPU, s", Bound::AtMost(2.7), OURS, DISCARDED, cpu_seconds),
        of("the server's CPU with a libzmq client, s", Bound::AtMost(1.4), STOCK, DISCARDED, Row::server_cpu),
        of("the server's memory with 100 clients, MiB", Bound::AtMost(50.0), STOCK, CLIENTS, |row| {
            Some(row.server_peak()? / f64::from(1 << 20))
        }),
    ]
}
