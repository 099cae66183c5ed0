//! A file server as its operator sees it.

mod following;

use super::{List, Refusal, View, add_name, add_principal, extend, gone_json, peer_json, seconds};
use crate::admin::figures::{self, Catalogue, POOL, QUOTA, Snapshot, json};
use crate::admin::history::Sample;
use crate::admin::lists::pages;
use crate::admin::problems::{self, Found};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use towpath_blocking::{CancelToken, PoolLoad};
use towpath_broker::LISTED_MAX;
use towpath_files::counted;
use towpath_files::protocol::control::HolderName;
use towpath_files::server::{
    CatalogueView, FailureStats, Handle, OperatorAction, PeerStats, QuotaStats, Stats, TransferStats, Wait,
};
use towpath_sockets::{PAGE_MAX, Page, PeerId, Wanted};

/// A file server and what it serves.
pub struct FilesView {
    /// Of the server.
    pub handle: Handle,
    /// The path that it serves, for people.
    pub root: String,
    /// Its catalogue, if it watches its directory.
    pub catalogue: Option<CatalogueView>,
    /// Whether numbers and held deletions outlast a restart: `--state`.
    pub keeps_state: bool,
}

impl FilesView {
    fn stats(&self, wanted: Wanted) -> Result<Stats, Refusal> {
        self.handle.snapshot(wanted).ok_or(Refusal::NoAnswer)
    }

    /// Transfers of all peers, and how many of them wait; of some peers if there are very many.
    fn transfer_counts(&self) -> Result<(u64, u64), Refusal> {
        let (mut transfers, mut waiting, mut next) = (0, 0, Some(0));
        for _ in 0..LISTED_MAX.div_ceil(PAGE_MAX) {
            let Some(from) = next else { break };
            let page = self.stats(Wanted::Peers(from))?.peers;
            next = page.next;
            for (_, peer) in &page.entries {
                transfers += peer.transfers.len() as u64;
                waiting += peer.transfers.iter().filter(|transfer| transfer.wait.is_some()).count() as u64;
            }
        }
        Ok((transfers, waiting))
    }

    /// How far each follower is behind, by its name; of several with one name, the last one.
    fn lags(&self) -> Vec<(Vec<u8>, [f64; 4])> {
        let mut lags: BTreeMap<Vec<u8>, [f64; 4]> = BTreeMap::new();
        let _ = pages(
            0,
            |from| following::followers(self, from),
            &CancelToken::new(),
            |page| {
                for (_, entry) in page {
                    let name = ["name", "user", "address"].iter().find_map(|name| entry[name].as_str());
                    let behind = entry["behind"].as_f64().zip(entry["behind_seconds"].as_f64());
                    let Some((name, (behind, seconds))) = name.zip(behind) else { continue };
                    let lag = lags.entry(name.as_bytes().to_vec()).or_insert([0.0, 0.0, f64::NAN, f64::NAN]);
                    (lag[0], lag[1]) = (lag[0].max(behind), lag[1].max(seconds));
                }
                lags.len() < LISTED_MAX
            },
        );
        lags.into_iter().collect()
    }
}

impl View for FilesView {
    fn sums(&self) -> Result<Value, Refusal> {
        let stats = self.stats(Wanted::Sums)?;
        let catalogue = self.catalogue.as_ref().map(|catalogue| following::catalogue(catalogue, &stats));
        let mut figures = Snapshot::default();
        add(&mut figures, &stats, catalogue.as_ref());
        let mut sums = figures.json();
        sums["root"] = self.root.as_str().into();
        sums["left"] = stats.hub.peers.into();
        let watch = catalogue.as_ref().and_then(|catalogue| catalogue.sums.watch.as_ref());
        let held = watch.and_then(|watch| watch.held).filter(|_| !self.keeps_state);
        sums["restart"] = restart(stats.transfers, held.map_or(0, |(count, _)| count));
        match &catalogue {
            Some(catalogue) => following::describe(&mut sums["catalogue"], &catalogue.sums),
            None => sums["catalogue"] = Value::Null,
        }
        let pool = |pool: &PoolLoad| extend(json(POOL, pool), json!({ "name": kind_of(pool) }));
        sums["pools"] = stats.pools.iter().map(pool).collect();
        let quota = |quota: &QuotaStats| extend(json(QUOTA, quota), json!({ "name": quota.name }));
        sums["quotas"] = stats.quotas.iter().map(quota).collect();
        add_shared(&mut figures, &stats);
        sums["should_be_zero"] = figures.should_be_zero();
        Ok(sums)
    }

