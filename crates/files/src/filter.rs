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
    /// Matching paths are fetched.
    Include(String),
    /// Matching paths are left out, with all below them.
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
            let wrong = |why: &dyn std::fmt::Display| format!("'{pattern}': {why}");
            let line = line_of(pattern).map_err(|why| wrong(&why))?;
            builder.add_line(None, &format!("{sign}{line}")).map_err(|error| wrong(&error))?;
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
        // The root has no name that a pattern could match.
        let above = std::iter::successors(Some(local.clone()), RelPath::parent).take_while(|path| !path.is_root());
        let decisions = above
            .enumerate()
            .map(|(height, path)| self.rules.matched(Path::new(path.as_os_str()), is_dir || height > 0).map(|_| ()));
        { decisions }.find(|decision| !decision.is_none()).unwrap_or(Match::None)
    }
}

/// A pattern of gitignore(5) as the matcher needs it, whose globs have more: braces, and classes that match a slash.
fn line_of(pattern: &str) -> Result<String, String> {
    if pattern.trim().is_empty() {
        return Err("the pattern is empty: use one such as *.tmp or build/".to_owned());
    }
    if pattern.len() > PATTERN_BYTES_MAX || pattern.contains(['\n', '\0']) {
        return Err(format!("use a pattern of at most {PATTERN_BYTES_MAX} bytes in one line"));
    }
    if pattern.starts_with('!') {
        return Err(
            "nothing is taken back by ! (tow get does that by an --include before it); write \\! for a name".to_owned()
        );
    }
    let path = pattern.strip_prefix('/').unwrap_or(pattern);
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.split('/').any(|name| matches!(name, "" | "." | "..")) {
        return Err("nothing has such a path: begin at the source, as in /a/b".to_owned());
    }
    // So nothing has a meaning of its own at the beginning of a line, and a slash in a class doesn't make it a path.
    let is_path = pattern.starts_with('/') || path.contains('/');
    let mut line = if is_path { "/" } else { "**/" }.to_owned();
    let mut rest = path;
    while let Some(char) = rest.chars().next() {
        rest = rest.get(char.len_utf8()..).unwrap_or_default();
        match char {
            '{' | '}' => push(&mut line, char),
            '\\' => {
                let quoted = rest.chars().next().ok_or("nothing follows its last \\")?;
                rest = rest.get(quoted.len_utf8()..).unwrap_or_default();
                push(&mut line, quoted);
            }
            '[' => {
                let (class, behind) = class_of(rest)?;
                (line, rest) = (line + &class, behind);
            }
            // At the end of a line they don't count.
            char if char.is_whitespace() => push(&mut line, char),
            char => line.push(char),
        }
    }
    if pattern.ends_with('/') {
        line.push('/');
    }
    Ok(line)
}

/// Adds a character that stands for itself.
fn push(line: &mut String, char: char) {
    match char.is_whitespace() {
        true => line.extend(['[', char, ']']),
        false => line.extend(['\\', char]),
    }
}

/// A class of characters, of which none is a slash, and what is behind it.
pub(crate) fn class_of(pattern: &str) -> Result<(String, &str), String> {
    let body = pattern.strip_prefix(['!', '^']).unwrap_or(pattern);
    // The first character is literal, even `]`.
    let first = body.chars().next().map_or(0, char::len_utf8);
    let end = body.get(first..).and_then(|rest| rest.find(']')).ok_or("a [ has no ]")? + first;
    let (class, behind) = (body.get(..end).unwrap_or_default(), body.get(end + 1..).unwrap_or_default());
    if class.contains(['\\', '/']) || ["[:", "]-", "--"].iter().any(|odd| class.contains(odd)) {
        return Err(format!("[{class}] isn't supported: write its characters, without \\, /, [:, ]- and --"));
    }
    let chars: Vec<char> = class.chars().collect();
    let has_slash = |range: &[char]| matches!(range, [from, '-', to] if (*from..=*to).contains(&'/'));
    if chars.windows(3).any(has_slash) {
        return Err(format!("[{class}] isn't supported: a range has / in it"));
    }
    let backwards = chars.windows(3).find(|range| matches!(range, [from, '-', to] if from > to));
    if let Some([from, _, to]) = backwards {
        return Err(format!("[{class}] matches nothing: write the range from {to} to {from}, [{to}-{from}]"));
    }
    Ok(match (body.len() < pattern.len(), class.strip_prefix([']', '-'])) {
        (false, _) => (format!("[{class}]"), behind),
        (true, None) => (format!("[!/{class}]"), behind),
        // A hyphen is literal at the beginning, too.
        (true, Some(rest)) => (format!("[!{}/{rest}]", class.get(..1).unwrap_or_default()), behind),
    })
}

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
        let cases: [(&[&str], &[&str], &[&str]); 18] = [
            (&[], &["a", "d/", "d/a"], &[]),
            (&["-*.tmp"], &["a", "d/a.tmpl"], &["a.tmp", "d/a.tmp", "d/a.tmp/x"]),
            (&["-build/"], &["build", "d/build"], &["build/", "build/x", "d/build/x/y"]),
            (&["-/a"], &["d/a"], &["a", "a/b"]),
            (&["-d/a"], &["e/d/a", "a"], &["d/a"]),
            (&["+*.txt"], &["a.txt", "d/e/a.txt"], &["a", "d/", "d/a"]),
            (&["+*.txt", "-*"], &["a.txt", "d/e/a.txt"], &["a", "d/", "d/a"]),
            (&["+keep.tmp", "-*.tmp"], &["keep.tmp", "a"], &["a.tmp"]),
            (&["-\\!a", "-#b"], &["a", "b"], &["!a", "#b"]),
            (&["-*/"], &["a"], &["d/", "d/a"]),
            (&["-**/"], &["a"], &["d/", "d/a"]),
            (&["-{a,b}"], &["a", "b"], &["{a,b}", "d/{a,b}"]),
            (&["-a[!b]c"], &["abc", "a/c"], &["adc"]),
            (&["-a ", "-b\\ "], &["a", "b"], &["a ", "b "]),
            (&["-a[^]b]"], &["a]", "ab"], &["ac"]),
            (&["-a[!-b]c"], &["abc", "a-c", "a/c"], &["a.c"]),
            (&["-d/**"], &["d/"], &["d/a", "d/e/a"]),
            (&["+/d/", "-*/"], &["a", "d/", "d/a"], &["e/", "e/d/", "d/e/"]),
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
        for pattern in
            ["", " ", "[z-a]", "a\nb", "!keep", "/", "//", "./a", "a/../b", "a\\", "[[:alpha:]]", "[a", "[+-9]"]
        {
            let error = Filter::new(&[FilterRule::Exclude(pattern.to_owned())]).unwrap_err();
            assert!(error.starts_with(&format!("'{pattern}': ")) && !error.contains("glob"), "{error}");
        }
    }
}
