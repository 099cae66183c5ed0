//! Connecting, and reconnecting with backoff. An attempt has failed when all addresses of the endpoint's name have been tried.

use crate::event::Event;
use crate::hub::Hub;
use crate::net::endpoint::Endpoint;
use crate::net::resolver;
use crate::net::transport::{self, Target};
use crate::options::Backoff;
use crate::peer::End;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use towpath_zmtp::Refusal;

/// Timeout for an address to answer if the name has others: enough for a SYN that is lost and sent again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Delay before the next attempt after a refusal.
const REFUSED_RETRY: Duration = Duration::from_secs(60);

/// Attempts that end as if this side were refused, in a row, after which it counts as refused.
const SUSPECTED_MAX: u32 = 3;

/// Origin of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Accepted,
    Connector(usize),
    /// Connected by this side without a connector that would try again.
    Once,
}

/// An endpoint to stay connected to.
pub(crate) struct Connector {
    endpoint: Endpoint,
    failures: u32,
    retry_at: Option<Instant>,
}

impl Connector {
    pub(crate) fn new(endpoint: Endpoint) -> Connector {
        Connector { endpoint, failures: 0, retry_at: None }
    }

    /// Notes the end of a connection that was ready for this long: the backoff starts again if it was stable.
    pub(crate) fn ended_after(&mut self, lasted: Duration, stable_after: Duration) {
        if lasted >= stable_after {
            self.failures = 0;
        }
    }

    /// The delay before the next attempt, doubled with each failure, with enough jitter that many clients don't come back in step.
    fn delay(&self, backoff: Backoff) -> Duration {
        let doubled = backoff.first.saturating_mul(1 << self.failures.min(16)).min(backoff.most);
        let random = RandomState::new().hash_one(self.failures) % 1024;
        doubled / 2 + doubled.mul_f64(random as f64 / 2048.0)
    }
}

/// An attempt to connect to an endpoint, until one of its addresses has led to a ready connection.
pub(crate) struct Attempt {
    endpoint: Endpoint,
    origin: Origin,
    /// Addresses not tried yet.
    left: VecDeque<Target>,
    /// Addresses tried, with the reason of each failure.
    failures: Vec<(String, String)>,
}

impl Attempt {
    fn new(endpoint: Endpoint, origin: Origin) -> Box<Attempt> {
        Box::new(Attempt { endpoint, origin, left: VecDeque::new(), failures: Vec::new() })
    }

    fn failed(&mut self, address: String, reason: String) {
        tracing::debug!(address, reason, "cannot connect");
        self.failures.push((address, reason));
    }

    /// One event for all addresses; it names each if there are several.
    fn report(mut self, refused: Option<Refusal>) -> Event {
        let (address, reason) = match self.failures.pop() {
            Some(only) if self.failures.is_empty() => only,
            last => {
                let each = self.failures.iter().chain(&last).map(|(address, reason)| format!("{address}: {reason}"));
                (self.endpoint.to_string(), each.collect::<Vec<_>>().join("; "))
            }
        };
        Event::Failed { address, reason, connecting: true, refused }
    }
}

impl Hub {
    pub(super) fn start_connecting(&mut self, index: usize) {
        let Some(connector) = self.connectors.get_mut(index) else { return };
        connector.retry_at = None;
        let attempt = Attempt::new(connector.endpoint.clone(), Origin::Connector(index));
        self.begin_attempt(attempt);
    }

    pub(super) fn attempt_once(&mut self, endpoint: &Endpoint) {
        self.begin_attempt(Attempt::new(endpoint.clone(), Origin::Once));
    }

    fn begin_attempt(&mut self, mut attempt: Box<Attempt>) {
        match &attempt.endpoint {
            Endpoint::Tcp { host, port } => match resolver::numeric_address(host, *port) {
                Some(address) => attempt.left.push_back(Target::Tcp(address)),
                None => {
                    let (host, port) = (host.clone(), *port);
                    self.resolver.start(attempt, host, port);
                    self.next_timer = self.next_timer.into_iter().chain(self.resolver.deadline()).min();
                    return;
                }
            },
            Endpoint::Ipc(path) => attempt.left.push_back(Target::Ipc(path.clone())),
            Endpoint::Inproc(name) => attempt.left.push_back(Target::Inproc(name.clone())),
        }
        self.go_on(attempt);
    }

