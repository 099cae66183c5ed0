//! Tests of holders.

use super::*;
use crate::digest::Digest;
use crate::protocol::follow::Cursor;

const EPOCH: Epoch = Epoch([1; 16]);

fn holder(name: &str, seq: u64) -> Holder {
    let version = (seq > 100).then_some(Digest([7; 32]));
    Holder { cursor: Some(Cursor { epoch: EPOCH, seq }), version, ..Holder::new(HolderName::new(name).unwrap()) }
}

fn by(tenant: u64) -> Reporter<'static> {
    Reporter { whose: &Tenant::Inproc, tenant, user: None, peer: PeerId::new(0, 0), via: None }
}

fn ask(holders: &Holders, wanted: HoldersWanted, now: Instant) -> HoldersReply {
    holders.answer(&HoldersRequest { id: 1, wanted, from: 0, count: 100 }, Some(EPOCH), 1000, now)
}

#[test]
fn the_last_word_of_each_counts_and_nobody_speaks_for_another_tenant() {
    let (mut holders, now) = (Holders::default(), Instant::now());
    let ann: Arc<str> = "ann".into();
    holders.note(Reporter { user: Some(&ann), ..by(1) }, holder("a", 5), now);
    holders.note(Reporter { user: Some(&ann), ..by(1) }, holder("a", 9), now + Duration::from_secs(1));
    holders.note(by(2), holder("a", 3), now);
    holders.note(by(2), holder("b", 150), now);
    let reply = ask(&holders, HoldersWanted::Seq(4), now + Duration::from_secs(3));
    assert_eq!((reply.holding, reply.total), (2, 3));
    let shown: Vec<_> =
        reply.holders.iter().map(|known| (known.holder.cursor.unwrap().seq, known.holds, known.age_ms)).collect();
    assert_eq!(shown, [(9, true, 2000), (3, false, 3000), (150, true, 3000)]);
    assert_eq!(reply.holders[0].user.as_deref(), Some("ann"));
    assert_eq!(ask(&holders, HoldersWanted::Version(Digest([7; 32])), now).holding, 1);
    let of_another = holders.answer(
        &HoldersRequest { id: 1, wanted: HoldersWanted::Seq(0), from: 2, count: 9 },
        Some(Epoch([2; 16])),
        9,
        now,
    );
    assert_eq!((of_another.holding, of_another.holders.len()), (0, 1));
}

#[test]
fn two_copies_of_one_name_are_two_holders() {
    let (mut holders, now) = (Holders::default(), Instant::now());
    let of_copy = |copy, seq| Holder { copy: Some(CopyId([copy; 16])), ..holder("host", seq) };
    holders.note(by(1), of_copy(1, 150), now);
    holders.note(by(1), of_copy(2, 5), now);
    let reply = ask(&holders, HoldersWanted::Version(Digest([7; 32])), now);
    assert_eq!((reply.holding, reply.total), (1, 2));
    holders.note(by(1), of_copy(2, 160), now);
    assert_eq!(ask(&holders, HoldersWanted::Version(Digest([7; 32])), now).holding, 2);
    // One that doesn't know which copy it is, until it does.
    holders.note(by(1), holder("host", 5), now);
    assert_eq!(holders.count(), 3);
    holders.note(by(1), of_copy(2, 160), now);
    assert_eq!((holders.count(), holders.by_turn.len(), holders.names.used()), (2, 2, 2));
    // One of them is silent from now on.
    let later = now + SILENT_MAX + Duration::from_secs(1);
    holders.note(by(1), of_copy(2, 160), later - SILENT_MAX / 2);
    assert_eq!(ask(&holders, HoldersWanted::Seq(0), later).total, 2);
    holders.note(by(1), of_copy(2, 160), later);
    assert_eq!(ask(&holders, HoldersWanted::Seq(0), later).total, 1);
}

