//! Problems of a cell, as one of its members sees it.

use super::process::nearly_full;
use super::{Found, Kind, Subject, number, time, verb};
use crate::cli::progress::human_bytes;
use serde_json::{Value, json};
use std::time::Duration;
use towpath_broker::{CellFigures, MemberFigures, Role, Sync};

/// For how long something may be so that ends by itself.
const PASSING: Duration = Duration::from_secs(10);

/// Difference of clocks.
const SKEW_MS: u64 = 1000;

/// Looks at the stream that may have no answer, one after the other.
const UNANSWERED: u32 = 2;

const CELL: Subject = Subject::Part("cell");
const BODIES: Subject = Subject::Part("place of large bodies");
const QUEUE: &str = "queue of the cell";

/// Problems of a cell. `has_failed`: this broker leads, and can't append.
pub fn of_cell(cell: &CellFigures, has_failed: bool) -> Vec<Found> {
    let mut found = Vec::new();
    found.extend(stopped(cell, has_failed));
    found.extend(leaderless(cell));
    found.extend(cell.nats.stream.wrong.iter().map(|wrong| of(Kind::QueueSettings, queue(), wrong.clone(), json!({}))));
    found.extend(sync(cell));
    found.extend(cell.bodies_failure.iter().map(|why| of(Kind::BodiesAway, BODIES, why.clone(), json!({}))));
    found.extend(cell.members.iter().filter_map(standby));
    found.extend(cell.members.iter().filter_map(clock));
    found.extend(replicas(cell));
    let stream = &cell.nats.stream;
    // The rest is for outcomes.
    found.extend(nearly_full(QUEUE, stream.bytes, stream.bytes_max - stream.bytes_max / 8, human_bytes));
    found
}

fn queue() -> Subject {
    Subject::Part(QUEUE)
}

fn of(kind: Kind, subject: Subject, cause: String, evidence: Value) -> Found {
    Found { kind, subject, cause, evidence, age: None, weight: 0 }
}

/// Nothing can be appended, as far as this broker knows.
fn stopped(cell: &CellFigures, has_failed: bool) -> Option<Found> {
    let is_leading = cell.role == Some(Role::Leading);
    let failure = cell.failure.as_deref();
    let unanswered = cell.nats.unanswered.as_ref().filter(|(count, _)| *count >= UNANSWERED).map(|(_, why)| &**why);
    let why = match (is_leading, cell.leading()) {
        (true, _) => has_failed.then(|| failure.or(unanswered).unwrap_or("the log says why")),
        // What fails here may be this standby's own; the leader says what fails for it.
        (false, Some(leader)) => leader.failure.as_deref().or(unanswered),
        (false, None) => failure.or(unanswered),
    };
    Some(of(Kind::CellStopped, CELL, format!("nothing can be appended to its log: {}", why?), json!({})))
}

fn leaderless(cell: &CellFigures) -> Option<Found> {
    let age = cell.leaderless_for.filter(|age| *age > PASSING && cell.failure.is_none())?;
    let there = cell.members.iter().filter(|member| member.is_there).count() as u64;
    let members = format!("{} {}", number(there), verb(there, "broker is there", "brokers are there"));
    let cause = format!("nobody has led for {}; {members}", time(age));
    Some(Found { age: Some(age), ..of(Kind::NoLeader, CELL, cause, json!({ "members": there })) })
}

/// Servers that acknowledge what isn't on their disk.
fn sync(cell: &CellFigures) -> impl Iterator<Item = Found> {
    cell.nats.monitored.iter().filter_map(|server| {
        let Sync::Every(interval) = server.sync else { return None };
        let cause = format!(
            "sync_interval of the NATS server {} is {}, not `always`: what was accepted may be lost when all machines lose power; \
             set jetstream {{ sync_interval: always }} in its configuration",
            server.server,
            time(interval)
        );
        Some(of(Kind::QueueSettings, queue(), cause, json!({ "server": server.server })))
    })
}

