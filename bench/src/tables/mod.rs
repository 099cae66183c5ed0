//! The tables of the report, a module each.

mod admin;
mod cell;
mod clients;
mod encrypted;
mod failover;
mod far;
mod follow;
mod journal;
mod majordomo;
mod models;
mod one_connection;
mod pool;
mod python;
mod python_files;
mod relayed;
mod scale;
mod slow_disk;
mod stores;
mod throughput;
mod to_file;
mod tree;
mod tripping;
mod zero_copy;

use std::time::Instant;

use anyhow::Result;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::Bench;
use crate::machine::{self, Machine};
use crate::series::{self, Kind, Row, Variant};
use crate::transfer::Transfer;

/// A table's name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TableId {
    /// The three models of transferring a file, one large file to a receiver that drops it
    Models,
    /// One large file to disk
    ToFile,
    /// One large file, encrypted
    Encrypted,
    /// 1 to 1000 receivers
    Clients,
    /// The traditional copy against zero copy, by size
    ZeroCopy,
    /// Many files over one connection
    OneConnection,
    /// Trees of small files to disk
    Tree,
    /// Directories that are kept as another one is
    Follow,
    /// Somebody reads a slow disk beside others who get what is in memory
    SlowDisk,
    /// Links to far machines, made here
    Far,
    /// Round trips through a broker that does nothing, and through one that does
    Tripping,
    /// The same service behind different Majordomo brokers
    Majordomo,
    /// A broker's throughput with many requests in flight, and the cost of one
    Throughput,
    /// The cost of a request with 1 to 10,000 services
    Services,
    /// The cost of a request with 1 to 10,000 workers
    Workers,
    /// The cost of a request with 1 to 1000 clients
    Callers,
    /// A pool of workers that take a while
    Pool,
    /// Requests that are on the disk before they are confirmed
    Journal,
    /// Requests in a log on three servers, before they are confirmed
    Cell,
    /// The outage that a client notices when its broker is killed
    Failover,
    /// The cost of an operator's view for a server
    Admin,
    /// Requests from programs in Python, and workers in it
    Python,
    /// Files received by programs in Python
    PythonFiles,
    /// Connections that a standby of a cell relays
    Relayed,
    /// Objects of a store of S3, through a cache and without it
    Stores,
}

impl TableId {
    pub const ALL: [Self; 25] = [
        Self::Models,
        Self::ToFile,
        Self::Encrypted,
        Self::Clients,
        Self::ZeroCopy,
        Self::OneConnection,
        Self::Tree,
        Self::Follow,
        Self::SlowDisk,
        Self::Far,
        Self::Tripping,
        Self::Majordomo,
        Self::Throughput,
        Self::Services,
        Self::Workers,
        Self::Callers,
        Self::Pool,
        Self::Journal,
        Self::Cell,
        Self::Failover,
        Self::Admin,
        Self::Python,
        Self::PythonFiles,
        Self::Relayed,
        Self::Stores,
    ];

    /// Tables of which the report has the figures of several machines: how they compare depends on the processor.
    pub const ON_EACH_MACHINE: [Self; 6] =
        [Self::Models, Self::ToFile, Self::Tree, Self::Tripping, Self::Majordomo, Self::Throughput];

    pub fn name(self) -> &'static str {
        match self {
            Self::Models => "models",
            Self::ToFile => "to-file",
            Self::Encrypted => "encrypted",
            Self::Clients => "clients",
            Self::ZeroCopy => "zero-copy",
            Self::OneConnection => "one-connection",
            Self::Tree => "tree",
            Self::Follow => "follow",
            Self::SlowDisk => "slow-disk",
            Self::Far => "far",
            Self::Tripping => "tripping",
            Self::Majordomo => "majordomo",
            Self::Throughput => "throughput",
            Self::Services => "services",
            Self::Workers => "workers",
            Self::Callers => "callers",
            Self::Pool => "pool",
            Self::Journal => "journal",
            Self::Cell => "cell",
            Self::Failover => "failover",
            Self::Admin => "admin",
            Self::Python => "python",
            Self::PythonFiles => "python-files",
            Self::Relayed => "relayed",
            Self::Stores => "stores",
        }
    }
}

/// How a table is shown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Layout {
    /// A line for each row, with all figures.
    Full,
    /// A line for each row, with all figures of requests.
    Rates,
    /// A line for each row: how long nothing was answered.
    Pauses,
    /// A table for each group, with the figure that the group is about.
    Costs,
    /// The groups side by side, a block for each figure; the text heads the groups.
    Grid { groups: String, figures: Vec<Figure>, log_y: bool },
}

/// A figure of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Figure {
    Milliseconds,
    Microseconds,
    MegabytesPerSecond,
    ServerPeakMebibytes,
    ServerCpuMilliseconds,
    RequestsPerSecond,
    BrokerMicroseconds,
}

/// A goal and the measured result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Target {
    pub text: String,
    pub bound: Bound,
    pub measured: Option<f64>,
}

