//! Services of the broker itself: MMI (RFC 8) with four of ours, and Titanic (RFC 9) on the journal.

mod mmi;
mod titanic;

use crate::access::Access;
use crate::core::{Core, Millis, Peer};
use crate::store::Store;
use crate::transport::Transport;
use bytes::Bytes;
use mmi::Lists;
use std::time::Duration;
use towpath_requests::body::Body;
use towpath_requests::numbered::{Status, Token};
use towpath_sockets::PeerId;

/// Why there is no Titanic.
const NO_TITANIC: &str = "titanic.* needs a broker with --journal, or a stock worker of that name";

/// The broker's own services, and what they keep between two requests.
#[derive(Default)]
pub(crate) struct Services {
    lists: Lists,
}

/// The parts of a broker that built-in services use.
pub(crate) struct Broker<'a, T, S> {
    pub core: &'a mut Core,
    pub store: &'a mut S,
    pub transport: &'a mut T,
    /// The client and its permissions.
    pub access: Access,
    pub peer_id: &'a dyn Fn(Peer) -> Option<PeerId>,
}

impl<T: Transport, S> Broker<'_, T, S> {
    fn now(&self) -> Millis {
        self.transport.now().as_millis() as Millis
    }
}

impl Services {
    /// Answers a request for one of them.
    pub fn answer<T: Transport, S: Store>(
        &mut self,
        mut broker: Broker<'_, T, S>,
        token: &Token,
        service: &[u8],
        body: &Body,
    ) {
        let argument = body.frames().and_then(|mut frames| frames.next()).unwrap_or_default().to_vec();
        let has_journal = broker.core.settings().journal;
        let reply = match service {
            b"titanic.request" if has_journal => return titanic::request(&mut broker, token, body),
            b"titanic.reply" if has_journal => return titanic::reply(&mut broker, token, &argument),
            b"titanic.close" if has_journal => return titanic::close(&mut broker, token, &argument),
            _ => self.lists.mmi(&broker, service, &argument),
        };
        let status = if reply.is_some() { Status::OK } else { Status::NOT_IMPLEMENTED };
        let needs_journal = service.starts_with(b"titanic.") && !has_journal;
        let why = needs_journal.then_some(Bytes::from_static(NO_TITANIC.as_bytes()));
        broker.core.built_in_reply(token, status, reply.unwrap_or_else(|| coded("501", why)));
    }

    /// Answers with stored replies that had to be read.
    pub fn take_loaded(&mut self, core: &mut Core, store: &mut impl Store) {
        titanic::take_loaded(core, store);
    }

    /// Ends a round: lists are made again in the next one, except those that take long.
    pub fn end_round(&mut self, now: Duration) {
        self.lists.end_round(now);
    }
}

/// A reply that begins with a code, as all of these do.
fn coded(code: &'static str, more: impl IntoIterator<Item = Bytes>) -> Body {
    Body::of_frames([Bytes::from_static(code.as_bytes())].into_iter().chain(more))
}
