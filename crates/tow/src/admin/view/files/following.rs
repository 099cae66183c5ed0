//! Followers, versions, and the catalogue.

use super::FilesView;
use crate::admin::figures::Catalogue;
use crate::admin::problems;
use crate::admin::view::{Refusal, add_name, add_principal, seconds};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use towpath_files::path::RelPath;
use towpath_files::server::{
    CatalogueStats, CatalogueView, FollowerStats, HolderStats, Lagging, NewestVersion, Presence, Stats, VersionStats,
    Wait,
};
use towpath_sockets::{Page, Wanted};

/// Followers that aren't connected are numbered from here on. No slot of a peer is as high.
const ELSEWHERE: u32 = 1 << 31;

/// The same of those that have never been there.
const NEVER_SEEN: u32 = 3 << 30;

/// The same of a version's followers: those that have never been there, and those that have it.
const LACKING_NEVER_SEEN: u32 = 1 << 30;
const HAVING: u32 = 1 << 31;

/// Followers of each kind among the problems.
const FOUND_MAX: usize = 1000;

/// The catalogue, and how far the last of its followers is behind.
pub fn catalogue(view: &CatalogueView, stats: &Stats) -> Catalogue {
    let sums = view.stats();
    let (followers, least) = stats.follows;
    let least = least.into_iter().chain(view.least_elsewhere()).min();
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

/// A page of followers: of those that are connected, then of those that were, or are behind a relay, then of those that never were.
pub fn followers(view: &FilesView, from: u32) -> Result<Page<Value>, Refusal> {
    let Some(catalogue) = &view.catalogue else { return Ok(Page::default()) };
    if let Some(from) = from.checked_sub(NEVER_SEEN) {
        let page = catalogue.never_seen(from).flat_map(|name| [never_seen(&name)]);
        return Ok(numbered_from(NEVER_SEEN, page));
    }
    let states = States::new(catalogue);
    if let Some(from) = from.checked_sub(ELSEWHERE) {
        let page = catalogue.holders_elsewhere(from).flat_map(|holder| [states.of_holder(&holder)]);
        let page = numbered_from(ELSEWHERE, page);
        return Ok(Page { next: page.next.or(Some(NEVER_SEEN)), ..page });
    }
    let page = view.stats(Wanted::Followers(from))?.followers;
    let page = page.flat_map(|follower| [states.of_follower(&follower)]);
    Ok(Page { next: page.next.or(Some(ELSEWHERE)), ..page })
}

/// A page whose numbers begin at another one.
fn numbered_from(first: u32, mut page: Page<Value>) -> Page<Value> {
    page.entries.iter_mut().for_each(|(number, _)| *number = number.saturating_add(first));
    page.next = page.next.and_then(|next| next.checked_add(first));
    page
}

/// Those that fail or lack something; of `last`, which are connected, those that lack most.
pub fn followers_look(view: &CatalogueView, last: &[FollowerStats]) -> problems::Followers {
    let (sums, now) = (view.stats(), Instant::now());
    let ago = |then: Instant| now.saturating_duration_since(then);
    let look = view.look(FOUND_MAX);
    let person = |said: &HolderStats| problems::Person {
        peer: said.peer.map(|peer| peer.to_string()),
        name: said.name.clone(),
        via: said.via.clone(),
        is_gone: said.presence == Presence::Gone,
        error: said.error.as_ref().map(|error| (error.text.clone(), error.tries, ago(error.since))),
        said: Some(ago(said.said_at)),
        waits_for: None,
    };
    // One that is new here has not lacked anything for longer.
    let lacking = |has: u64, since: Instant| sums.behind(has, now).1.min(ago(since));
    let here =
        last.iter().filter(|of| of.said.as_ref().is_none_or(|said| said.versions_of.is_none() && said.error.is_none()));
    let here = here.map(|of| {
        let FollowerStats { info, said, transfer, .. } = of;
        let mut person = said.as_ref().map(person).unwrap_or_default();
        person.peer = Some(info.id.to_string());
        person.waits_for = transfer.as_ref().and_then(|transfer| transfer.wait).map(Wait::as_str);
        if said.is_none() {
            person.name = info.address.to_string();
        }
        let has = of.has();
        let since = said.as_ref().map_or(info.connected_at, |said| said.known_since);
        problems::Lacking { person, changes: sums.behind(has, now).0, age: lacking(has, since), version: None }
    });
    // One of versions is connected, too.
    let waits: HashMap<_, _> =
        last.iter().filter_map(|of| Some((of.info.id, of.transfer.as_ref()?.wait?.as_str()))).collect();
    let slow = |holder: &HolderStats| problems::Person {
        waits_for: holder.peer.and_then(|peer| waits.get(&peer).copied()),
        ..person(holder)
    };
    let behind = look.behind.iter().map(|Lagging { holder, has, version, .. }| problems::Lacking {
        person: slow(holder),
        changes: sums.behind(*has, now).0.max(1),
        age: lacking(*has, holder.known_since),
        version: version.clone(),
    });
    let versions = look.versions.iter().map(|of| {
        let known =
            if of.never_seen.is_empty() { of.lacking_since } else { look.since.min(of.lacking_since.or(look.since)) };
        problems::Version {
            of: of.of.clone(),
            label: of.version.label.clone(),
            digest: of.version.digest.to_string(),
            holding: of.holding,
            expected: of.expected,
            failing: of.failing,
            age: known.map_or(Duration::ZERO, |since| lacking(of.version.seq.saturating_sub(1), since)),
            lacking: of.lacking.iter().map(slow).collect(),
            never_seen: of.never_seen.clone(),
        }
    });
    problems::Followers {
        failing: look.failing.iter().map(person).collect(),
        lacking: here.chain(behind).collect(),
        never_seen: look.never_seen.clone(),
        up: look.since.map(ago).unwrap_or_default(),
        versions: versions.collect(),
    }
}

/// State of a follower, in a word.
fn state(said: Option<&HolderStats>, is_behind: bool) -> &'static str {
    match said {
        Some(said) if said.presence == Presence::Ended => "ended",
        Some(said) if said.presence == Presence::Gone => "gone",
        Some(HolderStats { error: Some(_), .. }) => "failing",
        _ if is_behind => "behind",
        // One of the plain dialect reports nothing: what it has put in place is unknown.
        None => "sent",
        Some(_) => "up_to_date",
    }
}

