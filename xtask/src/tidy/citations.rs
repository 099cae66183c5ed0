//! Statements of documents and examples about the code: constants, methods, and exit statuses, whose table has one place.

use std::collections::BTreeMap;

use super::Problem;
use super::documents::prose;
use super::source::{File, Tree};
use crate::workspace;

const RULE: &str = "citation";

/// Documents that name constants of the code.
const INTERNALS: &str = "docs/internals/";
/// Documents of bytes, which leave exit statuses to the table.
const PROTOCOLS: &str = "docs/protocol/";
const STATUS_TABLE: &str = "docs/guide/operating.md";
const STATUS_CODE: &str = "crates/tow/src/cli/exit.rs";
const STATUS_MANUAL: &str = "crates/tow/src/commands/manual/exit.roff";

pub fn check(tree: &Tree) -> Vec<Problem> {
    let manual = std::fs::read_to_string(workspace().join(STATUS_MANUAL)).unwrap_or_default();
    let mut problems: Vec<_> = tree.files.iter().flat_map(|file| constants(tree, file)).collect();
    problems.extend(tree.files.iter().flat_map(|file| methods(tree, file)));
    problems.extend(tree.files.iter().flat_map(statuses_elsewhere));
    problems.extend(statuses(tree, &manual));
    problems
}

/// Constants that a document names: they are in a file that the line names, or anywhere if it names none.
fn constants(tree: &Tree, file: &File) -> Vec<Problem> {
    if !(file.path.starts_with(INTERNALS) && file.path.ends_with(".md")) {
        return Vec::new();
    }
    let mut problems = Vec::new();
    for (line, text) in prose(&file.text) {
        let spans = || text.split('`').skip(1).step_by(2);
        let places: Vec<_> = spans().filter(|span| span.ends_with(".rs") || span.starts_with("crates/")).collect();
        let is_place = |file: &&File| {
            let is_named = |place: &&str| {
                file.path.starts_with(&format!("{place}/"))
                    || file.path.strip_suffix(*place).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
            };
            file.path.ends_with(".rs") && (places.is_empty() || places.iter().any(is_named))
        };
        for name in spans().filter(|span| is_constant(span)) {
            let has_it = |file: &File| {
                file.text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).any(|word| word == name)
            };
            if !tree.files.iter().filter(is_place).any(has_it) {
                let advice = format!("{name} isn't in {}; name the constant, and where it is now", list(&places));
                problems.push(Problem::new(&file.path, line, RULE, advice));
            }
        }
    }
    problems
}

fn list(places: &[&str]) -> String {
    if places.is_empty() { "the code".to_owned() } else { places.join(" or ") }
}

fn is_constant(span: &str) -> bool {
    span.contains('_') && span.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

/// Methods that the comments of an example name.
fn methods(tree: &Tree, file: &File) -> Vec<Problem> {
    if !file.path.contains("/examples/") {
        return Vec::new();
    }
    let lines = file.text.lines().enumerate();
    let comments = lines.filter_map(|(line, text)| Some((line + 1, text.split_once("//")?.1)));
    let mut problems = Vec::new();
    for (line, comment) in comments {
        for span in comment.split('`').skip(1).step_by(2) {
            let calls = span.split("()").filter(|_| span.contains("()"));
            let called = calls.filter_map(|call| call.rsplit_once('.')).map(|(_, name)| name);
            let is_name = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            for name in called.filter(is_name) {
                let definition = format!("fn {name}(");
                if !tree.files.iter().any(|file| file.path.ends_with(".rs") && file.text.contains(&definition)) {
                    let advice = format!("there is no method {name}; name one that is there");
                    problems.push(Problem::new(&file.path, line, RULE, advice));
                }
            }
        }
    }
    problems
}

/// Exit statuses in documents that are to leave them to the table.
fn statuses_elsewhere(file: &File) -> Vec<Problem> {
    if !(file.path.starts_with(PROTOCOLS) && file.path.ends_with(".md")) {
        return Vec::new();
    }
    let names_one = |text: &str| {
        ["exits with ", "xit status "]
            .iter()
            .any(|before| text.split(before).skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit())))
    };
    let lines = prose(&file.text).filter(|(_, text)| names_one(text));
    lines
        .map(|(line, _)| Problem::new(&file.path, line, RULE, format!("link to the table in {STATUS_TABLE}")))
        .collect()
}

