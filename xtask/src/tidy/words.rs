//! Words that the glossary replaces, and the beginnings of doc comments.

use super::Problem;
use super::lexer::{Kind, Token};
use super::source::Tree;

const RULE: &str = "word";

/// The one list of words that are replaced: the table under [`HEADING`].
const GLOSSARY: &str = "docs/glossary.md";

const HEADING: &str = "## Say this, not that";

/// Words that no doc comment begins with. CONTRIBUTING.md names them too.
const BEGINNINGS: [&str; 5] = ["What", "What's", "It", "It's", "Whoever"];

/// Identifiers of Rust code that have got another name.
const RENAMED: &[(&str, &str)] = &[
    ("Lanes", "BlockingPool"),
    ("Keeping", "LocalStore"),
    ("Speech", "PeerProtocol"),
    ("Gathering", "ReplyBatcher"),
    ("Behind", "Backlog"),
    ("Aside", "DeadLetters"),
    ("Numbers", "SequenceMap"),
    ("Naming", "Permit"),
    ("Crowd", "ReadBudget"),
];

/// A word or phrase that isn't used, and its replacement.
#[derive(Debug, PartialEq, Eq)]
struct Replaced {
    words: Vec<String>,
    say: String,
}

pub fn check(tree: &Tree) -> Vec<Problem> {
    let glossary = tree.files.iter().find(|file| file.path == GLOSSARY);
    let (outside, replaced) = split_glossary(glossary.map_or("", |file| &file.text));
    let mut problems = Vec::new();
    if replaced.is_empty() {
        problems.push(Problem::new(GLOSSARY, 0, RULE, format!("the table under '{HEADING}' is missing")));
    }
    for file in &tree.files {
        let text = if file.path == GLOSSARY { &outside } else { &file.text };
        let found = in_text(text, &replaced)
            .into_iter()
            .chain(in_identifiers(&file.tokens, &replaced))
            .chain(renamed(&file.tokens))
            .map(|(line, advice)| Problem::new(&file.path, line, RULE, advice));
        problems.extend(found);
        problems.extend(
            beginnings(&file.tokens).map(|(line, advice)| Problem::new(&file.path, line, "doc-comment", advice)),
        );
    }
    problems
}

/// The glossary with the lines of the table left empty, and the words of the table.
fn split_glossary(text: &str) -> (String, Vec<Replaced>) {
    let (mut outside, mut replaced, mut is_inside) = (String::new(), Vec::new(), false);
    for line in text.lines() {
        is_inside = line == HEADING || (is_inside && !line.starts_with('#'));
        if let Some([say, not]) = row(line).filter(|_| is_inside) {
            let phrases = not.split(',').map(|not| words(not).map(str::to_lowercase).collect::<Vec<_>>());
            let phrases = phrases.filter(|words| !words.is_empty());
            replaced.extend(phrases.map(|words| Replaced { words, say: say.to_owned() }));
        } else {
            outside.push_str(line);
        }
        outside.push('\n');
    }
    (outside, replaced)
}

/// The two cells of a row, unless it is a table's head.
fn row(line: &str) -> Option<[&str; 2]> {
    let mut cells = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim);
    let row = [cells.next()?, cells.next()?];
    (cells.next().is_none() && row != ["say", "not"] && !row[0].starts_with('-')).then_some(row)
}

/// The words of a text. A name with underscores is one word, so that members of JSON, which must stay, are none of the glossary's.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Replaced words and phrases in comments, strings and prose, also where a line ends within a phrase.
fn in_text(text: &str, replaced: &[Replaced]) -> Vec<(usize, String)> {
    let numbered = text.lines().zip(1..).flat_map(|(line, number)| words(line).map(move |word| (number, word)));
    let all: Vec<(usize, String)> = numbered.map(|(number, word)| (number, word.to_lowercase())).collect();
    let mut found = Vec::new();
    for wanted in replaced {
        let phrases = all.windows(wanted.words.len());
        let same = phrases.filter(|phrase| phrase.iter().map(|(_, word)| word).eq(&wanted.words));
        found.extend(same.map(|phrase| (phrase[0].0, advice(wanted))));
    }
    found
}

/// Replaced words as a part of Rust's identifiers. Whole identifiers are found in the text.
fn in_identifiers(tokens: &[Token], replaced: &[Replaced]) -> impl Iterator<Item = (usize, String)> {
    tokens.iter().filter_map(|token| {
        let name = token.word()?;
        let parts = parts(name);
        let is_part = |wanted: &&Replaced| {
            parts.len() > 1 && parts.windows(wanted.words.len()).any(|parts| parts == wanted.words)
        };
        Some((token.line, format!("{name}: {}", advice(replaced.iter().find(is_part)?))))
    })
}

