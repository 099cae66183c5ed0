//! The report: docs/benchmarks.md and its plots, from the results that are there, and what it says already of other tables.

mod machines;
mod previous;
mod rates;

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use previous::Previous;

use crate::machine::Machine;
use crate::plot::{self, Bar, Line, Measure, Tone};
use crate::series::{Kind, Row};
use crate::tables::{Bound, Figure, Layout, Table, TableId, Target};

const INTRODUCTION: &str = "\
# Benchmarks

Written by `cargo xtask bench`; don't edit. Each table is one series: all variants run in turn, in a newly shuffled order in each round. The
first round isn't counted; in it, what arrived is compared with what was sent. Ratios are medians of the ratios within a round. Only ratios
are comparable: absolute figures of a shared or virtual machine drift.
[Performance](internals/performance.md) says where the time goes, and what would make it faster.

- *s* is the wall time of the receiver's process, from its start to its end, unless a table says otherwise. *range* is the fastest and the
  slowest run.
- *CPU* is user and system time of a whole process: of the server from when it was ready, of the receiver from its start. *Memory* is the
  server's highest resident size in any run (VmHWM), including pages that it maps.
- Each run has a new server. Sources are in the page cache; all sockets are on loopback.
- Before a receiver writes to disk, and before requests are counted (except where a broker is killed), as much memory as that needs is used
  and freed: the host of a virtual machine may have taken idle memory away.
- Our server sets the congestion control of its sockets where the path is local. The other servers use the system's default; *raw sendfile* is
  shown with both where that matters.
- Where requests are counted, the time is the client's own, from its first request to the last reply, after one uncounted request that shows
  that the way is open. *CPU* is microseconds per request of the whole process on each side. Each reply is matched with its request: a run
  with a missing or duplicate reply has failed. Slow peers get fewer requests.
";

/// A table of the report.
enum Entry {
    Measured(Box<Table>),
    /// As an earlier report has it.
    Kept(TableId),
}

/// Writes the report on all results in a folder. Of tables that have none there, it keeps what it says already.
pub fn write(results: &Path, docs: &Path) -> Result<()> {
    let report = docs.join("benchmarks.md");
    let previous = Previous::read(&report);
    let mut entries = Vec::new();
    for id in TableId::ALL {
        let path = results.join(format!("{}.json", id.name()));
        if let Ok(json) = fs::read(&path) {
            let table = serde_json::from_slice(&json).with_context(|| path.display().to_string())?;
            entries.push(Entry::Measured(Box::new(table)));
        } else if previous.table(id.name(), 0).is_some() {
            entries.push(Entry::Kept(id));
        }
    }
    let plots = docs.join("plots");
    fs::create_dir_all(&plots)?;
    let machine = described_machine(&entries, &previous);
    let mut text = format!("{INTRODUCTION}{machine}");
    targets(&mut text, &entries, &previous);
    for (index, entry) in entries.iter().enumerate() {
        match entry {
            Entry::Measured(table) => {
                section(&mut text, index + 1, table, previous.table(&table.id, 0).as_deref(), &plots)?;
            }
            Entry::Kept(id) => text.push_str(&previous.table(id.name(), index + 1).unwrap_or_default()),
        }
    }
    fs::write(&report, text)?;
    eprintln!("bench: wrote {}", report.display());
    Ok(())
}

/// The machine of the tables that are kept, or else that of the last one.
fn described_machine(entries: &[Entry], previous: &Previous) -> String {
    let is_kept = |entry: &Entry| matches!(entry, Entry::Kept(_));
    if let Some(machine) = previous.machine().filter(|_| entries.iter().any(is_kept)) {
        return machine.to_owned();
    }
    let mut tables: Vec<&Table> = Vec::new();
    for entry in entries {
        if let Entry::Measured(table) = entry {
            tables.push(table);
        }
    }
    let Some(machine) = tables.last().map(|table| &table.machine) else {
        return String::new();
    };
    let versions: Vec<String> =
        versions(&tables).into_iter().map(|(name, version)| format!("| {name} | {version} |\n")).collect();
    format!(
        "\n## The machine\n\n| | |\n|---|---|\n{}| TCP congestion control by default | {} |\n{}",
        system(machine),
        machine.congestion,
        versions.concat()
    )
}

/// The properties that distinguish machines.
fn system(machine: &Machine) -> String {
    format!(
        "| processor | {}, {} cores |\n| memory | {} GiB |\n| kernel | {} |\n| disk | {} |\n",
        machine.processor, machine.cores, machine.memory_gib, machine.kernel, machine.disk
    )
}