/// The bound of a target, inclusive.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Target {
    /// `None`: it was not measured.
    pub fn met(&self) -> Option<bool> {
        let measured = self.measured?;
        Some(match self.bound {
            Bound::AtLeast(least) => measured >= least,
            Bound::AtMost(most) => measured <= most,
        })
    }
}

/// A measured table with all that the report says about it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Table {
    pub id: String,
    pub date: String,
    pub load: f64,
    pub seconds: f64,
    pub rounds: usize,
    pub quick: bool,
    pub machine: Machine,
    pub content: Content,
    pub rows: Vec<Row>,
    pub targets: Vec<Target>,
}

/// Description of a table by its module.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Content {
    pub title: String,
    pub about: String,
    /// The row that the others are compared with.
    pub peer: String,
    pub layout: Layout,
}

/// A table before it is measured.
struct Plan<'a> {
    content: Content,
    variants: Vec<Variant<'a>>,
    targets: fn(&Rows<'_>) -> Vec<Target>,
}

/// Measures a table.
pub fn measure(bench: &Bench, id: TableId, seed: u64) -> Result<Table> {
    let (date, load, begin) = (machine::now(), machine::load(), Instant::now());
    let mut plan = match id {
        TableId::Models => models::plan(bench)?,
        TableId::ToFile => to_file::plan(bench)?,
        TableId::Encrypted => encrypted::plan(bench)?,
        TableId::Clients => clients::plan(bench)?,
        TableId::ZeroCopy => zero_copy::plan(bench)?,
        TableId::OneConnection => one_connection::plan(bench)?,
        TableId::Tree => tree::plan(bench)?,
        TableId::Follow => follow::plan(bench),
        TableId::SlowDisk => slow_disk::plan(bench)?,
        TableId::Far => far::plan(bench)?,
        TableId::Tripping => tripping::plan(bench),
        TableId::Majordomo => majordomo::plan(bench),
        TableId::Throughput => throughput::plan(bench),
        TableId::Services => scale::plan(bench, scale::Axis::Services),
        TableId::Workers => scale::plan(bench, scale::Axis::Workers),
        TableId::Callers => scale::plan(bench, scale::Axis::Clients),
        TableId::Pool => pool::plan(bench),
        TableId::Journal => journal::plan(bench),
        TableId::Cell => cell::plan(bench),
        TableId::Failover => failover::plan(bench),
        TableId::Admin => admin::plan(bench)?,
        TableId::Python => python::plan(bench),
        TableId::PythonFiles => python_files::plan(bench)?,
        TableId::Relayed => relayed::plan(bench),
        TableId::Stores => stores::plan(bench)?,
    };
    if let Some(part) = &bench.only {
        plan.variants.retain(|variant| variant.name.contains(part));
    }
    let rows = series::measure(plan.variants, bench.rounds, bench.limit, seed);
    Ok(Table {
        id: id.name().to_owned(),
        date,
        load,
        seconds: begin.elapsed().as_secs_f64(),
        rounds: rows.iter().map(|row| row.samples.len()).max().unwrap_or_default(),
        quick: bench.quick,
        machine: Machine::look(&bench.programs, bench.folder.path()),
        content: plan.content,
        targets: (plan.targets)(&Rows(&rows)),
        rows,
    })
}

/// A table's rows by name.
struct Rows<'a>(&'a [Row]);

impl Rows<'_> {
    fn find(&self, name: &str, group: &str) -> Option<&Row> {
        self.0.iter().find(|row| row.name == name && row.group == group)
    }

    /// A target about how a row compares with another one of the same group.
    fn compared(
        &self,
        text: &str,
        bound: Bound,
        (name, peer, group): (&str, &str, &str),
        ratio: impl Fn(&Row, &Row) -> Option<f64>,
    ) -> Target {
        let rows = self.find(name, group).zip(self.find(peer, group));
        Target { text: text.to_owned(), bound, measured: rows.and_then(|(row, peer)| ratio(row, peer)) }
    }
}

/// A variant of one transfer, in one group.
fn variant<'a>(kind: Kind, name: &str, group: &str, transfer: Transfer<'a>) -> Variant<'a> {
    Variant {
        name: name.to_owned(),
        kind,
        how: transfer.how(),
        groups: vec![group.to_owned()],
        run: Box::new(move |check| Ok(vec![transfer.run(check)?])),
    }
}

/// A whole number with its thousands apart.
fn count_text(count: u64) -> String {
    let digits = count.to_string();
    let mut shown = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// A size in the unit that suits it.
fn size_text(bytes: u64) -> String {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;
    match bytes {
        bytes if bytes % GIB == 0 => format!("{} GiB", bytes / GIB),
        bytes if bytes % MIB == 0 => format!("{} MiB", bytes / MIB),
        bytes if bytes % 1_000_000 == 0 => format!("{} MB", bytes / 1_000_000),
        bytes if bytes % KIB == 0 => format!("{} KiB", bytes / KIB),
        bytes => format!("{bytes} B"),
    }
}
