//! Globs: which paths match, and below which directories some may.

use super::Failure;
use crate::filter::class_of;
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use globset::{GlobBuilder, GlobMatcher};
use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson;
use regex_automata::util::{start, syntax};
use regex_automata::{Anchored, MatchKind};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Nesting depth of braces, which bounds the recursion of the compiled glob.
pub(super) const GLOB_BRACES_MAX: usize = 32;
/// Size limit of a compiled glob.
const COMPILED_BYTES_MAX: usize = 10 << 20;
/// Cache of automaton states.
const STATES_BYTES: usize = 64 << 10;

/// A glob.
#[derive(Debug)]
pub(super) struct Glob {
    matcher: GlobMatcher,
    prefixes: Prefixes,
}

/// An automaton that accepts the prefixes of matches.
#[derive(Debug)]
struct Prefixes {
    automaton: DFA,
    cache: Cache,
}

impl Glob {
    pub(super) fn new(glob: &str) -> Result<Glob, Failure> {
        let refused = |why: &dyn std::fmt::Display| Failure::new(ErrorCode::BadRequest, format!("glob: {why}"));
        if braces_depth(glob) > GLOB_BRACES_MAX {
            return Err(refused(&format_args!("more than {GLOB_BRACES_MAX} braces in one another")));
        }
        let glob = without_slashes(glob).map_err(|why| refused(&why))?;
        let built = GlobBuilder::new(&glob).literal_separator(true).empty_alternates(true).build();
        let built = built.map_err(|error| refused(&error))?;
        let prefixes = Prefixes::new(built.regex()).map_err(|error| refused(&error))?;
        Ok(Glob { matcher: built.compile_matcher(), prefixes })
    }

    pub(super) fn matches(&self, path: &[u8]) -> bool {
        self.matcher.is_match(OsStr::from_bytes(path))
    }

    /// Whether this path matches, or anything below it may.
    pub(super) fn reaches(&mut self, path: &[u8]) -> bool {
        self.matches(path) || self.may_match_below(path)
    }

    /// Whether anything below this directory may match.
    pub(super) fn may_match_below(&mut self, path: &[u8]) -> bool {
        self.prefixes.has(path.iter().chain(b"/"))
    }
}

impl Prefixes {
    /// The prefixes of an anchored regular expression over bytes.
    fn new(regex: &str) -> Result<Prefixes, regex_automata::hybrid::BuildError> {
        let automaton = DFA::builder()
            .configure(
                DFA::config()
                    .match_kind(MatchKind::All)
                    .cache_capacity(STATES_BYTES)
                    // A larger automaton gets the least cache that it works with.
                    .skip_cache_capacity_check(true),
            )
            .syntax(syntax::Config::new().utf8(false).dot_matches_new_line(true))
            .thompson(thompson::Config::new().utf8(false).nfa_size_limit(Some(COMPILED_BYTES_MAX)))
            .build(regex)?;
        let cache = automaton.create_cache();
        Ok(Prefixes { automaton, cache })
    }

    fn has<'a>(&mut self, bytes: impl Iterator<Item = &'a u8>) -> bool {
        let Prefixes { automaton, cache } = self;
        let begin = start::Config::new().anchored(Anchored::Yes);
        let Ok(mut state) = automaton.start_state(cache, &begin) else { return true };
        for byte in bytes {
            // Can't fail in this configuration; if it did, the directory would be visited.
            let Ok(next) = automaton.next_state(cache, state, *byte) else { return true };
            state = next;
            if LazyStateID::is_dead(&state) {
                return false;
            }
        }
        true
    }
}

/// The same glob with classes that match no slash.
fn without_slashes(glob: &str) -> Result<String, String> {
    let (mut whole, mut rest) = (String::with_capacity(glob.len()), glob);
    while let Some(at) = rest.find(['[', '\\']) {
        let (before, behind) = rest.split_at(at);
        whole.push_str(before);
        match behind.strip_prefix('[') {
            Some(class) => {
                let (class, behind) = class_of(class)?;
                whole.push_str(&class);
                rest = behind;
            }
            None => {
                let quoted = behind.chars().take(2).map(char::len_utf8).sum();
                let (quoted, behind) = behind.split_at(quoted);
                whole.push_str(quoted);
                rest = behind;
            }
        }
    }
    Ok(whole + rest)
}

