//! Tables for people: as wide as the terminal, 80 columns at least; whole where there is none. Text in them may come from peers.

use std::fmt::Display;
use std::io::stdout;
use towpath_files::path::Escaped;

/// The fewest columns of a terminal.
const COLUMNS_MIN: usize = 80;

/// Between two columns.
const GAP: &str = "  ";

/// Longest cell of a column other than the last, on a terminal.
const CELL_MAX: usize = 24;

/// Content of a cell. It may have any characters: what is shown is escaped.
pub trait Cell {
    /// The cell's text.
    fn shown(&self) -> String;
}

impl<T: Display> Cell for T {
    fn shown(&self) -> String {
        Escaped(self.to_string().as_bytes()).to_string()
    }
}

/// A name, which need not be UTF-8, in a cell.
pub struct Name(pub Vec<u8>);

impl Cell for Name {
    fn shown(&self) -> String {
        Escaped(&self.0).to_string()
    }
}

/// A table with a line of titles.
pub struct Table<const N: usize> {
    titles: [&'static str; N],
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    /// A table without rows. Columns whose title ends with a space are aligned to the left.
    pub fn new(titles: [&'static str; N]) -> Table<N> {
        Table { titles, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn push(&mut self, cells: [&dyn Cell; N]) {
        self.rows.push(cells.map(|cell| cell.shown()));
    }

    /// The table as text: in lines of the terminal's width, or with whole cells for another program.
    pub fn render(&self) -> String {
        self.render_in(terminal_columns())
    }

    fn render_in(&self, columns: Option<usize>) -> String {
        let titles = self.titles.map(|title| title.trim_end().to_owned());
        let rows = || std::iter::once(&titles).chain(&self.rows);
        let widest = |column: usize| rows().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let cell_max = columns.map_or(usize::MAX, |_| CELL_MAX);
        let mut widths: [usize; N] = std::array::from_fn(|column| widest(column).min(cell_max));
        let before: usize = widths.iter().take(N - 1).map(|width| width + GAP.len()).sum();
        if let (Some(last), Some(columns)) = (widths.last_mut(), columns) {
            *last = widest(N - 1).min(columns.saturating_sub(before).max(titles[N - 1].len()));
        }
        let mut text = String::new();
        for row in rows() {
            let mut line = String::new();
            for ((cell, width), title) in row.iter().zip(widths).zip(self.titles) {
                let cell = shorten(cell, width);
                let padding = " ".repeat(width - cell.chars().count());
                let is_left = title.ends_with(' ');
                let (before, after) = if is_left { ("", &*padding) } else { (&*padding, "") };
                line.extend([before, &cell, after, GAP]);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// Both ends of a text that is too long: paths and names differ at either.
fn shorten(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    let kept = width.saturating_sub(1);
    let begin = text.chars().take(kept / 2);
    begin.chain(['…']).chain(text.chars().skip(count - (kept - kept / 2))).collect()
}

fn terminal_columns() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stdout()).ok()?;
    Some(usize::from(size.ws_col).max(COLUMNS_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_fit_and_hostile_text_stays_in_its_line() {
        let mut table = Table::new(["ID ", "COUNT", "PATH "]);
        table.push([&"3.0", &7, &"a\u{1b}[31m\nb"]);
        table.push([&"10.12", &1200, &"long/".repeat(40)]);
        let text = table.render_in(Some(80));
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(lines[0], "ID     COUNT  PATH");
        assert!(lines[1].starts_with("3.0        7  a\\u{1b}[31m\\u{a}b"), "{text}");
        assert!(
            lines[2].starts_with("10.12   1200  long/") && lines[2].contains('…') && lines[2].ends_with("/long/"),
            "{text}"
        );
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{text}");
        let whole = table.render_in(None);
        assert!(whole.contains(&"long/".repeat(40)), "{whole}");
    }
}