/// A standby that couldn't take over at once.
fn standby(member: &MemberFigures) -> Option<Found> {
    let subject = Subject::Member(member.endpoint.clone());
    let role = member.role.name();
    if !member.is_there {
        let age = member.age;
        let found = of(
            Kind::StandbyMissing,
            subject,
            format!("it has said nothing for {}; it was {role}", time(age)),
            json!({ "age_seconds": age.as_secs() }),
        );
        return (age > PASSING).then_some(Found { age: Some(age), ..found });
    }
    let age = member.behind_for.filter(|age| *age > PASSING && member.role != Role::Leading)?;
    let cause = match &member.failure {
        Some(why) => format!("it can't read the log: {why}"),
        None => format!("{role}, {} {} behind", number(member.behind), verb(member.behind, "message", "messages")),
    };
    let evidence = json!({ "behind": member.behind, "behind_seconds": age.as_secs() });
    Some(Found { age: Some(age), weight: member.behind, ..of(Kind::StandbyBehind, subject, cause, evidence) })
}

fn clock(member: &MemberFigures) -> Option<Found> {
    let skew = member.skew_ms.unsigned_abs();
    let is_skewed = member.is_there && !member.is_self && skew > SKEW_MS;
    is_skewed.then(|| {
        let direction = if member.skew_ms > 0 { "ahead of" } else { "behind" };
        let cause = format!("its clock is {:.1} s {direction} the one of this machine", skew as f64 / 1000.0);
        let evidence = json!({ "skew_seconds": member.skew_ms as f64 / 1000.0 });
        let subject = Subject::Member(member.endpoint.clone());
        Found { weight: skew, ..of(Kind::ClockSkew, subject, cause, evidence) }
    })
}

fn replicas(cell: &CellFigures) -> Option<Found> {
    let behind = cell.nats.stream.followers.iter().filter_map(|(name, why)| Some(format!("{name} is {}", (*why)?)));
    let behind: Vec<_> = behind.collect();
    let evidence = json!({ "current": cell.nats.current(), "replicas": cell.nats.stream.replicas });
    (!behind.is_empty()).then(|| of(Kind::ReplicaBehind, queue(), behind.join(", "), evidence))
}

#[cfg(test)]
mod tests {
    use super::*;
    use towpath_broker::{Monitored, StreamState};

    fn member(endpoint: &str, role: Role) -> MemberFigures {
        MemberFigures {
            broker: String::new(),
            endpoint: endpoint.to_owned(),
            is_self: false,
            is_there: true,
            age: Duration::ZERO,
            role,
            epoch: 3,
            leads_for: None,
            seen: 10,
            behind: 0,
            behind_for: None,
            format: 1,
            program: String::new(),
            failure: None,
            skew_ms: 0,
        }
    }

    /// Three members of which the first leads; this broker is the second.
    fn healthy() -> CellFigures {
        let mut cell = CellFigures { role: Some(Role::Standby), ..CellFigures::default() };
        cell.members = vec![member("a", Role::Leading), member("b", Role::Standby), member("c", Role::Standby)];
        cell.members[1].is_self = true;
        cell.nats.stream = StreamState { bytes: 100, bytes_max: 800, replicas: 3, ..StreamState::default() };
        cell.nats.stream.leader = Some("n0".to_owned());
        cell.nats.stream.followers = vec![("n1".to_owned(), None), ("n2".to_owned(), None)];
        cell
    }

    fn found(change: impl FnOnce(&mut CellFigures)) -> Vec<(Kind, String)> {
        let mut cell = healthy();
        change(&mut cell);
        let has_failed = cell.role == Some(Role::Leading) && cell.failure.is_some();
        of_cell(&cell, has_failed)
            .into_iter()
            .map(|found| (found.kind, format!("{}: {}", found.subject, found.cause)))
            .collect()
    }

    #[track_caller]
    fn expect(found: &[(Kind, String)], kind: Kind, text: &str) {
        assert_eq!(found, [(kind, text.to_owned())]);
    }

    const LONG: Duration = Duration::from_secs(11);