/// The numbers and names of the table, of the code and of the manual page are the same.
fn statuses(tree: &Tree, manual: &str) -> Vec<Problem> {
    let text = |path: &str| tree.files.iter().find(|file| file.path == path).map(|file| file.text.as_str());
    let (Some(table), Some(code)) = (text(STATUS_TABLE), text(STATUS_CODE)) else { return Vec::new() };
    let table = of_table(table);
    let mut problems = Vec::new();
    if table != of_code(code) {
        let advice = format!("its exit statuses aren't those of {STATUS_CODE}: {table:?} and {:?}", of_code(code));
        problems.push(Problem::new(STATUS_TABLE, 0, RULE, advice));
    }
    let in_manual: Vec<u8> = manual.lines().filter_map(|line| line.parse().ok()).collect();
    if in_manual != table.keys().copied().collect::<Vec<_>>() {
        let advice = format!("its exit statuses aren't those of {STATUS_TABLE}");
        problems.push(Problem::new(STATUS_MANUAL, 0, RULE, advice));
    }
    problems
}

/// Rows that begin with a number and a name in code font.
fn of_table(text: &str) -> BTreeMap<u8, String> {
    let section = text.split("\n## Exit statuses\n").nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let row = |line: &str| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let (number, name) = (cells.next()?.parse().ok()?, cells.next()?.trim_matches('`'));
        Some((number, name.to_owned()))
    };
    section.lines().filter_map(row).collect()
}

/// The variants of `Status` with their numbers, but for that of a signal, and the names of their codes.
fn of_code(text: &str) -> BTreeMap<u8, String> {
    let line = |line: &str| {
        let (variant, number) = line.trim().strip_suffix(',')?.split_once(" = ")?;
        Some((variant.to_owned(), number.parse::<u8>().ok().filter(|number| *number < 128)?))
    };
    let name = |variant: &str| {
        let rest = text.split(&format!("Status::{variant} => \"")).nth(1)?;
        Some(rest.split('"').next()?.to_owned())
    };
    text.lines().filter_map(line).filter_map(|(variant, number)| Some((number, name(&variant)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        Tree::new(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())))
    }

    #[test]
    fn constants_are_where_the_document_says() {
        let source = ("crates/x/src/a/b.rs", "pub const FILES_MAX: u8 = 1;\n");
        for (text, wrong) in [
            ("| `FILES_MAX`: 1 | `a/b.rs` |", 0),
            ("| `FILES_MAX`: 1 | `crates/x/src` |", 0),
            ("`FILES_MAX` files", 0),
            ("| `FILES_MAX`: 1 | `a/c.rs` |", 1),
            ("`FILES_MIN`, `EINVAL`, `--max-files`", 1),
        ] {
            let tree = tree(&[source, ("docs/internals/m.md", text)]);
            assert_eq!(check(&tree).len(), wrong, "{text}");
        }
    }

    #[test]
    fn examples_name_methods_that_are_there() {
        let source = ("crates/x/src/lib.rs", "fn handle(&self) {}\nfn shutdown(&self) {}\n");
        for (text, wrong) in
            [("// `server.handle().shutdown()` ends it", 0), ("// `server.shutdown_handle()` ends it", 1)]
        {
            assert_eq!(check(&tree(&[source, ("crates/x/examples/e.rs", text)])).len(), wrong, "{text}");
        }
    }

    #[test]
    fn exit_statuses_have_one_table() {
        let code = "enum Status {\n    Done = 0,\n    Usage = 2,\n    Signal = 130,\n}\n\
                    Status::Done => \"done\",\nStatus::Usage => \"usage\",\nStatus::Signal => \"signal\",\n";
        let table = "# A\n\n## Exit statuses\n\n| status | `code` |\n|---|---|\n| 0 | `done` | done |\n| 2 | `usage` | wrong |\n";
        let manual = ".TP\n0\nDone.\n.TP\n2\nWrong.\n";
        let problems = |code: &str, table: &str, manual: &str| {
            statuses(&tree(&[(STATUS_CODE, code), (STATUS_TABLE, table)]), manual).len()
        };
        assert_eq!(problems(code, table, manual), 0);
        assert_eq!(problems(&code.replace("= 2", "= 3"), table, manual), 1);
        assert_eq!(problems(code, &table.replace("`usage`", "`use`"), manual), 1);
        assert_eq!(problems(code, table, ".TP\n0\nDone.\n"), 1);
        let elsewhere = |text: &str| check(&tree(&[("docs/protocol/p.md", text)])).len();
        assert_eq!(elsewhere("it exits with 1 then"), 1);
        assert_eq!(elsewhere("as the [exit status](x) says"), 0);
    }
}
