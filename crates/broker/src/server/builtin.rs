//! The broker's own services: MMI (RFC 8) with four of ours, and Titanic (RFC 9) on the journal.

use super::Broker;
use super::body_loader::Answer;
use crate::core::{ServiceInfo, StoredState, WorkerInfo};
use bytes::Bytes;
use serde_json::json;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_journal::spool::{BodyOf, SpooledBody};
use towpath_requests::body::Body;
use towpath_requests::limits::{BODY_BYTES_MAX, BODY_FRAMES_MAX, SERVICE_BYTES_MAX};
use towpath_requests::numbered::{ClientId, Status, Token};

/// Services, or workers, in one reply: more would hold up everybody while they are listed.
const LISTED_MAX: usize = 10_000;

/// A list that took this long to make, or longer, may be given again later on.
const LIST_TAKES_LONG: Duration = Duration::from_millis(2);

/// For so many times as long as it took: whoever asks without end gets a tenth of the broker's time.
const LIST_RESTS: u32 = 9;

/// Lists that have been made: those who ask together get the same one, and what is long is made now and then.
#[derive(Default)]
pub(super) struct Lists {
    replies: HashMap<Asked, Made<Body>>,
    /// All workers by their services, so that whoever asks for one service after another doesn't have all looked at for each.
    workers: Option<Made<HashMap<Bytes, Vec<WorkerInfo>>>>,
}

/// What was asked for: a service of the broker's, and of which service.
type Asked = (Bytes, Bytes);

struct Made<T> {
    what: T,
    /// Until then it is used again; else only in the turn that made it.
    until: Option<Instant>,
}

impl<T> Made<T> {
    fn now(make: impl FnOnce() -> T) -> Made<T> {
        let begin = Instant::now();
        let what = make();
        let took = begin.elapsed();
        Made { what, until: (took >= LIST_TAKES_LONG).then(|| begin + took * (LIST_RESTS + 1)) }
    }

    fn is_good(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until > now)
    }
}

impl Lists {
    /// A turn is over.
    pub fn turn(&mut self) {
        if !self.replies.is_empty() || self.workers.is_some() {
            let now = Instant::now();
            self.replies.retain(|_, reply| reply.is_good(now));
            self.workers.take_if(|workers| !workers.is_good(now));
        }
    }
}

/// The code before a stored reply.
const DONE: &str = "200";

/// Of a stored reply that a numbered client can't have behind a code.
const TOO_LARGE_A_REPLY: &str =
    "the reply is here, but has with its code over 64 MiB or 1000 frames: a stock client of Majordomo is given it";

/// Of a stored reply in a file, for which there is no memory now.
const TOO_MANY_REPLIES: &str = "large replies that were asked for before have their room: confirm those, and ask again";

/// Why a stored reply in a file isn't given at once.
enum NotNow {
    /// It is to come into memory, where there is no room for it now.
    NoRoom,
    /// It is to be read first.
    OnDisk(Arc<SpooledBody>),
}

/// A reply that begins with a code, as all of these do.
fn coded(code: &'static str, more: impl IntoIterator<Item = Bytes>) -> Body {
    Body::of_frames([Bytes::from_static(code.as_bytes())].into_iter().chain(more))
}

fn of_service(service: &ServiceInfo) -> serde_json::Value {
    json!({
        "service": String::from_utf8_lossy(&service.name),
        "waiting": service.waiting,
        "waiting_bytes": service.waiting_bytes,
        "waiting_spooled_bytes": service.waiting_large_bytes,
        "unconfirmed": service.live,
        "workers": service.workers,
    })
}

fn by_service(workers: impl Iterator<Item = WorkerInfo>) -> HashMap<Bytes, Vec<WorkerInfo>> {
    let mut all: HashMap<Bytes, Vec<WorkerInfo>> = HashMap::new();
    workers.for_each(|worker| all.entry(worker.service.clone()).or_default().push(worker));
    all
}

