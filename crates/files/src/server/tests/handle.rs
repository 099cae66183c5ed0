//! Handles: snapshots, disconnecting, shutting down.

use super::*;
use crate::protocol::control::{DigestWish, FollowLinks, ListRequest, ListTarget};
use crate::server::{Stats, TransferStats, Wait};
use std::collections::BTreeSet;
use towpath_sockets::{PAGE_MAX, Principal, Wanted};

/// Takes snapshots until one is as wanted, while the client goes on.
fn snapshot_when(server: &TestServer, client: &mut TestClient, wanted: impl Fn(&Stats) -> bool) -> Stats {
    let until = Instant::now() + DEADLINE;
    loop {
        let stats = server.handle.snapshot(Wanted::Peers(0)).unwrap();
        if wanted(&stats) {
            return stats;
        }
        assert!(Instant::now() < until, "{stats:?}");
        client.turn();
    }
}

fn first_transfer(stats: &Stats) -> Option<&TransferStats> {
    stats.peers.entries.first()?.1.transfers.first()
}

#[test]
fn a_snapshot_names_peers_transfers_and_what_they_wait_for() {
    let temp = root_with(&[("large", &bytes(5 << 20)), ("small", b"abc")]);
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    let mut idle = server.client();
    client.request(&Request::Fetch(FetchRequest {
        digest: DigestWish::None,
        credit_bytes: 1 << 20,
        ..fetch_of(7, &["small", "large", "nothing"])
    }));
    let stats = snapshot_when(&server, &mut client, |stats| {
        first_transfer(stats).is_some_and(|transfer| transfer.wait == Some(Wait::Credit))
    });
    assert_eq!(stats.peers.entries.len(), 2);
    let peer = &stats.peers.entries[0].1;
    assert!(peer.info.address.to_string().starts_with("127.0.0.1:"), "{}", peer.info.address);
    assert_eq!((&peer.principal, peer.credit_bytes, peer.queries), (&Principal::Anonymous, 0, 0));
    let transfer = first_transfer(&stats).unwrap();
    assert_eq!((transfer.id, &transfer.path[..]), (Some(7), &b"large"[..]));
    assert_eq!((transfer.files, transfer.files_done), (3, 1));
    assert!(peer.info.bytes_out >= transfer.sent_bytes && transfer.sent_bytes > 3, "{stats:?}");
    assert!(stats.peers.entries[1].1.transfers.is_empty());
    assert_eq!((stats.counters.connected, stats.counters.requests), (2, 1));
    assert_eq!(stats.pools.iter().map(|pool| pool.hung).sum::<usize>(), 0);
    assert!(stats.quotas.iter().any(|quota| quota.name == "open files" && quota.used == 1), "{:?}", stats.quotas);

    client.request(&Request::Credit { bytes: 100 << 20, slow: None });
    let stats = snapshot_when(&server, &mut client, |stats| {
        first_transfer(stats).is_none() && stats.counters.files_refused == 1
    });
    assert!(stats.peers.entries[0].1.info.bytes_out > 5 << 20);
    assert!(
        stats.hub.traffic.bytes_out >= stats.peers.entries[0].1.info.bytes_out && stats.hub.peers == 2,
        "{stats:?}"
    );
    idle.request(&Request::List(ListRequest {
        id: 1,
        target: ListTarget::Path(WirePath::default()),
        recursive: false,
        digest: false,
        follow: FollowLinks::None,
    }));
    idle.reply();
    idle.send(&[b"TOW1", b"nonsense"]);
    let stats = snapshot_when(&server, &mut idle, |stats| stats.counters.malformed == 1);
    assert_eq!(stats.counters.requests, 3);
}

#[test]
fn many_peers_are_listed_in_pages() {
    let temp = root_with(&[]);
    let server = TestServer::start(temp.path());
    let mut clients: Vec<_> = (0..300).map(|_| server.client()).collect();
    let count = clients.len();
    let mut page = snapshot_when(&server, &mut clients[0], |stats| stats.hub.peers == count).peers;
    let mut ids: BTreeSet<_> = page.entries.iter().map(|(_, peer)| peer.info.id).collect();
    while let Some(next) = page.next {
        assert_eq!(page.entries.len(), PAGE_MAX);
        page = server.handle.snapshot(Wanted::Peers(next)).unwrap().peers;
        ids.extend(page.entries.iter().map(|(_, peer)| peer.info.id));
    }
    assert_eq!(ids.len(), count);
}

#[test]
fn a_disconnected_client_receives_the_reason() {
    let temp = root_with(&[("a", b"a")]);
    let server = TestServer::start(temp.path());
    let (mut first, mut second) = (server.client(), server.client());
    let stats = snapshot_when(&server, &mut second, |stats| stats.peers.entries.len() == 2);
    let id = stats.peers.entries[0].1.info.id;
    assert!(server.handle.disconnect(id, "for a test"));
    let until = Instant::now() + DEADLINE;
    while first.gone.is_none() && Instant::now() < until {
        first.turn();
    }
    assert!(first.gone.as_ref().unwrap().contains("for a test"), "{:?}", first.gone);
    assert_eq!(second.fetch(fetch_of(1, &["a"])).bodies[&0], b"a");
    assert!(!server.handle.disconnect(id, "again"));
    let gone = server.handle.snapshot(Wanted::Gone(0)).unwrap().gone.entries;
    assert!(gone.len() == 1 && gone[0].1.id == Some(id) && gone[0].1.reason.contains("for a test"), "{gone:?}");
}

#[test]
fn a_handle_outlives_its_server() {
    let temp = root_with(&[]);
    let server = TestServer::start(temp.path());
    let handle = server.handle.clone();
    drop(server);
    assert!(handle.snapshot(Wanted::Sums).is_none());
    handle.shutdown();
}
