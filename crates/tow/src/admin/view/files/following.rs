//! Followers, versions, and the catalogue.

use super::FilesView;
use crate::admin::metrics;
use crate::admin::view::{Refusal, add_name, add_principal, seconds};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use towpath_files::server::{
    CatalogueStats, CatalogueView, FollowerStats, HolderStats, Stats, VersionStats, WatchStats,
};
use towpath_sockets::{Page, Wanted};

/// Followers that aren't connected are numbered from here on. No slot of a peer is as high.
const ELSEWHERE: u32 = 1 << 31;

/// The catalogue in the status.
pub fn status(catalogue: &CatalogueView, stats: &Stats) -> Value {
    let sums = catalogue.stats();
    let (followers, behind, behind_seconds) = lag(&sums, stats);
    let mut value = json!({
        "epoch": sums.epoch.to_string(),
        "seq": sums.head,
        "paths": sums.paths,
        "complete": sums.is_complete,
        "versions": sums.versions,
        "followers": followers,
        "behind": behind,
        "behind_seconds": seconds(behind_seconds),
        "holders": catalogue.holder_count(),
    });
    if let Some(watch) = &sums.watch {
        value["watch"] = of_watch(watch);
    }
    value
}

fn of_watch(watch: &WatchStats) -> Value {
    json!({
        "waiting_files": watch.waiting,
        "written_files": watch.written,
        "written_paths": watch.written_paths,
        "unread_count": watch.unread,
        "unread_paths": watch.unread_paths,
        "held_deletions": watch.held.map_or(0, |(count, _)| count),
        "held_reason": watch.held.map(|(_, reason)| reason),
        "looked_seconds": watch.looked.map(|(at, _)| seconds(at.elapsed())),
        "look_seconds": watch.looked.map(|(_, took)| seconds(took)),
        "unwatched": watch.is_blind,
        "full": watch.is_full,
        "overflows": watch.overflows,
    })
}

/// Follows, and how far the last of them is behind.
fn lag(sums: &CatalogueStats, stats: &Stats) -> (usize, u64, Duration) {
    let (followers, least) = stats.follows;
    let (behind, time) = sums.behind(least.unwrap_or(sums.head), Instant::now());
    (followers, behind, time)
}

/// Metrics of these.
pub fn register(registry: &mut Registry, catalogue: &CatalogueView, stats: &Stats) {
    let sums = catalogue.stats();
    let (followers, behind, behind_seconds) = lag(&sums, stats);
    let mut gauge = |name, help, value| metrics::gauge(registry, name, help, value);
    gauge("followers", "Follows of connected clients", followers as u64);
    gauge("follow_lag_changes", "Changes that the last of them hasn't", behind);
    gauge("follow_lag_seconds", "Age of the first of these", behind_seconds.as_secs());
    gauge("holders", "Who has said what is in place", catalogue.holder_count() as u64);
    gauge("versions", "Published versions", sums.versions as u64);
    gauge("catalogue_paths", "Paths that are published", sums.paths as u64);
    gauge("catalogue_seq", "The newest sequence number", sums.head);
    if let Some(watch) = &sums.watch {
        gauge("unfinished_files", "Files that are to be published when they are finished", watch.waiting as u64);
        gauge("written_files", "Files of these that are written to all the time", watch.written as u64);
        gauge("held_deletions", "Deletions that a person has to release", watch.held.map_or(0, |(count, _)| count));
        gauge("unread_paths", "Directories and files that can't be read", watch.unread as u64);
        gauge("unwatched", "1 if some directories can't be watched", u64::from(watch.is_blind));
        metrics::counter(registry, "event_overflows", "Overflows of the kernel's queue of events", watch.overflows);
    }
}

