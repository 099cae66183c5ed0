//! A cell in JSON.

use super::{extend, seconds};
use serde_json::{Value, json};
use std::time::Duration;
use towpath_broker::{CellFigures, MemberFigures, Monitored, StreamState, Sync};

/// A cell as one of its members sees it.
pub fn cell_json(cell: &CellFigures) -> Value {
    let (epoch, leader) = cell.leader.clone().unwrap_or_default();
    let nats = &cell.nats;
    json!({
        "name": cell.cell,
        "role": cell.role.map_or("catching up", |role| role.name()),
        "epoch": epoch,
        "leader": leader,
        "led_seconds": led_for(&cell.members).map(seconds),
        "seen": cell.seen,
        "read": cell.read,
        "behind": cell.behind,
        "failure": cell.failure,
        "bodies_failure": cell.bodies_failure,
        "queue": extend(stream_json(&nats.stream), json!({ "needed_bytes": cell.log.needed_bytes })),
        "nats_server": nats.server,
        "monitored": monitored_json(&nats.monitored),
        "nats_failure": nats.unanswered.as_ref().map(|(_, why)| why),
        "members": members_json(&cell.members),
    })
}

/// For how long the leader has led, by its own words.
pub fn led_for(members: &[MemberFigures]) -> Option<Duration> {
    members.iter().filter(|member| member.is_there).filter_map(|member| member.leads_for).next()
}

/// Answers of monitoring ports.
pub fn monitored_json(monitored: &[Monitored]) -> Vec<Value> {
    let one = |Monitored { url, server, sync }: &Monitored| {
        let (interval, why) = match sync {
            Sync::Always => (Some(0.0), None),
            Sync::Every(interval) => (Some(seconds(*interval)), None),
            Sync::Unknown(why) => (None, Some(why)),
        };
        json!({ "url": url, "server": server, "sync_seconds": interval, "failure": why })
    };
    monitored.iter().map(one).collect()
}

/// The stream of a cell.
pub fn stream_json(stream: &StreamState) -> Value {
    let followers = stream.followers.iter();
    let followers = followers.map(|(name, why)| json!({ "name": name, "state": why.unwrap_or("current") }));
    json!({
        "bytes": stream.bytes,
        "bytes_max": stream.bytes_max,
        "messages": stream.messages,
        "last": stream.last,
        "replicas": stream.replicas,
        "nats_leader": stream.leader,
        "nats_followers": followers.collect::<Vec<_>>(),
        "wrong": stream.wrong,
    })
}

/// The members of a cell.
pub fn members_json(members: &[MemberFigures]) -> Vec<Value> {
    members.iter().map(member_json).collect()
}

fn member_json(member: &MemberFigures) -> Value {
    json!({
        "broker": member.broker,
        "endpoint": member.endpoint,
        "self": member.is_self,
        "there": member.is_there,
        "age_seconds": seconds(member.age),
        "role": member.role.name(),
        "epoch": member.epoch,
        "led_seconds": member.leads_for.map(seconds),
        "seen": member.seen,
        "behind": member.behind,
        "behind_seconds": member.behind_for.map(seconds),
        "format": member.format,
        "version": member.program,
        "failure": member.failure,
        "skew_seconds": member.skew_ms as f64 / 1000.0,
    })
}
