//! Crates that are published: each says what it is, and cites nothing that isn't in it.

use super::Problem;
use super::source::{File, Tree};
use crate::crates::PUBLISHED;
use crate::workspace;

const RULE: &str = "published";
const README_LINES_MAX: usize = 40;
const FIELDS: &[&str] = &["description", "readme", "keywords", "categories"];

pub fn check(tree: &Tree) -> Vec<Problem> {
    let of_name = |name| {
        let folder = format!("crates/{name}");
        let manifest = std::fs::read_to_string(workspace().join(&folder).join("Cargo.toml")).unwrap_or_default();
        of_crate(tree, &folder, &manifest)
    };
    PUBLISHED.iter().flat_map(of_name).collect()
}

fn of_crate(tree: &Tree, folder: &str, manifest: &str) -> Vec<Problem> {
    let text = |path: &str| tree.files.iter().find(|file| file.path == path).map_or("", |file| &file.text);
    let mut problems = Vec::new();
    let readme = format!("{folder}/README.md");
    for field in FIELDS {
        if !manifest.lines().any(|line| line.starts_with(&format!("{field} = "))) {
            problems.push(Problem::new(&format!("{folder}/Cargo.toml"), 0, RULE, format!("has no {field}")));
        }
    }
    let lines = text(&readme).lines().count();
    if !(1..=README_LINES_MAX).contains(&lines) {
        let advice = format!("has {lines} lines; say in 1 to {README_LINES_MAX} what the crate is, and what it isn't");
        problems.push(Problem::new(&readme, 0, RULE, advice));
    }
    problems.extend(tree.product(folder).flat_map(citations));
    problems
}

/// Doc comments that name files of this repository, which nobody sees beside them on docs.rs.
fn citations(file: &File) -> impl Iterator<Item = Problem> {
    let is_doc = |line: &str| line.trim_start().starts_with("//!") || line.trim_start().starts_with("///");
    let cites = move |line: &str| is_doc(line) && (line.contains("docs/") || line.contains("crates/"));
    let cited = file.text.lines().enumerate().filter(move |(_, line)| cites(line));
    let advice = "a doc comment cites a path of this repository; say it, or cite the path in a plain comment";
    cited.map(move |(at, _)| Problem::new(&file.path, at + 1, RULE, advice))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(manifest: &str, files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let tree = Tree::new(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())));
        of_crate(&tree, "crates/a", manifest).into_iter().map(|problem| (problem.file, problem.line)).collect()
    }

    #[test]
    fn crates_say_what_they_are_and_cite_only_what_is_in_them() {
        let manifest = "description = \"\"\nreadme = \"\"\nkeywords = []\ncategories = []\n";
        let source = "//! `docs/a.md`\n// docs/a.md\n/// See docs.rs/a\n/// crates/b\nfn f() {}\n";
        let whole = [("crates/a/README.md", "# a\n"), ("crates/a/src/lib.rs", source)];
        let at = |line| ("crates/a/src/lib.rs".to_owned(), line);
        assert_eq!(lines(manifest, &whole), [at(1), at(4)]);
        assert_eq!(lines("", &whole).len(), FIELDS.len() + 2);
        let readme = |text: &str| lines(manifest, &[("crates/a/README.md", text)]);
        assert_eq!(readme(&"line\n".repeat(README_LINES_MAX)), []);
        for wrong in ["", &"line\n".repeat(README_LINES_MAX + 1)] {
            assert_eq!(readme(wrong), [("crates/a/README.md".to_owned(), 0)]);
        }
    }
}
