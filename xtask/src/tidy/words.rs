//! Words that the glossary replaced, in prose and as identifiers.

use super::Problem;
use super::lexer::{Kind, Token};
use super::source::Tree;

const RULE: &str = "word";

/// Words banned everywhere, also as a part of another word, in any case.
const BANNED: &[Word] =
    &[Word { word: "octet", instead: "byte", allowed: &["conformance/python/", "docs/glossary.md"] }];

/// Identifiers of Rust code that have got another name.
const RENAMED: &[(&str, &str)] = &[
    ("Oddities", "ProtocolDeviations"),
    ("Lanes", "BlockingPool"),
    ("Keeping", "LocalStore"),
    ("Speech", "PeerProtocol"),
    ("Gathering", "ReplyBatcher"),
    ("Behind", "Backlog"),
    ("Aside", "DeadLetters"),
    ("Room", "MemoryPressure"),
    ("Numbers", "SequenceMap"),
    ("Naming", "Permit"),
    ("Crowd", "ReadBudget"),
];

/// Words that no doc comment begins with.
const BEGINNINGS: &[&str] = &[];

struct Word {
    word: &'static str,
    instead: &'static str,
    /// Files, or folders ending in `/`, that may have it.
    allowed: &'static [&'static str],
}

pub fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in tree.files.iter().filter(|file| !file.path.starts_with("xtask/src/tidy/")) {
        let banned: Vec<&Word> = BANNED.iter().filter(|word| !is_allowed(&file.path, word.allowed)).collect();
        for (number, line) in file.text.lines().enumerate() {
            problems
                .extend(banned_words(line, &banned).map(|advice| Problem::new(&file.path, number + 1, RULE, advice)));
        }
        problems.extend(renamed(&file.tokens).map(|(line, advice)| Problem::new(&file.path, line, RULE, advice)));
        problems.extend(
            beginnings(&file.tokens, BEGINNINGS)
                .map(|(line, advice)| Problem::new(&file.path, line, "doc-comment", advice)),
        );
    }
    problems
}

fn is_allowed(path: &str, allowed: &[&str]) -> bool {
    allowed.iter().any(|place| path == *place || (place.ends_with('/') && path.starts_with(place)))
}

fn banned_words(line: &str, banned: &[&Word]) -> impl Iterator<Item = String> {
    let line = line.to_lowercase();
    banned
        .iter()
        .filter(move |word| line.contains(word.word))
        .map(|word| format!("say '{}' instead of '{}'", word.instead, word.word))
}

fn renamed(tokens: &[Token]) -> impl Iterator<Item = (usize, String)> {
    tokens.iter().filter_map(|token| {
        let (old, new) = RENAMED.iter().find(|(old, _)| token.word() == Some(old))?;
        Some((token.line, format!("{old} is called {new} now")))
    })
}

/// Doc comments that begin with one of the given words. Lines that follow a line of the same comment go on with it.
fn beginnings(tokens: &[Token], beginnings: &'static [&str]) -> impl Iterator<Item = (usize, String)> {
    let previous = std::iter::once(None).chain(tokens.iter().map(Some));
    tokens.iter().zip(previous).filter_map(move |(token, previous)| {
        let Kind::Comment { doc: true, text } = &token.kind else { return None };
        let is_first = previous.is_none_or(|previous| {
            !matches!(previous.kind, Kind::Comment { doc: true, .. }) || previous.line + 1 != token.line
        });
        let first = text.split(|c: char| !c.is_alphabetic() && c != '\'').next().unwrap_or_default();
        let advice = || format!("a doc comment is a noun or verb phrase; don't begin with '{first}'");
        (is_first && beginnings.contains(&first)).then(|| (token.line, advice()))
    })
}

#[cfg(test)]
mod tests {
    use super::super::lexer::lex;
    use super::*;

    const PECK: Word = Word { word: "peck", instead: "bushel", allowed: &["old.md", "wire/"] };

    #[test]
    fn banned_words_are_found_in_any_case_and_within_identifiers() {
        assert_eq!(banned_words("let MAX_PECKS = 1;", &[&PECK]).count(), 1);
        assert_eq!(banned_words("bushels", &[&PECK]).count(), 0);
    }

    #[test]
    fn allowed_are_files_and_folders() {
        assert!(is_allowed("old.md", PECK.allowed) && is_allowed("wire/a.rs", PECK.allowed));
        assert!(!is_allowed("new.md", PECK.allowed) && !is_allowed("old.md.rs", PECK.allowed));
    }

    #[test]
    fn doc_comments_are_judged_by_their_first_word() {
        let found = |source: &str| beginnings(&lex(source), &["What", "It"]).map(|(line, _)| line).collect::<Vec<_>>();
        assert_eq!(found("/// What it is.\nfn a() {}"), [1]);
        assert_eq!(found("/// A thing.\n/// It is one.\nfn a() {}\n\n/// It's.\n/// It is."), Vec::<usize>::new());
        assert_eq!(found("// What.\n/// Whatever.\n"), Vec::<usize>::new());
        assert_eq!(found("//! It reads.\n"), [1]);
    }
}