/// A page of followers: of those that are connected, then of those that were, or are behind a relay.
pub fn followers(view: &FilesView, from: u32) -> Result<Page<Value>, Refusal> {
    let Some(catalogue) = &view.catalogue else { return Ok(Page::default()) };
    let (sums, now) = (catalogue.stats(), Instant::now());
    if let Some(from) = from.checked_sub(ELSEWHERE) {
        let mut page = catalogue.holders_elsewhere(from).flat_map(|holder| [of_holder(&holder, &sums, now)]);
        page.entries.iter_mut().for_each(|(number, _)| *number = number.saturating_add(ELSEWHERE));
        page.next = page.next.and_then(|next| next.checked_add(ELSEWHERE));
        return Ok(page);
    }
    let page = view.stats(Wanted::Followers(from))?.followers;
    let page = page.flat_map(|follower| [of_follower(&follower, &sums, now)]);
    Ok(Page { next: page.next.or(Some(ELSEWHERE)), ..page })
}

fn of_follower(follower: &FollowerStats, sums: &CatalogueStats, now: Instant) -> Value {
    let FollowerStats { info, follow, said, .. } = follower;
    let (behind, behind_seconds) = sums.behind(follow.has(said.as_ref()), now);
    let mut value = said.as_ref().map_or_else(nobody, |said| of_said(said, now));
    value["peer"] = info.id.to_string().into();
    value["address"] = info.address.to_string().into();
    value["connected_seconds"] = seconds(info.connected_at.elapsed()).into();
    value["id"] = follow.id.into();
    value["live"] = (follow.is_live && behind == 0).into();
    value["seq"] = follow.seq.into();
    (value["behind"], value["behind_seconds"]) = (behind.into(), seconds(behind_seconds).into());
    add_principal(&mut value, &info.principal);
    add_name(&mut value, if follow.is_glob { "glob" } else { "path" }, &follow.target);
    value
}

fn of_holder(holder: &HolderStats, sums: &CatalogueStats, now: Instant) -> Value {
    let mut value = of_said(holder, now);
    if holder.version.is_none() {
        let (behind, behind_seconds) = sums.behind(holder.seq, now);
        (value["behind"], value["behind_seconds"]) = (behind.into(), seconds(behind_seconds).into());
    }
    value
}

/// What somebody has said.
fn of_said(said: &HolderStats, now: Instant) -> Value {
    let mut value = nobody();
    value["name"] = said.name.as_str().into();
    value["copy"] = said.copy.map(|copy| copy.to_string()).into();
    value["user"] = said.user.as_deref().into();
    value["via"] = said.via.as_deref().into();
    value["in_place_seq"] = said.seq.into();
    value["durable"] = said.durable.into();
    value["version"] = said.version.map(|version| version.to_string()).into();
    value["said_seconds"] = seconds(now.saturating_duration_since(said.said_at)).into();
    value
}

/// A follower of which nothing is known.
fn nobody() -> Value {
    json!({
        "peer": null, "address": null, "user": null, "key": null, "connected_seconds": null,
        "name": null, "copy": null, "via": null, "in_place_seq": null, "durable": null, "version": null, "said_seconds": null,
        "id": null, "path": null, "glob": null, "live": null, "seq": null, "behind": null, "behind_seconds": null,
    })
}

/// A page of versions, the oldest first.
pub fn versions(view: &FilesView, from: u32) -> Page<Value> {
    let versions = view.catalogue.as_ref().map(CatalogueView::versions).unwrap_or_default();
    let numbered = (0..).zip(versions).skip(from as usize);
    Page::of(numbered.map(|(number, version)| (number, Some(of_version(&version)))))
}

fn of_version(version: &VersionStats) -> Value {
    let mut value = json!({
        "label": version.label,
        "version": version.digest.to_string(),
        "seq": version.seq,
        "published": version.published.seconds,
        "files": version.size.map(|(files, _)| files),
        "bytes": version.size.map(|(_, bytes)| bytes),
        "holders": version.holders,
        "missing": version.missing,
    });
    add_name(&mut value, "path", version.of.as_bytes());
    value
}
