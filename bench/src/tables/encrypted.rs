//! One large file, encrypted: by CURVE with our ends and libzmq's, and with what people use otherwise. And requests, and PINGs beside large
//! frames.

use std::path::Path;

use anyhow::Result;

use super::{Bound, Content, Layout, Plan, Rows, Target, count_text, size_text, variant};
use crate::Bench;
use crate::brokers::Broker;
use crate::ends::{Ends, Load, Setup};
use crate::exchange::{self, Report};
use crate::folder::keep;
use crate::keys::Keys;
use crate::process::{Server, run, show};
use crate::receivers::{self, Asking};
use crate::series::{Kind, Row, Sample, Variant};
use crate::servers;
use crate::transfer::Transfer;

const DISCARDED: &str = "discarded";
const TO_DISK: &str = "to disk";
const CLIENTS: &str = "100 clients";
const REQUESTS: &str = "numbered requests, 250 B, 1,000 ahead";
const PINGS: &str = "PINGs, each answered while frames of 16 MiB are sent";

const OURS: &str = "tow serve to tow get --no-verify";
const VERIFIED: &str = "tow serve to tow get";
const PLAIN: &str = "tow serve to tow get --no-verify, without keys";
const XSALSA: &str = "tow serve to tow get --no-verify, CURVE's own cipher";
const STOCK: &str = "tow serve to libzmq, 1 MiB a chunk";
const LIBZMQ: &str = "libzmq to libzmq, 1 MiB a chunk";
const LIBZMQ_SMALL: &str = "libzmq to libzmq, 250,000 bytes a chunk";
const NGINX: &str = "nginx to curl, TLS 1.3";
const RSYNC: &str = "rsync over ssh";
const WITH_KEYS: &str = "tow broker, tow call and tow work";
const WITHOUT_KEYS: &str = "tow broker, tow call and tow work, without keys";
const PING: &str = "tow serve, frames to another peer";

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
        let server = move || servers::tow_without_aes(programs, source, keys);
        let receiver = move |port| receivers::tow_encrypted(programs, port, "large", file, &["--no-verify"], keys);
        rows.push((Kind::Ours, XSALSA, Transfer::new(bench, size, server, receiver)));
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
    let tow = Setup::new(Broker::Tow { journal: false }, Ends::Tow).workers(1000);
    for (name, setup) in [(WITH_KEYS, tow.keys(keys)), (WITHOUT_KEYS, tow)] {
        let load = Load { requests: bench.requests(1_000_000), ahead: 1000, size: 250 };
        variants.push(exchange::variant(bench, Kind::Ours, name, REQUESTS, setup, load));
    }
    for (name, options) in [
        (PING, &[][..]),
        ("tow serve, frames to another peer, CURVE's own cipher", &["--without-aes"]),
        ("tow serve, frames to the same peer", &["--same"]),
        ("tow serve, frames to the same peer, CURVE's own cipher", &["--same", "--without-aes"]),
    ] {
        variants.push(pings(bench, name, source, keys, options));
    }
    for variant in &mut variants {
        variant.how = variant.how.replace(&keys.public, "PUBLIC_KEY").replace(&keys.secret, "SECRET_KEY");
    }
    Ok(Plan { content: content(size, bench.requests(1_000_000)), variants, targets })
}

/// How soon PINGs are answered while large frames are sent.
fn pings<'a>(
    bench: &'a Bench,
    name: &str,
    source: &'static Path,
    keys: &'static Keys,
    options: &'static [&'static str],
) -> Variant<'a> {
    let (programs, logs, count) = (&bench.programs, bench.folder.path(), bench.requests(1_000));
    let command = move |port| receivers::pings(programs, port, bench.size, count, keys, options);
    let server = move || servers::tow_encrypted(programs, source, keys);
    let shown = [server().map(|spec| show(&spec.command)), command(0).map(|command| show(&command))];
    let shown = shown.map(|shown| shown.unwrap_or_else(|why| format!("({why:#})")));
    let run = move |_| {
        let server = Server::start(server()?, logs)?;
        let finished = run(command(server.port)?, logs)?;
        let usage = server.stop()?;
        let report = Report::read(&finished.stdout, count)?;
        Ok(vec![Sample {
            seconds: report.seconds,
            requests: report.replies,
            server_cpu_seconds: Some(usage.cpu_seconds),
            receiver_cpu_seconds: Some(finished.cpu_seconds),
            server_peak_bytes: usage.peak_bytes,
            p50_us: report.p50_us,
            p99_us: report.p99_us,
            ..Sample::default()
        }])
    };
    Variant {
        name: name.to_owned(),
        kind: Kind::Ours,
        how: bench.anonymous(&shown.join(" ; ")),
        groups: vec![PINGS.to_owned()],
        run: Box::new(run),
    }
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

fn content(size: u64, requests: u64) -> Content {
    Content {
        title: "Encrypted".to_owned(),
        about: format!(
            "One file of {}, dropped by its receiver or written to a new file, and a hundred receivers in one process that get a hundredth \
             each. CURVE's own cipher is XSalsa20-Poly1305; two ends of ours agree on AES-256-GCM. TLS and ssh can choose that too, or ChaCha20-Poly1305. `tow get` verifies \
             against the file's digest, which the server computes meanwhile, unless the row says otherwise. All receivers on libzmq \
             keep {} requests ahead. Then {} requests of a client on our library; and PINGs, one every few milliseconds, while \
             the same process gets pieces of 16 MiB over another connection or the same one: p50 and p99 are the times to the PONG. On the same connection \
             it comes behind the frame that is being sent.",
            size_text(size),
            receivers::AHEAD,
            count_text(requests)
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
            Bound::AtLeast(2.0),
            (OURS, LIBZMQ, DISCARDED),
            |row, peer| row.times_faster(peer),
        ),
        of("both of our ends' CPU, s", Bound::AtMost(1.4), OURS, DISCARDED, cpu_seconds),
        of("the same with CURVE's own cipher, s", Bound::AtMost(2.7), XSALSA, DISCARDED, cpu_seconds),
        of("the server's CPU with a libzmq client, s", Bound::AtMost(1.4), STOCK, DISCARDED, Row::server_cpu),
        of("the server's memory with 100 clients, MiB", Bound::AtMost(50.0), STOCK, CLIENTS, |row| {
            Some(row.server_peak()? / f64::from(1 << 20))
        }),
        of(
            "a PING's answer while another peer gets frames of 16 MiB, p99, ms",
            Bound::AtMost(5.0),
            PING,
            PINGS,
            |row| Some(row.median_of(|sample| sample.p99_us)? / 1e3),
        ),
    ]
}
