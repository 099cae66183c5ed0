//! `cargo xtask tidy`: rules of this repository that neither rustfmt nor clippy know, as code.

mod citations;
mod commits;
mod documents;
mod layers;
mod lexer;
mod modules;
mod paths;
mod published;
mod purity;
mod size;
mod source;
mod words;

use std::fmt;

use crate::steps::Outcome;
use source::Tree;

/// One violation, printed as `file:line: rule: what to do`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Problem {
    file: String,
    /// Counted from 1; 0 for the whole file.
    line: usize,
    rule: &'static str,
    advice: String,
}

impl Problem {
    fn new(file: &str, line: usize, rule: &'static str, advice: impl Into<String>) -> Self {
        Self { file: file.into(), line, rule, advice: advice.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}: {}", self.file, self.rule, self.advice),
            line => write!(f, "{}:{line}: {}: {}", self.file, self.rule, self.advice),
        }
    }
}

/// Checks all rules and prints every violation.
pub fn run() -> Result<Outcome, String> {
    let tree = Tree::load()?;
    let mut problems = layers::check()?;
    problems.extend(modules::check(&tree));
    problems.extend(purity::check(&tree));
    problems.extend(words::check(&tree));
    problems.extend(size::check(&tree));
    problems.extend(documents::check(&tree));
    problems.extend(citations::check(&tree));
    problems.extend(published::check(&tree));
    problems.extend(commits::check()?);
    problems.sort();
    problems.dedup();
    for problem in &problems {
        println!("{problem}");
    }
    match problems.len() {
        0 => Ok(Outcome::Passed),
        count => Err(format!("{count} violations of the rules in xtask/src/tidy")),
    }
}