impl Broker {
    /// Answers a request for one of them.
    pub(super) fn answer(&mut self, token: &Token, service: &[u8], body: &Body) {
        let argument = body.frames().and_then(|mut frames| frames.next()).unwrap_or_default().to_vec();
        let reply = match service {
            b"mmi.service" => {
                let has_worker = self.core.service(&argument).is_some_and(|service| service.workers > 0);
                coded(if has_worker { "200" } else { "404" }, [])
            }
            b"mmi.queue" if !argument.is_empty() => {
                let queue: Vec<_> = self.core.service(&argument).iter().map(of_service).collect();
                coded("200", [json!(queue).to_string().into()])
            }
            b"mmi.workers" if !argument.is_empty() && self.core.service(&argument).is_none_or(|of| of.workers == 0) => {
                coded("200", ["[]".into()])
            }
            b"mmi.workers" => self.list(service, &argument),
            b"mmi.services" | b"mmi.queue" => self.list(service, b""),
            b"mmi.spool" => coded("200", [self.spool().to_string().into()]),
            b"titanic.request" if self.keeping.is_some() => return self.titanic_request(token, body),
            b"titanic.reply" if self.keeping.is_some() => match self.titanic_reply(token, &argument) {
                Ok(reply) => reply,
                Err(NotNow::NoRoom) => return self.answer_later(token),
                Err(NotNow::OnDisk(body)) => {
                    let asker = self.core.numbered_by(token).map(|(client, _)| asker(client));
                    if !self.reading.begin(asker.unwrap_or_default(), *token, body) {
                        self.answer_later(token);
                    }
                    return;
                }
            },
            b"titanic.close" if self.keeping.is_some() => match name_of(&argument) {
                Some(name) => {
                    let now = self.now();
                    return self.core.close_stored(now, name, *token, coded("200", []));
                }
                None => coded("200", []),
            },
            _ => coded("501", []),
        };
        let status = if reply.single() == Some(b"501") { Status::NOT_IMPLEMENTED } else { Status::OK };
        self.core.built_in_reply(token, status, reply);
    }

    /// There is no room for the answer now.
    fn answer_later(&mut self, token: &Token) {
        self.core.built_in_reply(token, Status::UNAVAILABLE, Body::from(TOO_MANY_REPLIES));
    }

    /// Answers with stored replies that had to be read. What was asked behind them may have closed them meanwhile.
    pub(super) fn take_read(&mut self) {
        while let Some(Answer { token, bytes }) = self.reading.next() {
            match bytes {
                Ok(bytes) if self.core.has_room_to_answer(&token, bytes.len()) => {
                    self.core.built_in_reply(&token, Status::OK, coded(DONE, [bytes]));
                }
                Ok(_) => self.answer_later(&token),
                Err(error) => {
                    tracing::error!(%error, "a stored reply can't be read");
                    let reason = "the broker can't read the reply from its disk";
                    self.core.built_in_reply(&token, Status::OK, coded("500", [reason.into()]));
                }
            }
        }
    }

    /// A list of everything, or of what belongs to one service.
    fn list(&mut self, service: &[u8], of: &[u8]) -> Body {
        let asked = (Bytes::copy_from_slice(service), Bytes::copy_from_slice(of));
        if let Some(made) = self.lists.replies.get(&asked) {
            return made.what.clone();
        }
        let made = Made::now(|| {
            let listed = match service {
                b"mmi.workers" => self.workers(of),
                b"mmi.queue" => {
                    let queues = self.core.services().filter(|service| !towpath_requests::is_built_in(&service.name));
                    queues.take(LISTED_MAX).map(|service| of_service(&service)).collect()
                }
                _ => {
                    let services = self.core.services().filter(|service| service.workers > 0).take(LISTED_MAX);
                    services.map(|service| String::from_utf8_lossy(&service.name).into_owned()).collect()
                }
            };
            coded("200", [listed.to_string().into()])
        });
        let reply = made.what.clone();
        self.lists.replies.insert(asked, made);
        reply
    }

    /// The room for large bodies.
    fn spool(&self) -> serde_json::Value {
        let room = self.spooling.room();
        json!({
            "bytes": room.taken(),
            "most": room.most_of(BodyOf::Reply),
            "most_for_requests": room.most_of(BodyOf::Request),
            "files": room.files(),
            "most_files": room.most_files_of(BodyOf::Reply),
            "most_files_for_requests": room.most_files_of(BodyOf::Request),
        })
    }