#[test]
fn who_is_not_connected_is_listed_with_its_relay() {
    let (mut holders, now) = (Holders::default(), Instant::now());
    let relay = HolderName::new("relay").unwrap();
    let peer = PeerId::new(3, 1);
    holders.note(Reporter { peer, ..by(1) }, holder("relay", 5), now);
    holders.note(Reporter { peer, via: Some(&relay), ..by(1) }, holder("a", 4), now);
    holders.note(Reporter { peer, via: Some(&relay), ..by(1) }, holder("b", 150), now);
    let listed = |holders: &Holders, from| {
        let entries = holders.elsewhere(from, now).entries.into_iter();
        entries.map(|(number, of)| (number, of.name, of.via)).collect::<Vec<_>>()
    };
    let via = Some("relay".to_owned());
    assert_eq!(listed(&holders, 0), [(0, "a".to_owned(), via.clone()), (1, "b".to_owned(), via.clone())]);
    assert_eq!(listed(&holders, 1), [(1, "b".to_owned(), via)]);
    assert_eq!(holders.count(), 3);
    // It is connected again before the old connection's end is known.
    holders.note(Reporter { peer: PeerId::new(4, 0), ..by(1) }, holder("relay", 5), now);
    holders.left(("relay", None), 1, peer, now);
    assert_eq!(listed(&holders, 0).len(), 2);
    holders.left(("relay", None), 1, PeerId::new(4, 0), now);
    assert_eq!(listed(&holders, 2), [(2, "relay".to_owned(), None)]);
    // One that is connected by now isn't spoken for by the relay that remembers it.
    holders.note(Reporter { peer: PeerId::new(5, 1), ..by(1) }, holder("b", 160), now);
    holders.note(Reporter { peer, via: Some(&relay), ..by(1) }, holder("b", 150), now);
    assert!(listed(&holders, 0).iter().all(|(_, name, _)| name != "b"));
}

#[test]
fn names_without_end_take_only_their_tenants_share() {
    let (mut holders, now) = (Holders::default(), Instant::now());
    holders.note(by(1), holder("honest", 5), now);
    for index in 0..100_000_u64 {
        holders.note(by(2 + index % 3), holder(&format!("{:x}", index / 3), 5), now);
    }
    assert!(holders.holders.len() <= HOLDERS_MAX + 4 * TENANT_NAMES_SURE as usize);
    assert_eq!(holders.names.used(), holders.holders.len() as u64);
    assert!(holders.holders.contains_key(&(HolderName::new("honest").unwrap(), None, 1)));
    assert!(holders.holders.contains_key(&(HolderName::new(&format!("{:x}", 33_332)).unwrap(), None, 2)));
    // Others still get in, and the newest of each remain.
    holders.note(by(9), holder("late", 5), now);
    assert!(holders.holders.contains_key(&(HolderName::new("late").unwrap(), None, 9)));
}

#[test]
fn tenants_without_end_take_only_so_much() {
    let (mut holders, now) = (Holders::default(), Instant::now());
    holders.pass_on();
    let count = NAMES_MAX as u64 + 100;
    (0..count).for_each(|tenant| holders.note(by(tenant), holder("a", 5), now));
    let kept = |of: u64| holders.holders.contains_key(&(HolderName::new("a").unwrap(), None, of));
    assert!(!kept(0) && kept(100) && kept(count - 1));
    let unsaid = holders.unsaid.as_ref().unwrap().len();
    let counts = [holders.holders.len(), holders.tenants.len(), holders.by_turn.len(), unsaid];
    assert_eq!(counts, [NAMES_MAX; 4]);
    assert_eq!(holders.names.used(), NAMES_MAX as u64);
}

#[test]
fn a_relay_passes_on_what_was_said_once() {
    let (mut holders, now) = (Holders::default(), Instant::now());
    holders.note(by(1), holder("a", 5), now);
    assert!(holders.take_said(10, now).is_empty(), "no relay");
    holders.pass_on();
    holders.note(by(1), holder("b", 5), now);
    holders.note(by(1), holder("b", 6), now);
    assert_eq!(holders.take_said(1, now), [holder("a", 5)]);
    assert_eq!(holders.take_said(10, now), [holder("b", 6)]);
    assert!(!holders.has_said());
}

