//! Permissions of one peer.

use crate::rules::{Rule, RuleLine};
use crate::verb::Verb;
use std::fmt::{self, Formatter};
use std::sync::Arc;

type OnRefusal = dyn Fn(Verb, &[u8], Option<&RuleLine>) + Send + Sync;

/// Permissions of one peer. Cheap to clone.
#[derive(Clone, Default)]
pub struct Permissions {
    /// `None`: everything.
    rules: Option<Arc<[Arc<Rule>]>>,
    /// Called for each refusal.
    on_refusal: Option<Arc<OnRefusal>>,
}

/// A decision, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The answer.
    pub is_allowed: bool,
    /// The line that decided; `None`: no line allows it, or there are no rules.
    pub line: Option<RuleLine>,
}

impl Permissions {
    /// Permissions without rules: everything is allowed.
    pub fn unrestricted() -> Permissions {
        Permissions::default()
    }

    /// None at all.
    pub fn nothing() -> Permissions {
        Permissions::of(Vec::new())
    }

    pub(crate) fn of(rules: Vec<Arc<Rule>>) -> Permissions {
        Permissions { rules: Some(rules.into()), on_refusal: None }
    }

    /// The same, with a function that is called for each refusal, with the verb, the subject, and the line that denies it, if one does.
    #[must_use]
    pub fn on_refusal(
        self,
        on_refusal: impl Fn(Verb, &[u8], Option<&RuleLine>) + Send + Sync + 'static,
    ) -> Permissions {
        Permissions { on_refusal: Some(Arc::new(on_refusal)), ..self }
    }

    /// Whether there are no rules.
    pub fn is_unrestricted(&self) -> bool {
        self.rules.is_none()
    }

    /// Whether the peer may do this. `subject`: a path below the root with links resolved, or a service.
    #[inline]
    pub fn may(&self, verb: Verb, subject: &[u8]) -> bool {
        match &self.rules {
            None => true,
            Some(rules) => decide(rules, verb, subject).is_allowed,
        }
    }

    /// The same for a request that ends if it isn't allowed. The refusal is reported.
    pub fn check(&self, verb: Verb, subject: &[u8]) -> bool {
        let is_allowed = self.may(verb, subject);
        if !is_allowed {
            self.note_refusal(verb, subject);
        }
        is_allowed
    }

    /// Reports a refusal, unless the peer may do this.
    pub fn note_refusal(&self, verb: Verb, subject: &[u8]) {
        if let (Some(on_refusal), Some(rules)) = (&self.on_refusal, &self.rules) {
            let Verdict { is_allowed, by } = decide(rules, verb, subject);
            if !is_allowed {
                on_refusal(verb, subject, by.map(|rule| &rule.line));
            }
        }
    }

    /// The decision with the line that decided.
    pub fn decide(&self, verb: Verb, subject: &[u8]) -> Decision {
        match &self.rules {
            None => Decision { is_allowed: true, line: None },
            Some(rules) => {
                let Verdict { is_allowed, by } = decide(rules, verb, subject);
                Decision { is_allowed, line: by.map(|rule| rule.line.clone()) }
            }
        }
    }

    /// Whether the peer may do this with a directory, or perhaps with something below it: such a directory is seen, as the way there.
    pub fn may_reach(&self, verb: Verb, dir: &[u8]) -> bool {
        let Some(rules) = &self.rules else { return true };
        let about = || rules.iter().filter(|rule| rule.is_about(verb));
        about().any(|rule| !rule.is_deny && rule.subjects.iter().any(|pattern| pattern.reaches_below(dir)))
            && !about().any(|rule| rule.is_deny && rule.subjects.iter().any(|pattern| pattern.covers(dir)))
    }

    /// Whether the peer may do this with a directory and all that is below it.
    pub fn may_all(&self, verb: Verb, dir: &[u8]) -> bool {
        let Some(rules) = &self.rules else { return true };
        let mut denied = rules.iter().filter(|rule| rule.is_deny && rule.is_about(verb));
        self.may(verb, dir)
            && !denied.any(|rule| rule.subjects.iter().any(|pattern| pattern.reaches_below(dir) || pattern.covers(dir)))
    }

    /// A number for the paths or services that a peer may do this with: another one, in all likelihood, for others, and the same after a
    /// restart. 0: unrestricted.
    pub fn fingerprint(&self, verb: Verb) -> u128 {
        let Some(rules) = &self.rules else { return 0 };
        let mut hasher = blake3::Hasher::new();
        for rule in rules.iter().filter(|rule| rule.is_about(verb)) {
            let text = format!("{}{:?}\n", rule.is_deny, rule.subjects);
            hasher.update(text.as_bytes());
        }
        let mut number = [0; 16];
        hasher.finalize_xof().fill(&mut number);
        u128::from_be_bytes(number).max(1)
    }
}

/// The same rights, whatever the lines' numbers and texts.
impl PartialEq for Permissions {
    fn eq(&self, other: &Permissions) -> bool {
        let is_same = |(one, other): (&Arc<Rule>, &Arc<Rule>)| {
            (one.is_deny, &one.verbs, &one.subjects) == (other.is_deny, &other.verbs, &other.subjects)
        };
        match (&self.rules, &other.rules) {
            (Some(one), Some(other)) => one.len() == other.len() && one.iter().zip(other.iter()).all(is_same),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl Eq for Permissions {}

impl fmt::Debug for Permissions {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Permissions").field(&self.rules).finish()
    }
}

struct Verdict<'a> {
    is_allowed: bool,
    by: Option<&'a Rule>,
}

fn decide<'a>(rules: &'a [Arc<Rule>], verb: Verb, subject: &[u8]) -> Verdict<'a> {
    let mut allowed = None;
    for rule in rules.iter().filter(|rule| rule.is_about(verb)) {
        // One that allows is of no interest if there was one.
        if (rule.is_deny || allowed.is_none()) && rule.subjects.iter().any(|pattern| pattern.covers(subject)) {
            if rule.is_deny {
                return Verdict { is_allowed: false, by: Some(rule) };
            }
            allowed = Some(&**rule);
        }
    }
    Verdict { is_allowed: allowed.is_some(), by: allowed }
}
