//! The core beside a simple model of it: after every step both have done and counted the same.
#![allow(clippy::unwrap_used)]

mod model;

use model::{Model, Seen};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use towpath_broker::core::{Action, Core, Entry, Kind, LetterAction, Peer, RequestState, Settings};
use towpath_requests::numbered::{ClientId, Status, Token};
use towpath_requests::{Body, IncomingBody};
use towpath_sockets::Tenant;

#[derive(Debug, Clone)]
enum Step {
    Connected {
        peer: Peer,
        tenant: u8,
    },
    Hello {
        peer: Peer,
        client: u8,
        first: u64,
    },
    Ready {
        peer: Peer,
        stock: bool,
        service: u8,
        credit: usize,
    },
    /// `again`: the same as before under this number, if its client has asked something.
    Request {
        peer: Peer,
        number: u64,
        ttl: u32,
        volatile: bool,
        service: u8,
        length: usize,
        again: bool,
    },
    Stock {
        peer: Peer,
        service: u8,
        length: usize,
    },
    Reply {
        which: usize,
        other: Option<Peer>,
        ok: bool,
        part: Option<u32>,
        length: usize,
    },
    Confirm {
        peer: Peer,
        first: u64,
        count: u64,
    },
    Cancel {
        peer: Peer,
        number: u64,
    },
    Credit {
        peer: Peer,
        credit: Option<usize>,
    },
    Received(Peer),
    Blocked {
        peer: Peer,
        blocked: bool,
    },
    Gone(Peer),
    Pause {
        service: u8,
        paused: bool,
    },
    Purge {
        service: u8,
    },
    EndRequest {
        service: u8,
        which: usize,
    },
    Letters {
        service: u8,
        action: LetterAction,
    },
    Letter {
        service: u8,
        which: usize,
        action: LetterAction,
    },
    Drain(bool),
    Persisted(usize),
    Time(u64),
}

fn step() -> impl Strategy<Value = Step> {
    // Clients, stock clients and workers, mostly each on their own connections.
    let (client, stock, worker) = (0..4_u32, 4..6_u32, 6..11_u32);
    let any_peer = 0..11_u32;
    let one_of = |peers: std::ops::Range<u32>| prop_oneof![30 => peers, 1 => 0..11_u32];
    let length = prop_oneof![4 => 8..60_usize, 2 => 60..700_usize, 1 => 700..2_500_usize];
    let (service, number) = (0..2_u8, 1..24_u64);
    prop_oneof![
        1 => (any_peer.clone(), 1..4_u8).prop_map(|(peer, tenant)| Step::Connected { peer, tenant }),
        3 => (one_of(client.clone()), 0..3_u8, prop_oneof![5 => Just(1), 1 => 1..12_u64])
            .prop_map(|(peer, client, first)| Step::Hello { peer, client, first }),
        4 => (one_of(worker.clone()), any::<bool>(), prop_oneof![5 => service.clone(), 1 => 2..4_u8], 0..4_usize)
            .prop_map(|(peer, stock, service, credit)| Step::Ready { peer, stock, service, credit }),
        16 => (one_of(client.clone()), number.clone(), prop_oneof![Just(0), 1..150_u32], any::<bool>(),
            service.clone(), length.clone(), any::<bool>())
            .prop_map(|(peer, number, ttl, volatile, service, length, again)| {
                Step::Request { peer, number, ttl, volatile, service, length, again }
            }),
        5 => (one_of(stock), service, length.clone())
            .prop_map(|(peer, service, length)| Step::Stock { peer, service, length }),
        16 => (any::<usize>(), prop::option::weighted(0.15, worker.clone()), prop::bool::weighted(0.9),
            prop::option::weighted(0.15, 0..3_u32), length)
            .prop_map(|(which, other, ok, part, length)| Step::Reply { which, other, ok, part, length }),
        4 => (one_of(client.clone()), number.clone(), 0..6_u64)
            .prop_map(|(peer, first, count)| Step::Confirm { peer, first, count }),
        2 => (one_of(client), number).prop_map(|(peer, number)| Step::Cancel { peer, number }),
        2 => (one_of(worker.clone()), prop::option::weighted(0.8, 0..4_usize))
            .prop_map(|(peer, credit)| Step::Credit { peer, credit }),
        3 => worker.prop_map(Step::Received),
        2 => (any_peer.clone(), any::<bool>()).prop_map(|(peer, blocked)| Step::Blocked { peer, blocked }),
        2 => any_peer.prop_map(Step::Gone),
        1 => (0..4_u8, any::<bool>()).prop_map(|(service, paused)| Step::Pause { service, paused }),
        1 => (0..4_u8).prop_map(|service| Step::Purge { service }),
        1 => (0..4_u8, any::<usize>()).prop_map(|(service, which)| Step::EndRequest { service, which }),
        3 => (0..4_u8, prop_oneof![4 => Just(LetterAction::Requeue), 1 => Just(LetterAction::Drop)])
            .prop_map(|(service, action)| Step::Letters { service, action }),
        1 => (0..4_u8, any::<usize>(), prop_oneof![4 => Just(LetterAction::Requeue), 1 => Just(LetterAction::Drop)])
            .prop_map(|(service, which, action)| Step::Letter { service, which, action }),
        1 => prop::bool::weighted(0.3).prop_map(Step::Drain),
        4 => (0..6_usize).prop_map(Step::Persisted),
        4 => (21..120_u64).prop_map(Step::Time),
    ]
}

