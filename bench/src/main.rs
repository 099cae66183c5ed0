//! Measures Towpath beside what people use today, and writes the report: docs/benchmarks.md and its plots.
//!
//! Each table is a series of its own, in which all variants run in turn. How a run is measured is in [`transfer`] and [`process`]; the
//! programs that we are compared with are in `bench/peers`.

mod brokers;
mod cells;
mod ends;
mod exchange;
mod folder;
mod keys;
mod machine;
mod operator;
mod plot;
mod process;
mod programs;
mod receivers;
mod report;
mod seed;
mod series;
mod servers;
mod stores;
mod tables;
mod transfer;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;

use folder::Folder;
use programs::{Programs, workspace};
use tables::TableId;

/// Rounds of a series where nothing else is said.
const ROUNDS: usize = 5;
const QUICK_ROUNDS: usize = 2;
const SIZE: u64 = 1 << 30;
const QUICK_SIZE: u64 = 128 << 20;
/// The order of the runs is shuffled, but the same each time.
const SEED: u64 = 20_261_121;

/// Measure Towpath beside its peers.
#[derive(Parser)]
#[command(name = "bench")]
struct Options {
    /// The tables to measure; all of them if none is named
    #[arg(value_enum)]
    tables: Vec<TableId>,
    /// Counted runs of each variant
    #[arg(long, value_name = "N")]
    runs: Option<usize>,
    /// Ends each table with the last round that fits into this time, in minutes
    #[arg(long, value_name = "MINUTES")]
    limit: Option<u64>,
    /// The size of the large file, in bytes
    #[arg(long, value_name = "BYTES")]
    size: Option<u64>,
    /// Small files and two runs: to see that everything works, not to measure
    #[arg(long)]
    quick: bool,
    /// Only variants whose name contains TEXT, to see one without its peers; wants --out
    #[arg(long, value_name = "TEXT", requires = "out")]
    only: Option<String>,
    /// Where results, report and plots go. By default the results of a full run go to bench/results and the report to docs, and
    /// those of a quick run to bench/results/quick
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Where the temporary files go
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// A tow to measure instead of building one
    #[arg(long, value_name = "PROGRAM")]
    tow: Option<PathBuf>,
    /// Measure nothing; write the report from the results that are there
    #[arg(long)]
    report_only: bool,
}

/// State that all tables need.
pub struct Bench {
    programs: Programs,
    folder: Folder,
    rounds: usize,
    limit: Duration,
    size: u64,
    quick: bool,
    only: Option<String>,
}

impl Bench {
    /// So many requests, or a few of them where a run need not measure anything.
    fn requests(&self, full: u64) -> u64 {
        if self.quick { (full / 20).max(100) } else { full }
    }

    /// A command line without this machine's folders and ports.
    fn anonymous(&self, command: &str) -> String {
        command
            .replace(&*self.folder.path().to_string_lossy(), "DIR")
            .replace(&format!("{}/", programs::workspace().display()), "")
            .replace("127.0.0.1:0/", "127.0.0.1:PORT/")
            .replace("127.0.0.1:0 --", "127.0.0.1:PORT --")
            .replace("--port 0 ", "--port PORT ")
            .replace("connect 0 ", "connect PORT ")
    }
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<()> {
    let (results, docs) = match (&options.out, options.quick) {
        (Some(out), _) => (out.join("results"), out.clone()),
        (None, true) => (workspace().join("bench/results/quick"), workspace().join("bench/results/quick")),
        (None, false) => (workspace().join("bench/results"), workspace().join("docs")),
    };
    if !options.report_only {
        measure(&options, &results)?;
    }
    report::write(&results, &docs).context("writing the report")
}

fn measure(options: &Options, results: &std::path::Path) -> Result<()> {
    let scratch = options.scratch.clone().unwrap_or_else(|| workspace().join("target"));
    let bench = Bench {
        programs: Programs::new(options.tow.clone()),
        folder: Folder::create(&scratch)?,
        rounds: options.runs.unwrap_or(if options.quick { QUICK_ROUNDS } else { ROUNDS }),
        limit: options.limit.map_or(Duration::MAX, |minutes| Duration::from_secs(minutes.saturating_mul(60))),
        size: options.size.unwrap_or(if options.quick { QUICK_SIZE } else { SIZE }),
        quick: options.quick,
        only: options.only.clone(),
    };
    std::fs::create_dir_all(results)?;
    let chosen = if options.tables.is_empty() { TableId::ALL.to_vec() } else { options.tables.clone() };
    for id in chosen {
        eprintln!("bench: {}", id.name());
        let table = tables::measure(&bench, id, SEED)?;
        let json = serde_json::to_vec_pretty(&table)?;
        std::fs::write(results.join(format!("{}.json", id.name())), json)?;
    }
    Ok(())
}