    fn trouble(&self) -> Result<Option<&'static str>, Refusal> {
        Ok(self.stats(Wanted::Sums)?.is_draining.then_some("draining"))
    }

    fn page(&self, list: List, from: u32) -> Result<Page<Value>, Refusal> {
        match list {
            List::Peers => Ok(self.stats(Wanted::Peers(from))?.peers.flat_map(|peer| [of_peer(&peer)])),
            List::Transfers => Ok(self.stats(Wanted::Peers(from))?.peers.flat_map(of_transfers)),
            List::Gone => Ok(self.stats(Wanted::Gone(from))?.gone.flat_map(|gone| [gone_json(&gone)])),
            List::Failures => {
                Ok(self.stats(Wanted::Failures(from))?.failures.flat_map(|failure| [of_failure(&failure)]))
            }
            List::Followers => following::followers(self, from),
            List::Versions => Ok(following::versions(self, from)),
            _ => Err(Refusal::NoList),
        }
    }

    fn figures(&self, to: &mut Snapshot, _per_service: bool) -> Result<(), Refusal> {
        let stats = self.stats(Wanted::Sums)?;
        let catalogue = self.catalogue.as_ref().map(|catalogue| following::catalogue(catalogue, &stats));
        add(to, &stats, catalogue.as_ref());
        add_shared(to, &stats);
        Ok(())
    }

    fn problems(&self) -> Result<Vec<Found>, Refusal> {
        let stats = self.stats(Wanted::Sums)?;
        let Some(catalogue) = &self.catalogue else { return Ok(problems::of_files(&stats, None)) };
        let last = self.handle.act(OperatorAction::LastFollows).ok_or(Refusal::NoAnswer)?;
        let mut found = problems::of_followers(&following::followers_look(catalogue, &last));
        found.extend(problems::of_files(&stats, catalogue.stats().watch.as_ref()));
        Ok(found)
    }

    fn version(&self, name: &str, of: Option<&str>) -> Result<Option<Value>, Refusal> {
        Ok(following::version(self, name, of.map(str::as_bytes)).map(|version| following::of_version(&version)))
    }

    fn version_followers(&self, digest: &str, of: &[u8], from: u32) -> Result<Page<Value>, Refusal> {
        let version = following::version(self, digest, Some(of));
        Ok(version.map(|version| following::version_followers(self, &version, from)).unwrap_or_default())
    }

    fn forget(&self, name: &str) -> Result<usize, Refusal> {
        let catalogue = self.catalogue.as_ref().ok_or(Refusal::NoList)?;
        let (forgotten, here) = HolderName::new(name).map_or((0, 0), |name| catalogue.forget(&name));
        match (forgotten, here) {
            (0, 0) => Err(Refusal::Conflict("there is no follower of this name".to_owned())),
            (0, _) => Err(Refusal::Conflict("it is connected, and would be known again at once".to_owned())),
            _ => Ok(forgotten),
        }
    }

    fn sample(&self, is_long: bool) -> Result<Sample, Refusal> {
        let stats = self.stats(Wanted::Sums)?;
        let counters = &stats.counters;
        let (transfers, waiting) = self.transfer_counts()?;
        let totals = [
            ("requests_in", counters.requests),
            (
                "requests_failed",
                counters.malformed + counters.files_refused + counters.files_void + counters.pushes_failed,
            ),
            ("waiting", waiting),
            ("transfers", transfers),
            ("received_bytes", stats.hub.traffic.bytes_in),
            ("sent_bytes", stats.hub.traffic.bytes_out),
            ("peers", stats.hub.peers as u64),
        ];
        let things = (is_long && self.catalogue.is_some()).then(|| self.lags());
        Ok(Sample { totals: totals.map(|(name, value)| (name, value as f64)).to_vec(), things })
    }

    fn drain(&self, on: bool) -> Result<(), Refusal> {
        self.handle.act(|done| OperatorAction::Drain { on, done }).ok_or(Refusal::NoAnswer)
    }

    fn end_blocked(&self) -> Option<usize> {
        self.handle.end_blocked()
    }

    fn disconnect(&self, peer: PeerId, reason: &str) -> bool {
        self.handle.disconnect(peer, reason)
    }
}