    /// Goes on with attempts whose names have been looked up.
    pub(super) fn take_addresses(&mut self) {
        while let Some((mut attempt, addresses)) = self.resolver.next_found() {
            match addresses {
                Ok(addresses) => attempt.left = addresses.into_iter().map(Target::Tcp).collect(),
                Err(error) => {
                    let name = attempt.endpoint.to_string();
                    let reason = format!("cannot look up {name}: {error}");
                    attempt.failed(name, reason);
                }
            }
            self.go_on(attempt);
        }
    }

    /// Fails attempts whose look-ups take too long. They are made again later, like any others that fail.
    pub(super) fn end_overdue_lookups(&mut self) {
        while let Some(mut attempt) = self.resolver.next_overdue(self.now) {
            let name = attempt.endpoint.to_string();
            let seconds = self.resolver.timeout.as_secs();
            let reason =
                format!("cannot look up {name}: no answer in {seconds} s; check the name and this machine's resolver");
            attempt.failed(name, reason);
            self.go_on(attempt);
        }
        self.next_timer = self.next_timer.into_iter().chain(self.resolver.deadline()).min();
    }

    /// Connects to the next address that can be reached, or reports that none could.
    fn go_on(&mut self, mut attempt: Box<Attempt>) {
        // The peer's deadlines start here, which may be long after the poll did.
        self.now = Instant::now();
        while let Some(target) = attempt.left.pop_front() {
            // An address that never answers must not take all the time that there is for the name. The last one may.
            let others = u32::try_from(attempt.left.len()).unwrap_or(u32::MAX);
            let share = CONNECT_TIMEOUT.min(self.options.handshake_timeout / others.saturating_add(1));
            let until = (others > 0).then_some(self.now + share);
            let connected = transport::connect(&target, &self.options.congestion);
            // Waiting changes no modes.
            let is_closed = matches!(target, Target::Ipc(_))
                && connected.as_ref().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
            if is_closed {
                let why = "permission denied: the mode of the socket, or of a directory above it, keeps this user out";
                attempt.failed(target.to_string(), why.to_owned());
                return self.give_up(*attempt, Some(Refusal::Peer));
            }
            let added = connected
                .map_err(|error| format!("connecting failed: {error}"))
                .and_then(|(fd, address, connecting)| self.add_peer(fd, &address, attempt.origin, connecting));
            match added {
                Ok(id) => {
                    if let Some(member) = self.peers.find_mut(id) {
                        member.attempt = Some(attempt);
                        member.connect_deadline = until;
                        self.next_timer = self.next_timer.into_iter().chain(until).min();
                    }
                    return;
                }
                Err(reason) => attempt.failed(target.to_string(), reason),
            }
        }
        self.give_up(*attempt, None);
    }

    /// A connection that belonged to this attempt has ended before it was ready.
    pub(super) fn attempt_failed(&mut self, mut attempt: Box<Attempt>, address: String, end: End) {
        attempt.failed(address, end.reason);
        self.suspected += u32::from(end.suspected);
        let is_suspected = end.suspected && self.suspected >= SUSPECTED_MAX;
        if let Some(refusal) = end.refused.or_else(|| is_suspected.then_some(Refusal::Login)) {
            // The peer has understood this side, and would say the same at its other addresses.
            self.give_up(*attempt, Some(refusal));
        } else {
            self.go_on(attempt);
        }
    }

    fn give_up(&mut self, attempt: Attempt, refused: Option<Refusal>) {
        let origin = attempt.origin;
        self.events.push_back(attempt.report(refused));
        if let Origin::Connector(index) = origin {
            self.connect_later(index, refused);
        }
    }

    /// Waits longest after a refusal: the same credentials would be refused again (RFC 37).
    pub(super) fn connect_later(&mut self, index: usize, refused: Option<Refusal>) {
        let backoff = self.options.reconnect;
        let now = self.now;
        let Some(connector) = self.connectors.get_mut(index) else { return };
        // A time beyond what a clock can represent never comes.
        let delay = if refused.is_some() { REFUSED_RETRY.max(backoff.most) } else { connector.delay(backoff) };
        let at = now.checked_add(delay);
        connector.failures = connector.failures.saturating_add(1);
        connector.retry_at = at;
        self.next_timer = self.next_timer.into_iter().chain(at).min();
    }

