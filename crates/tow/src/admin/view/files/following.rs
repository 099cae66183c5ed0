//! Followers, versions, and the catalogue.

use super::FilesView;
use crate::admin::figures::Catalogue;
use crate::admin::problems::Follower;
use crate::admin::view::{Refusal, add_name, add_principal, seconds};
use serde_json::{Value, json};
use std::time::Instant;
use towpath_files::server::{CatalogueStats, CatalogueView, FollowerStats, HolderStats, Stats, VersionStats, Wait};
use towpath_sockets::{Page, Wanted};

/// Followers that aren't connected are numbered from here on. No slot of a peer is as high.
const ELSEWHERE: u32 = 1 << 31;

/// Followers that aren't connected and lack something, or have an old version, in the list of problems.
const ELSEWHERE_MAX: usize = 20;

/// The catalogue, and how far the last of its followers is behind.
pub fn catalogue(view: &CatalogueView, stats: &Stats) -> Catalogue {
    let sums = view.stats();
    let (followers, least) = stats.follows;
    let (behind, behind_time) = sums.behind(least.unwrap_or(sums.head), Instant::now());
    Catalogue { sums, followers, behind, behind_time, holders: view.holder_count() }
}

/// Adds to its figures in the status what is no number.
pub fn describe(status: &mut Value, sums: &CatalogueStats) {
    status["epoch"] = sums.epoch.to_string().into();
    if let Some(watch) = &sums.watch {
        status["watch"]["written_paths"] = json!(watch.written_paths);
        status["watch"]["unread_paths"] = json!(watch.unread_paths);
        status["watch"]["held_reason"] = watch.held.map(|(_, reason)| reason).into();
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

/// Those that lack most, of `last`, which are connected, and of the others.
pub fn last_followers(view: &CatalogueView, last: &[FollowerStats]) -> Vec<Follower> {
    let (sums, now) = (view.stats(), Instant::now());
    let ago = |said: &HolderStats| now.saturating_duration_since(said.said_at);
    let here = last.iter().map(|FollowerStats { info, follow, said, .. }| Follower {
        peer: Some(info.id.to_string()),
        name: said.as_ref().map_or_else(|| info.address.to_string(), |said| said.name.clone()),
        via: None,
        behind: sums.behind(follow.has(said.as_ref()), now),
        version: None,
        said: said.as_ref().map(ago),
    });
    let elsewhere = view.last_elsewhere(ELSEWHERE_MAX).into_iter().map(|said| Follower {
        peer: None,
        behind: sums.behind(said.seq, now),
        version: None,
        said: Some(ago(&said)),
        name: said.name,
        via: said.via,
    });
    let old = view.with_old_versions(ELSEWHERE_MAX).into_iter().map(|(peer, said, next, newest)| Follower {
        peer: peer.map(|peer| peer.to_string()),
        // It lacks this one at least.
        behind: (1, sums.behind(next.saturating_sub(1), now).1),
        version: Some(newest),
        said: Some(ago(&said)),
        name: said.name,
        via: said.via,
    });
    here.chain(elsewhere).chain(old).collect()
}

fn of_follower(follower: &FollowerStats, sums: &CatalogueStats, now: Instant) -> Value {
    let FollowerStats { info, follow, said, transfer, .. } = follower;
    let (behind, behind_seconds) = sums.behind(follow.has(said.as_ref()), now);
    let mut value = said.as_ref().map_or_else(nobody, |said| of_said(said, now));
    value["peer"] = info.id.to_string().into();
    value["address"] = info.address.to_string().into();
    value["connected_seconds"] = seconds(info.connected_at.elapsed()).into();
    // `tow` has only one follow, and the highest number for it.
    value["id"] = follow.id.filter(|id| *id != u32::MAX).into();
    value["live"] = (follow.is_live && behind == 0).into();
    value["seq"] = follow.seq.into();
    (value["behind"], value["behind_seconds"]) = (behind.into(), seconds(behind_seconds).into());
    if let Some(transfer) = transfer {
        value["waits_for"] = transfer.wait.map(Wait::as_str).into();
        value["bytes_per_second"] = transfer.pace.rate.into();
        value["stalled_seconds"] = seconds(transfer.pace.stalled).into();
    }
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

/// A follower's last report.
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
        "waits_for": null, "bytes_per_second": null, "stalled_seconds": null,
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
