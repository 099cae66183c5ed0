//! Kinds of problems, or single ones, that an operator has muted for a time.

use super::{Kind, Subject};
use serde_json::{Value, json};
use std::time::Duration;
use towpath_files::path::Escaped;

/// Mutes at a time.
pub const MUTES_MAX: usize = 100;

/// A kind of problem that isn't counted for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mute {
    pub kind: Kind,
    /// A subject as it is shown, or its service; `None`: all of the kind.
    pub subject: Option<String>,
    /// In the time of the caller.
    pub until: Duration,
    /// The operator.
    pub by: String,
}

impl Mute {
    fn has(&self, kind: Kind, subject: &Subject) -> bool {
        let is_it = |text: &String| {
            *text == subject.to_string() || subject.service().is_some_and(|name| *text == Escaped(name).to_string())
        };
        self.kind == kind && self.subject.as_ref().is_none_or(is_it)
    }

    /// As the API has it. `started` is when the time of the caller was 0, in seconds since 1970.
    pub fn json(&self, now: Duration, started: u64) -> Value {
        json!({
            "kind": self.kind.about().name,
            "subject": self.subject,
            "until": started.saturating_add(self.until.as_secs()),
            "left_seconds": self.until.saturating_sub(now).as_secs(),
            "by": self.by,
        })
    }
}

/// All that are muted.
#[derive(Debug, Default)]
pub struct Mutes(Vec<Mute>);

impl Mutes {
    /// Adds one, in place of another one of the same. False: there are too many.
    pub fn add(&mut self, now: Duration, mute: Mute) -> bool {
        self.remove_over(now);
        self.remove(mute.kind, mute.subject.as_deref());
        let has_space = self.0.len() < MUTES_MAX;
        if has_space {
            self.0.push(mute);
        }
        has_space
    }

    /// Ends one. False: there is none of this one.
    pub fn remove(&mut self, kind: Kind, subject: Option<&str>) -> bool {
        let before = self.0.len();
        self.0.retain(|mute| mute.kind != kind || mute.subject.as_deref() != subject);
        self.0.len() != before
    }

    /// Removes those whose time is over.
    pub fn remove_over(&mut self, now: Duration) {
        self.0.retain(|mute| mute.until > now);
    }

    /// The one that mutes a problem.
    pub fn of(&self, kind: Kind, subject: &Subject) -> Option<&Mute> {
        self.0.iter().find(|mute| mute.has(kind, subject))
    }

    pub fn all(&self) -> &[Mute] {
        &self.0
    }
}
