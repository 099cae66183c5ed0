//! A file server as its operator sees it.

mod following;

use super::{List, Refusal, View, add_name, extend, gone_json, hub_json, peer_json, seconds};
use crate::admin::metrics::{self, label};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use towpath_files::server::{
    CatalogueView, Counters, FailureStats, Handle, OperatorAction, PeerStats, Stats, TransferStats, Wait,
};
use towpath_sockets::{Page, PeerId, Wanted};

/// A file server and what it serves.
pub struct FilesView {
    /// Of the server.
    pub handle: Handle,
    /// The path that it serves, for people.
    pub root: String,
    /// What it publishes, if it watches its directory.
    pub catalogue: Option<CatalogueView>,
}

impl FilesView {
    fn stats(&self, wanted: Wanted) -> Result<Stats, Refusal> {
        self.handle.snapshot(wanted).ok_or(Refusal::NoAnswer)
    }
}

impl View for FilesView {
    fn sums(&self) -> Result<Value, Refusal> {
        let stats = self.stats(Wanted::Sums)?;
        let Counters { connected, requests, malformed, files_refused, files_void, files_confirmed, .. } =
            stats.counters;
        let pool = |pool: &towpath_blocking::PoolLoad| json!({ "name": pool.name, "running": pool.running, "waiting": pool.waiting, "hung": pool.hung });
        let quota = |quota: &towpath_files::server::QuotaStats| json!({ "name": quota.name, "used": quota.used, "max": quota.max });
        let own = json!({
            "root": self.root,
            "draining": stats.is_draining,
            "left": stats.hub.peers,
            "counters": {
                "connected": connected,
                "requests": requests,
                "malformed": malformed,
                "files_refused": files_refused,
                "files_void": files_void,
                "files_confirmed": files_confirmed,
                "pushed": stats.counters.pushed,
                "pushes_failed": stats.counters.pushes_failed,
            },
            "pools": stats.pools.iter().map(pool).collect::<Vec<_>>(),
            "quotas": stats.quotas.iter().map(quota).collect::<Vec<_>>(),
            "catalogue": self.catalogue.as_ref().map(|catalogue| following::status(catalogue, &stats)),
        });
        Ok(extend(hub_json(&stats.hub), own))
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

    fn register(&self, registry: &mut Registry, _per_service: bool) -> Result<(), Refusal> {
        let stats = self.stats(Wanted::Sums)?;
        metrics::of_hub(registry, &stats.hub);
        let Counters { connected, requests, malformed, files_refused, files_void, files_confirmed, .. } =
            stats.counters;
        metrics::counter(registry, "peers_connected", "Connections whose handshake was completed", connected);
        let outcomes = [("understood", requests), ("malformed", malformed)];
        metrics::counters(registry, "requests", "Requests of clients", "outcome", outcomes);
        let outcomes = [("refused", files_refused), ("void", files_void), ("confirmed", files_confirmed)];
        metrics::counters(registry, "files", "Files asked for, by how they ended", "outcome", outcomes);
        let outcomes = [("pushed", stats.counters.pushed), ("failed", stats.counters.pushes_failed)];
        metrics::counters(registry, "pushes", "Files that clients pushed, by how that ended", "outcome", outcomes);
        let jobs = stats.pools.iter().flat_map(|pool| {
            let of = |state: &str, count: usize| {
                (vec![("pool", pool.name.to_owned()), ("state", state.to_owned())], count as i64)
            };
            [of("running", pool.running), of("waiting", pool.waiting)]
        });
        metrics::gauges(registry, "pool_jobs", "Jobs that may block", jobs);
        let hung = stats.pools.iter().map(|pool| (label("pool", pool.name), pool.hung as i64));
        metrics::gauges(registry, "pool_threads_hung", "Threads that seem to hang in the system", hung);
        let used = stats.quotas.iter().flat_map(|quota| {
            let of = |value: &str, amount: u64| {
                (
                    vec![("quota", quota.name.to_owned()), ("value", value.to_owned())],
                    i64::try_from(amount).unwrap_or(i64::MAX),
                )
            };
            [of("used", quota.used), of("max", quota.max)]
        });
        metrics::gauges(registry, "quota", "What clients share", used);
        metrics::gauge(registry, "draining", "1 while no new connections are taken", u64::from(stats.is_draining));
        if let Some(catalogue) = &self.catalogue {
            following::register(registry, catalogue, &stats);
        }
        Ok(())
    }

    fn drain(&self, on: bool) -> Result<(), Refusal> {
        self.handle.act(|done| OperatorAction::Drain { on, done }).ok_or(Refusal::NoAnswer)
    }

    fn disconnect(&self, peer: PeerId, reason: &str) -> bool {
        self.handle.disconnect(peer, reason)
    }
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
        "waits_for": transfer.wait.map(|wait| match wait {
            Wait::Credit => "credit",
            Wait::Receiver => "receiver",
            Wait::Sender => "sender",
            Wait::Disk => "disk",
            Wait::Hash => "hash",
            Wait::OpenFiles => "open_files",
            Wait::Pool => "pool",
            _ => "other",
        }),
    });
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
        "code": failure.code,
        "reason": failure.reason,
    });
    add_name(&mut value, "path", &failure.path);
    value
}
