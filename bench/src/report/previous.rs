//! The previous report. A table without results here keeps what it has, so that one can be measured by itself, and on
//! another machine than the others.

use std::fs;
use std::path::Path;

/// The parts of a report.
#[derive(Default)]
pub struct Previous {
    /// With their headings, as they are.
    sections: Vec<String>,
}

impl Previous {
    /// Reads it; none is one of no parts.
    pub fn read(report: &Path) -> Self {
        fs::read_to_string(report).map(|text| Self::parse(&text)).unwrap_or_default()
    }

    fn parse(text: &str) -> Self {
        Self { sections: text.split("\n## ").skip(1).map(|section| format!("\n## {section}")).collect() }
    }

    /// The section of a table, with another number.
    pub fn table(&self, id: &str, number: usize) -> Option<String> {
        let command = format!("\ncargo xtask bench {id} ");
        let section = self.sections.iter().find(|section| section.contains(&command))?;
        let (_, rest) = section.split_once(". ")?;
        Some(format!("\n## {number}. {rest}"))
    }

    /// The description of the machine.
    pub fn machine(&self) -> Option<&str> {
        self.titled("The machine")
    }

    /// The rows of a table in the list of targets.
    pub fn targets<'a>(&'a self, id: &str) -> impl Iterator<Item = &'a str> {
        let start = format!("| {id} | ");
        self.titled("Targets").unwrap_or_default().lines().filter(move |line| line.starts_with(&start))
    }

    fn titled(&self, title: &str) -> Option<&str> {
        let heading = format!("\n## {title}\n");
        self.sections.iter().map(String::as_str).find(|section| section.starts_with(&heading))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "# Benchmarks\n\nText.\n\n## The machine\n\n| kernel | 6 |\n\n## Targets\n\n| table | |\n|---|---|\n\
        | trees | a | 2 |\n| tree | b | 3 |\n| tree | c | 4 |\n\n## 1. Trees. Many\n\n```\ncargo xtask bench trees --runs 5\n```\n\
        \n## 2. A tree\n\n```\ncargo xtask bench tree --runs 5\n```\n";

    #[test]
    fn the_parts_are_found_by_the_tables_name() {
        let previous = Previous::parse(REPORT);
        assert_eq!(previous.machine(), Some("\n## The machine\n\n| kernel | 6 |\n"));
        assert_eq!(previous.targets("tree").collect::<Vec<_>>(), ["| tree | b | 3 |", "| tree | c | 4 |"]);
        let tree = previous.table("tree", 7);
        assert_eq!(tree.as_deref(), Some("\n## 7. A tree\n\n```\ncargo xtask bench tree --runs 5\n```\n"));
        assert!(previous.table("trees", 1).is_some_and(|section| section.starts_with("\n## 1. Trees. Many\n")));
        assert_eq!(previous.table("models", 1), None);
    }

    #[test]
    fn no_report_has_no_parts() {
        let previous = Previous::parse("");
        assert!(previous.machine().is_none() && previous.table("tree", 1).is_none());
        assert_eq!(previous.targets("tree").count(), 0);
    }
}