/// Nesting depth of a pattern's braces.
fn braces_depth(glob: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut bytes = glob.bytes().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            b'\\' => _ = bytes.next(),
            b'[' => {
                bytes.next_if(|byte| matches!(byte, b'!' | b'^'));
                // The first character is literal, even `]`.
                bytes.next();
                bytes.find(|byte| *byte == b']');
            }
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// The literal directory prefix of a pattern: nothing outside of it can match.
pub(super) fn literal_beginning(glob: &str) -> RelPath {
    let mut path = RelPath::root();
    let mut names = glob.split('/').peekable();
    while let Some(name) = names.next() {
        let is_last = names.peek().is_none();
        let is_literal = !name.bytes().any(|byte| b"*?[]{},!\\".contains(&byte));
        match path.join(name.as_bytes()) {
            Ok(longer) if !is_last && is_literal => path = longer,
            _ => break,
        }
    }
    path
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn directories_are_visited_if_something_below_may_match() {
        let cases: [(&str, &[&str], &[&str]); 9] = [
            ("ok*/a.txt", &["ok", "ok1"], &["no", "ok/b", "lost+found", "o"]),
            ("{no,ok}/a.txt", &["no", "ok"], &["n", "nok", "no/a.txt"]),
            ("**/*.txt", &["a", "a/b", ".x"], &[]),
            ("a/**/b/c", &["a", "a/x", "a/b", "a/b/b"], &["b", "ab"]),
            ("{a/b,c}/d", &["a", "a/b", "c"], &["b", "a/c", "c/d"]),
            ("*", &[], &["a"]),
            ("?[!x]/y", &["ab"], &["ax", "abc"]),
            ("f{,.gz}/x", &["f", "f.gz"], &["f.", "g"]),
            (r"a\*/b", &["a*"], &["a", "ab"]),
        ];
        for (glob, may, can_not) in cases {
            let mut pattern = Glob::new(glob).unwrap();
            for (paths, expected) in [(may, true), (can_not, false)] {
                for path in paths {
                    assert_eq!(pattern.may_match_below(path.as_bytes()), expected, "{glob} below {path}");
                }
            }
        }
    }

    #[test]
    fn an_empty_alternative_is_one() {
        let pattern = Glob::new("f{,.gz}").unwrap();
        assert!(pattern.matches(b"f") && pattern.matches(b"f.gz") && !pattern.matches(b"f."));
    }

    #[test]
    fn no_class_matches_a_slash() {
        for (glob, matched, other) in [
            ("a[!b]c", "axc", "a/c"),
            (r"\[a[^b]", "[ac", "[a/"),
            ("{a[!]b]c,d}", "axc", "a/c"),
            (r"a\\[!-]b", r"a\xb", r"a\/b"),
        ] {
            let pattern = Glob::new(glob).unwrap();
            assert!(pattern.matches(matched.as_bytes()) && !pattern.matches(other.as_bytes()), "{glob}");
        }
        assert!(Glob::new("[+-9]").is_err(), "a range with a slash in it");
    }

    proptest! {
        #[test]
        fn no_match_is_below_a_directory_that_is_not_visited(glob in "[ab*?/{},!\\[\\]]{1,12}", path in "[ab]{1,3}(/[ab]{1,3}){0,4}") {
            let Ok(mut pattern) = Glob::new(&glob) else { return Ok(()) };
            if pattern.matches(path.as_bytes()) {
                for (at, _) in path.match_indices('/') {
                    prop_assert!(pattern.may_match_below(&path.as_bytes()[..at]), "{} below {}", path, &path[..at]);
                }
            }
        }
    }
}
