//! Patterns of paths and of services.

use std::fmt::{self, Display, Formatter};

/// Names in a pattern of paths: its states have a bit each.
const SEGMENTS_MAX: usize = 62;

/// Placeholder of the peer's name.
const NAME: &str = "{name}";

/// A pattern of paths below the root, or of services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    text: String,
    has_name: bool,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Path(Vec<Segment>),
    Service(Vec<Token>),
}

/// A name of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    /// `**`: any names, or none.
    Any,
    One(Vec<Token>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Byte(u8),
    /// `*`: any bytes, or none.
    Any,
    /// `?`
    One,
    /// `{name}`
    Name,
}

impl Pattern {
    /// A pattern of paths. It covers what it matches, and everything below that.
    pub(crate) fn path(text: &str) -> Result<Pattern, String> {
        let mut segments = Vec::new();
        for name in text.split('/') {
            segments.push(match name {
                "" => return Err(format!("{text:?} is no path below the root: names are parted by one slash each")),
                "." | ".." => return Err(format!("{text:?} has a {name}: paths begin at the root and only go down")),
                "**" => Segment::Any,
                _ => Segment::One(tokens(name)?),
            });
        }
        segments.dedup_by(|next, before| (&*next, &*before) == (&Segment::Any, &Segment::Any));
        if segments.len() > SEGMENTS_MAX {
            return Err(format!("a path has at most {SEGMENTS_MAX} names here"));
        }
        Ok(Pattern { text: text.to_owned(), has_name: text.contains(NAME), kind: Kind::Path(segments) })
    }

    /// A pattern of services, in which a star stands for any characters.
    pub(crate) fn service(text: &str) -> Result<Pattern, String> {
        Ok(Pattern { text: text.to_owned(), has_name: text.contains(NAME), kind: Kind::Service(tokens(text)?) })
    }

    /// The pattern for a peer of this name; `None` if it has none, and the pattern needs one.
    pub(crate) fn for_name(&self, name: Option<&[u8]>) -> Option<Pattern> {
        if !self.has_name {
            return Some(self.clone());
        }
        let name = name?;
        let fill = |tokens: &[Token]| -> Vec<Token> {
            let fill = |token: &Token| match token {
                Token::Name => name.iter().copied().map(Token::Byte).collect(),
                other => vec![other.clone()],
            };
            tokens.iter().flat_map(fill).collect()
        };
        let kind = match &self.kind {
            Kind::Service(tokens) => Kind::Service(fill(tokens)),
            Kind::Path(segments) => {
                let fill = |segment: &Segment| match segment {
                    Segment::Any => Segment::Any,
                    Segment::One(tokens) => Segment::One(fill(tokens)),
                };
                Kind::Path(segments.iter().map(fill).collect())
            }
        };
        Some(Pattern { text: self.text.clone(), has_name: false, kind })
    }

    /// Whether it covers a path or a service.
    pub(crate) fn covers(&self, subject: &[u8]) -> bool {
        match &self.kind {
            Kind::Service(tokens) => matches(tokens, subject),
            Kind::Path(segments) => Walk::along(segments, subject).is_covered,
        }
    }

    /// Whether it may cover anything below a directory.
    pub(crate) fn reaches_below(&self, dir: &[u8]) -> bool {
        match &self.kind {
            Kind::Service(_) => false,
            Kind::Path(segments) => {
                let walk = Walk::along(segments, dir);
                walk.is_covered || walk.states != 0
            }
        }
    }
}

impl Display for Pattern {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.bytes().next() {
        if let Some(behind) = rest.strip_prefix(NAME) {
            tokens.push(Token::Name);
            rest = behind;
            continue;
        }
        let token = match first {
            b'*' if rest.starts_with("**") => return Err(format!("{text:?}: ** stands between slashes, alone")),
            b'*' => Token::Any,
            b'?' => Token::One,
            b'{' | b'}' | b'[' | b']' | b'\\' => {
                return Err(format!("{text:?} has a {}: patterns have *, **, ? and {NAME}", char::from(first)));
            }
            byte => Token::Byte(byte),
        };
        tokens.push(token);
        // All of the above is ASCII, so that a longer character comes byte by byte.
        let length = rest.chars().next().map_or(1, char::len_utf8);
        if length > 1 {
            tokens.pop();
            tokens.extend(rest.bytes().take(length).map(Token::Byte));
        }
        rest = rest.get(length..).unwrap_or_default();
    }
    Ok(tokens)
}

/// Whether tokens match all of these bytes. Goes back to the last star alone, so takes at most the product of both lengths.
fn matches(tokens: &[Token], bytes: &[u8]) -> bool {
    let (mut token, mut at) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while at < bytes.len() {
        let is_same = match tokens.get(token) {
            Some(Token::Any) => {
                star = Some((token, at));
                token += 1;
                continue;
            }
            Some(Token::One) => true,
            Some(Token::Byte(byte)) => bytes.get(at) == Some(byte),
            Some(Token::Name) | None => false,
        };
        if is_same {
            (token, at) = (token + 1, at + 1);
        } else if let Some((of, from)) = star {
            star = Some((of, from + 1));
            (token, at) = (of + 1, from + 1);
        } else {
            return false;
        }
    }
    tokens.iter().skip(token).all(|token| *token == Token::Any)
}

/// Positions in a pattern that a path may have reached.
struct Walk {
    /// A bit for each segment that may match the next name.
    states: u64,
    /// The path, or one above it, was matched as a whole.
    is_covered: bool,
}