/// The words of an identifier, in lower case: `TheirName` and `their_name` have two.
fn parts(name: &str) -> Vec<String> {
    let mut spaced = String::new();
    let mut follows_lower = false;
    for c in name.chars() {
        if c.is_uppercase() && follows_lower {
            spaced.push(' ');
        }
        follows_lower = c.is_lowercase();
        spaced.extend(if c == '_' { ' ' } else { c }.to_lowercase());
    }
    spaced.split_whitespace().map(str::to_owned).collect()
}

fn advice(replaced: &Replaced) -> String {
    format!("say '{}' instead of '{}'", replaced.say, replaced.words.join(" "))
}

fn renamed(tokens: &[Token]) -> impl Iterator<Item = (usize, String)> {
    tokens.iter().filter_map(|token| {
        let (old, new) = RENAMED.iter().find(|(old, _)| token.word() == Some(old))?;
        Some((token.line, format!("{old} is called {new} now")))
    })
}

/// Doc comments that begin with one of [`BEGINNINGS`]. Lines that follow a line of the same comment go on with it.
fn beginnings(tokens: &[Token]) -> impl Iterator<Item = (usize, String)> {
    let previous = std::iter::once(None).chain(tokens.iter().map(Some));
    tokens.iter().zip(previous).filter_map(move |(token, previous)| {
        let Kind::Comment { doc: true, text } = &token.kind else { return None };
        let is_first = previous.is_none_or(|previous| {
            !matches!(previous.kind, Kind::Comment { doc: true, .. }) || previous.line + 1 != token.line
        });
        let first = text.split(|c: char| !c.is_alphabetic() && c != '\'').next().unwrap_or_default();
        let advice = || format!("a doc comment is a noun or verb phrase; don't begin with '{first}'");
        (is_first && BEGINNINGS.contains(&first)).then(|| (token.line, advice()))
    })
}

#[cfg(test)]
mod tests {
    use super::super::lexer::lex;
    use super::*;

    const TABLE: &str =
        "# Terms\n\n## Say this, not that\n\n| say | not |\n|---|---|\n| bushel | peck, half a peck |\n";

    fn replaced() -> Vec<Replaced> {
        split_glossary(TABLE).1
    }

    fn lines(found: impl IntoIterator<Item = (usize, String)>) -> Vec<usize> {
        found.into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn table_of_the_glossary_is_read_and_not_checked_itself() {
        let (outside, replaced) =
            split_glossary(&format!("| peck | a measure |\n{TABLE}\n# More\n\n| gill | peck |\n"));
        let say = "bushel".to_owned();
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let expected = [
            Replaced { words: words(&["peck"]), say: say.clone() },
            Replaced { words: words(&["half", "a", "peck"]), say },
        ];
        assert_eq!(replaced, expected);
        assert_eq!(lines(in_text(&outside, &replaced)), [1, 12]);
    }

    #[test]
    fn words_are_found_in_any_case_and_phrases_across_lines() {
        assert_eq!(lines(in_text("a Peck.\npecks, peck_size", &replaced())), [1]);
        assert_eq!(lines(in_text("// half\n// a peck", &replaced())), [2, 1]);
    }

    #[test]
    fn words_are_found_within_identifiers() {
        let source = "fn peck_of() {}\nstruct LastPeck;\nconst PECK_MAX: u8 = 1;\nfn pecks() {}\n\"peck_of\"";
        assert_eq!(lines(in_identifiers(&lex(source), &replaced())), [1, 2, 3]);
    }

    #[test]
    fn doc_comments_are_judged_by_their_first_word() {
        let found = |source: &str| lines(beginnings(&lex(source)));
        assert_eq!(found("/// What it is.\nfn a() {}"), [1]);
        assert_eq!(found("/// A thing.\n/// It is one.\nfn a() {}\n\n/// Its size.\n/// It is."), Vec::<usize>::new());
        assert_eq!(found("// What.\n/// Whatever.\n"), Vec::<usize>::new());
        assert_eq!(found("//! It reads.\n"), [1]);
    }

    #[test]
    fn rules_of_contributing_are_those_that_are_checked() {
        let rules = include_str!("../../../CONTRIBUTING.md");
        let sentence =
            rules.split("Don't begin with").nth(1).and_then(|rest| rest.split('.').next()).unwrap_or_default();
        let named: Vec<&str> = sentence.split('"').skip(1).step_by(2).collect();
        assert_eq!(named, BEGINNINGS);
    }
}
