//! From text to rules.

use crate::address::Network;
use crate::pattern::Pattern;
use crate::rules::{Rule, RuleLine, Rules, Who};
use crate::verb::Verb;
use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use towpath_zmtp::PublicKey;

/// Bytes of a file of rules.
pub const RULES_BYTES_MAX: usize = 1 << 20;
/// Lines that allow or deny something: each decision looks at those of its peer.
const RULES_MAX: usize = 4096;
/// Bytes of a name.
const NAME_BYTES_MAX: usize = 255;
/// How alike two words are that are taken for the same, from 0 to 1.
const LIKENESS: f64 = 0.7;

/// Words that lines begin with.
const FIRST_WORDS: [&str; 5] = ["key", "user", "group", "allow", "deny"];
/// Words that aren't names.
const RESERVED: [&str; 4] = ["anyone", "anonymous", "from", "to"];

/// A line that is wrong, and what was probably meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineError {
    /// Counted from 1.
    pub line: usize,
    /// Description of the mistake.
    pub message: String,
}

/// All lines that are wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesError(pub Vec<LineError>);

impl Display for LineError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)
    }
}

impl Display for RulesError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for RulesError {}

/// Whether rules can name somebody so.
pub fn is_name(name: &str) -> bool {
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && !RESERVED.contains(&name)
        && !name.starts_with('#')
        && !name.contains(|c: char| c.is_whitespace() || c.is_control() || "\"',/*?={}".contains(c))
}

pub(crate) fn rules(text: &str) -> Result<Rules, RulesError> {
    let mut reader = Reader::default();
    if text.len() > RULES_BYTES_MAX {
        reader.fail(1, format!("the file has more than {RULES_BYTES_MAX} bytes"));
        return Err(RulesError(reader.errors));
    }
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if !line.is_empty()
            && !line.starts_with('#')
            && let Err(message) = reader.line(number, line)
        {
            reader.fail(number, message);
        }
    }
    reader.check_names();
    match reader.errors.is_empty() {
        true => Ok(reader.rules),
        false => {
            reader.errors.sort_by_key(|error| error.line);
            Err(RulesError(reader.errors))
        }
    }
}

#[derive(Default)]
struct Reader {
    rules: Rules,
    /// Names used, with their lines. They may be defined further down.
    used: Vec<(usize, String)>,
    /// Groups, with their lines.
    group_lines: Vec<(usize, String)>,
    errors: Vec<LineError>,
}

impl Reader {
    fn fail(&mut self, line: usize, message: String) {
        self.errors.push(LineError { line, message });
    }

    fn line(&mut self, number: usize, line: &str) -> Result<(), String> {
        let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match first {
            // Keys have characters that mean something elsewhere.
            "key" => self.key(rest),
            "user" => self.users(&words(rest)?),
            "group" => self.group(number, &words(rest)?),
            "allow" | "deny" => self.rule(number, line, first == "deny", &words(rest)?),
            other => {
                let known = FIRST_WORDS.join(", ");
                Err(format!("a line begins with {known} or #, not with {other:?}{}", meant(other, FIRST_WORDS)))
            }
        }
    }

    fn key(&mut self, rest: &str) -> Result<(), String> {
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let [name, key] = fields[..] else { return Err("a key is written: key NAME KEY".to_owned()) };
        let name = checked_name(name)?;
        let key: PublicKey = key.parse().map_err(|error| format!("{error}"))?;
        if let Some(of) = self.rules.keys.insert(key, name.to_owned()) {
            return Err(format!("this key is there already, for {of}"));
        }
        self.rules.names.insert(name.to_owned());
        Ok(())
    }

    fn users(&mut self, words: &[Word]) -> Result<(), String> {
        if words.is_empty() {
            return Err("users are written: user NAME ...".to_owned());
        }
        for word in words {
            self.rules.names.insert(checked_name(&word.text)?.to_owned());
        }
        Ok(())
    }

    fn group(&mut self, number: usize, words: &[Word]) -> Result<(), String> {
        let usage = || "a group is written: group NAME = MEMBER ...".to_owned();
        let [name, equals, members @ ..] = words else { return Err(usage()) };
        if equals.text != "=" || members.is_empty() {
            return Err(usage());
        }
        let name = checked_name(&name.text)?.to_owned();
        let mut all = BTreeSet::new();
        for member in members {
            let member = checked_name(&member.text)?.to_owned();
            self.used.push((number, member.clone()));
            all.insert(member);
        }
        self.group_lines.push((number, name.clone()));
        match self.rules.groups.insert(name.clone(), all) {
            Some(_) => Err(format!("the group {name} is there already")),
            None => Ok(()),
        }
    }