/// The newest versions and numbers, by which the state of a follower is known.
struct States {
    sums: CatalogueStats,
    newest: HashMap<RelPath, NewestVersion>,
    now: Instant,
}

impl States {
    fn new(view: &CatalogueView) -> States {
        States { sums: view.stats(), newest: view.newest_versions(), now: Instant::now() }
    }

    /// Whether one that follows versions lacks the newest one; None of another one.
    fn lacks_version(&self, said: &HolderStats) -> Option<bool> {
        let newest = self.newest.get(said.versions_of.as_ref()?);
        Some(newest.is_some_and(|newest| said.version != Some(newest.digest)))
    }

    fn of_follower(&self, follower: &FollowerStats) -> Value {
        let FollowerStats { info, follow, said, transfer, .. } = follower;
        let (behind, behind_seconds) = self.sums.behind(follower.has(), self.now);
        let mut value = said.as_ref().map_or_else(nobody, |said| self.of_said(said));
        let is_behind = said.as_ref().and_then(|said| self.lacks_version(said)).unwrap_or(behind > 0);
        // What is said on another connection comes with that.
        let said = said.as_ref().map(|said| HolderStats { presence: Presence::Here, ..said.clone() });
        let is_live = follow.as_ref().is_some_and(|follow| follow.is_live);
        value["state"] = state(said.as_ref(), is_behind || !is_live).into();
        value["peer"] = info.id.to_string().into();
        value["address"] = info.address.to_string().into();
        value["connected_seconds"] = seconds(info.connected_at.elapsed()).into();
        value["live"] = (is_live && behind == 0).into();
        (value["behind"], value["behind_seconds"]) = (behind.into(), seconds(behind_seconds).into());
        if let Some(transfer) = transfer {
            value["waits_for"] = transfer.wait.map(Wait::as_str).into();
            value["bytes_per_second"] = transfer.pace.rate.into();
            value["stalled_seconds"] = seconds(transfer.pace.stalled).into();
        }
        add_principal(&mut value, &info.principal);
        if let Some(follow) = follow {
            // `tow` has only one follow, and the highest number for it.
            value["id"] = follow.id.filter(|id| *id != u32::MAX).into();
            value["seq"] = follow.seq.into();
            add_name(&mut value, if follow.is_glob { "glob" } else { "path" }, &follow.target);
        }
        value
    }

    fn of_holder(&self, holder: &HolderStats) -> Value {
        let mut value = self.of_said(holder);
        let is_behind = match self.lacks_version(holder) {
            Some(lacks) => lacks,
            None => {
                let (behind, behind_seconds) = self.sums.behind(holder.seq.unwrap_or(0), self.now);
                (value["behind"], value["behind_seconds"]) = (behind.into(), seconds(behind_seconds).into());
                behind > 0
            }
        };
        value["state"] = state(Some(holder), is_behind).into();
        value
    }

