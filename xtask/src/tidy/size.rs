//! Lengths of lines and files.

use super::Problem;
use super::source::{File, Tree};

/// Longest line. rustfmt keeps code to 120 and leaves comments and strings alone.
const LINE: usize = 200;

/// Longest file of product code.
const PRODUCT: usize = 500;

/// Longest file of tests, and of what supports them.
const TESTS: usize = 600;

/// Longer files: the length they may have, and why they aren't split.
const EXCEPTIONS: &[(&str, usize, &str)] = &[];

pub fn check(tree: &Tree) -> Vec<Problem> {
    problems(tree, EXCEPTIONS)
}

fn problems(tree: &Tree, exceptions: &[(&str, usize, &str)]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.files.iter().filter(|file| !file.path.ends_with(".md")) {
        for (number, line) in file.text.lines().enumerate() {
            let length = line.chars().count();
            if length > LINE {
                let advice = format!("{length} characters; break the line, at most {LINE} are allowed");
                problems.push(Problem::new(&file.path, number + 1, "line-length", advice));
            }
        }
        let lines = file.text.lines().count();
        let exception = exceptions.iter().find(|(path, ..)| *path == file.path);
        let limit = exception.map_or(limit(file), |(_, limit, _)| *limit);
        if lines > limit {
            let advice = format!("{lines} lines of at most {limit}; split the file by ideas");
            problems.push(Problem::new(&file.path, 0, "file-length", advice));
        } else if exception.is_some() && lines <= self::limit(file) {
            let advice = "needs no exception any more; remove it from xtask/src/tidy/size.rs";
            problems.push(Problem::new(&file.path, 0, "file-length", advice));
        }
    }
    for (path, _, why) in exceptions {
        if tree.files.iter().all(|file| file.path != *path) {
            let advice = format!("is gone ({why}); remove it from xtask/src/tidy/size.rs");
            problems.push(Problem::new(path, 0, "file-length", advice));
        }
    }
    problems
}

fn limit(file: &File) -> usize {
    let for_tests =
        ["testing/", "fuzz/", "interop/", "conformance/"].iter().any(|folder| file.path.starts_with(folder));
    if file.test || for_tests { TESTS } else { PRODUCT }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: String, exceptions: &[(&str, usize, &str)]) -> Vec<&'static str> {
        let tree = Tree::new([(path.to_owned(), text)]);
        problems(&tree, exceptions).into_iter().map(|problem| problem.rule).collect()
    }

    #[test]
    fn long_lines_are_reported_but_in_markdown() {
        let text = "é".repeat(LINE) + "\n" + &"é".repeat(LINE + 1);
        assert_eq!(rules("a/src/lib.rs", text.clone(), &[]), ["line-length"]);
        assert!(rules("a.md", text, &[]).is_empty());
    }

    #[test]
    fn tests_may_be_longer_than_product_code() {
        assert_eq!(rules("a/src/lib.rs", "\n".repeat(PRODUCT + 1), &[]), ["file-length"]);
        assert!(rules("a/tests/all.rs", "\n".repeat(TESTS), &[]).is_empty());
        assert_eq!(rules("a/tests/all.rs", "\n".repeat(TESTS + 1), &[]), ["file-length"]);
    }

    #[test]
    fn exceptions_hold_while_they_are_needed() {
        let exception = [("a/src/lib.rs", PRODUCT + 50, "for a test")];
        assert!(rules("a/src/lib.rs", "\n".repeat(PRODUCT + 50), &exception).is_empty());
        assert_eq!(rules("a/src/lib.rs", "\n".repeat(PRODUCT + 51), &exception), ["file-length"]);
        assert_eq!(rules("a/src/lib.rs", "\n".repeat(PRODUCT), &exception), ["file-length"]);
        assert_eq!(rules("b/src/lib.rs", String::new(), &exception), ["file-length"]);
    }
}
