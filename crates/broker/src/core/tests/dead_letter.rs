//! Dead letters.

use super::*;
use crate::core::{LetterAction, LetterDetails, LetterRun, LetterState, NotDone, RestoredLetter};
use towpath_sockets::Tenant;

fn journalled() -> Core {
    let settings = Settings { bytes_max: 10_000, reply_bytes_expected: 0, ..Settings::default() };
    let mut core = Core::new(Settings { journal: true, attempts_max: 1, secret: [3, 4], ..settings });
    core.client_hello(0, 1, CLIENT, 1);
    actions(&mut core);
    core
}

/// Requests something of a worker whose connection ends.
fn give_up(core: &mut Core, number: u64, body: Body) -> Vec<Action> {
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 1);
    core.request(0, 1, number, 0, false, b"echo", body);
    actions(core);
    core.peer_gone(1, 2);
    actions(core)
}

fn entries(core: &mut Core) -> Vec<Entry> {
    let mut entries = Vec::new();
    core.take_entries(&mut entries);
    entries
}

#[test]
fn a_dead_letter_is_dispatched_again_until_a_worker_succeeds() {
    let mut core = journalled();
    let answered = give_up(&mut core, 1, Body::from("poison"));
    let [Action::GaveUp { number: 1, attempts: 1, kept_for: Some(queue), .. }] = &answered[..] else {
        panic!("{answered:?}")
    };
    assert_eq!(queue[..], *b"dlq.echo");
    core.persisted(3);
    let [Action::Accepted { .. }, Action::Reply { status: Status::ATTEMPTS_USED_UP, body, .. }] =
        &actions(&mut core)[..]
    else {
        panic!("no reply")
    };
    assert_eq!(
        body.single(),
        Some(&b"given up at attempt 1: workers went while they had it, or couldn't do it; kept for dlq.echo"[..])
    );
    core.confirm(2, 1, 1, 1);
    assert_eq!((core.counters().dead_letters, core.load().0), (1, 1));
    // One worker fails it, another one goes: each time it is dispatched again, but not at once.
    core.worker_ready(3, 4, Kind::Numbered, b"dlq.echo", 1);
    let [(4, token, 2)] = dispatched(&mut core)[..] else { panic!("not given") };
    core.worker_reply(4, 4, &token, Status::FAILED, None, Body::from("no"));
    assert_eq!(dispatched(&mut core), []);
    core.tick(2_000);
    let [(4, _, 3)] = dispatched(&mut core)[..] else { panic!("not given again") };
    core.peer_gone(2_001, 4);
    core.worker_ready(2_002, 5, Kind::Stock, b"dlq.echo", 1);
    assert_eq!(dispatched(&mut core), []);
    core.tick(4_000);
    let given = actions(&mut core);
    let [Action::Dispatch { peer: 5, token, attempt: 4, ttl_ms: 0, body }] = &given[..] else { panic!("{given:?}") };
    assert_eq!(body.single(), Some(&b"poison"[..]));
    // Parts of a reply are dropped.
    core.worker_reply(4_001, 5, token, Status::OK, Some(0), Body::from("part"));
    core.worker_reply(4_002, 5, token, Status::OK, None, Body::from("done"));
    assert_eq!(core.load(), (0, 0));
    assert!(matches!(entries(&mut core)[..], [.., Entry::Forgotten { id: 2 }]));
    core.tick(6_000);
    assert_eq!(core.sessions.iter().count(), 1);
}

#[test]
fn a_dead_letter_is_journalled_before_the_outcome_and_restored() {
    let mut core = journalled();
    give_up(&mut core, 1, Body::from("poison"));
    let entries = entries(&mut core);
    let [Entry::Accepted { id: 1, .. }, kept, Entry::Finished { id: 1, .. }] = &entries[..] else {
        panic!("{entries:?}")
    };
    let Entry::Accepted {
        id: 2, client: CLIENT, number: 1, service, expires: Millis::MAX, letter: Some(letter), ..
    } = kept
    else {
        panic!("{kept:?}")
    };
    assert_eq!((&service[..], letter.attempts), (&b"dlq.echo"[..], 1));
    let mut core = journalled();
    core.restore(0, restored(kept));
    core.worker_ready(1, 3, Kind::Numbered, b"dlq.echo", 1);
    let [(3, token, 3)] = dispatched(&mut core)[..] else { panic!("not given") };
    core.worker_reply(2, 3, &token, Status::FAILED, None, Body::default());
    assert_eq!(core.service(b"dlq.echo").map(|service| service.live), Some(1));
    // Its retention ends like any other.
    core.tick(core.settings().journal_retention_ms + 3);
    assert_eq!(core.load(), (0, 0));
}

