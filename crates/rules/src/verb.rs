//! Verbs of rules.

use std::fmt::{self, Display, Formatter};

/// An action of a peer on a path or a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    /// See a path: its name, size and times.
    List,
    /// Get the content of a file, and its digest.
    Read,
    /// Receive changes.
    Follow,
    /// Send files.
    Push,
    /// Name a version.
    Publish,
    /// Send requests to a service.
    Call,
    /// Serve a service.
    Work,
    /// See and do what only operators may: dead letters, and where workers are.
    Admin,
}

impl Verb {
    /// All verbs, as they are written.
    pub const ALL: [Verb; 8] =
        [Verb::List, Verb::Read, Verb::Follow, Verb::Push, Verb::Publish, Verb::Call, Verb::Work, Verb::Admin];

    /// The verb of this name.
    pub fn named(name: &str) -> Option<Verb> {
        Verb::ALL.into_iter().find(|verb| verb.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Verb::List => "list",
            Verb::Read => "read",
            Verb::Follow => "follow",
            Verb::Push => "push",
            Verb::Publish => "publish",
            Verb::Call => "call",
            Verb::Work => "work",
            Verb::Admin => "admin",
        }
    }

    /// Whether its subjects are paths; otherwise they are services.
    pub fn is_of_paths(self) -> bool {
        !matches!(self, Verb::Call | Verb::Work | Verb::Admin)
    }

    /// Whether the right to do this is also the right to do the other: `follow` includes `read`, and `read` includes `list`.
    pub fn includes(self, other: Verb) -> bool {
        self == other || matches!((self, other), (Verb::Follow, Verb::Read | Verb::List) | (Verb::Read, Verb::List))
    }
}

impl Display for Verb {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