/// Consequences of a restart at once.
fn restart(transfers: usize, held_deletions: u64) -> Value {
    let mut why = Vec::new();
    if transfers > 0 {
        why.push(format!("{}; clients resume with what they have", counted(transfers as u64, "transfer")));
    }
    if held_deletions > 0 {
        let held = counted(held_deletions, "held deletion");
        why.push(format!("{held}, which a restart without --state forgets: followers hold all deletions"));
    }
    let safe = why.is_empty();
    if safe {
        why.push("there are no transfers".to_owned());
    }
    json!({ "safe": safe, "lost": held_deletions, "again": transfers, "why": why.join("; ") })
}

/// Figures that are members of the status.
fn add(to: &mut Snapshot, stats: &Stats, catalogue: Option<&Catalogue>) {
    to.add(figures::HUB, &stats.hub);
    to.add(figures::FILES, stats);
    if let Some(cache) = &stats.cache {
        to.add(figures::CACHE, cache);
    }
    if let Some(catalogue) = catalogue {
        to.add(figures::CATALOGUE, catalogue);
        if let Some(watch) = &catalogue.sums.watch {
            to.add(figures::WATCH, watch);
        }
    }
}

/// Purpose of a pool's threads: their name without that of the program.
fn kind_of(pool: &PoolLoad) -> &'static str {
    pool.name.strip_prefix("tow-").unwrap_or(pool.name)
}

/// Figures of pools and quotas, which the status has as lists.
fn add_shared(to: &mut Snapshot, stats: &Stats) {
    stats.pools.iter().for_each(|pool| to.add_labelled(POOL, &[("pool", kind_of(pool))], pool));
    stats.quotas.iter().for_each(|quota| to.add_labelled(QUOTA, &[("quota", quota.name)], quota));
}

fn of_peer(peer: &PeerStats) -> Value {
    let own = json!({
        "transfers": peer.transfers.len(),
        "queries": peer.queries,
        "credit_bytes": peer.credit_bytes,
    });
    extend(peer_json(&peer.info, Some("files"), Some("client")), own)
}

fn of_transfers(peer: PeerStats) -> Vec<Value> {
    peer.transfers.iter().map(|transfer| of_transfer(&peer, transfer)).collect()
}

fn of_transfer(peer: &PeerStats, transfer: &TransferStats) -> Value {
    let mut value = json!({
        "peer": peer.info.id.to_string(),
        "address": peer.info.address.to_string(),
        "kind": transfer.kind.as_str(),
        "id": transfer.id,
        "files": transfer.files,
        "files_done": transfer.files_done,
        "sent_bytes": transfer.sent_bytes,
        "received_bytes": transfer.received_bytes,
        "done_bytes": transfer.done_bytes,
        "total_bytes": transfer.total_bytes,
        "all_done_bytes": transfer.all_done_bytes,
        "all_total_bytes": transfer.all_total_bytes,
        "bytes_per_second": transfer.pace.rate,
        "bytes_per_second_before": transfer.pace.rate_before,
        "seconds_left": transfer.seconds_left(),
        "stalled_seconds": seconds(transfer.pace.stalled),
        "waits_for": transfer.wait.map(Wait::as_str),
        "follower": peer.follower,
    });
    add_principal(&mut value, &peer.principal);
    add_name(&mut value, "path", &transfer.path);
    value
}

fn of_failure(failure: &FailureStats) -> Value {
    let mut value = json!({
        "peer": failure.peer.to_string(),
        "address": failure.address,
        "user": failure.user,
        "kind": failure.kind.as_str(),
        "count": failure.count,
        "ago_seconds": seconds(failure.at.elapsed()),
        "follower": failure.follower,
        "code": failure.code,
        "reason": failure.reason,
    });
    add_name(&mut value, "path", &failure.path);
    value
}
