//! Which entries of a tree are taken, by patterns as in gitignore(5).

use std::path::Path;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::path::RelPath;

/// Longest pattern, in bytes.
const PATTERN_BYTES_MAX: usize = 4096;

/// A pattern, and what happens to what it matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterRule {
    /// It is taken.
    Include(String),
    /// It is left out, with all below it.
    Exclude(String),
}

/// Rules of which the first that matches a path decides, or else the first that matches a directory above it. What none
/// matches is taken, unless all rules are includes. Patterns are those of gitignore(5), matched below the source.
#[derive(Clone, Debug)]
pub struct Filter {
    rules: Gitignore,
    takes_others: bool,
}

impl Default for Filter {
    fn default() -> Self {
        Self { rules: Gitignore::empty(), takes_others: true }
    }
}

impl Filter {
    /// A filter of these rules.
    ///
    /// # Errors
    /// A pattern is wrong: which, and why.
    pub fn new(rules: &[FilterRule]) -> Result<Self, String> {
        let mut builder = GitignoreBuilder::new("");
        // There the last one decides.
        for rule in rules.iter().rev() {
            let (sign, pattern) = match rule {
                FilterRule::Include(pattern) => ("!", pattern),
                FilterRule::Exclude(pattern) => ("", pattern),
            };
            let wrong = |why: &dyn std::fmt::Display| format!("{pattern}: {why}");
            if pattern.trim().is_empty() || pattern.len() > PATTERN_BYTES_MAX || pattern.contains(['\n', '\0']) {
                return Err(wrong(&format_args!("use a pattern of at most {PATTERN_BYTES_MAX} bytes in one line")));
            }
            // What has a meaning of its own at the beginning of a line there.
            let quote = if pattern.starts_with(['!', '#']) { "\\" } else { "" };
            builder.add_line(None, &format!("{sign}{quote}{pattern}")).map_err(|error| wrong(&error))?;
        }
        let takes_others = rules.is_empty() || rules.iter().any(|rule| matches!(rule, FilterRule::Exclude(_)));
        Ok(Self { rules: builder.build().map_err(|error| error.to_string())?, takes_others })
    }

    /// Whether what is at this path below the source is taken.
    pub fn takes(&self, local: &RelPath, is_dir: bool) -> bool {
        match self.decision(local, is_dir) {
            Match::Whitelist(()) => true,
            Match::Ignore(()) => false,
            Match::None => self.takes_others,
        }
    }

    /// Whether a rule leaves it out by name, with all below it.
    pub fn excludes(&self, local: &RelPath, is_dir: bool) -> bool {
        self.decision(local, is_dir).is_ignore()
    }

    fn decision(&self, local: &RelPath, is_dir: bool) -> Match<()> {
        if self.rules.is_empty() || local.is_root() {
            return Match::None;
        }
        self.rules.matched_path_or_any_parents(Path::new(local.as_os_str()), is_dir).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(rules: &[&str]) -> Filter {
        let rule = |rule: &&str| match rule.split_at(1) {
            ("+", pattern) => FilterRule::Include(pattern.to_owned()),
            (_, pattern) => FilterRule::Exclude(pattern.to_owned()),
        };
        Filter::new(&rules.iter().map(rule).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let cases: [(&[&str], &[&str], &[&str]); 9] = [
            (&[], &["a", "d/", "d/a"], &[]),
            (&["-*.tmp"], &["a", "d/a.tmpl"], &["a.tmp", "d/a.tmp", "d/a.tmp/x"]),
            (&["-build/"], &["build", "d/build"], &["build/", "build/x", "d/build/x/y"]),
            (&["-/a"], &["d/a"], &["a", "a/b"]),
            (&["-d/a"], &["e/d/a", "a"], &["d/a"]),
            (&["+*.txt"], &["a.txt", "d/e/a.txt"], &["a", "d/", "d/a"]),
            (&["+*.txt", "-*"], &["a.txt", "d/e/a.txt"], &["a", "d/", "d/a"]),
            (&["+keep.tmp", "-*.tmp"], &["keep.tmp", "a"], &["a.tmp"]),
            (&["-!a", "-#b"], &["a", "b"], &["!a", "#b"]),
        ];
        for (rules, taken, left) in cases {
            let filter = filter(rules);
            for (paths, expected) in [(taken, true), (left, false)] {
                for path in paths {
                    let local = RelPath::new(path.trim_end_matches('/')).unwrap();
                    assert_eq!(filter.takes(&local, path.ends_with('/')), expected, "{rules:?}: {path}");
                }
            }
        }
        let not_utf8 = RelPath::new(&b"d/\xff.tmp"[..]).unwrap();
        assert!(!filter(&["-*.tmp"]).takes(&not_utf8, false));
    }

    #[test]
    fn patterns_that_are_wrong_are_named() {
        for pattern in ["", " ", "[z-a]", "a\nb"] {
            let error = Filter::new(&[FilterRule::Exclude(pattern.to_owned())]).unwrap_err();
            assert!(error.starts_with(pattern), "{error}");
        }
    }
}