/// Versions that the tables were measured with; where they differ, the last one.
fn versions(tables: &[&Table]) -> Vec<(String, String)> {
    let mut versions: Vec<(String, String)> = Vec::new();
    for (name, version) in tables.iter().flat_map(|table| &table.machine.versions) {
        match versions.iter_mut().find(|(known, _)| known == name) {
            Some(known) => known.1.clone_from(version),
            None => versions.push((name.clone(), version.clone())),
        }
    }
    versions
}

fn targets(text: &mut String, entries: &[Entry], previous: &Previous) {
    let mut rows = String::new();
    for entry in entries {
        match entry {
            Entry::Measured(table) => table.targets.iter().for_each(|target| rows.push_str(&target_row(table, target))),
            Entry::Kept(id) => previous.targets(id.name()).for_each(|row| rows.extend([row, "\n"])),
        }
    }
    if !rows.is_empty() {
        let _ = write!(text, "\n## Targets\n\n| table | | target | measured | met |\n|---|---|---|---|---|\n{rows}");
    }
}

fn target_row(table: &Table, target: &Target) -> String {
    let bound = match target.bound {
        Bound::AtLeast(least) => format!("at least {least}"),
        Bound::AtMost(most) => format!("at most {most}"),
    };
    let measured = target.measured.map_or("not measured".to_owned(), |value| format!("{value:.2}"));
    let met = match target.met() {
        Some(true) => "yes",
        Some(false) => "**no**",
        None => "",
    };
    format!("| {} | {} | {bound} | {measured} | {met} |\n", table.id, target.text)
}

fn section(text: &mut String, number: usize, table: &Table, previous: Option<&str>, plots: &Path) -> Result<()> {
    let Table { content, .. } = table;
    let _ = write!(text, "\n## {number}. {}\n\n{}\n\n", content.title, content.about);
    let quick = if table.quick { " **A quick run, to see that it works: not a measurement.**" } else { "" };
    // Figures of a run that shared the cores are no use to anybody, but ratios may be.
    let is_busy = table.load > 1.5 * table.machine.cores as f64;
    let busy = if is_busy { " **The machine was busy with other work: to be measured again.**" } else { "" };
    let _ = write!(
        text,
        "{} rounds on {}, in {:.0} s, with a load of {:.1} before it. Machine: {}.{busy}{quick} Compared with: *{}*.\n\n",
        table.rounds,
        table.date,
        table.seconds,
        table.load,
        table.machine.system(),
        content.peer
    );
    let plots_of_table = match &content.layout {
        Layout::Full => full(text, table),
        Layout::Rates => rates::rates(text, table),
        Layout::Pauses => rates::pauses(text, table),
        Layout::Costs => rates::costs(text, table),
        Layout::Grid { groups, figures, log_y } => grid(text, table, groups, figures, *log_y),
    };
    if TableId::ON_EACH_MACHINE.iter().any(|id| id.name() == table.id) {
        machines::beside(text, table, previous);
    }
    text.push('\n');
    for (name, title, svg) in plots_of_table {
        fs::write(plots.join(format!("{name}.svg")), svg)?;
        let _ = writeln!(text, "![{title}](plots/{name}.svg)\n");
    }
    not_run(text, table);
    commands(text, table);
    Ok(())
}

/// A plot's file name, title and contents.
type Plot = (String, String, String);

/// The file of a plot of a table's group.
fn plot_name(table: &Table, group: &str) -> String {
    let name = [table.id.as_str(), group].join("-").replace([' ', ',', ':'], "-").replace("--", "-");
    name.trim_end_matches('-').to_owned()
}

