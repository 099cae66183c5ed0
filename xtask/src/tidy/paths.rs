//! The paths that Rust code names, `use` trees expanded.

use super::lexer::Token;

/// A path such as `std::fs::File`, and the line on which it begins.
#[derive(Debug, PartialEq, Eq)]
pub struct Path {
    pub line: usize,
    pub segments: Vec<String>,
}

impl Path {
    /// Whether the path begins with these segments.
    pub fn starts_with(&self, segments: &[&str]) -> bool {
        self.segments.len() >= segments.len() && self.segments.iter().zip(segments).all(|(own, other)| own == other)
    }

    /// Whether the path ends with these segments.
    pub fn ends_with(&self, segments: &[&str]) -> bool {
        let own = self.segments.iter().rev();
        self.segments.len() >= segments.len() && own.zip(segments.iter().rev()).all(|(own, other)| own == other)
    }
}

/// All paths in the code, single words too. `a::{b, c::d}` counts as `a::b` and `a::c::d`.
pub fn paths(code: &[&Token]) -> Vec<Path> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < code.len() {
        if code[at].word().is_some() {
            at = tree(code, at, &[], &mut found);
        } else {
            at += 1;
        }
    }
    found
}

/// Reads the path that begins at `at`, below `prefix`, and returns the position behind it.
fn tree(code: &[&Token], mut at: usize, prefix: &[String], found: &mut Vec<Path>) -> usize {
    let Some(line) = code.get(at).map(|token| token.line) else { return at };
    let mut segments = prefix.to_vec();
    while let Some(word) = code.get(at).and_then(|token| token.word()) {
        segments.push(word.to_owned());
        at += 1;
        if !is_separator(code, at) {
            break;
        }
        at += 2;
        if code.get(at).is_some_and(|token| token.is('{')) {
            return group(code, at + 1, &segments, found);
        }
    }
    found.push(Path { line, segments });
    at
}

/// Reads the comma-separated trees up to the closing brace.
fn group(code: &[&Token], mut at: usize, prefix: &[String], found: &mut Vec<Path>) -> usize {
    while let Some(token) = code.get(at) {
        if token.is('}') {
            return at + 1;
        }
        at = match token.word() {
            Some("as") => at + 2,
            Some(_) => tree(code, at, prefix, found),
            None => at + 1,
        };
    }
    at
}

fn is_separator(code: &[&Token], at: usize) -> bool {
    code.get(at).is_some_and(|token| token.is(':')) && code.get(at + 1).is_some_and(|token| token.is(':'))
}

#[cfg(test)]
mod tests {
    use super::super::lexer::lex;
    use super::*;

    fn shown(source: &str) -> Vec<String> {
        let tokens = lex(source);
        let code: Vec<_> = tokens.iter().collect();
        paths(&code).into_iter().map(|path| path.segments.join("::")).filter(|path| path.contains(':')).collect()
    }

    #[test]
    fn use_trees_are_expanded() {
        assert_eq!(shown("use a::{b, c::{d as e, f}, g::*};"), ["a::b", "a::c::d", "a::c::f", "a::g"]);
        assert_eq!(shown("pub use crate::a::B as C; x"), ["crate::a::B"]);
    }

    #[test]
    fn expressions_and_types_are_paths() {
        assert_eq!(
            shown("let x: std::io::Result<a::B> = c::d(e::F { g: 1 });"),
            ["std::io::Result", "a::B", "c::d", "e::F"]
        );
    }

    #[test]
    fn ends_and_beginnings_compare_by_segment() {
        let path = Path { line: 1, segments: ["std", "time", "Instant", "now"].map(str::to_owned).into() };
        assert!(path.starts_with(&["std", "time"]) && path.ends_with(&["Instant", "now"]));
        assert!(!path.starts_with(&["time"]) && !path.ends_with(&["a", "b", "std", "time", "Instant", "now"]));
    }
}
