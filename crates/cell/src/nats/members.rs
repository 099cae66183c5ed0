//! The members of a cell, by what each says of itself. Without I/O: the time is an argument.
//!
//! Each broker publishes an account of itself every second, and gets its own back: without that it knows nothing of the others either, and says of
//! none that it is missing.

use crate::block::{BrokerId, ENDPOINT_BYTES_MAX, VERSION};
use crate::figures::{CellFigures, MemberFigures};
use crate::member::Role;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Members that are remembered.
const MEMBERS_MAX: usize = 64;
/// Longest account, in bytes.
const ACCOUNT_BYTES_MAX: usize = 4096;
/// Version of accounts.
const ACCOUNT_VERSION: u64 = 1;
/// Longest texts in an account, in bytes.
const FAILURE_BYTES_MAX: usize = 400;
const PROGRAM_BYTES_MAX: usize = 40;
/// Silence after which a member isn't there.
const SILENT: Duration = Duration::from_secs(5);
/// Time after which one that isn't there is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(24 * 3600);
/// Messages by which a standby may be behind: the leader goes on meanwhile.
const BEHIND: u64 = 100;
/// Accounts of which the one that came fastest says how clocks differ.
const CLOCKS: usize = 8;

/// Names of roles in an account. A broker that has ended in good order says so.
const LEFT: &str = "left";

/// What a broker says of itself, in bytes. `has_left`: that it ends.
pub(super) fn account(own: &str, endpoint: &str, figures: &CellFigures, has_left: bool, unix_ms: u64) -> Vec<u8> {
    let role = figures.role.unwrap_or(Role::CatchingUp);
    let cut = |text: &str, most: usize| {
        let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
        text[..end.unwrap_or(0)].to_owned()
    };
    let account = json!({
        "version": ACCOUNT_VERSION,
        "broker": own,
        "endpoint": cut(endpoint, ENDPOINT_BYTES_MAX),
        "role": if has_left { LEFT } else { role.name() },
        "epoch": figures.leader.as_ref().map_or(0, |(epoch, _)| *epoch),
        "leads_ms": figures.leads_for.map(|time| time.as_millis() as u64),
        "seen": figures.seen,
        "behind": figures.behind,
        "format": VERSION,
        "program": env!("CARGO_PKG_VERSION"),
        "failure": figures.failure.as_deref().map(|why| cut(why, FAILURE_BYTES_MAX)),
        "unix_ms": unix_ms,
    });
    account.to_string().into_bytes()
}

