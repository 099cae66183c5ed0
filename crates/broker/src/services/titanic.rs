//! Titanic (RFC 9): requests that are kept for clients that come again, in the broker's journal.

use super::{Broker, coded};
use crate::access::MAY_NOT_CALL;
use crate::core::{Core, StoredState};
use crate::store::Store;
use crate::transport::Transport;
use bytes::Bytes;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use towpath_requests::body::Body;
use towpath_requests::limits::{BODY_BYTES_MAX, BODY_FRAMES_MAX, SERVICE_BYTES_MAX};
use towpath_requests::numbered::{ClientId, Status, Token};

/// The code before a stored reply.
const DONE: &str = "200";

/// Of a stored reply that a numbered client can't have behind a code.
const TOO_LARGE_A_REPLY: &str =
    "the reply is here, but has with its code over 64 MiB or 1000 frames: a stock client of Majordomo is given it";

/// Of a stored reply in a file, for which there is no memory now.
const TOO_MANY_REPLIES: &str =
    "large replies that were asked for before have their space: confirm those, and ask again";

/// Why a stored reply in a file isn't given at once.
enum NotNow {
    /// Has to be loaded into memory, and there is no space now.
    NoSpace,
    /// Has to be read from disk first.
    OnDisk(Body),
}

/// `[service, body+]` is kept, and answered `[200, name]` when it is on the disk.
pub(super) fn request<T: Transport, S: Store>(broker: &mut Broker<'_, T, S>, token: &Token, body: &Body) {
    let mut frames = body.to_frames().unwrap_or_default().into_iter();
    let service = frames.next().unwrap_or_default();
    let is_nameable = (1..=SERVICE_BYTES_MAX).contains(&service.len());
    let refusal = |reason: Bytes| coded("500", [reason]);
    if !is_nameable || frames.len() == 0 || towpath_requests::is_built_in(&service) {
        let reason = "a service of 1 to 255 bytes that isn't the broker's own, and a body";
        return broker.core.built_in_reply(token, Status::OK, refusal(reason.into()));
    }
    if !broker.access.may_call(&service) {
        return broker.core.built_in_reply(token, Status::OK, coded("403", [MAY_NOT_CALL.into()]));
    }
    let numbered = broker.core.numbered_request_of(token);
    let known = numbered.map(|(client, number)| name_for(client, number, body));
    let answer = |name: ClientId| coded("200", [Bytes::from(name.to_string())]);
    // The answer was lost with the process that gave it, and the request has come once more.
    if let Some(name) = known.filter(|name| broker.core.was_restored(broker.access.own(*name))) {
        return broker.core.built_in_reply(token, Status::OK, answer(name));
    }
    let name = match known.filter(|name| broker.core.stored(broker.access.own(*name)).is_none()) {
        Some(name) => name,
        None => match broker.transport.random() {
            Ok(name) => ClientId(name),
            Err(error) => {
                let reason = format!("no random numbers can be had: {error}");
                return broker.core.built_in_reply(token, Status::OK, refusal(reason.into()));
            }
        },
    };
    let now = broker.transport.now().as_millis() as u64;
    let own = broker.access.own(name);
    broker.core.store(now, own, &service, Body::of_frames(frames), *token, answer(name));
}

/// Answers with what is stored under a name, which is read first where that takes long.
pub(super) fn reply<T: Transport, S: Store>(broker: &mut Broker<'_, T, S>, token: &Token, argument: &[u8]) {
    let name = name_of(argument).map(|name| broker.access.own(name));
    match stored(broker.core, token, name) {
        Ok(reply) => broker.core.built_in_reply(token, Status::OK, reply),
        Err(NotNow::NoSpace) => answer_later(broker.core, token),
        Err(NotNow::OnDisk(body)) => {
            let client = broker.core.numbered_request_of(token).map(|(client, _)| short_id(client));
            if !broker.store.load(client.unwrap_or_default(), *token, body) {
                answer_later(broker.core, token);
            }
        }
    }
}

