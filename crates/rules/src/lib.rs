//! Rules: permissions of peers.
//!
//! A file of rules names keys, users and groups, and allows or denies them verbs on paths and services. [`Rules::parse`] reads it, and
//! [`Rules::permissions`] gives what one peer may do, which a server asks before it does anything for the peer. Nothing is allowed that no line
//! allows, and what a line denies no other line allows. The order of lines doesn't matter.
//!
//! Pure: no files, sockets, threads or clocks.
//!
//! ```
//! use towpath_rules::{Origin, Rules, Verb};
//!
//! let rules = Rules::parse("user ann\nallow ann to read models/**\ndeny anyone to read models/secret\n")?;
//! let ann = rules.permissions(Some(b"ann"), Origin::Local);
//! assert!(ann.may(Verb::Read, b"models/a/b") && ann.may(Verb::List, b"models"));
//! assert!(!ann.may(Verb::Read, b"models/secret/x") && !ann.may(Verb::Read, b"notes"));
//! # Ok::<(), towpath_rules::RulesError>(())
//! ```
// docs/formats/rules.md has the grammar.

#![warn(missing_debug_implementations)]

mod address;
mod blocklist;
mod parse;
mod pattern;
mod permissions;
mod rules;
mod verb;

pub use address::Origin;
pub use blocklist::{BLOCKS_MAX, Block, Blocklist, Who};
pub use parse::{LineError, RulesError, is_name};
pub use permissions::{Decision, Permissions};
pub use rules::{RuleLine, Rules};
pub use verb::Verb;