/// Digits of a process.
pub(super) fn digits(broker: &BrokerId) -> String {
    broker.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A member, and when its last account came.
#[derive(Debug)]
struct Known {
    figures: MemberFigures,
    at: Duration,
    behind_since: Option<Duration>,
    /// Its clock less ours when accounts came. All are too small by the time that the account took.
    clocks: VecDeque<i64>,
}

/// All members that are known.
#[derive(Debug)]
pub(super) struct Members {
    own: String,
    known: BTreeMap<String, Known>,
}

impl Members {
    /// None yet. `own`: digits of this process.
    pub fn new(own: String) -> Members {
        Members { own, known: BTreeMap::new() }
    }

    /// Takes an account. One that can't be understood is left out.
    pub fn take(&mut self, now: Duration, unix_ms: u64, account: &[u8]) {
        let Some((figures, skew_ms)) = parsed(account, unix_ms) else { return };
        let id = figures.broker.clone();
        let Some(figures) = figures.member else {
            self.known.remove(&id);
            return;
        };
        self.forget(now, &id, &figures.endpoint);
        if self.known.len() >= MEMBERS_MAX && !self.known.contains_key(&id) {
            return;
        }
        let before = self.known.remove(&id);
        let is_behind = figures.behind > BEHIND || figures.failure.is_some() || figures.role == Role::CatchingUp;
        let since = before.as_ref().and_then(|before| before.behind_since).unwrap_or(now);
        let mut clocks = before.map(|before| before.clocks).unwrap_or_default();
        clocks.truncate(CLOCKS - 1);
        clocks.push_front(skew_ms);
        self.known.insert(id, Known { figures, at: now, behind_since: is_behind.then_some(since), clocks });
    }

    /// Forgets those that are long gone, and those in whose place this one is.
    fn forget(&mut self, now: Duration, id: &str, endpoint: &str) {
        let is_full = self.known.len() >= MEMBERS_MAX;
        self.known.retain(|other, known| {
            let silent = now.saturating_sub(known.at);
            let is_gone = silent > SILENT;
            let is_replaced = is_gone && (known.figures.endpoint == endpoint || is_full);
            other == id || !(is_replaced || silent > FORGOTTEN)
        });
    }

    /// All of them; none if this broker's own account doesn't come back.
    pub fn figures(&self, now: Duration) -> Vec<MemberFigures> {
        let Some(own) = self.known.get(&self.own).filter(|own| now.saturating_sub(own.at) <= SILENT) else {
            return Vec::new();
        };
        self.listed(now, own.at)
    }

    /// All of them, as one sees it who isn't a member.
    pub fn seen_by_others(&self, now: Duration) -> Vec<MemberFigures> {
        self.listed(now, now)
    }

    /// `until`: when this broker certainly got accounts.
    fn listed(&self, now: Duration, until: Duration) -> Vec<MemberFigures> {
        let listed = self.known.iter().map(|(id, known)| MemberFigures {
            is_self: *id == self.own,
            is_there: until.saturating_sub(known.at) <= SILENT,
            age: now.saturating_sub(known.at),
            behind_for: known.behind_since.map(|since| now.saturating_sub(since)),
            skew_ms: known.clocks.iter().copied().max().unwrap_or(0),
            ..known.figures.clone()
        });
        let mut listed: Vec<_> = listed.collect();
        listed.sort_by(|a, b| (&a.endpoint, &a.broker).cmp(&(&b.endpoint, &b.broker)));
        listed
    }
}

/// An account's broker, and the rest unless it has left.
struct Parsed {
    broker: String,
    member: Option<MemberFigures>,
}

/// An account, and its clock less ours. `None`: it can't be understood.
fn parsed(account: &[u8], unix_ms: u64) -> Option<(Parsed, i64)> {
    if account.len() > ACCOUNT_BYTES_MAX {
        return None;
    }
    let account: Value = serde_json::from_slice(account).ok()?;
    if account["version"].as_u64() != Some(ACCOUNT_VERSION) {
        return None;
    }
    let text = |name: &str, most: usize| account[name].as_str().filter(|text| text.len() <= most).map(str::to_owned);
    let number = |name: &str| account[name].as_u64();
    let is_digits = |text: &String| text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let broker = text("broker", 32).filter(is_digits)?;
    let role = account["role"].as_str()?;
    if role == LEFT {
        return Some((Parsed { broker, member: None }, 0));
    }
    let member = MemberFigures {
        broker: broker.clone(),
        endpoint: text("endpoint", ENDPOINT_BYTES_MAX)?,
        is_self: false,
        is_there: true,
        age: Duration::ZERO,
        role: [Role::CatchingUp, Role::Standby, Role::Leading].into_iter().find(|known| known.name() == role)?,
        epoch: number("epoch")?,
        leads_for: number("leads_ms").map(Duration::from_millis),
        seen: number("seen")?,
        behind: number("behind")?,
        behind_for: None,
        format: number("format")?.try_into().ok()?,
        program: text("program", PROGRAM_BYTES_MAX)?,
        failure: text("failure", FAILURE_BYTES_MAX),
        skew_ms: 0,
    };
    let skew = i128::from(number("unix_ms")?) - i128::from(unix_ms);
    let skew = skew.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
    Some((Parsed { broker, member: Some(member) }, skew))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn id(number: u8) -> String {
        digits(&[number; 16])
    }

    fn figures(role: Role, behind: u64) -> CellFigures {
        CellFigures { role: Some(role), behind, leader: Some((3, "tcp://a".to_owned())), ..CellFigures::default() }
    }

    fn of(number: u8, endpoint: &str, role: Role, unix_ms: u64) -> Vec<u8> {
        account(&id(number), endpoint, &figures(role, 0), false, unix_ms)
    }

    #[test]
    fn a_member_that_is_silent_is_missing_and_one_that_left_is_forgotten() {
        let mut members = Members::new(id(1));
        members.take(SECOND, 0, &of(2, "tcp://b", Role::Standby, 0));
        assert!(members.figures(SECOND).is_empty(), "its own account didn't come");
        members.take(SECOND, 0, &of(1, "tcp://a", Role::Leading, 0));
        let is_there = |members: &Members, at| {
            members.figures(at).iter().map(|one| (one.endpoint.clone(), one.is_there)).collect::<Vec<_>>()
        };
        let named = |a, b| vec![("tcp://a".to_owned(), a), ("tcp://b".to_owned(), b)];
        assert_eq!(is_there(&members, 2 * SECOND), named(true, true));
        members.take(8 * SECOND, 0, &of(1, "tcp://a", Role::Leading, 0));
        assert_eq!(is_there(&members, 8 * SECOND), named(true, false));
        // NATS is away: nothing is known of anybody.
        assert!(is_there(&members, 20 * SECOND).is_empty());
        // It starts again, as another process.
        members.take(20 * SECOND, 0, &of(1, "tcp://a", Role::Leading, 0));
        members.take(20 * SECOND, 0, &of(3, "tcp://b", Role::Standby, 0));
        assert_eq!(is_there(&members, 20 * SECOND), named(true, true));
        let left = account(&id(3), "tcp://b", &figures(Role::Standby, 0), true, 0);
        members.take(20 * SECOND, 0, &left);
        assert_eq!(members.figures(20 * SECOND).len(), 1);
        members.take(20 * SECOND, 0, &of(4, "tcp://c", Role::Standby, 0));
        members.take(20 * SECOND + FORGOTTEN + SECOND, 0, &of(1, "tcp://a", Role::Leading, 0));
        assert_eq!(members.figures(20 * SECOND + FORGOTTEN + SECOND).len(), 1);
    }

    #[test]
    fn clocks_are_compared_by_the_account_that_came_fastest() {
        let mut members = Members::new(id(1));
        members.take(SECOND, 1000, &of(1, "tcp://a", Role::Leading, 1000));
        for delay in [900, 30, 2000] {
            members.take(SECOND, 10_000 + delay, &of(2, "tcp://b", Role::Standby, 15_000));
        }
        assert_eq!(members.figures(SECOND)[1].skew_ms, 5000 - 30);
        // It was set right.
        for _ in 0..CLOCKS {
            members.take(SECOND, 10_005, &of(2, "tcp://b", Role::Standby, 10_000));
        }
        assert_eq!(members.figures(SECOND)[1].skew_ms, -5);
    }

    #[test]
    fn a_standby_is_behind_since_it_first_was() {
        let mut members = Members::new(id(1));
        let behind = |count| account(&id(1), "tcp://a", &figures(Role::Standby, count), false, 0);
        let mut for_seconds = |at: u32, count| {
            members.take(at * SECOND, 0, &behind(count));
            members.figures(at * SECOND)[0].behind_for
        };
        assert_eq!(for_seconds(1, BEHIND), None);
        assert_eq!(for_seconds(2, BEHIND + 1), Some(Duration::ZERO));
        assert_eq!(for_seconds(6, 5000), Some(4 * SECOND));
        assert_eq!(for_seconds(7, 0), None);
    }

    #[test]
    fn accounts_of_others_are_bounded() {
        let mut members = Members::new(id(1));
        members.take(SECOND, 0, &of(1, "tcp://a", Role::Leading, 0));
        for number in 2..=255 {
            members.take(SECOND, 0, &of(number, &format!("tcp://{number}"), Role::Standby, 0));
        }
        assert_eq!(members.figures(SECOND).len(), MEMBERS_MAX);
        // Those that are gone make place.
        members.take(9 * SECOND, 0, &of(1, "tcp://a", Role::Leading, 0));
        members.take(9 * SECOND, 0, &of(255, "tcp://new", Role::Standby, 0));
        assert_eq!(members.figures(9 * SECOND).len(), 2);
        let good = of(2, "tcp://b", Role::Standby, 0);
        let wrong = |from: &str, to: &str| String::from_utf8(good.clone()).unwrap().replace(from, to).into_bytes();
        for bad in [
            b"{}".to_vec(),
            wrong("\"version\":1", "\"version\":2"),
            wrong("standby", "king"),
            wrong("tcp://b", &"b".repeat(256)),
            wrong("tcp://b", &"b".repeat(5000)),
            wrong(&id(2), "../.."),
            wrong("\"seen\":0", "\"seen\":-1"),
        ] {
            members.take(9 * SECOND, 0, &bad);
        }
        assert_eq!(members.figures(9 * SECOND).len(), 2);
        let long = CellFigures { failure: Some("ä".repeat(2000)), ..figures(Role::Standby, 0) };
        members.take(9 * SECOND, 0, &account(&id(7), &"ü".repeat(500), &long, false, 0));
        assert_eq!(members.figures(9 * SECOND).len(), 3);
    }
}