/// Forgets what is stored under a name.
pub(super) fn close<T: Transport, S: Store>(broker: &mut Broker<'_, T, S>, token: &Token, argument: &[u8]) {
    let now = broker.transport.now().as_millis() as u64;
    match name_of(argument) {
        Some(name) => broker.core.close_stored(now, broker.access.own(name), *token, coded("200", [])),
        None => broker.core.built_in_reply(token, Status::OK, coded("200", [])),
    }
}

/// Answers that there is no space for the reply now.
fn answer_later(core: &mut Core, token: &Token) {
    core.built_in_reply(token, Status::UNAVAILABLE, Body::from(TOO_MANY_REPLIES));
}

/// Answers with stored replies that had to be read, unless a later request has closed them.
pub(super) fn take_loaded(core: &mut Core, store: &mut impl Store) {
    while let Some((token, bytes)) = store.next_loaded() {
        match bytes {
            Ok(bytes) if core.reply_fits_in_memory(&token, bytes.len()) => {
                core.built_in_reply(&token, Status::OK, coded(DONE, [bytes]));
            }
            Ok(_) => answer_later(core, &token),
            Err(error) => {
                tracing::error!(%error, "a stored reply can't be read");
                let reason = "the broker can't read the reply from its disk";
                core.built_in_reply(&token, Status::OK, coded("500", [reason.into()]));
            }
        }
    }
}

/// Body stored under a name.
fn stored(core: &Core, token: &Token, name: Option<ClientId>) -> Result<Body, NotNow> {
    Ok(match name.and_then(|name| core.stored(name)) {
        None => coded("400", []),
        Some(StoredState::Pending) => coded("300", []),
        Some(StoredState::Done(Status::OK, body)) if core.numbered_request_of(token).is_some() => {
            in_memory(&body, |bytes| core.reply_fits_in_memory(token, bytes))?
        }
        Some(StoredState::Done(Status::OK, body)) => Body::joined([coded("200", []), body]),
        Some(StoredState::Done(_, reason)) => coded("500", reason.to_frames().unwrap_or_default()),
    })
}

/// A stored reply behind its code, for a numbered client: in several frames, so all of it in memory, if there is space for it there.
fn in_memory(body: &Body, has_space: impl Fn(usize) -> bool) -> Result<Body, NotNow> {
    let fits = |frames: usize| {
        frames < BODY_FRAMES_MAX && body.length().saturating_add(DONE.len() as u64) <= BODY_BYTES_MAX as u64
    };
    Ok(match (body.to_frames(), body.as_large()) {
        (Some(frames), _) if fits(frames.len()) => coded(DONE, frames),
        (None, Some(_)) if fits(1) && !has_space(body.length() as usize) => return Err(NotNow::NoSpace),
        (None, Some(_)) if fits(1) => return Err(NotNow::OnDisk(body.clone())),
        _ => coded("413", [TOO_LARGE_A_REPLY.into()]),
    })
}

