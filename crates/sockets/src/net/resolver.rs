//! Looks up names on other threads: a resolver that hangs must not stop the hub.

use crate::net::transport;
use crate::waker::Waker;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// Timeout of a look-up: longer than resolvers try by themselves with a few servers.
pub(crate) const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);
/// Threads that may hang in look-ups past their timeout. With this many, no more are started, since nothing can end them.
const HUNG_MAX: usize = 16;

/// The addresses of a name, in the order in which to try them.
pub(crate) type Addresses = io::Result<Vec<SocketAddr>>;

/// Looks up names for one hub, each on a thread of its own, on behalf of a `T` that waits for the answer. A connector waits for one at a time,
/// so it has one such thread at most, besides those that hang.
pub(crate) struct Resolver<T> {
    /// The look-up; tests replace it.
    pub(crate) look_up: fn(&str, u16) -> Addresses,
    pub(crate) timeout: Duration,
    waker: Waker,
    /// Pending look-ups with their deadlines.
    waiting: HashMap<u64, (Instant, T)>,
    /// Look-ups past their timeout.
    hung: HashSet<u64>,
    next_ticket: u64,
    sender: Sender<(u64, Addresses)>,
    found: Receiver<(u64, Addresses)>,
}

impl<T> Resolver<T> {
    pub(crate) fn new(waker: Waker) -> Resolver<T> {
        let (sender, found) = channel();
        Resolver {
            look_up: transport::resolve,
            timeout: LOOKUP_TIMEOUT,
            waker,
            waiting: HashMap::new(),
            hung: HashSet::new(),
            next_ticket: 0,
            sender,
            found,
        }
    }

    /// Starts to look up a name. The hub is woken when [`Resolver::next_found`] has the answer.
    pub(crate) fn start(&mut self, owner: T, host: String, port: u16) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.insert(ticket, (Instant::now() + self.timeout, owner));
        if self.hung.len() >= HUNG_MAX {
            return self.fail(ticket, io::Error::other("too many look-ups hang; check this machine's name resolution"));
        }
        let (look_up, sender, waker) = (self.look_up, self.sender.clone(), self.waker.clone());
        let thread = std::thread::Builder::new().name("resolver".to_owned()).spawn(move || {
            // The hub may have ended.
            let _ = sender.send((ticket, look_up(&host, port)));
            waker.wake();
        });
        if let Err(error) = thread {
            self.fail(ticket, error);
        }
    }

    fn fail(&self, ticket: u64, error: io::Error) {
        let _ = self.sender.send((ticket, Err(error)));
        self.waker.wake();
    }

    /// The next answer, with its owner.
    pub(crate) fn next_found(&mut self) -> Option<(T, Addresses)> {
        while !(self.waiting.is_empty() && self.hung.is_empty()) {
            let (ticket, addresses) = self.found.try_recv().ok()?;
            self.hung.remove(&ticket);
            if let Some((_, owner)) = self.waiting.remove(&ticket) {
                return Some((owner, addresses));
            }
        }
        None
    }

    /// The next owner whose look-up is past its timeout.
    pub(crate) fn next_overdue(&mut self, now: Instant) -> Option<T> {
        let ticket = *self.waiting.iter().find(|(_, (until, _))| *until <= now)?.0;
        self.hung.insert(ticket);
        Some(self.waiting.remove(&ticket)?.1)
    }

    /// The earliest deadline.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.waiting.values().map(|(until, _)| *until).min()
    }
}

/// The address, if it is written as a number, so that there is nothing to look up.
pub(crate) fn numeric_address(host: &str, port: u16) -> Option<SocketAddr> {
    host.parse::<IpAddr>().ok().map(|address| SocketAddr::new(address, port))
}