    pub(super) fn retry_connectors(&mut self) {
        for index in 0..self.connectors.len() {
            let Some(at) = self.connectors.get(index).and_then(|connector| connector.retry_at) else { continue };
            if at <= self.now {
                self.start_connecting(index);
            } else {
                self.next_timer = Some(self.next_timer.map_or(at, |next| next.min(at)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::options::{HubOptions, STABLE_AFTER};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::sync::Mutex;
    use towpath_zmtp::SocketType;

    fn hub(socket_type: SocketType) -> Hub {
        Hub::new(HubOptions::new(socket_type)).unwrap()
    }

    /// An address where nobody listens.
    fn dead(port: u16) -> SocketAddr {
        assert!(port < 10);
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn attempt(origin: Origin, addresses: &[SocketAddr]) -> Box<Attempt> {
        let endpoint = Endpoint::Tcp { host: "of.several.addresses".to_owned(), port: 1 };
        let mut attempt = Attempt::new(endpoint, origin);
        attempt.left = addresses.iter().copied().map(Target::Tcp).collect();
        attempt
    }

    fn next_event(hubs: &mut [&mut Hub]) -> Event {
        let deadline = Instant::now() + Duration::from_secs(20);
        while Instant::now() < deadline {
            for hub in hubs.iter_mut().rev() {
                hub.poll(Some(Duration::from_millis(1))).unwrap();
            }
            if let Some(event) = hubs[0].next_event() {
                return event;
            }
        }
        panic!("no event came");
    }

    #[test]
    fn all_addresses_of_a_name_are_tried_before_anything_is_reported() {
        let mut server = hub(SocketType::Router);
        let Endpoint::Tcp { port, .. } = server.bind(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap() else {
            panic!("not tcp")
        };
        let there = SocketAddr::from(([127, 0, 0, 1], port));
        for origin in [Origin::Once, Origin::Connector(0)] {
            let mut client = hub(SocketType::Dealer);
            client.go_on(attempt(origin, &[dead(1), dead(2), there, dead(3)]));
            let event = next_event(&mut [&mut client, &mut server]);
            assert!(matches!(event, Event::Ready { .. }), "{event:?}");
        }
    }

    #[test]
    fn an_address_that_never_answers_does_not_take_all_the_time() {
        let mut server = hub(SocketType::Router);
        let Endpoint::Tcp { port, .. } = server.bind(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap() else {
            panic!("not tcp")
        };
        // With nobody accepting and the backlog full, the kernel drops further SYNs.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let silent = listener.local_addr().unwrap();
        let connect = || TcpStream::connect_timeout(&silent, Duration::from_millis(300));
        let queued: Vec<_> = std::iter::from_fn(|| connect().ok()).take(100).collect();
        assert!(queued.len() < 100);
        let options = HubOptions { handshake_timeout: Duration::from_secs(300), ..HubOptions::new(SocketType::Dealer) };
        let mut client = Hub::new(options).unwrap();
        client.go_on(attempt(Origin::Once, &[silent, SocketAddr::from(([127, 0, 0, 1], port))]));
        let event = next_event(&mut [&mut client, &mut server]);
        assert!(matches!(event, Event::Ready { .. }), "{event:?}");
    }

    /// Held by a test while its look-up is to hang.
    static RESOLVING: Mutex<()> = Mutex::new(());

    #[test]
    fn a_hung_look_up_stops_no_other_connection() {
        let mut server = hub(SocketType::Router);
        let endpoint = server.bind(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap();
        let Endpoint::Tcp { port, .. } = endpoint else { panic!("not tcp") };
        let mut client = hub(SocketType::Dealer);
        client.resolver.look_up = |_, port| {
            let _held = RESOLVING.lock();
            Ok(vec![dead(1), SocketAddr::from(([127, 0, 0, 1], port))])
        };
        let held = RESOLVING.lock();
        client.connect(&Endpoint::Tcp { host: "some.name".to_owned(), port }).unwrap();
        client.connect(&endpoint).unwrap();
        let event = next_event(&mut [&mut client, &mut server]);
        assert!(matches!(event, Event::Ready { .. }), "{event:?}");
        assert_eq!(client.peers().count(), 1, "the other has no address yet");
        drop(held);
        let event = next_event(&mut [&mut client, &mut server]);
        assert!(matches!(event, Event::Ready { .. }), "{event:?}");
    }

    /// Held by a test while its look-ups are to hang for good.
    static HANGING: Mutex<()> = Mutex::new(());

    #[test]
    fn an_attempt_whose_look_up_hangs_fails_and_is_made_again() {
        let mut client = hub(SocketType::Dealer);
        client.resolver.timeout = Duration::from_millis(20);
        client.resolver.look_up = |_, _| {
            let _held = HANGING.lock();
            Ok(vec![dead(1)])
        };
        let held = HANGING.lock();
        client.connect(&"tcp://some.name:1".parse().unwrap()).unwrap();
        for _ in 0..2 {
            let Event::Failed { reason, connecting: true, .. } = next_event(&mut [&mut client]) else { panic!() };
            assert!(reason.contains("some.name") && reason.contains("no answer in"), "{reason}");
        }
        // Hung threads are bounded.
        while !client.connectors.is_empty() {
            client.start_connecting(0);
            let Event::Failed { reason, .. } = next_event(&mut [&mut client]) else { panic!() };
            if reason.contains("too many look-ups hang") {
                break;
            }
        }
        // Their late answers are nobody's, and the next look-up gets its own.
        drop(held);
        client.resolver.timeout = Duration::from_secs(60);
        loop {
            client.start_connecting(0);
            let Event::Failed { reason, .. } = next_event(&mut [&mut client]) else { panic!() };
            if reason.contains("refused") {
                break;
            }
        }
    }

    #[test]
    fn failure_names_a_name_without_addresses() {
        let mut client = hub(SocketType::Dealer);
        client.resolver.look_up = |_, _| Err(std::io::Error::other("nobody knows"));
        client.connect(&"tcp://some.name:1".parse().unwrap()).unwrap();
        let event = next_event(&mut [&mut client]);
        let Event::Failed { reason, connecting: true, .. } = event else { panic!("{event:?}") };
        assert!(reason.contains("some.name") && reason.contains("nobody knows"), "{reason}");
        assert!(client.connectors[0].retry_at.is_some());
    }

    #[test]
    fn a_name_without_a_reachable_address_fails_once_and_names_all() {
        let mut client = hub(SocketType::Dealer);
        client.connectors.push(Connector::new("tcp://127.0.0.1:1".parse().unwrap()));
        for origin in [Origin::Once, Origin::Connector(0)] {
            let addresses = [dead(1), dead(2)];
            client.go_on(attempt(origin, &addresses));
            let Event::Failed { address, reason, connecting: true, refused: None } = next_event(&mut [&mut client])
            else {
                panic!("not a failure to connect")
            };
            assert_eq!(address, "tcp://of.several.addresses:1");
            assert!(addresses.iter().all(|one| reason.contains(&one.to_string())), "{reason}");
            assert_eq!(client.connectors[0].failures, u32::from(origin != Origin::Once));
        }
        assert!(client.connectors[0].retry_at.is_some() && client.next_event().is_none());
    }

    #[test]
    fn a_refused_side_does_not_try_the_next_address() {
        let mut server = hub(SocketType::Req);
        let Endpoint::Tcp { port, .. } = server.bind(&"tcp://127.0.0.1:0".parse().unwrap()).unwrap() else {
            panic!("not tcp")
        };
        let mut client = hub(SocketType::Req);
        client.go_on(attempt(Origin::Once, &[SocketAddr::from(([127, 0, 0, 1], port)), dead(1)]));
        let event = next_event(&mut [&mut client, &mut server]);
        assert!(matches!(event, Event::Failed { refused: Some(_), .. }), "{event:?}");
    }

    #[test]
    fn backoff_doubles_up_to_its_maximum_until_a_connection_is_stable() {
        let backoff = Backoff { first: Duration::from_millis(100), most: Duration::from_secs(1) };
        let mut connector = Connector::new("tcp://127.0.0.1:1".parse().unwrap());
        for doubled in [100, 200, 400, 800, 1000, 1000].map(Duration::from_millis) {
            assert!((doubled / 2..=doubled).contains(&connector.delay(backoff)), "{doubled:?}");
            connector.failures += 1;
            connector.ended_after(STABLE_AFTER - Duration::from_millis(1), STABLE_AFTER);
        }
        connector.ended_after(STABLE_AFTER, STABLE_AFTER);
        assert!(connector.delay(backoff) <= backoff.first);
    }
}
