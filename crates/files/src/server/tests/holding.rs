//! Holders, as clients report them.

use super::*;
use crate::protocol::control::{
    FollowRequest, Have, Holder, HolderName, HoldersRequest, HoldersWanted, KnownHolder, ListTarget,
};
use crate::protocol::follow::{Cursor, FollowFrom};
use crate::server::{FollowerStats, OperatorAction, WatchOptions};

fn holder(name: &str, cursor: Cursor) -> Holder {
    Holder { cursor: Some(cursor), ..Holder::new(HolderName::new(name).unwrap()) }
}

#[test]
fn who_says_that_it_has_what_nobody_can_have_has_nothing() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::create_dir(temp.path().join("d")).unwrap();
    let mut options = ServerOptions::new(temp.path());
    options.watch = Some(WatchOptions::default());
    let server = TestServer::start_as(options, Box::new(PageCache));
    let mut client = server.client();
    client.request(&Request::Hello);
    let Reply::Hello(hello) = client.reply() else { panic!("not the answer to hello") };
    assert!(hello.features.iter().any(|feature| feature == "have") && hello.via.len() == 1);
    let target = ListTarget::Path(WirePath::default());
    client.request(&Request::Follow(FollowRequest { id: 1, target, from: FollowFrom::Beginning }));
    let cursor = loop {
        match client.reply() {
            Reply::Changes(page) if page.live => break page.cursor,
            _ => client.request(&Request::More { id: 1 }),
        }
    };
    let beyond = Cursor { seq: cursor.seq + 1, ..cursor };
    let of_another = Cursor { epoch: crate::protocol::follow::Epoch([1; 16]), ..cursor };
    let holders = vec![holder("a", cursor), holder("b", beyond), holder("c", of_another)];
    client.request(&Request::Have(Have { holders }));
    let ask = |client: &mut TestClient, count| {
        let wanted = HoldersWanted::Seq(cursor.seq);
        client.request(&Request::Holders(HoldersRequest { id: 2, wanted, from: 0, count }));
        loop {
            if let Reply::Holders(reply) = client.reply() {
                break reply;
            }
        }
    };
    let reply = ask(&mut client, 10);
    assert_eq!((reply.total, reply.holding), (3, 1));
    let has = |known: &KnownHolder| (known.holds, known.holder.cursor.is_some());
    assert_eq!(reply.holders.iter().map(has).collect::<Vec<_>>(), [(true, true), (false, false), (false, false)]);
    let reply = ask(&mut client, 0);
    assert_eq!((reply.total, reply.holders.len()), (3, 0));
}

#[test]
fn who_follows_a_part_has_what_is_not_for_it() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::create_dir(temp.path().join("d")).unwrap();
    let mut options = ServerOptions::new(temp.path());
    options.watch = Some(WatchOptions::default());
    let server = TestServer::start_as(options, Box::new(PageCache));
    let live = |client: &mut TestClient, path: &str, above: u64| {
        let target = ListTarget::Path(path.as_bytes().to_vec().into());
        client.request(&Request::Follow(FollowRequest { id: 1, target, from: FollowFrom::Beginning }));
        loop {
            match client.reply() {
                Reply::Changes(page) if page.live && page.cursor.seq > above => return page.cursor,
                Reply::Changes(_) => client.request(&Request::More { id: 1 }),
                _ => {}
            }
        }
    };
    let (mut part, mut all) = (server.client(), server.client());
    let cursor = live(&mut part, "d", 0);
    part.request(&Request::Have(Have { holders: vec![holder("part", cursor)] }));
    part.request(&Request::More { id: 1 });
    // Its answer shows that both have come.
    part.request(&Request::Hello);
    assert!(matches!(part.reply(), Reply::Hello(_)));
    std::fs::create_dir(temp.path().join("elsewhere")).unwrap();
    let now = live(&mut all, "", cursor.seq);
    for asked in 0.. {
        let wanted = HoldersWanted::Seq(now.seq);
        all.request(&Request::Holders(HoldersRequest { id: 2, wanted, from: 0, count: 1 }));
        let Reply::Holders(reply) = all.reply() else { panic!("not the answer to holders") };
        if reply.holding == 1 {
            break;
        }
        assert!(asked < 10_000, "it isn't known to have everything: {reply:?}");
    }
}

#[test]
fn the_follows_that_lack_most_come_first() {
    let temp = tempfile::tempdir().unwrap();
    let mut options = ServerOptions::new(temp.path());
    options.watch = Some(WatchOptions::default());
    let server = TestServer::start_as(options, Box::new(PageCache));
    let (mut late, mut all) = (server.client(), server.client());
    let follow = |client: &mut TestClient| {
        let target = ListTarget::Path(WirePath::default());
        client.request(&Request::Follow(FollowRequest { id: 1, target, from: FollowFrom::Beginning }));
    };
    // This one takes a page of nothing, and asks for no other one.
    follow(&mut late);
    while !matches!(late.reply(), Reply::Changes(page) if page.live) {}
    std::fs::create_dir(temp.path().join("d")).unwrap();
    follow(&mut all);
    loop {
        match all.reply() {
            Reply::Changes(page) if page.live && page.cursor.seq > 0 => break,
            _ => all.request(&Request::More { id: 1 }),
        }
    }
    let follows = server.handle.act(OperatorAction::LastFollows).unwrap();
    let has: Vec<_> = follows.iter().map(FollowerStats::has).collect();
    assert!(has.len() == 2 && has[0] < has[1], "{has:?}");
}