    /// A follower's last report.
    fn of_said(&self, said: &HolderStats) -> Value {
        let ago = |then: Instant| seconds(self.now.saturating_duration_since(then));
        let mut value = nobody();
        value["name"] = said.name.as_str().into();
        value["copy"] = said.copy.map(|copy| copy.to_string()).into();
        value["user"] = said.user.as_deref().into();
        value["via"] = said.via.as_deref().into();
        value["peer"] = said.peer.map(|peer| peer.to_string()).into();
        value["in_place_seq"] = said.seq.into();
        value["durable"] = said.durable.into();
        value["version"] = said.version.map(|version| version.to_string()).into();
        value["said_seconds"] = ago(said.said_at).into();
        if let Some(of) = &said.versions_of {
            add_name(&mut value, "versions_of", of.as_bytes());
            let newest = self.newest.get(of);
            value["wants"] = newest.map(|newest| newest.label.as_str()).into();
            let has_it = newest.is_some_and(|newest| said.version == Some(newest.digest));
            value["has_newest"] = newest.map(|_| has_it).into();
        }
        if let Some(error) = &said.error {
            value["error"] = error.text.as_str().into();
            (value["error_tries"], value["error_seconds"]) = (error.tries.into(), ago(error.since).into());
        }
        if let Some(lacks) = &said.lacks {
            (value["lacks_files"], value["lacks_bytes"]) = (lacks.files.into(), lacks.bytes.into());
            // As long as it is there.
            value["seconds_left"] = lacks.seconds_left.filter(|_| said.presence == Presence::Here).into();
        }
        value
    }
}

/// A follower of which nothing is known.
fn nobody() -> Value {
    json!({
        "state": null, "peer": null, "address": null, "user": null, "key": null, "connected_seconds": null,
        "name": null, "copy": null, "via": null, "in_place_seq": null, "durable": null, "version": null, "said_seconds": null,
        "id": null, "path": null, "glob": null, "live": null, "seq": null, "behind": null, "behind_seconds": null,
        "versions_of": null, "wants": null, "has_newest": null, "error": null, "error_tries": null, "error_seconds": null,
        "lacks_files": null, "lacks_bytes": null, "seconds_left": null,
        "waits_for": null, "bytes_per_second": null, "stalled_seconds": null,
    })
}

/// A follower that is to be there, and has never been.
fn never_seen(name: &str) -> Value {
    let mut value = nobody();
    (value["name"], value["state"]) = (name.into(), "never_seen".into());
    value
}

/// A published version by its digest, or the newest one with a label; of a path, if one is given.
pub fn version(view: &FilesView, name: &str, of: Option<&[u8]>) -> Option<VersionStats> {
    let versions = view.catalogue.as_ref().map(CatalogueView::versions).unwrap_or_default();
    let is_it = |version: &&VersionStats| {
        of.is_none_or(|of| version.of.as_bytes() == of) && (version.label == name || version.digest.to_string() == name)
    };
    versions.iter().rfind(is_it).cloned()
}

/// A page of the followers of a version: those that lack it, those that have never been seen, then those that have it.
pub fn version_followers(view: &FilesView, version: &VersionStats, from: u32) -> Page<Value> {
    let Some(catalogue) = &view.catalogue else { return Page::default() };
    let states = States::new(catalogue);
    let with = |mut value: Value, has: bool| {
        value["has"] = has.into();
        [value]
    };
    if let Some(from) = from.checked_sub(HAVING) {
        let page = catalogue.holders_of(version, true, from);
        return numbered_from(HAVING, page.flat_map(|holder| with(states.of_holder(&holder), true)));
    }
    if let Some(from) = from.checked_sub(LACKING_NEVER_SEEN) {
        let page = catalogue.never_seen(from).flat_map(|name| with(never_seen(&name), false));
        let page = numbered_from(LACKING_NEVER_SEEN, page);
        return Page { next: page.next.or(Some(HAVING)), ..page };
    }
    let page = catalogue.holders_of(version, false, from).flat_map(|holder| with(states.of_holder(&holder), false));
    Page { next: page.next.or(Some(LACKING_NEVER_SEEN)), ..page }
}

/// A page of versions, the oldest first.
pub fn versions(view: &FilesView, from: u32) -> Page<Value> {
    let versions = view.catalogue.as_ref().map(CatalogueView::versions).unwrap_or_default();
    let numbered = (0..).zip(versions).skip(from as usize);
    Page::of(numbered.map(|(number, version)| (number, Some(of_version(&version)))))
}

pub fn of_version(version: &VersionStats) -> Value {
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