#[test]
fn dead_letters_are_limited_and_cannot_be_closed() {
    let mut core = journalled();
    give_up(&mut core, 1, Body::from(vec![0; 1_500]));
    let client = core.dead_letter_client(2);
    assert!(core.sessions.find(client).is_some());
    assert_eq!(core.stored(client), None);
    core.close_stored(1, client, Token::default(), Body::default());
    assert_eq!(core.service(b"dlq.echo").map(|service| service.waiting), Some(1));
    // Dead letters have a quarter of the memory.
    let answered = give_up(&mut core, 2, Body::from(vec![0; 400]));
    assert!(matches!(answered[..], [Action::GaveUp { number: 2, kept_for: None, .. }]), "{answered:?}");
    assert_eq!((core.counters().dead_letters, core.counters().failed), (1, 2));
}

#[test]
fn volatile_requests_become_no_dead_letters() {
    let mut core = journalled();
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 2);
    core.request(0, 1, 1, 0, true, b"echo", Body::from("volatile"));
    core.stock_request(0, 3, false, None, b"echo", Body::from("stock"));
    core.peer_gone(1, 2);
    let given_up = |action: &Action| matches!(action, Action::GaveUp { kept_for: None, .. });
    assert_eq!(actions(&mut core).iter().filter(|action| given_up(action)).count(), 2);
    assert_eq!(core.counters().dead_letters, 0);
}

#[test]
fn dead_letters_keep_their_order_during_a_drain() {
    let mut core = journalled();
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 3);
    for number in 1..=3 {
        core.request(0, 1, number, 0, false, b"echo", Body::from(vec![number as u8; 50]));
    }
    core.stop();
    core.peer_gone(1, 2);
    let answered = actions(&mut core).into_iter().filter_map(|action| match action {
        Action::GaveUp { number, kept_for, .. } => Some((number, kept_for.is_some())),
        _ => None,
    });
    assert_eq!(answered.collect::<Vec<_>>(), [(1, true), (2, true), (3, true)]);
    core.worker_ready(2, 3, Kind::Numbered, b"dlq.echo", 3);
    let given = actions(&mut core).into_iter().filter_map(|action| match action {
        Action::Dispatch { body, .. } => body.single().map(|bytes| bytes[0]),
        _ => None,
    });
    assert_eq!(given.collect::<Vec<_>>(), [1, 2, 3]);
}

#[test]
fn a_late_failure_does_not_postpone_a_dead_letter() {
    let mut core = journalled();
    give_up(&mut core, 1, Body::from("poison"));
    core.worker_ready(2, 3, Kind::Numbered, b"dlq.echo", 1);
    let [(3, first, 2)] = dispatched(&mut core)[..] else { panic!("not given") };
    core.peer_gone(3, 3);
    core.tick(2_000);
    core.worker_ready(2_001, 4, Kind::Numbered, b"dlq.echo", 1);
    let [(4, second, 3)] = dispatched(&mut core)[..] else { panic!("not given again") };
    core.worker_ready(2_002, 5, Kind::Numbered, b"other", 1);
    core.worker_reply(2_003, 5, &first, Status::FAILED, None, Body::from("no"));
    assert_eq!((actions(&mut core), core.counters().late_replies), (vec![], 1));
    core.worker_reply(2_004, 4, &second, Status::OK, None, Body::default());
    assert_eq!(core.service(b"dlq.echo").map(|service| service.live), Some(0));
}

#[test]
fn both_names_lead_to_the_same_queue() {
    let mut core = journalled();
    core.restore(0, restored(&letter(1, "aside.echo", 1)));
    core.stock_request(0, 5, true, None, b"aside.echo", Body::from("asked"));
    assert_eq!(core.services().map(|service| service.name).collect::<Vec<_>>(), ["dlq.echo"]);
    for name in [&b"dlq.echo"[..], b"aside.echo"] {
        assert_eq!(core.service(name).map(|service| service.waiting), Some(2));
    }
    core.worker_ready(1, 3, Kind::Numbered, b"aside.echo", 1);
    core.worker_ready(1, 4, Kind::Numbered, b"dlq.echo", 1);
    for (peer, token, _) in dispatched(&mut core) {
        core.worker_reply(2, peer, &token, Status::OK, None, Body::default());
    }
    // The reply names the service that its client asked for.
    let Some(Action::StockReply { service, .. }) = actions(&mut core).pop() else { panic!("no reply") };
    assert_eq!((service, core.load()), (Bytes::from_static(b"aside.echo"), (0, 0)));
}

