//! The rules of a file.

use crate::address::{Network, Origin};
use crate::parse::{self, RulesError};
use crate::pattern::Pattern;
use crate::permissions::Permissions;
use crate::verb::Verb;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use towpath_zmtp::PublicKey;

/// The rules of a file.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    pub(crate) keys: HashMap<PublicKey, String>,
    /// Everybody who has a name, by a key or otherwise.
    pub(crate) names: BTreeSet<String>,
    pub(crate) groups: BTreeMap<String, BTreeSet<String>>,
    pub(crate) rules: Vec<Arc<Rule>>,
}

/// A line that allows or denies something.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// Its number in the file, and its text.
    pub line: RuleLine,
    pub is_deny: bool,
    pub who: Vec<Who>,
    /// Networks of its peers; empty: from anywhere.
    pub from: Vec<Network>,
    pub verbs: Vec<Verb>,
    pub subjects: Vec<Pattern>,
}

/// Position of a rule in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleLine {
    /// Counted from 1.
    pub number: usize,
    /// As it is in the file, without spaces around it.
    pub text: Arc<str>,
}

/// Whom a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Anyone,
    Anonymous,
    /// A name or a group.
    Named(String),
}

impl Rules {
    /// Reads the text of a file. The error has all lines that are wrong.
    pub fn parse(text: &str) -> Result<Rules, RulesError> {
        parse::rules(text)
    }

    /// The name of a key.
    pub fn name_of(&self, key: &PublicKey) -> Option<&str> {
        self.keys.get(key).map(String::as_str)
    }

    /// Everybody who has a name.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// How many keys there are.
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// How many groups there are.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// How many lines allow or deny something.
    pub fn lines(&self) -> usize {
        self.rules.len()
    }

    /// Permissions of a peer. Without a name it is anonymous.
    pub fn permissions(&self, name: Option<&[u8]>, origin: Origin) -> Permissions {
        let is_about = |who: &Who| match who {
            Who::Anyone => true,
            Who::Anonymous => name.is_none(),
            Who::Named(of) => name.is_some_and(|name| match self.groups.get(of) {
                // A user who has the group's name, and isn't in these rules, isn't in it.
                Some(members) => members.iter().any(|member| member.as_bytes() == name),
                None => of.as_bytes() == name,
            }),
        };
        let applies = |rule: &&Arc<Rule>| {
            rule.who.iter().any(is_about)
                && (rule.from.is_empty() || rule.from.iter().any(|network| network.has(origin)))
        };
        Permissions::of(self.rules.iter().filter(applies).map(|rule| rule.for_name(name)).collect())
    }
}

impl Rule {
    /// The rule for a peer of this name.
    fn for_name(self: &Arc<Rule>, name: Option<&[u8]>) -> Arc<Rule> {
        let subjects: Vec<Pattern> = self.subjects.iter().filter_map(|pattern| pattern.for_name(name)).collect();
        if subjects == self.subjects {
            return Arc::clone(self);
        }
        Arc::new(Rule { subjects, ..Rule::clone(self) })
    }

    /// Whether it decides about a verb, where its subject is the right one: the one named, and for an allowing rule those that it includes, for
    /// a denying one those that include it.
    pub(crate) fn is_about(&self, verb: Verb) -> bool {
        self.verbs.iter().any(|named| if self.is_deny { verb.includes(*named) } else { named.includes(verb) })
    }
}