    /// Where each worker really is, and what it has.
    fn workers(&mut self, service: &[u8]) -> serde_json::Value {
        let workers: Vec<_> = match service {
            b"" => self.core.workers().take(LISTED_MAX).collect(),
            of => {
                let core = &self.core;
                let all = self.lists.workers.get_or_insert_with(|| Made::now(|| by_service(core.workers())));
                all.what.get(of).map_or(&[][..], |all| all).iter().take(LISTED_MAX).cloned().collect()
            }
        };
        // Some that are listed by their services may have gone since.
        let shown = workers.into_iter().filter(|worker| self.core.is_worker(worker.peer)).map(|worker| {
            let connection = self.connections.find(worker.peer);
            let address = connection.and_then(|connection| self.hub.peer(connection.id)).map(|peer| peer.address);
            json!({
                "service": String::from_utf8_lossy(&worker.service),
                "address": address.map(|address| address.to_string()),
                "credit": worker.credit,
                "held": worker.held,
                "numbered": worker.kind == crate::core::Kind::Numbered,
            })
        });
        json!(shown.collect::<Vec<_>>())
    }

    /// `[service, body+]` is kept, and answered `[200, name]` when it is on the disk.
    fn titanic_request(&mut self, token: &Token, body: &Body) {
        let mut frames = body.to_frames().unwrap_or_default().into_iter();
        let service = frames.next().unwrap_or_default();
        let is_nameable = (1..=SERVICE_BYTES_MAX).contains(&service.len());
        if !is_nameable || frames.len() == 0 || service.starts_with(b"mmi.") || service.starts_with(b"titanic.") {
            let reason = "a service of 1 to 255 bytes that isn't the broker's own, and a body";
            return self.core.built_in_reply(token, Status::OK, coded("500", [Bytes::from_static(reason.as_bytes())]));
        }
        let numbered = self.core.numbered_by(token);
        let known = numbered.map(|(client, number)| name_for(client, number, body));
        let answer = |name: ClientId| coded("200", [Bytes::from(name.to_string())]);
        // The answer was lost with the process that gave it, and the request has come once more.
        if let Some(name) = known.filter(|name| self.core.was_stored_before(*name)) {
            return self.core.built_in_reply(token, Status::OK, answer(name));
        }
        let name = match known.filter(|name| self.core.stored(*name).is_none()) {
            Some(name) => name,
            None => match super::random() {
                Ok(name) => ClientId(name),
                Err(error) => {
                    let reason = Bytes::from(error.to_string());
                    return self.core.built_in_reply(token, Status::OK, coded("500", [reason]));
                }
            },
        };
        let (now, answer) = (self.now(), answer(name));
        self.core.store(now, name, &service, Body::of_frames(frames), *token, answer);
    }

    /// What is stored under a name.
    fn titanic_reply(&self, token: &Token, argument: &[u8]) -> Result<Body, NotNow> {
        Ok(match name_of(argument).and_then(|name| self.core.stored(name)) {
            None => coded("400", []),
            Some(StoredState::Pending) => coded("300", []),
            Some(StoredState::Done(Status::OK, body)) if self.core.numbered_by(token).is_some() => {
                in_memory(&body, |bytes| self.core.has_room_to_answer(token, bytes))?
            }
            Some(StoredState::Done(Status::OK, body)) => Body::joined([coded("200", []), body]),
            Some(StoredState::Done(_, reason)) => coded("500", reason.to_frames().unwrap_or_default()),
        })
    }
}

/// A stored reply behind its code, for a numbered client: in several frames, so all of it in memory, if there is room for it there.
fn in_memory(body: &Body, has_room: impl Fn(usize) -> bool) -> Result<Body, NotNow> {
    let fits = |frames: usize| {
        frames < BODY_FRAMES_MAX && body.length().saturating_add(DONE.len() as u64) <= BODY_BYTES_MAX as u64
    };
    Ok(match (body.to_frames(), SpooledBody::of(body)) {
        (Some(frames), _) if fits(frames.len()) => coded(DONE, frames),
        (None, Some(_)) if fits(1) && !has_room(body.length() as usize) => return Err(NotNow::NoRoom),
        (None, Some(file)) if fits(1) => return Err(NotNow::OnDisk(file)),
        _ => coded("413", [TOO_LARGE_A_REPLY.into()]),
    })
}