/// A column that a table has if one of its rows has something for it.
type More = (&'static str, fn(&Row) -> Option<String>);

const MORE: [More; 3] = [
    ("wire MB", |row| Some(format!("{:.2}", row.wire_bytes()? / 1e6))),
    ("CPU server: of it the store", |row| Some(format!("{:.3}", row.store_cpu()?))),
    ("GETs a piece", |row| Some(format!("{:.2}", row.gets_per_piece()?))),
];

/// A line for each row; a table and a plot for each group where there are several.
fn full(text: &mut String, table: &Table) -> Vec<Plot> {
    let mut plots = Vec::new();
    for group in groups(table) {
        if table.rows.iter().any(|row| row.group == group && row.per_second().is_some()) {
            plots.push(rates::rates_of(text, table, &group));
            continue;
        }
        if !group.is_empty() {
            let _ = write!(text, "**{group}**\n\n");
        }
        let rows = || table.rows.iter().filter(|row| row.group == group && row.not_run.is_none());
        let more: Vec<&More> = MORE.iter().filter(|(_, cell)| rows().any(|row| cell(row).is_some())).collect();
        let headings: String = more.iter().map(|(heading, _)| format!(" {heading} |")).collect();
        let _ = writeln!(
            text,
            "| | s | range | MB/s | times faster | CPU server | CPU receiver | memory MiB |{headings}\n|---|---|---|---|---|---|---|---|{}",
            "---|".repeat(more.len())
        );
        let peer = rows().find(|row| row.name == table.content.peer);
        for row in rows() {
            full_line(text, row, peer, &more);
        }
        text.push('\n');
        let title = [table.content.title.as_str(), &group].join(": ");
        let bars = rows().filter_map(|row| bar(row, peer)).collect();
        let title = title.trim_end_matches(": ").to_owned();
        let svg = plot::bars(&title, "milliseconds", Measure::Time, bars);
        plots.push((plot_name(table, &group), title, svg));
    }
    plots
}

fn full_line(text: &mut String, row: &Row, peer: Option<&Row>, more: &[&More]) {
    let (Some(seconds), Some((least, most)), Some(rate)) = (row.seconds(), row.spread(), row.rate()) else {
        return;
    };
    let bold = if row.kind == Kind::Ours { "**" } else { "" };
    let faster = peer.and_then(|peer| row.times_faster(peer)).map_or(String::new(), |ratio| format!("{ratio:.2}"));
    let cpu = |seconds: Option<f64>| seconds.map_or(String::new(), |seconds| format!("{seconds:.3}"));
    let memory = row.server_peak().map_or(String::new(), |bytes| format!("{:.1}", bytes / f64::from(1 << 20)));
    let more: String = more.iter().map(|(_, cell)| format!(" {} |", cell(row).unwrap_or_default())).collect();
    let _ = writeln!(
        text,
        "| {bold}{}{bold} | {seconds:.3} | {least:.3}-{most:.3} | {:.0} | {faster} | {} | {} | {memory} |{more}",
        row.name,
        rate / 1e6,
        cpu(row.server_cpu()),
        cpu(row.receiver_cpu())
    );
}

fn bar(row: &Row, peer: Option<&Row>) -> Option<Bar> {
    let seconds = row.seconds()?;
    let (least, most) = row.spread()?;
    let ratio = peer.and_then(|peer| row.times_faster(peer)).map_or(String::new(), |ratio| format!(" ({ratio:.2}x)"));
    Some(Bar {
        label: row.name.clone(),
        tone: tone(row.kind),
        value: seconds * 1e3,
        range: (least * 1e3, most * 1e3),
        note: format!("{:.0} ms{ratio}", seconds * 1e3),
    })
}

fn tone(kind: Kind) -> Tone {
    match kind {
        Kind::Ours => Tone::Ours,
        Kind::Peer => Tone::Peer,
        Kind::Limit => Tone::Limit,
    }
}

/// The groups side by side, for each figure, and how much faster than the peer each is.
fn grid(text: &mut String, table: &Table, heading: &str, figures: &[Figure], log_y: bool) -> Vec<Plot> {
    let groups = groups(table);
    let names = names(table);
    let find = |name: &str, group: &str| table.rows.iter().find(|row| row.name == name && row.group == group);
    let mut plots = Vec::new();
    for &figure in figures {
        let _ = write!(text, "{}, by {heading}:\n\n", figure.title());
        grid_block(text, &groups, &names, |name, group| {
            find(name, group).and_then(|row| figure.of(row)).map(|value| figure.show(value))
        });
        let lines: Vec<Line> = names
            .iter()
            .map(|(name, kind)| Line {
                label: name.clone(),
                tone: tone(*kind),
                values: groups.iter().map(|group| find(name, group).and_then(|row| figure.of(row))).collect(),
            })
            .collect();
        let title = format!("{}, by {heading}", table.content.title);
        let name = format!("{}-{}", table.id, figure.name());
        let log_y = log_y || figure == Figure::ServerPeakMebibytes;
        plots.push((name, title.clone(), plot::lines(&title, figure.title(), &groups, &lines, log_y)));
    }
    let _ = write!(text, "Times faster than *{}*:\n\n", table.content.peer);
    grid_block(text, &groups, &names, |name, group| {
        let ratio = find(name, group)?.times_faster(find(&table.content.peer, group)?)?;
        Some(format!("{ratio:.2}"))
    });
    if names.iter().any(|(name, _)| table.rows.iter().any(|row| row.name == *name && row.per_second().is_some())) {
        let _ = write!(text, "The slowest and the fastest run, requests a second:\n\n");
        grid_block(text, &groups, &names, |name, group| find(name, group)?.rates().map(rates::range));
        return plots;
    }
    let _ = write!(text, "The fastest and the slowest run, ms:\n\n");
    grid_block(text, &groups, &names, |name, group| {
        let (least, most) = find(name, group)?.spread()?;
        let digits = if most < 0.01 { 3 } else { 0 };
        Some(format!("{:.digits$}-{:.digits$}", least * 1e3, most * 1e3))
    });
    plots
}

fn grid_block(
    text: &mut String,
    groups: &[String],
    names: &[(String, Kind)],
    cell: impl Fn(&str, &str) -> Option<String>,
) {
    let _ = writeln!(text, "| | {} |\n|---|{}", groups.join(" | "), "---|".repeat(groups.len()));
    for (name, kind) in names {
        let bold = if *kind == Kind::Ours { "**" } else { "" };
        let cells: Vec<String> = groups.iter().map(|group| cell(name, group).unwrap_or_default()).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            let _ = writeln!(text, "| {bold}{name}{bold} | {} |", cells.join(" | "));
        }
    }
    text.push('\n');
}