impl Walk {
    fn along(segments: &[Segment], path: &[u8]) -> Walk {
        let mut walk = Walk { states: 0, is_covered: false };
        walk.enter(segments, 0);
        if path.is_empty() {
            return walk;
        }
        for name in path.split(|byte| *byte == b'/') {
            if walk.is_covered || walk.states == 0 {
                break;
            }
            let before = std::mem::take(&mut walk.states);
            for (at, segment) in segments.iter().enumerate().filter(|(at, _)| before >> at & 1 == 1) {
                match segment {
                    Segment::Any => walk.enter(segments, at),
                    Segment::One(tokens) if matches(tokens, name) => walk.enter(segments, at + 1),
                    Segment::One(_) => {}
                }
            }
        }
        walk
    }

    /// Adds a state, and the next one where this one may match nothing.
    fn enter(&mut self, segments: &[Segment], at: usize) {
        match segments.get(at) {
            None => self.is_covered = true,
            Some(segment) => {
                self.states |= 1 << at;
                if *segment == Segment::Any {
                    self.enter(segments, at + 1);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_path_pattern_covers_what_it_matches_and_all_below() {
        for (pattern, covered, others) in [
            ("models/**", &["models", "models/a", "models/a/b"][..], &["model", "models2", "a/models", ""][..]),
            ("models", &["models", "models/a/b"], &["model", "a"]),
            ("*/public", &["a/public", "b/public/x"], &["public", "a/b/public", "a"]),
            ("**/*.txt", &["a.txt", "b/a.txt", "b/c/a.txt/d"], &["a.txtx", "b"]),
            ("**", &["", "a", "a/b"], &[]),
            ("a?c/é*", &["abc/é", "abc/éx"], &["ac/é", "abc/e"]),
            ("in/{name}/x", &["in/ann/x"], &["in/{name}/x", "in/bob/x", "in/ann"]),
        ] {
            let pattern = Pattern::path(pattern).unwrap().for_name(Some(b"ann")).unwrap();
            assert!(covered.iter().all(|path| pattern.covers(path.as_bytes())), "{pattern}");
            assert!(!others.iter().any(|path| pattern.covers(path.as_bytes())), "{pattern}");
        }
        for wrong in ["", "/a", "a//b", "a/", "../a", "a/./b", "a**", "{user}/a", "[ab]", r"a\b"] {
            assert!(Pattern::path(wrong).is_err(), "{wrong}");
        }
        assert!(Pattern::path("in/{name}").unwrap().for_name(None).is_none());
        // A name can't be two names of a path, nor a pattern.
        let pattern = Pattern::path("in/{name}").unwrap();
        assert!(!pattern.for_name(Some(b"a/b")).unwrap().covers(b"in/a/b"));
        assert!(!pattern.for_name(Some(b"*")).unwrap().covers(b"in/a"));
    }

    #[test]
    fn what_leads_to_a_covered_path_is_known() {
        let reaches = |pattern: &str, dir: &str| Pattern::path(pattern).unwrap().reaches_below(dir.as_bytes());
        assert!(reaches("a/b/c", "") && reaches("a/b/c", "a") && reaches("a/b/c", "a/b/c/d"));
        assert!(!reaches("a/b/c", "b") && !reaches("a/b/c", "a/c"));
        assert!(reaches("**/x", "y/z") && reaches("*/x", "y") && !reaches("*/x", "y/z"));
    }

    #[test]
    fn a_star_in_a_service_stands_for_any_characters() {
        let covers = |pattern: &str, service: &str| Pattern::service(pattern).unwrap().covers(service.as_bytes());
        assert!(covers("stats.*", "stats.a.b") && covers("*", "x/y") && covers("re*e", "resize"));
        assert!(!covers("stats.*", "stats") && !covers("resize", "resize2") && !covers("re?", "resize"));
    }

    /// The same, slowly.
    fn naive(pattern: &[&str], path: &[&str]) -> bool {
        match (pattern, path) {
            ([], _) => true,
            (["**", rest @ ..], _) => {
                naive(rest, path) || path.split_first().is_some_and(|(_, below)| naive(pattern, below))
            }
            ([name, rest @ ..], [first, below @ ..]) => glob(name.as_bytes(), first.as_bytes()) && naive(rest, below),
            (_, []) => false,
        }
    }

    fn glob(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => {
                glob(rest, name) || name.split_first().is_some_and(|(_, below)| glob(pattern, below))
            }
            ([b'?', rest @ ..], [_, below @ ..]) => glob(rest, below),
            ([byte, rest @ ..], [first, below @ ..]) => byte == first && glob(rest, below),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn patterns_match_as_a_naive_matcher_does(
            pattern in prop::collection::vec("(\\*\\*|[ab?]{1,3}|[ab]?\\*[ab]?)", 1..5),
            path in prop::collection::vec("[ab]{1,3}", 0..5),
        ) {
            let compiled = Pattern::path(&pattern.join("/")).unwrap();
            let (pattern, path): (Vec<&str>, Vec<&str>) = (pattern.iter().map(String::as_str).collect(), path.iter().map(String::as_str).collect());
            let covered = naive(&pattern, &path);
            prop_assert_eq!(compiled.covers(path.join("/").as_bytes()), covered);
            if covered {
                for above in 0..path.len() {
                    prop_assert!(compiled.reaches_below(path[..above].join("/").as_bytes()));
                }
            }
        }
    }
}