#[test]
fn one_that_leaves_is_gone_after_a_while_unless_it_has_ended() {
    let (mut holders, start) = (Holders::default(), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    let presence = |holders: &Holders, seconds| holders.known(at(seconds)).next().unwrap().presence();
    holders.note(by(1), holder("a", 5), start);
    assert_eq!(presence(&holders, 100_000), Presence::Here, "it is connected");
    holders.left(("a", None), 1, PeerId::new(0, 0), at(60));
    assert_eq!((presence(&holders, 65), presence(&holders, 71)), (Presence::Here, Presence::Gone));
    // It comes back, and says nothing yet of what it has: that is still there.
    holders.note(by(1), Holder::new(HolderName::new("a").unwrap()), at(80));
    assert_eq!((presence(&holders, 81), ask(&holders, HoldersWanted::Seq(5), at(80)).holding), (Presence::Here, 1));
    holders.note(by(1), Holder { left: Some(Left::Ended), ..holder("a", 5) }, at(90));
    holders.left(("a", None), 1, PeerId::new(0, 0), at(90));
    assert_eq!(presence(&holders, 100_000), Presence::Ended);
}

#[test]
fn a_relay_passes_on_that_a_follower_has_left_and_since_when_it_fails() {
    let (mut first, mut relay, start) = (Holders::default(), Holders::default(), Instant::now());
    let at = |seconds| start + Duration::from_secs(seconds);
    let name = HolderName::new("relay").unwrap();
    relay.pass_on();
    let text = crate::protocol::control::ErrorText::near("no space left");
    let error = Some(crate::protocol::control::HolderError { text, tries: 3, since_ms: 20_000 });
    relay.note(by(1), Holder { error, ..holder("a", 5) }, at(100));
    let pass = |relay: &mut Holders, first: &mut Holders, seconds| {
        for said in relay.take_said(10, at(seconds)) {
            first.note(Reporter { via: Some(&name), ..by(9) }, said, at(seconds));
        }
    };
    pass(&mut relay, &mut first, 130);
    let stats = first.known(at(130)).next().unwrap().stats();
    let error = stats.error.as_ref().unwrap();
    assert_eq!((stats.said_at, error.since, error.tries), (at(100), at(80), 3));
    assert_eq!((stats.presence, stats.via.as_deref()), (Presence::Here, Some("relay")));
    relay.left(("a", None), 1, PeerId::new(0, 0), at(140));
    pass(&mut relay, &mut first, 141);
    assert_eq!(first.known(at(145)).next().unwrap().presence(), Presence::Here, "it may come back");
    assert_eq!(first.known(at(152)).next().unwrap().presence(), Presence::Gone);
    // The relay itself is gone: nothing is known of those behind it.
    relay.note(by(1), holder("a", 6), at(160));
    pass(&mut relay, &mut first, 160);
    assert_eq!(first.known(at(300)).next().unwrap().presence(), Presence::Here);
    assert_eq!(first.known(at(341)).next().unwrap().presence(), Presence::Gone);
}

#[test]
fn names_are_forgotten_unless_they_are_there() {
    let (mut holders, now) = (Holders::default(), Instant::now());
    let name = |name: &str| HolderName::new(name).unwrap();
    holders.set_listed(["a", "b", "z"].map(name).into());
    holders.note(by(1), holder("a", 5), now);
    holders.note(by(2), holder("a", 5), now);
    let never = |holders: &Holders| holders.never_seen().map(HolderName::as_str).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(never(&holders), ["b", "z"]);
    assert_eq!(holders.forget(&name("a"), now), (0, 2));
    holders.left(("a", None), 1, PeerId::new(0, 0), now);
    let later = now + Duration::from_secs(11);
    assert_eq!((holders.forget(&name("a"), later), holders.count()), ((1, 1), 1));
    assert_eq!((holders.by_turn.len(), holders.tenants.len(), holders.names.used()), (1, 1, 1));
    assert!(holders.is_expected(&name("a")) && !holders.is_expected(&name("c")));
}