/// The groups in the order of the rows.
fn groups(table: &Table) -> Vec<String> {
    let mut groups: Vec<String> = Vec::new();
    for row in &table.rows {
        if !groups.contains(&row.group) {
            groups.push(row.group.clone());
        }
    }
    groups
}

/// The names of rows that have a result, in their order.
fn names(table: &Table) -> Vec<(String, Kind)> {
    let mut names: Vec<(String, Kind)> = Vec::new();
    for row in table.rows.iter().filter(|row| row.seconds().is_some()) {
        if !names.iter().any(|(name, _)| *name == row.name) {
            names.push((row.name.clone(), row.kind));
        }
    }
    names
}

impl Figure {
    fn name(self) -> &'static str {
        match self {
            Self::Milliseconds | Self::Microseconds => "time",
            Self::MegabytesPerSecond => "rate",
            Self::ServerPeakMebibytes => "memory",
            Self::ServerCpuMilliseconds => "cpu",
            Self::RequestsPerSecond => "requests",
            Self::BrokerMicroseconds => "broker",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Milliseconds => "Time in ms",
            Self::Microseconds => "Time in us",
            Self::MegabytesPerSecond => "All receivers together, MB/s",
            Self::ServerPeakMebibytes => "The most memory that the server had, MiB",
            Self::ServerCpuMilliseconds => "The server's CPU time in ms",
            Self::RequestsPerSecond => "Requests a second",
            Self::BrokerMicroseconds => "The broker's CPU time for a request in us",
        }
    }

    fn of(self, row: &Row) -> Option<f64> {
        match self {
            Self::Milliseconds => Some(row.seconds()? * 1e3),
            Self::Microseconds => Some(row.seconds()? * 1e6),
            Self::MegabytesPerSecond => Some(row.rate()? / 1e6),
            Self::ServerPeakMebibytes => Some(row.server_peak()? / f64::from(1 << 20)),
            Self::ServerCpuMilliseconds => Some(row.server_cpu()? * 1e3),
            Self::RequestsPerSecond => row.per_second(),
            Self::BrokerMicroseconds => row.broker_us(),
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Self::RequestsPerSecond => rates::rate(value),
            Self::BrokerMicroseconds => rates::microseconds(value),
            _ if value < 100.0 => format!("{value:.1}"),
            _ => format!("{value:.0}"),
        }
    }
}

/// The missing results and the reasons, the groups of a variant that fail alike together.
fn not_run(text: &mut String, table: &Table) {
    let mut missing: Vec<(String, Vec<&str>)> = Vec::new();
    for row in &table.rows {
        let why = match &row.not_run {
            Some(why) => format!("{}: not run: {}", row.name, why.replace('\n', " ")),
            None if row.failures() > 0 => {
                format!("{}: {} of {} runs failed", row.name, row.failures(), row.samples.len())
            }
            None => continue,
        };
        match missing.iter_mut().find(|(known, _)| *known == why) {
            Some((_, groups)) => groups.push(&row.group),
            None => missing.push((why, vec![&row.group])),
        }
    }
    for (why, groups) in missing {
        let groups = groups.join(", ");
        let of = if groups.is_empty() { String::new() } else { format!(" ({groups})") };
        let _ = writeln!(text, "- {why}{of}");
    }
}

fn commands(text: &mut String, table: &Table) {
    text.push_str("\n<details><summary>Commands</summary>\n\n```\n");
    let _ = writeln!(text, "cargo xtask bench {} --runs {}\n", table.id, table.rounds);
    for row in &table.rows {
        let name = [row.name.as_str(), &row.group].join(", ");
        let _ = writeln!(text, "# {}\n{}", name.trim_end_matches(", "), row.how);
    }
    text.push_str("```\n</details>\n");
}