    #[test]
    fn a_cell_in_order_has_no_problems() {
        assert_eq!(found(|_| {}), []);
        // What passes by itself isn't said.
        let short = Duration::from_secs(9);
        assert_eq!(found(|cell| cell.members[2].behind_for = Some(short)), []);
        assert_eq!(found(|cell| (cell.members[2].is_there, cell.members[2].age) = (false, short)), []);
        assert_eq!(found(|cell| cell.members[2].skew_ms = -1000), []);
        assert_eq!(found(|cell| cell.leaderless_for = Some(short)), []);
        assert_eq!(found(|cell| cell.nats.unanswered = Some((1, "late".to_owned()))), []);
    }

    #[test]
    fn nothing_can_be_appended() {
        let why = || Some("NATS doesn't answer".to_owned());
        let text = "cell: nothing can be appended to its log: NATS doesn't answer";
        expect(&found(|cell| (cell.role, cell.failure) = (Some(Role::Leading), why())), Kind::CellStopped, text);
        let away = |cell: &mut CellFigures| {
            cell.members.clear();
            cell.failure = why();
        };
        expect(&found(away), Kind::CellStopped, text);
        expect(&found(|cell| cell.nats.unanswered = why().map(|why| (2, why))), Kind::CellStopped, text);
        expect(&found(|cell| cell.members[0].failure = why()), Kind::CellStopped, text);
        let text = "cell: nobody has led for 11 s; 3 brokers are there";
        expect(&found(|cell| cell.leaderless_for = Some(LONG)), Kind::NoLeader, text);
    }

    #[test]
    fn standbys_and_clocks() {
        let missing = found(|cell| (cell.members[2].is_there, cell.members[2].age) = (false, LONG));
        expect(&missing, Kind::StandbyMissing, "member c: it has said nothing for 11 s; it was standby");
        let behind = found(|cell| (cell.members[2].behind, cell.members[2].behind_for) = (5000, Some(LONG)));
        expect(&behind, Kind::StandbyBehind, "member c: standby, 5,000 messages behind");
        let failing = |cell: &mut CellFigures| {
            (cell.members[1].failure, cell.members[1].behind_for) = (Some("format 2".to_owned()), Some(LONG));
            cell.failure = Some("format 2".to_owned());
        };
        expect(&found(failing), Kind::StandbyBehind, "member b: it can't read the log: format 2");
        let ahead = found(|cell| cell.members[0].skew_ms = 2500);
        expect(&ahead, Kind::ClockSkew, "member a: its clock is 2.5 s ahead of the one of this machine");
        let late = found(|cell| cell.members[0].skew_ms = -1001);
        expect(&late, Kind::ClockSkew, "member a: its clock is 1.0 s behind the one of this machine");
    }

    #[test]
    fn the_queue() {
        let wrong = found(|cell| cell.nats.stream.wrong = vec!["max_age is 5".to_owned()]);
        expect(&wrong, Kind::QueueSettings, "queue of the cell: max_age is 5");
        let replica = found(|cell| cell.nats.stream.followers[1].1 = Some("offline"));
        expect(&replica, Kind::ReplicaBehind, "queue of the cell: n2 is offline");
        let full = found(|cell| cell.nats.stream.bytes = 640);
        expect(&full, Kind::NearlyFull, "queue of the cell: 91 % used: 640 B of 700 B");
        let monitored = |sync| Monitored { url: String::new(), server: "n0".to_owned(), sync };
        let away = found(|cell| cell.bodies_failure = Some("No such file or directory".to_owned()));
        expect(&away, Kind::BodiesAway, "place of large bodies: No such file or directory");
        let rarely = Sync::Every(Duration::from_secs(120));
        let rare = found(|cell| cell.nats.monitored = vec![monitored(Sync::Always), monitored(rarely)]);
        assert!(rare.len() == 1 && rare[0].1.contains("NATS server n0 is 2 min, not `always`"), "{rare:?}");
        let unknown = Sync::Unknown("no answer".to_owned());
        assert_eq!(found(|cell| cell.nats.monitored = vec![monitored(unknown)]), []);
    }
}