/// Sends all dead letters of `echo` to it again.
fn requeue(core: &mut Core, now: Millis) -> LetterRun {
    let mut run = core.begin_letters(LetterAction::Requeue);
    while run.ended.is_none() {
        run = core.go_on_with_letters(now, b"echo", run, 1);
    }
    run
}

#[test]
fn a_dead_letter_is_moved_by_one_entry_and_stays_the_same_request() {
    let mut core = journalled();
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 1);
    core.request(0, 1, 1, 0, false, b"echo", Body::from("poison"));
    let [(2, token, 1)] = dispatched(&mut core)[..] else { panic!("not given") };
    let id = core.request_id(&token);
    core.peer_gone(1, 2);
    core.persisted(3);
    core.confirm(2, 1, 1, 1);
    actions(&mut core);
    entries(&mut core);
    let states = |core: &Core| -> Vec<LetterState> {
        core.letters_from(b"echo", 0).filter_map(|(_, letter)| Some(letter?.state)).collect()
    };
    assert_eq!((states(&core), core.left()), (vec![LetterState::Waiting], 0));
    assert_eq!((requeue(&mut core, 3).done, states(&core), core.left()), (1, vec![], 1));
    assert_eq!(requeue(&mut core, 3).done, 0);
    assert_eq!((core.service(b"echo").map(|service| service.waiting), core.load().0), (Some(1), 1));
    // When it was kept, and why, stays the same.
    let moved = |core: &mut Core| match &entries(core)[..] {
        [Entry::Moved { id: 2, moves, letter, service }] => {
            let (reason, kept) = (String::from_utf8_lossy(&letter.reason).into_owned(), letter.kept);
            (*moves, letter.attempts, service.clone(), kept, reason)
        }
        entries => panic!("{entries:?}"),
    };
    let went = "its worker's connection ended".to_owned();
    assert_eq!(moved(&mut core), (1, 1, Bytes::from_static(b"echo"), 1, went));
    // A worker fails it, and it comes back.
    core.worker_ready(2_002, 2, Kind::Numbered, b"echo", 1);
    let [(2, token, 2)] = dispatched(&mut core)[..] else { panic!("not given, or its attempts aren't counted on") };
    assert_eq!(core.request_id(&token), id);
    core.worker_reply(2_003, 2, &token, Status::FAILED, None, Body::from("no"));
    core.tick(4_000);
    assert_eq!((core.letters(b"echo"), core.counters().dead_letters), (1, 2));
    let failed = "a worker failed it with status 500: no".to_owned();
    assert_eq!(moved(&mut core), (2, 2, Bytes::from_static(b"dlq.echo"), 4_000, failed));
    // The worker that had it there may have done it after all.
    core.worker_ready(4_001, 3, Kind::Numbered, b"dlq.echo", 1);
    let [(3, token, 3)] = dispatched(&mut core)[..] else { panic!("not given") };
    assert_eq!(core.request_id(&token), id);
    core.worker_reply(4_002, 3, &token, Status::OK, None, Body::default());
    assert_eq!(entries(&mut core), [Entry::Forgotten { id: 2 }]);
    assert_eq!(core.load(), (0, 0));
}

/// The entry of a dead letter.
fn letter(id: u64, service: &'static str, number: u64) -> Entry {
    let (service, body) = (Bytes::from_static(service.as_bytes()), Body::from("poison"));
    let (expires, checksum) = (Millis::MAX, RequestChecksum::default());
    let letter = Some(Box::new(LetterDetails { attempts: 1, ..LetterDetails::default() }));
    Entry::Accepted { id, client: CLIENT, number, service, expires, checksum, letter, body }
}

fn restored(entry: &Entry) -> Restored {
    let Entry::Accepted { id, client, number, service, expires, checksum, letter, body } = entry.clone() else {
        panic!("{entry:?}")
    };
    let letter = letter.map(|details| RestoredLetter { moves: 0, details });
    Restored { id, client, number, service, expires, overdue_ms: 0, checksum, letter, body, outcome: None }
}