/// A body that begins with its name.
fn bytes(what: u64, length: usize) -> Vec<u8> {
    let mut bytes = what.to_be_bytes().to_vec();
    bytes.resize(length.max(8), 0);
    bytes
}

fn what(body: &Body) -> u64 {
    let bytes = body.single().unwrap_or_default();
    bytes.first_chunk::<8>().map_or(0, |first| u64::from_be_bytes(*first))
}

/// The core, and what it has dispatched.
struct Real {
    core: Core,
    given: Vec<(Peer, Token, (u64, u16))>,
    names: HashMap<Token, (u64, u16)>,
    entries: Vec<Entry>,
    /// Of those that aren't persisted, whether the model knows them too.
    taken: VecDeque<bool>,
    /// Records of numbers that were dropped, of which the model knows nothing.
    dropped: HashSet<u64>,
    persisted: usize,
}

impl Real {
    /// `letters`: names of dead letters.
    fn seen(&mut self, letters: &BTreeMap<u64, u64>) -> Vec<Seen> {
        self.core.check();
        let mut actions = Vec::new();
        self.core.take_actions(&mut actions);
        self.core.take_entries(&mut self.entries);
        for entry in self.entries.drain(..) {
            self.taken.push_back(match entry {
                Entry::Accepted { id, service, .. } if service.is_empty() => !self.dropped.insert(id),
                Entry::Forgotten { id } => !self.dropped.contains(&id),
                _ => true,
            });
        }
        let mut seen = Vec::new();
        for action in actions {
            let said = |status: Status, body: &Body| if matches!(status.0, 200 | 206 | 500) { what(body) } else { 0 };
            seen.push(match action {
                Action::Welcome { peer } => Seen::Welcome(peer),
                Action::Reply { peer, number, status, part, body } => {
                    Seen::Reply { peer, number, status: status.0, part, what: said(status, &body) }
                }
                Action::StockReply { peer, status, partial, body, .. } => {
                    Seen::StockReply { peer, status: status.0, partial, what: said(status, &body) }
                }
                // The model knows nothing of the record of what was dropped, which isn't persisted yet.
                Action::Refused { peer, number, reason, .. } if reason.starts_with("its outcome is being dropped") => {
                    assert!(!self.taken.is_empty(), "all is persisted");
                    Seen::Reply { peer, number, status: 410, part: None, what: 0 }
                }
                Action::Refused { peer, number, .. } => Seen::Refused { peer, number },
                Action::Accepted { peer, first, count } => {
                    let numbers = first..first + u64::from(count);
                    seen.extend(numbers.map(|number| Seen::Accepted { peer, number }));
                    continue;
                }
                Action::Dispatch { peer, token, attempt, body, ttl_ms } => {
                    // Only dead letters never expire.
                    let letter = letters.get(&what(&body)).filter(|_| ttl_ms == 0);
                    let name = (letter.copied().unwrap_or(what(&body)), attempt);
                    self.given.push((peer, token, name));
                    self.names.insert(token, name);
                    Seen::Dispatch { peer, request: name.0, attempt }
                }
                Action::CancelWork { peer, token } => {
                    // Dispatched and cancelled in the same step.
                    let Some(&(request, attempt)) = self.names.get(&token) else { continue };
                    Seen::CancelWork { peer, request, attempt }
                }
                Action::Pause { peer, paused } => Seen::Pause { peer, paused },
                Action::GaveUp { number, kept_for, .. } => Seen::GaveUp { number, kept: kept_for.is_some() },
                Action::Disconnect { peer, .. } => Seen::Disconnect(peer),
                Action::ReplyLost { number, .. } => Seen::ReplyLost { number },
                Action::CloseAfterFlush { peer, .. } => Seen::CloseAfterFlush(peer),
                Action::Heartbeat { .. } | Action::Leave { .. } | Action::BuiltIn { .. } => continue,
            });
        }
        seen
    }
}

