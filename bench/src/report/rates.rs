//! Tables of requests: how many a second, and what one costs.

use std::fmt::Write;

use super::{Plot, groups, plot_name, tone};
use crate::plot::{self, Bar, Measure};
use crate::series::{Kind, Row, Sample, median};
use crate::tables::Table;

/// A line for each row; a table and a plot for each group where there are several.
pub fn rates(text: &mut String, table: &Table) -> Vec<Plot> {
    groups(table).iter().map(|group| rates_of(text, table, group)).collect()
}

/// A group's lines and its plot.
pub fn rates_of(text: &mut String, table: &Table, group: &str) -> Plot {
    if !group.is_empty() {
        let _ = write!(text, "**{group}**\n\n");
    }
    let rows = || table.rows.iter().filter(|row| row.group == group && row.not_run.is_none());
    let has_stores = rows().any(|row| row.stores_us().is_some());
    let (title, rule) = if has_stores { (" of it the store |", "---|") } else { ("", "") };
    let _ = write!(
        text,
        "| | requests/s | range | times faster | p50 us | p99 us | CPU us: broker | workers | clients | memory MiB |{title}\n\
         |---|---|---|---|---|---|---|---|---|---|{rule}\n",
    );
    let peer = rows().find(|row| row.name == table.content.peer);
    for row in rows() {
        line(text, row, peer, has_stores);
    }
    text.push('\n');
    let title = [table.content.title.as_str(), group].join(": ").trim_end_matches(": ").to_owned();
    let bars = rows().filter_map(|row| bar(row, peer)).collect();
    let svg = plot::bars(&title, "requests a second", Measure::Rate, bars);
    (plot_name(table, group), title, svg)
}

fn line(text: &mut String, row: &Row, peer: Option<&Row>, has_stores: bool) {
    let (Some(per_second), Some(spread)) = (row.per_second(), row.rates()) else {
        return;
    };
    let bold = if row.kind == Kind::Ours { "**" } else { "" };
    let shown = |value: Option<f64>| value.map_or(String::new(), microseconds);
    let stores = if has_stores { format!(" {} |", shown(row.stores_us())) } else { String::new() };
    let memory = row.server_peak().map_or(String::new(), |bytes| format!("{:.1}", bytes / f64::from(1 << 20)));
    let _ = writeln!(
        text,
        "| {bold}{}{bold} | {} | {} | {} | {} | {} | {} | {} | {} | {memory} |{stores}",
        row.name,
        rate(per_second),
        range(spread),
        peer.and_then(|peer| row.times_faster(peer)).map_or(String::new(), |ratio| format!("{ratio:.2}")),
        shown(row.median_of(|sample| sample.p50_us)),
        shown(row.median_of(|sample| sample.p99_us)),
        shown(row.broker_us()),
        shown(row.workers_us()),
        shown(row.clients_us()),
    );
}

fn bar(row: &Row, peer: Option<&Row>) -> Option<Bar> {
    let per_second = row.per_second()?;
    let ratio = peer.and_then(|peer| row.times_faster(peer)).map_or(String::new(), |ratio| format!(" ({ratio:.2}x)"));
    Some(Bar {
        label: row.name.clone(),
        tone: tone(row.kind),
        value: per_second,
        range: row.rates()?,
        note: format!("{}{ratio}", rate(per_second)),
    })
}

/// How long nothing was answered.
pub fn pauses(text: &mut String, table: &Table) -> Vec<Plot> {
    text.push_str("| | ms | range | times shorter | requests resent |\n|---|---|---|---|---|\n");
    let rows = || table.rows.iter().filter(|row| row.not_run.is_none());
    let peer = rows().find(|row| row.name == table.content.peer);
    let mut bars = Vec::new();
    for row in rows() {
        let (Some(seconds), Some((least, most))) = (row.seconds(), row.spread()) else {
            continue;
        };
        let bold = if row.kind == Kind::Ours { "**" } else { "" };
        let ratio = peer.and_then(|peer| row.times_faster(peer)).map_or(String::new(), |ratio| format!("{ratio:.1}"));
        let resent =
            row.median_of(|sample| Some(sample.resent? as f64)).map_or(String::new(), |count| count.to_string());
        let (ms, least, most) = (seconds * 1e3, least * 1e3, most * 1e3);
        let _ = writeln!(text, "| {bold}{}{bold} | {ms:.1} | {least:.1}-{most:.1} | {ratio} | {resent} |", row.name);
        let note = format!("{ms:.0} ms");
        bars.push(Bar { label: row.name.clone(), tone: tone(row.kind), value: ms, range: (least, most), note });
    }
    let title = table.content.title.clone();
    let svg = plot::bars(&title, "milliseconds", Measure::Pause, bars);
    vec![(table.id.clone(), title, svg)]
}