#[test]
fn a_crash_between_a_dead_letter_and_the_outcome_leaves_one_of_them() {
    let mut core = journalled();
    give_up(&mut core, 1, Body::from("poison"));
    let entries = entries(&mut core);
    let [request @ Entry::Accepted { .. }, kept @ Entry::Accepted { .. }, Entry::Finished { .. }] = &entries[..] else {
        panic!("{entries:?}")
    };
    let mut core = journalled();
    core.restore(0, restored(request));
    core.restore(0, restored(kept));
    core.restored_up_to(2);
    core.worker_ready(1, 3, Kind::Numbered, b"echo", 1);
    assert_eq!(dispatched(&mut core), []);
    core.persisted(core.entries().0);
    core.request(2, 1, 1, 0, false, b"echo", Body::from("poison"));
    let answered = actions(&mut core);
    let is_end = |action: &Action| matches!(action, Action::Reply { number: 1, status: Status::ATTEMPTS_USED_UP, .. });
    assert!(!answered.is_empty() && answered.iter().all(is_end), "{answered:?}");
    assert_eq!(core.letters(b"echo"), 1);
    // The same number of the same client later is another request: somebody has removed the broker's journal meanwhile.
    let mut core = journalled();
    core.restore(0, restored(&letter(2, "dlq.echo", 1)));
    let Entry::Accepted { client, number, service, expires, checksum, body, .. } = request.clone() else { return };
    let outcome = None;
    core.restore(
        0,
        Restored { id: 3, client, number, service, expires, overdue_ms: 0, checksum, letter: None, body, outcome },
    );
    core.worker_ready(1, 3, Kind::Numbered, b"echo", 1);
    assert_eq!(dispatched(&mut core).len(), 1);
}

#[test]
fn a_drain_waits_for_dead_letters_that_were_sent_again() {
    let mut core = journalled();
    for number in 1..=2 {
        give_up(&mut core, number, Body::from("poison"));
    }
    core.persisted(core.entries().0);
    core.confirm(2, 1, 1, 2);
    assert_eq!(core.left(), 0);
    // A worker has one.
    core.worker_ready(3, 3, Kind::Numbered, b"dlq.echo", 1);
    let [(3, token, _)] = dispatched(&mut core)[..] else { panic!("not given") };
    assert_eq!(core.left(), 1);
    // The other one is sent again.
    assert_eq!((requeue(&mut core, 4).done, core.left()), (1, 2));
    core.persisted(core.entries().0);
    core.drain(true);
    core.worker_reply(5, 3, &token, Status::FAILED, None, Body::from("no"));
    core.peer_gone(5, 3);
    assert_eq!(core.left(), 1);
    assert_eq!(requeue(&mut core, 6).ended, Some(Err("the broker is being drained")));
    core.check();
    // It fails again, and stays where it was until its queue has space.
    core.worker_ready(7, 4, Kind::Numbered, b"echo", 1);
    let [(4, token, _)] = dispatched(&mut core)[..] else { panic!("not given") };
    core.worker_reply(8, 4, &token, Status::FAILED, None, Body::from("no"));
    core.settings.service_requests_max = 0;
    core.tick(2_000);
    assert_eq!((core.letters(b"echo"), core.left()), (1, 1));
    core.settings.service_requests_max = 9;
    core.tick(4_000);
    core.persisted(core.entries().0);
    assert_eq!((core.letters(b"echo"), core.left()), (2, 0));
    core.check();
}

#[test]
fn dead_letters_are_sent_again_as_far_as_the_queue_has_space() {
    let mut core = journalled();
    core.settings.service_requests_max = 2;
    for number in 1..=2 {
        give_up(&mut core, number, Body::from("poison"));
    }
    core.request(2, 1, 3, 0, true, b"echo", Body::from("waits"));
    let run = requeue(&mut core, 3);
    assert_eq!((run.done, run.ended, core.letters(b"echo")), (1, Some(Err("the service's queue is full")), 1));
    // Later ones are none of an action that has begun.
    let begun = core.begin_letters(LetterAction::Drop);
    core.worker_ready(4, 2, Kind::Numbered, b"echo", 9);
    core.request(4, 1, 4, 0, false, b"echo", Body::from("later"));
    core.peer_gone(5, 2);
    assert_eq!(core.letters(b"echo"), 2);
    assert_eq!(core.go_on_with_letters(6, b"echo", begun, 100).done, 1);
    core.check();
}