/// A part of a client's id, enough to distinguish clients that take turns.
fn short_id(client: ClientId) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = client.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// The name of what a numbered client has stored by one of its requests, whichever process of the broker takes it: only a peer that knows the
/// client's id can compute it. Another body under the same number, which there shouldn't be, has another one.
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
    use crate::server::{Broker, BrokerOptions};
    use std::time::{Duration, Instant};

    #[test]
    fn stored_replies_in_files_are_loaded_within_the_limit_of_the_client() {
        const LARGE: usize = 3 << 20;
        let folder = tempfile::tempdir().unwrap();
        let mut options = BrokerOptions::new(vec!["tcp://127.0.0.1:0".parse().unwrap()]);
        options.journal = Some(folder.path().join("journal"));
        options.settings.client_bytes_max = LARGE + LARGE / 2;
        let mut broker = Broker::bind(options).unwrap();
        broker.dispatch.core.worker_ready(0, 1, Kind::Numbered, b"large", 1);
        broker.dispatch.core.store(0, ClientId([9; 16]), b"large", "x".into(), Token([0; 16]), Body::default());
        let mut actions = Vec::new();
        broker.dispatch.core.take_actions(&mut actions);
        let given = actions.iter().find_map(|action| match action {
            Action::Dispatch { token, .. } => Some(*token),
            _ => None,
        });
        let mut file = towpath_spool::Spool::new(folder.path()).unwrap().create().unwrap();
        file.write(&vec![7; LARGE]).unwrap();
        broker.dispatch.core.worker_reply(0, 1, &given.unwrap(), Status::OK, None, Body::large(file.finish()));
        let start = Instant::now();
        while !matches!(broker.dispatch.core.stored(ClientId([9; 16])), Some(StoredState::Done(..))) {
            assert!(start.elapsed() < Duration::from_secs(60), "it isn't on the disk");
            broker.dispatch.act();
            broker.turn().unwrap();
        }
        broker.dispatch.core.client_hello(0, 0, ClientId([1; 16]), 1);
        let mut ask = |broker: &mut Broker, number| {
            let name = || Body::from(ClientId([9; 16]).to_string());
            broker.dispatch.core.flushed(0);
            broker.dispatch.core.request(0, 0, number, 0, false, b"titanic.reply", name());
            loop {
                assert!(start.elapsed() < Duration::from_secs(60), "it isn't answered");
                broker.dispatch.act();
                broker.turn().unwrap();
                // Asks again for the outcome.
                broker.dispatch.core.request(0, 0, number, 0, false, b"titanic.reply", name());
                actions.clear();
                broker.dispatch.core.take_actions(&mut actions);
                if let Some(Action::Reply { status, body, .. }) = actions.pop() {
                    return (status, body.length() as usize);
                }
            }
        };
        assert_eq!(ask(&mut broker, 1), (Status::OK, LARGE + 3));
        assert_eq!(ask(&mut broker, 2), (Status::UNAVAILABLE, TOO_MANY_REPLIES.len()));
        broker.dispatch.core.confirm(0, 0, 1, 2);
        assert_eq!(ask(&mut broker, 3), (Status::OK, LARGE + 3));
    }

    #[test]
    fn request_is_stored_once_though_the_broker_was_killed() {
        let folder = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let ask = |body: &'static str, numbers: &[u64]| -> Vec<(Bytes, usize)> {
            let mut options = BrokerOptions::new(vec!["tcp://127.0.0.1:0".parse().unwrap()]);
            options.journal = Some(folder.path().join("journal"));
            let mut broker = Broker::bind(options).unwrap();
            broker.dispatch.core.client_hello(0, 0, ClientId([1; 16]), 1);
            let mut answered = Vec::new();
            for &number in numbers {
                let body = || Body::of_frames(["nobody".into(), body.into()]);
                broker.dispatch.core.request(0, 0, number, 0, false, b"titanic.request", body());
                let reply = loop {
                    assert!(start.elapsed() < Duration::from_secs(60), "it isn't on the disk");
                    broker.dispatch.act();
                    broker.turn().unwrap();
                    let mut actions = Vec::new();
                    broker.dispatch.core.request(0, 0, number, 0, false, b"titanic.request", body());
                    broker.dispatch.core.take_actions(&mut actions);
                    if let Some(Action::Reply { body, .. }) = actions.pop() {
                        break body;
                    }
                };
                // The reply is here beside the stored one.
                broker.dispatch.core.confirm(0, 0, number, 1);
                answered.push((reply.to_frames().unwrap()[1].clone(), broker.dispatch.core.load().0));
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
    fn name_survives_as_text() {
        let name = ClientId([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 254, 255, 16]);
        assert_eq!(name_of(name.to_string().as_bytes()), Some(name));
        assert_eq!(name_of(name.to_string().to_lowercase().as_bytes()), Some(name));
        for wrong in [&b""[..], b"00", &[b'x'; 32], &[0xFF; 32]] {
            assert_eq!(name_of(wrong), None);
        }
    }
}