/// Clients ask for the first two; workers work for all.
const SERVICES: [&[u8]; 4] = [b"one", b"two", b"dlq.one", b"aside.two"];

fn run(steps: Vec<Step>, journal: bool, reply_bytes_expected: usize, attempts_max: u16) -> Result<(), TestCaseError> {
    let settings = Settings {
        journal,
        secret: [5, 6],
        service_requests_max: 6,
        service_bytes_max: 5_000,
        requests_max: 20,
        bytes_max: 14_000,
        client_requests_max: 12,
        client_bytes_max: 6_000,
        reply_bytes_expected,
        ttl_ms: 400,
        attempts_max,
        absent_client_ms: 500,
        outcome_grace_ms: 300,
        journal_retention_ms: 1_500,
        heartbeat_ms: 100,
        liveness: 3,
        ..Settings::default()
    };
    let mut model = Model::new(settings.clone());
    let mut real = Real {
        core: Core::new(settings),
        given: Vec::new(),
        names: HashMap::new(),
        entries: Vec::new(),
        taken: VecDeque::new(),
        dropped: HashSet::new(),
        persisted: 0,
    };
    // Tenants are known by these connections, so that none is forgotten.
    (1..4).for_each(|tenant| real.core.connected(20 + tenant, Tenant::Ipc(Some(tenant))));
    let mut now = 0;
    for (name, step) in (1_u64..).zip(steps) {
        let core = &mut real.core;
        match step.clone() {
            Step::Connected { peer, tenant } => {
                core.connected(peer, Tenant::Ipc(Some(u32::from(tenant))));
                model.connected(peer, tenant);
            }
            Step::Hello { peer, client, first } => {
                core.client_hello(now, peer, ClientId([client; 16]), first);
                model.hello(now, peer, client, first);
            }
            Step::Ready { peer, stock, service, credit } => {
                let (kind, credit) = if stock { (Kind::Stock, 1) } else { (Kind::Numbered, credit) };
                core.worker_ready(now, peer, kind, SERVICES[usize::from(service)], credit as u32);
                model.ready(now, peer, kind, service, credit);
            }
            Step::Request { peer, number, ttl, volatile, service, length, again } => {
                let known = model.asked(peer, number).filter(|_| again);
                let (service, name, length) = known.unwrap_or((service, name, length));
                let of = SERVICES[usize::from(service)];
                let bytes = bytes(name, length);
                core.request(now, peer, number, ttl, volatile, of, IncomingBody::Bytes(&bytes));
                model.request(now, peer, number, u64::from(ttl), volatile, service, name, length);
            }
            Step::Stock { peer, service, length } => {
                let body = Body::copied(&bytes(name, length));
                core.stock_request(now, peer, false, None, SERVICES[usize::from(service)], body);
                model.stock_request(now, peer, service, name, length);
            }
            Step::Reply { which, other, ok, part, length } => {
                // Mostly one of the last that were dispatched.
                let Some(&(to, token, given)) = real.given.iter().rev().nth(which % 8) else { continue };
                let (peer, status) = (other.unwrap_or(to), if ok { Status::OK } else { Status::FAILED });
                let bytes = bytes(name, length);
                core.worker_reply(now, peer, &token, status, part, IncomingBody::Bytes(&bytes));
                model.reply(now, peer, given, ok, part, name, length);
            }
            Step::Confirm { peer, first, count } => {
                core.confirm(now, peer, first, count as u32);
                model.confirm(now, peer, first, count);
            }
            Step::Cancel { peer, number } => {
                core.cancel(now, peer, number);
                model.cancel(now, peer, number);
            }
            Step::Credit { peer, credit } => {
                match credit {
                    Some(credit) => core.worker_credit(now, peer, credit as u32),
                    None => core.worker_leaving(now, peer),
                }
                model.change_worker(now, peer, credit);
            }
            Step::Received(peer) => {
                core.worker_alive(now, peer);
                model.received(now, peer);
            }
            Step::Blocked { peer, blocked } => {
                core.peer_blocked(now, peer, blocked);
                model.blocked(peer, blocked);
            }
            Step::Gone(peer) => {
                core.peer_gone(now, peer);
                model.gone(now, peer);
            }
            Step::Pause { service, paused } => {
                core.pause_service(now, SERVICES[usize::from(service)], paused);
                model.pause(service, paused);
            }
            Step::Purge { service } => {
                let purge = core.begin_purge(SERVICES[usize::from(service)]);
                let mut ended = 0;
                loop {
                    let more = core.purge(now, SERVICES[usize::from(service)], purge, 2);
                    if more == 0 {
                        break;
                    }
                    ended += more;
                }
                prop_assert_eq!(ended, model.purge(service), "of a purge");
            }
            Step::EndRequest { service, which } => {
                let of = SERVICES[usize::from(service)];
                let listed = core.requests_from(of, 0);
                prop_assert_eq!(listed.next, None);
                prop_assert_eq!(listed.entries.len(), model.requests_of(service), "before step {}", name);
                let Some((_, request)) = listed.entries.get(which % listed.entries.len().max(1)) else { continue };
                let name = request.first.as_ref().and_then(|first| Some(u64::from_be_bytes(*first.first_chunk()?)));
                let name = name.map(|name| if request.is_letter { model.letter_names[&name] } else { name });
                let ended = core.end_request(now, of, request.key);
                prop_assert_eq!(ended.is_ok(), request.state != RequestState::Ended);
                if ended.is_ok() {
                    model.end_request(name.unwrap());
                    prop_assert!(core.end_request(now, of, request.key).is_err());
                }
            }
            Step::Letters { service, action } => {
                let of = SERVICES[usize::from(service)];
                prop_assert_eq!(core.letters(of), model.letters(service), "before step {}", name);
                let mut run = core.begin_letters(action);
                while run.ended.is_none() {
                    run = core.go_on_with_letters(now, of, run, 2);
                }
                prop_assert_eq!(run.done, model.act_on_letters(now, service, action), "of {:?}", action);
            }
            Step::Letter { service, which, action } => {
                let of = SERVICES[usize::from(service)];
                let letters: Vec<_> = core.letters_from(of, 0).filter_map(|(_, letter)| letter).collect();
                let Some(letter) = letters.get(which % letters.len().max(1)) else { continue };
                let done = core.act_on_letter(now, of, letter.id, action);
                let which = which % letters.len();
                prop_assert_eq!(done.is_ok(), model.act_on_letter(now, service, which, action), "of {:?}", action);
            }
            Step::Drain(on) => {
                core.drain(on);
                model.drain(on);
            }
            Step::Persisted(count) => {
                let count = count.min(real.taken.len());
                real.persisted += count;
                core.persisted(real.persisted as u64);
                model.persisted(real.taken.drain(..count).filter(|is_known| *is_known).count());
            }
            Step::Time(passed) => {
                now += passed;
                model.now = now;
                core.tick(now);
                model.tick(now);
            }
        }
        while real.core.flushed(now) {}
        prop_assert_eq!(real.seen(&model.letter_names), model.seen(), "after step {}, {:?}", name, step);
        prop_assert_eq!(real.core.counters(), model.counters, "after step {}, {:?}", name, step);
        prop_assert_eq!(real.core.load(), model.load(), "after step {}, {:?}", name, step);
        prop_assert_eq!(real.core.left(), model.left(), "after step {}, {:?}", name, step);
    }
    Ok(())
}

fn cases() -> u32 {
    std::env::var("TOWPATH_MODEL_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(3_000)
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 20_000, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn the_core_does_what_its_model_does(
        steps in prop::collection::vec(step(), 1..250),
        journal in any::<bool>(),
        reply_bytes_expected in prop_oneof![2 => Just(0), 1 => 1_000..4_000_usize],
        // With one attempt there are many dead letters.
        attempts_max in prop_oneof![2 => Just(3), 1 => Just(1)],
    ) {
        run(steps, journal, reply_bytes_expected, attempts_max)?;
    }
}