#[test]
fn a_drain_takes_nothing_new_until_it_is_ended() {
    let mut core = journalled();
    core.request(0, 1, 1, 0, false, b"echo", Body::from("before"));
    core.drain(true);
    core.request(1, 1, 2, 0, false, b"echo", Body::from("new"));
    core.stock_request(1, 5, false, None, b"echo", Body::from("stock"));
    core.request(1, 1, 3, 0, false, b"mmi.queue", Body::default());
    let answered = actions(&mut core);
    let [
        Action::Refused { number: 2, reason, .. },
        Action::StockReply { status: Status::UNAVAILABLE, .. },
        Action::BuiltIn { .. },
    ] = &answered[..]
    else {
        panic!("{answered:?}")
    };
    assert_eq!((*reason, core.is_draining(), core.left()), ("the broker is being drained", true, 2));
    // It was to leave when it has nothing left here; it needn't any more.
    core.drain(false);
    core.cancel(2, 1, 1);
    core.cancel(2, 1, 3);
    core.persisted(core.entries().0);
    core.confirm(3, 1, 1, 3);
    core.tick(4);
    assert!(!actions(&mut core).iter().any(|action| matches!(action, Action::CloseAfterFlush { .. })));
    core.request(5, 1, 4, 0, false, b"echo", Body::from("again"));
    assert_eq!((core.is_draining(), core.left()), (false, 1));
    core.check();
}

#[test]
fn a_dead_letter_has_its_reason_client_and_worker_also_after_a_restart() {
    let mut core = journalled();
    core.connected(5, Tenant::User("ann".into()));
    core.client_hello(0, 5, ClientId([8; 16]), 1);
    core.connected(2, Tenant::User("bob".into()));
    core.worker_ready(0, 2, Kind::Numbered, b"echo", 1);
    core.request(0, 5, 7, 0, false, b"echo", Body::from("poison"));
    let [(2, token, 1)] = dispatched(&mut core)[..] else { panic!("not given") };
    core.worker_tries_later(5_000, 2, &token, Body::from("no space left"));
    let kept = entries(&mut core).into_iter().find(|entry| matches!(entry, Entry::Accepted { letter: Some(_), .. }));
    let letters = |core: &Core| core.letters_from(b"echo", 0).filter_map(|(_, letter)| letter).collect::<Vec<_>>();
    let details = LetterDetails {
        attempts: 1,
        kept: 5_000,
        reason: "no space left".into(),
        client: "user ann".into(),
        worker: "user bob".into(),
    };
    let seen = |letter: &LetterInfo| (letter.id, letter.number, letter.first.clone(), letter.details.clone());
    let expected = (2, 7, Some(b"poison".to_vec()), details.clone());
    assert_eq!(letters(&core).iter().map(seen).collect::<Vec<_>>(), std::slice::from_ref(&expected));
    assert_eq!(core.services().find_map(|service| service.letters_since), Some(5_000));
    let mut core = journalled();
    core.restore(0, restored(&kept.unwrap()));
    assert_eq!(letters(&core).iter().map(seen).collect::<Vec<_>>(), [expected]);
    core.check();
}

#[test]
fn one_dead_letter_is_sent_again_or_dropped() {
    let mut core = journalled();
    for number in 1..=3 {
        give_up(&mut core, number, Body::from("poison"));
    }
    let ids =
        |core: &Core| core.letters_from(b"echo", 0).filter_map(|(_, letter)| Some(letter?.id)).collect::<Vec<_>>();
    let [first, second, third] = ids(&core)[..] else { panic!("{:?}", ids(&core)) };
    let requeue = LetterAction::Requeue;
    assert_eq!(core.act_on_letter(9, b"echo", second, requeue), Ok(()));
    assert_eq!(core.act_on_letter(9, b"echo", second, requeue), Err(NotDone::Gone));
    assert_eq!(core.act_on_letter(9, b"other", first, requeue), Err(NotDone::Gone));
    assert_eq!((ids(&core), core.service(b"echo").map(|service| service.waiting)), (vec![first, third], Some(1)));
    assert_eq!(core.letter_body(b"echo", first), Some(Body::from("poison")));
    assert_eq!(core.letter_body(b"echo", second), None);
    assert_eq!(core.act_on_letter(9, b"echo", first, LetterAction::Drop), Ok(()));
    assert_eq!((ids(&core), core.counters().purged), (vec![third], 1));
    core.worker_ready(10, 5, Kind::Numbered, b"dlq.echo", 1);
    assert_eq!(core.act_on_letter(11, b"echo", third, LetterAction::Drop), Err(NotDone::Held));
    core.peer_gone(12, 5);
    core.drain(true);
    let refused = Err(NotDone::Refused("the broker is being drained"));
    assert_eq!(core.act_on_letter(12, b"echo", third, requeue), refused);
    core.check();
}