/// A table for each group: requests or megabytes a second, or the longest pause.
pub fn costs(text: &mut String, table: &Table) -> Vec<Plot> {
    for group in groups(table) {
        let rows = || table.rows.iter().filter(|row| row.group == group && row.not_run.is_none());
        let first = rows().find_map(|row| row.samples.iter().flatten().next());
        type Value = fn(&Sample) -> f64;
        let (unit, value): (&str, Value) = match first {
            Some(sample) if sample.requests > 0 => ("requests/s", |sample| sample.requests as f64 / sample.seconds),
            Some(sample) if sample.bytes > 0 => ("MB/s", |sample| sample.bytes as f64 / sample.seconds / 1e6),
            _ => ("longest pause, us", |sample| sample.seconds * 1e6),
        };
        let _ = write!(
            text,
            "**{group}**\n\n| | {unit} | range | times faster | p50 us | p99 us | CPU s of the server | slow rounds | replies to the operator |\n\
             |---|---|---|---|---|---|---|---|---|\n"
        );
        let peer = rows().find(|row| row.name == table.content.peer);
        for row in rows() {
            let mut values = row.each(|sample| Some(value(sample)));
            values.sort_by(f64::total_cmp);
            let (Some(least), Some(most), Some(middle)) = (values.first(), values.last(), median(values.clone()))
            else {
                continue;
            };
            let bold = if row.kind == Kind::Ours { "**" } else { "" };
            let times =
                peer.and_then(|peer| row.times_faster(peer)).map_or(String::new(), |times| format!("{times:.3}"));
            let shown = |figure: fn(&Sample) -> Option<f64>| row.median_of(figure).map_or(String::new(), microseconds);
            let _ = writeln!(
                text,
                "| {bold}{}{bold} | {} | {} | {times} | {} | {} | {} | {} | {} |",
                row.name,
                rate(middle),
                range((*least, *most)),
                shown(|sample| sample.p50_us),
                shown(|sample| sample.p99_us),
                shown(|sample| sample.server_cpu_seconds),
                shown(|sample| Some(sample.slow_rounds? as f64)),
                row.median_of(|sample| Some(sample.looks? as f64)).map_or(String::new(), rate),
            );
        }
        text.push('\n');
    }
    Vec::new()
}

/// A rate with three digits that count, and its thousands apart.
pub fn rate(per_second: f64) -> String {
    let digits = per_second.max(1.0).log10().floor() as i32;
    let unit = 10_f64.powi((digits - 2).max(0));
    let mut shown = format!("{:.0}", (per_second / unit).round() * unit);
    for from_end in [3, 7, 11] {
        if shown.len() > from_end {
            shown.insert(shown.len() - from_end, ',');
        }
    }
    shown
}

pub fn range((least, most): (f64, f64)) -> String {
    format!("{}-{}", rate(least), rate(most))
}

pub fn microseconds(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => rate(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_three_digits_and_their_thousands_apart() {
        assert_eq!(rate(7.4), "7");
        assert_eq!(rate(987.6), "988");
        assert_eq!(rate(9_876.0), "9,880");
        assert_eq!(rate(1_234_567.0), "1,230,000");
        assert_eq!(range((99_950.0, 20_080_908.0)), "100,000-20,100,000");
        assert_eq!(microseconds(0.123), "0.12");
        assert_eq!(microseconds(569_344.0), "569,000");
    }
}