    fn rule(&mut self, number: usize, line: &str, is_deny: bool, words: &[Word]) -> Result<(), String> {
        let first = if is_deny { "deny" } else { "allow" };
        let usage = || format!("a rule is written: {first} WHO [from ADDRESS ...] to VERB ... SUBJECT ...");
        if self.rules.rules.len() >= RULES_MAX {
            return Err(format!("more than {RULES_MAX} lines allow or deny something"));
        }
        let to = words.iter().position(|word| word.is("to")).ok_or_else(|| format!("no `to`: {}", usage()))?;
        let (before, after) = (words.get(..to).unwrap_or_default(), words.get(to + 1..).unwrap_or_default());
        let from = before.iter().position(|word| word.is("from")).unwrap_or(before.len());
        let (who, from) = (before.get(..from).unwrap_or_default(), before.get(from + 1..));
        if who.is_empty() || from.is_some_and(<[Word]>::is_empty) {
            return Err(usage());
        }
        let mut people = Vec::new();
        for word in who {
            people.push(match &*word.text {
                "anyone" => Who::Anyone,
                "anonymous" => Who::Anonymous,
                name => {
                    self.used.push((number, checked_name(name)?.to_owned()));
                    Who::Named(name.to_owned())
                }
            });
        }
        let from = from.unwrap_or_default().iter().map(|word| word.text.parse::<Network>());
        let from = from.collect::<Result<Vec<_>, _>>()?;
        // The first word is one in any case, so that a misspelt one isn't taken for a path.
        let is_verb = |index: &usize| {
            let before = index.checked_sub(1).and_then(|index| after.get(index));
            before.is_none_or(|word| word.has_comma) || after.get(*index).is_some_and(|word| word.is_verb())
        };
        let count = (0..after.len()).take_while(is_verb).count();
        let (verbs, subjects) = after.split_at_checked(count).ok_or_else(usage)?;
        let mut named = Vec::new();
        for word in verbs {
            named.push(Verb::named(&word.text).ok_or_else(|| {
                let verbs = Verb::ALL.map(Verb::name);
                format!("{:?} is no verb: {}{}", word.text, verbs.join(", "), meant(&word.text, verbs))
            })?);
        }
        let Some(verb) = named.first().copied() else { return Err(usage()) };
        if let Some(other) = named.iter().find(|other| other.is_of_paths() != verb.is_of_paths()) {
            let [of_paths, of_services] = if verb.is_of_paths() { [verb, *other] } else { [*other, verb] };
            return Err(format!("{of_paths} is about paths and {of_services} about services: write two lines"));
        }
        if subjects.is_empty() {
            let what = if verb.is_of_paths() { "which paths? ** is all" } else { "which services? * is all" };
            return Err(format!("{verb} {what}"));
        }
        let mut patterns = Vec::new();
        for word in subjects {
            if !word.is_quoted && word.text.starts_with('#') {
                return Err("a comment is a line of its own; put a subject that begins with # in quotes".to_owned());
            }
            if word.has_comma {
                return Err("subjects are parted by spaces; put one that has a comma at its end in quotes".to_owned());
            }
            patterns.push(if verb.is_of_paths() { Pattern::path(&word.text) } else { Pattern::service(&word.text) }?);
        }
        let line = RuleLine { number, text: line.into() };
        let rule = Rule { line, is_deny, who: people, from, verbs: named, subjects: patterns };
        self.rules.rules.push(Arc::new(rule));
        Ok(())
    }

    /// Every name that is used is defined, and none twice.
    fn check_names(&mut self) {
        let Rules { names, groups, .. } = &self.rules;
        let mut errors = Vec::new();
        for (line, name) in &self.used {
            if !names.contains(name) && !groups.contains_key(name) {
                let all = names.iter().chain(groups.keys()).map(String::as_str);
                let message = format!(
                    "nobody is called {name}{}; a line `key {name} KEY` or `user {name}` says who it is",
                    meant(name, all)
                );
                errors.push(LineError { line: *line, message });
            }
        }
        for (line, group) in &self.group_lines {
            if names.contains(group) {
                errors.push(LineError { line: *line, message: format!("{group} is somebody's name, and a group's") });
            }
            let members = groups.get(group).into_iter().flatten();
            if let Some(inner) = members.into_iter().find(|member| groups.contains_key(*member)) {
                let message = format!("the group {group} has the group {inner} in it: name its members");
                errors.push(LineError { line: *line, message });
            }
        }
        self.errors.extend(errors);
    }
}

fn checked_name(name: &str) -> Result<&str, String> {
    is_name(name).then_some(name).ok_or_else(|| format!("{name:?} can't be a name"))
}

/// The known word that was probably meant.
fn meant<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let alike = known.into_iter().map(|known| (strsim::normalized_damerau_levenshtein(word, known), known));
    let best = alike.filter(|(alike, _)| *alike >= LIKENESS).max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.map(|(_, known)| format!("; {known} was meant?")).unwrap_or_default()
}

struct Word {
    text: String,
    is_quoted: bool,
    /// A comma followed, which parts names, addresses and verbs as a space does.
    has_comma: bool,
}

impl Word {
    fn is(&self, keyword: &str) -> bool {
        !self.is_quoted && self.text == keyword
    }

    fn is_verb(&self) -> bool {
        !self.is_quoted && Verb::named(&self.text).is_some()
    }
}

/// The words of a line. Quotes keep spaces within one.
fn words(text: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (word, is_quoted, behind) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let (word, behind) = quoted.split_once('"').ok_or("a quote isn't closed")?;
                (word, true, behind)
            }
            None => {
                let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
                let (word, behind) = rest.split_at_checked(end).unwrap_or((rest, ""));
                match word.strip_suffix(',') {
                    // The comma is looked at below.
                    Some(word) => (word, false, rest.get(word.len()..).unwrap_or_default()),
                    None => (word, false, behind),
                }
            }
        };
        if !is_quoted && word.contains('"') {
            return Err(format!("a quote in the middle of {word:?}"));
        }
        let (has_comma, behind) = match behind.strip_prefix(',') {
            Some(behind) => (true, behind),
            None => (false, behind),
        };
        if behind.starts_with(|c: char| !c.is_whitespace()) {
            return Err(format!("a space is missing behind {word:?}"));
        }
        // In names and verbs without spaces: ann,bob.
        words.push(Word { text: word.to_owned(), is_quoted, has_comma });
        rest = behind.trim_start();
    }
    Ok(words)
}

#[cfg(test)]
mod tests;
