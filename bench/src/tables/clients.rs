//! Many receivers at once: the aggregate rate, and the server's memory.

use anyhow::Result;

use super::{Bound, Content, Figure, Layout, Plan, Rows, Target, size_text, variant};
use crate::Bench;
use crate::folder::keep;
use crate::receivers::{self, Asking};
use crate::series::{Kind, Variant};
use crate::servers;
use crate::transfer::Transfer;

const COUNTS: [u64; 4] = [1, 10, 100, 1000];
/// All receivers together get as much as this many large files, where there is more than one.
const LARGE_FILES: u64 = 4;

const OURS: &str = "tow serve to our receivers";
const OURS_STOCK: &str = "tow serve to libzmq receivers, 1 MiB";
const LIBZMQ: &str = "libzmq to libzmq receivers, 250,000 bytes";
const NGINX: &str = "nginx to our receivers";

pub fn plan(bench: &Bench) -> Result<Plan<'_>> {
    let mut variants = Vec::new();
    for count in COUNTS {
        variants.extend(with_clients(bench, count)?);
    }
    Ok(Plan { content: content(bench.size), variants, targets })
}

fn with_clients(bench: &Bench, count: u64) -> Result<Vec<Variant<'_>>> {
    let programs = &bench.programs;
    let size = if count == 1 { bench.size } else { bench.size * LARGE_FILES / count };
    let total = size * count;
    let name = keep(format!("file-{size}"));
    let source = keep(bench.folder.source(name, size)?);
    let group = count.to_string();
    let clients = keep(group.clone());
    let root = bench.folder.path();
    let ours = move |chunk: &'static str| {
        move |port| receivers::dropping(programs, "zmtp", port, size, &["--clients", clients, "--chunk", chunk])
    };
    let stock = move |chunk_bytes| {
        let asking = Asking { model: 3, chunk_bytes, clients: count };
        move |port| receivers::libzmq(programs, port, size, asking, None)
    };
    let tow = move || servers::tow(programs, source);
    let libzmq = move || servers::libzmq(programs, 250_000, source);
    Ok(vec![
        variant(
            Kind::Limit,
            "raw sendfile, a thread a receiver",
            &group,
            Transfer::new(
                bench,
                total,
                move || servers::raw(programs, &["--how", "sendfile", "--congestion", "cubic"], &[source]),
                move |port| receivers::dropping(programs, "raw", port, size, &["--clients", clients]),
            ),
        ),
        variant(Kind::Ours, OURS, &group, Transfer::new(bench, total, tow, ours("1048576"))),
        variant(Kind::Ours, OURS_STOCK, &group, Transfer::new(bench, total, tow, stock(1 << 20))),
        variant(Kind::Peer, LIBZMQ, &group, Transfer::new(bench, total, libzmq, stock(250_000))),
        variant(
            Kind::Peer,
            "libzmq to our receivers, 250,000 bytes",
            &group,
            Transfer::new(bench, total, libzmq, ours("250000")),
        ),
        variant(
            Kind::Peer,
            NGINX,
            &group,
            Transfer::new(
                bench,
                total,
                move || servers::nginx(programs, root, root),
                move |port| receivers::dropping(programs, "http", port, size, &["--clients", clients, "--path", name]),
            ),
        ),
    ])
}

fn content(size: u64) -> Content {
    Content {
        title: "Many receivers".to_owned(),
        about: format!(
            "One receiver gets {}; 10, 100 and 1000 get {} together, each an equal part. All receivers are in one process: ours in \
             one thread with epoll, speaking ZMTP, HTTP or nothing as the server needs it; libzmq's with a socket each. What arrives is \
             dropped. Requests are sent {} ahead.",
            size_text(size),
            size_text(size * LARGE_FILES),
            receivers::AHEAD
        ),
        peer: LIBZMQ.to_owned(),
        layout: Layout::Grid {
            groups: "receivers".to_owned(),
            figures: vec![Figure::MegabytesPerSecond, Figure::ServerPeakMebibytes],
            log_y: false,
        },
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let faster = |text, least, peer| {
        rows.compared(text, Bound::AtLeast(least), (OURS, peer, "100"), |row, peer| row.times_faster(peer))
    };
    let memory = |text, most, group| {
        rows.compared(text, Bound::AtMost(most), (OURS, OURS, group), |row, _| {
            Some(row.server_peak()? / f64::from(1 << 20))
        })
    };
    vec![
        faster("100 of our receivers, times faster than libzmq", 2.5, LIBZMQ),
        faster("100 of our receivers, rate of nginx's with the same receivers", 0.95, NGINX),
        memory("the server's memory with 100 receivers, MiB", 24.0, "100"),
        memory("the server's memory with 1000 receivers, MiB", 100.0, "1000"),
    ]
}
