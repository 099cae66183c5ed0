//! Results of a table on several machines, side by side. The report itself keeps the columns of the other machines: a measurement
//! replaces that of the same machine, and leaves the others as they are.

use std::fmt::Write;

use super::{groups, rates};
use crate::series::Row;
use crate::tables::{Layout, Table};

const BEGIN: &str = "**On each machine**, ";

/// The figures of one machine, by the names of rows.
#[derive(Debug, PartialEq, Eq)]
struct Column {
    machine: String,
    /// Not part of what it is known by.
    date: String,
    cells: Vec<(String, String)>,
}

/// Writes the figures of this machine beside those that an earlier section of the same table has of others.
pub fn beside(text: &mut String, table: &Table, previous: Option<&str>) {
    let own = own(table);
    let mut columns = previous.map(parse).unwrap_or_default();
    match columns.iter_mut().find(|column| column.machine == own.machine) {
        Some(column) => *column = own,
        None => columns.push(own),
    }
    let unit = if is_in_seconds(table) { "seconds" } else { "requests a second" };
    let _ = write!(text, "{BEGIN}{unit} (times faster than *{}*):\n\n|", table.content.peer);
    for Column { machine, date, .. } in &columns {
        let _ = write!(text, " | {machine}<br>{date}");
    }
    let _ = write!(text, " |\n|---|{}\n", "---|".repeat(columns.len()));
    let mut names: Vec<&String> = Vec::new();
    for (name, _) in columns.iter().rev().flat_map(|column| &column.cells) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    for name in names {
        let _ = write!(text, "| {name}");
        for column in &columns {
            let cell = column.cells.iter().find(|(known, _)| known == name).map_or("", |(_, cell)| cell);
            let _ = write!(text, " | {cell}");
        }
        text.push_str(" |\n");
    }
    text.push('\n');
}

fn own(table: &Table) -> Column {
    let mut cells = Vec::new();
    for group in groups(table) {
        let rows = || table.rows.iter().filter(|row| row.group == group && row.not_run.is_none());
        let peer = rows().find(|row| row.name == table.content.peer);
        for row in rows() {
            let name = if group.is_empty() { row.name.clone() } else { format!("{group}: {}", row.name) };
            cells.extend(cell(row, peer, is_in_seconds(table)).map(|cell| (name, cell)));
        }
    }
    let date = table.date.split(' ').next().unwrap_or_default().to_owned();
    Column { machine: format!("{}, {} cores", table.machine.processor, table.machine.cores), date, cells }
}

fn is_in_seconds(table: &Table) -> bool {
    matches!(table.content.layout, Layout::Full)
}

fn cell(row: &Row, peer: Option<&Row>, in_seconds: bool) -> Option<String> {
    let figure = if in_seconds { format!("{:.3}", row.seconds()?) } else { rates::rate(row.per_second()?) };
    let ratio = peer.and_then(|peer| row.times_faster(peer)).map_or(String::new(), |ratio| format!(" ({ratio:.2})"));
    Some(format!("{figure}{ratio}"))
}

/// The columns in a section of a report.
fn parse(section: &str) -> Vec<Column> {
    let mut lines =
        section.lines().skip_while(|line| !line.starts_with(BEGIN)).skip(2).take_while(|line| !line.is_empty());
    let column = |heading: &str| {
        let (machine, date) = heading.split_once("<br>").unwrap_or((heading, ""));
        Column { machine: machine.to_owned(), date: date.to_owned(), cells: Vec::new() }
    };
    let mut columns: Vec<Column> =
        lines.next().map(cells).unwrap_or_default().into_iter().skip(1).map(column).collect();
    for line in lines.skip(1) {
        let mut cells = cells(line).into_iter();
        let name = cells.next().unwrap_or_default();
        for (column, cell) in columns.iter_mut().zip(cells).filter(|(_, cell)| !cell.is_empty()) {
            column.cells.push((name.to_owned(), cell.to_owned()));
        }
    }
    columns
}

fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;
    use crate::series::{Kind, Sample};
    use crate::tables::{Content, Layout};

    fn table(processor: &str, date: &str, seconds: [(&str, f64); 2]) -> Table {
        let row = |(name, seconds): (&str, f64)| Row {
            name: name.to_owned(),
            group: String::new(),
            kind: Kind::Ours,
            how: String::new(),
            samples: vec![Some(Sample { seconds, ..Sample::default() })],
            not_run: None,
        };
        Table {
            id: "models".to_owned(),
            date: format!("{date} 10:00 UTC"),
            load: 0.0,
            seconds: 1.0,
            rounds: 1,
            quick: false,
            machine: Machine {
                processor: processor.to_owned(),
                cores: 2,
                memory_gib: 1,
                kernel: String::new(),
                disk: String::new(),
                congestion: String::new(),
                versions: Vec::new(),
            },
            content: Content {
                title: String::new(),
                about: String::new(),
                peer: "cp".to_owned(),
                layout: Layout::Full,
            },
            rows: seconds.map(row).to_vec(),
            targets: Vec::new(),
        }
    }

    fn written(table: &Table, previous: Option<&str>) -> String {
        let mut text = "| | s |\n|---|---|\n| cp | 9 |\n\n".to_owned();
        beside(&mut text, table, previous);
        text.push_str("![plot](plot.svg)\n");
        text
    }

    #[test]
    fn other_machines_keep_their_columns_and_the_same_one_is_replaced() {
        let first = written(&table("A", "2026-01-01", [("cp", 2.0), ("old", 1.0)]), None);
        let both = written(&table("B", "2026-01-02", [("cp", 4.0), ("new", 1.0)]), Some(&first));
        let again = written(&table("A", "2026-01-03", [("cp", 3.0), ("new", 3.0)]), Some(&both));
        assert!(both.contains("| old | 1.000 (2.00) |  |\n") && both.contains("| new |  | 1.000 (4.00) |\n"), "{both}");
        let expected = "\n\n| | A, 2 cores<br>2026-01-03 | B, 2 cores<br>2026-01-02 |\n|---|---|---|\n\
            | cp | 3.000 (1.00) | 4.000 (1.00) |\n| new | 3.000 (1.00) | 1.000 (4.00) |\n\n![";
        assert!(again.contains(expected), "{again}");
        assert_eq!(parse(&again).len(), 2);
        assert_eq!(parse("no table"), []);
    }
}
