//! Paths and links in documents.

use std::path::{Component, Path, PathBuf};

use super::Problem;
use super::source::{File, Tree};
use crate::workspace;

const RULE: &str = "document";

/// Folders whose paths a document may name only if they exist.
const FOLDERS: &[&str] = &["bench", "conformance", "crates", "docs", "examples", "fuzz", "testing", "xtask"];

/// History, which names what is gone.
const HISTORY: &str = "CHANGELOG.md";

pub fn check(tree: &Tree) -> Vec<Problem> {
    let exists = |path: &str| workspace().join(path).exists();
    tree.files.iter().filter(|file| file.path.ends_with(".md")).flat_map(|file| problems(tree, file, exists)).collect()
}

fn problems(tree: &Tree, file: &File, exists: impl Fn(&str) -> bool) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut report = |line, advice| problems.push(Problem::new(&file.path, line, RULE, advice));
    for (line, text) in prose(&file.text) {
        for target in links(text) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if path.is_empty() { file.path.clone() } else { beside(&file.path, path) };
            if !exists(&path) {
                report(line, format!("{target} does not exist; correct the link"));
            } else if let Some(document) = tree.files.iter().find(|file| file.path == path)
                && !anchor.is_empty()
                && !headings(&document.text).any(|heading| heading == anchor)
            {
                report(line, format!("{path} has no heading #{anchor}; correct the link"));
            }
        }
        if file.path == HISTORY {
            continue;
        }
        for path in text.split('`').skip(1).step_by(2).filter_map(path_of) {
            let is_end_of = |file: &File| file.path.strip_suffix(path).is_some_and(|rest| rest.ends_with('/'));
            if !exists(path) && !tree.files.iter().any(is_end_of) {
                report(line, format!("{path} does not exist; name the file as it is called now"));
            }
        }
    }
    problems
}

/// Lines outside of fenced blocks, counted from 1.
pub fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(line, text)| {
        let is_fence = text.trim_start().starts_with("```");
        fenced ^= is_fence;
        (!fenced && !is_fence).then_some((line + 1, text))
    })
}

/// Targets of links within the repository.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target).filter(|target| {
        let is_code = target.contains(|c: char| c.is_whitespace());
        !target.contains("://") && !is_code
    })
}

/// A path as seen from the folder of a document.
fn beside(document: &str, path: &str) -> String {
    let mut joined = PathBuf::new();
    for component in Path::new(document).with_file_name(path).components() {
        match component {
            Component::ParentDir => _ = joined.pop(),
            component => joined.push(component),
        }
    }
    joined.display().to_string()
}

/// The file or folder of the repository that a code span names, if it does.
fn path_of(span: &str) -> Option<&str> {
    let path = span.split('#').next()?;
    let is_plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
    let is_below = path.split_once('/').is_some_and(|(folder, _)| FOLDERS.contains(&folder));
    (is_plain && (is_below || path.ends_with(".rs"))).then_some(path)
}

/// Anchors of a document's headings, as GitHub makes them.
fn headings(text: &str) -> impl Iterator<Item = String> {
    prose(text).filter_map(|(_, line)| Some(line.strip_prefix('#')?.trim_start_matches('#').trim())).map(|heading| {
        let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(text: &str) -> Vec<usize> {
        let files = [("docs/a.md", text), ("docs/b/c.md", "# A title, of `code`\n"), ("crates/x/src/lib.rs", "")];
        let tree = Tree::new(files.map(|(path, text)| (path.to_owned(), text.to_owned())));
        let exists = |path: &str| tree.files.iter().any(|file| file.path == path);
        problems(&tree, &tree.files[0], exists).into_iter().map(|problem| problem.line).collect()
    }

    #[test]
    fn links_lead_somewhere() {
        assert_eq!(advice("[c](b/c.md)\n[d](b/d.md)\n[web](https://example.org/d.md)"), [2]);
        assert_eq!(advice("[c](b/c.md#a-title-of-code)\n[c](b/c.md#another)\n[own](#none)"), [2, 3]);
        assert_eq!(advice("[x](../crates/x/src/lib.rs)"), Vec::<usize>::new());
    }

    #[test]
    fn code_spans_name_files_that_exist() {
        assert_eq!(advice("`crates/x/src/lib.rs`, `src/lib.rs`, `lib.rs`\n`crates/y`\n`gone.rs`"), [2, 3]);
        assert_eq!(advice("`a/b` `--bind tcp://crates/` `x.md`"), Vec::<usize>::new());
    }

    #[test]
    fn fenced_blocks_are_left_alone() {
        assert_eq!(advice("```\n[d](b/d.md) `crates/y`\n```\n`crates/y`"), [4]);
    }
}
