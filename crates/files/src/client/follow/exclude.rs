//! Paths below the followed one that are left out: `--exclude`.

use crate::client::filter::{Filter, FilterRule};
use crate::path::RelPath;

/// Patterns, as in gitignore(5), of paths below what is followed that are left out, each with all below it.
#[derive(Clone, Debug, Default)]
pub struct Excludes {
    patterns: Vec<String>,
    filter: Filter,
}

impl Excludes {
    /// Compiles them.
    ///
    /// # Errors
    /// One that is wrong, and why.
    pub fn new(patterns: impl IntoIterator<Item = String>) -> Result<Excludes, String> {
        let mut patterns: Vec<_> = patterns.into_iter().collect();
        // The names of records are made of them, and their order has no meaning.
        patterns.sort();
        patterns.dedup();
        let rules: Vec<_> = patterns.iter().cloned().map(FilterRule::Exclude).collect();
        Ok(Excludes { filter: Filter::new(&rules)?, patterns })
    }

    /// As they were given, in the order of their bytes.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        self.patterns.iter().map(String::as_str)
    }

    /// Whether a path below what is followed is left out.
    pub fn has(&self, path: &RelPath, is_dir: bool) -> bool {
        self.filter.excludes(path, is_dir)
    }
}
