//! Lengths of lines and files.

use super::Problem;
use super::source::Tree;

/// Longest line. rustfmt keeps code to 120 and leaves comments and strings alone.
const LINE: usize = 200;

/// Longest file: one thing may be one file, and none is longer.
const FILE: usize = 900;

pub fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.files.iter().filter(|file| [".rs", ".py"].iter().any(|end| file.path.ends_with(end))) {
        for (number, line) in file.text.lines().enumerate() {
            let length = line.chars().count();
            if length > LINE {
                let advice = format!("{length} characters; break the line, at most {LINE} are allowed");
                problems.push(Problem::new(&file.path, number + 1, "line-length", advice));
            }
        }
        let lines = file.text.lines().count();
        if lines > FILE {
            let advice = format!("{lines} lines of at most {FILE}; split the file by ideas");
            problems.push(Problem::new(&file.path, 0, "file-length", advice));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, text: String) -> Vec<&'static str> {
        let tree = Tree::new([(path.to_owned(), text)]);
        check(&tree).into_iter().map(|problem| problem.rule).collect()
    }

    #[test]
    fn long_lines_are_reported_but_in_markdown() {
        let text = "é".repeat(LINE) + "\n" + &"é".repeat(LINE + 1);
        assert_eq!(rules("a/src/lib.rs", text.clone()), ["line-length"]);
        assert!(rules("a.md", text).is_empty());
    }

    #[test]
    fn long_files_are_reported() {
        assert!(rules("a/src/lib.rs", "\n".repeat(FILE)).is_empty());
        assert_eq!(rules("a/src/lib.rs", "\n".repeat(FILE + 1)), ["file-length"]);
    }
}