/// Whose turn it is among those who ask.
fn asker(client: ClientId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = client.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// The name of what a numbered client has stored by one of its requests, whichever process of the broker takes it: only who knows the
/// client's id can tell it. Another body under the same number, which there shouldn't be, has another one.
fn name_for(client: ClientId, number: u64, body: &Body) -> ClientId {
    let mut hasher = SipHasher24::new_with_key(&client.0);
    hasher.write_u64(number);
    for frame in body.frames().into_iter().flatten() {
        hasher.write_usize(frame.len());
        hasher.write(frame);
    }
    ClientId(hasher.finish128().as_bytes())
}

/// A stored request's name as Titanic has it: as a client's is written.
fn name_of(text: &[u8]) -> Option<ClientId> {
    let text: &[u8; 32] = text.try_into().ok()?;
    let mut name = [0; 16];
    for (byte, pair) in name.iter_mut().zip(text.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(ClientId(name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::core::{Action, Kind};
    use crate::server::BrokerOptions;

    /// Asks for one of the broker's own services, on the connection 0.
    fn ask(broker: &mut Broker, number: u64, service: &str, argument: &str) -> serde_json::Value {
        let mut actions = Vec::new();
        broker.core.request(0, 0, number, 0, false, service.as_bytes(), Body::from(argument));
        broker.core.take_actions(&mut actions);
        let Some(Action::BuiltIn { token, service, body }) = actions.pop() else { panic!("{actions:?}") };
        broker.answer(&token, &service, &body);
        broker.core.take_actions(&mut actions);
        let Some(Action::Reply { body, .. }) = actions.pop() else { panic!("{actions:?}") };
        let frames: Vec<_> = body.frames().unwrap().collect();
        assert_eq!(frames[0], b"200");
        serde_json::from_slice(frames[1]).unwrap()
    }

    #[test]
    fn lists_have_an_end_and_what_is_asked_for_by_name_is_found_behind_it() {
        let mut broker = Broker::bind(BrokerOptions::new(vec!["tcp://127.0.0.1:0".parse().unwrap()])).unwrap();
        broker.core.client_hello(0, 0, ClientId([1; 16]), 1);
        for worker in 1..LISTED_MAX as u32 + 10 {
            broker.core.worker_ready(0, worker, Kind::Numbered, format!("service {worker}").as_bytes(), 1);
        }
        broker.core.take_actions(&mut Vec::new());
        let last = format!("service {}", LISTED_MAX + 9);
        for (number, service) in (1..).step_by(2).zip(["mmi.services", "mmi.queue", "mmi.workers"]) {
            let all = ask(&mut broker, number, service, "");
            let all = all.as_array().unwrap();
            assert_eq!(all.len(), LISTED_MAX, "{service}");
            assert!(!all.iter().any(|listed| listed == &last || listed["service"] == last), "{service}");
            if service != "mmi.services" {
                let one = ask(&mut broker, number + 1, service, &last);
                assert_eq!((one.as_array().unwrap().len(), &one[0]["service"]), (1, &json!(last)));
            }
        }
    }

    #[test]
    fn stored_replies_in_files_are_read_for_a_client_as_far_as_it_may_have_them() {
        const LARGE: usize = 3 << 20;
        let folder = tempfile::tempdir().unwrap();
        let mut options = BrokerOptions::new(vec!["tcp://127.0.0.1:0".parse().unwrap()]);
        options.journal = Some(folder.path().join("journal"));
        options.settings.client_bytes_max = LARGE + LARGE / 2;
        let mut broker = Broker::bind(options).unwrap();
        broker.core.worker_ready(0, 1, Kind::Numbered, b"large", 1);
        broker.core.store(0, ClientId([9; 16]), b"large", "x".into(), Token([0; 16]), Body::default());
        let mut actions = Vec::new();
        broker.core.take_actions(&mut actions);
        let given = actions.iter().find_map(|action| match action {
            Action::Dispatch { token, .. } => Some(*token),
            _ => None,
        });
        let mut file = towpath_journal::spool::Spool::new(folder.path()).unwrap().create().unwrap();
        file.write(&vec![7; LARGE]).unwrap();
        broker.core.worker_reply(0, 1, &given.unwrap(), Status::OK, None, Body::large(file.finish()));
        let start = Instant::now();
        while !matches!(broker.core.stored(ClientId([9; 16])), Some(StoredState::Done(..))) {
            assert!(start.elapsed() < Duration::from_secs(60), "it isn't on the disk");
            broker.act();
            broker.turn().unwrap();
        }
        broker.core.client_hello(0, 0, ClientId([1; 16]), 1);
        let mut ask = |broker: &mut Broker, number| {
            let name = Body::from(ClientId([9; 16]).to_string());
            broker.core.flushed(0);
            broker.core.request(0, 0, number, 0, false, b"titanic.reply", name);
            loop {
                assert!(start.elapsed() < Duration::from_secs(60), "it isn't answered");
                broker.act();
                broker.turn().unwrap();
                // Once more, to be told what became of it.
                broker.core.request(0, 0, number, 0, false, b"titanic.reply", Body::default());
                actions.clear();
                broker.core.take_actions(&mut actions);
                if let Some(Action::Reply { status, body, .. }) = actions.pop() {
                    return (status, body.length() as usize);
                }
            }
        };
        assert_eq!(ask(&mut broker, 1), (Status::OK, LARGE + 3));
        assert_eq!(ask(&mut broker, 2), (Status::UNAVAILABLE, TOO_MANY_REPLIES.len()));
        broker.core.confirm(0, 0, 1, 2);
        assert_eq!(ask(&mut broker, 3), (Status::OK, LARGE + 3));
    }

    #[test]
    fn what_is_stored_is_so_once_though_the_broker_was_killed_before_it_could_say_so() {
        let folder = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let ask = |body: &'static str, numbers: &[u64]| -> Vec<(Bytes, usize)> {
            let mut options = BrokerOptions::new(vec!["tcp://127.0.0.1:0".parse().unwrap()]);
            options.journal = Some(folder.path().join("journal"));
            let mut broker = Broker::bind(options).unwrap();
            broker.core.client_hello(0, 0, ClientId([1; 16]), 1);
            let mut answered = Vec::new();
            for &number in numbers {
                let body = || Body::of_frames(["nobody".into(), body.into()]);
                broker.core.request(0, 0, number, 0, false, b"titanic.request", body());
                let reply = loop {
                    assert!(start.elapsed() < Duration::from_secs(60), "it isn't on the disk");
                    broker.act();
                    broker.turn().unwrap();
                    let mut actions = Vec::new();
                    broker.core.request(0, 0, number, 0, false, b"titanic.request", body());
                    broker.core.take_actions(&mut actions);
                    if let Some(Action::Reply { body, .. }) = actions.pop() {
                        break body;
                    }
                };
                // It is here beside what was stored.
                broker.core.confirm(0, 0, number, 1);
                answered.push((reply.to_frames().unwrap()[1].clone(), broker.core.load().0));
            }
            answered
        };
        let first = ask("once", &[1, 2]);
        assert!(first[0].0 != first[1].0 && first[1].1 == 2);
        assert_eq!(ask("once", &[1, 2, 3])[..2], [(first[0].0.clone(), 2), (first[1].0.clone(), 2)]);
        let other = ask("another", &[1]);
        assert!(other[0].0 != first[0].0 && other[0].1 == 4);
    }

    #[test]
    fn a_name_survives_as_text() {
        let name = ClientId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 254, 255, 16]);
        assert_eq!(name_of(name.to_string().as_bytes()), Some(name));
        assert_eq!(name_of(name.to_string().to_lowercase().as_bytes()), Some(name));
        for wrong in [&b""[..], b"00", &[b'x'; 32], &[0xFF; 32]] {
            assert_eq!(name_of(wrong), None);
        }
    }
}
