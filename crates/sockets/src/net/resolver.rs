//! Finds the addresses of names beside the hub's thread: a resolver that hangs must not stop the peers that are here.

use crate::hub::connect::Attempt;
use crate::net::transport;
use crate::waker::Waker;
use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// How long a look-up may take before its attempt has failed: longer than resolvers try by themselves where they have a few servers.
pub(crate) const LOOK_UP_MAX: Duration = Duration::from_secs(30);
/// Threads of look-ups that took longer and still hang, before no more are begun: nothing can end them.
const HANGING_MAX: usize = 16;

/// The addresses of a name, in the order in which to try them.
pub(crate) type Addresses = io::Result<Vec<SocketAddr>>;

/// Looks names up for one hub, each in a thread of its own. An attempt waits for its answer, so a connector has one such thread at most,
/// and those that hang.
pub(crate) struct Resolver {
    /// What a thread asks, and waits for.
    pub(crate) look_up: fn(&str, u16) -> Addresses,
    waker: Waker,
    /// How long that may take.
    pub(crate) look_up_max: Duration,
    /// Attempts that wait, and until when.
    waiting: HashMap<u64, (Instant, Box<Attempt>)>,
    /// Look-ups that nobody waits for any more.
    hanging: HashSet<u64>,
    next_ticket: u64,
    sender: Sender<(u64, Addresses)>,
    found: Receiver<(u64, Addresses)>,
}

impl Resolver {
    pub(crate) fn new(waker: Waker) -> Resolver {
        let (sender, found) = channel();
        Resolver {
            look_up: transport::resolve,
            waker,
            look_up_max: LOOK_UP_MAX,
            waiting: HashMap::new(),
            hanging: HashSet::new(),
            next_ticket: 0,
            sender,
            found,
        }
    }

    /// Begins to look up a name for an attempt. The hub is woken when [`Resolver::next`] has the answer.
    pub(crate) fn begin(&mut self, attempt: Box<Attempt>, host: String, port: u16) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.insert(ticket, (Instant::now() + self.look_up_max, attempt));
        if self.hanging.len() >= HANGING_MAX {
            let _ = self.sender.send((ticket, Err(io::Error::other("too many look-ups hang"))));
            self.waker.wake();
            return;
        }
        let (look_up, sender, waker) = (self.look_up, self.sender.clone(), self.waker.clone());
        let thread = std::thread::Builder::new().name("resolver".to_owned()).spawn(move || {
            // Nobody hears of it where the hub has ended.
            let _ = sender.send((ticket, look_up(&host, port)));
            waker.wake();
        });
        if let Err(error) = thread {
            let _ = self.sender.send((ticket, Err(error)));
            self.waker.wake();
        }
    }

    /// An attempt whose answer is here.
    pub(crate) fn next(&mut self) -> Option<(Box<Attempt>, Addresses)> {
        while !(self.waiting.is_empty() && self.hanging.is_empty()) {
            let (ticket, addresses) = self.found.try_recv().ok()?;
            self.hanging.remove(&ticket);
            if let Some((_, attempt)) = self.waiting.remove(&ticket) {
                return Some((attempt, addresses));
            }
        }
        None
    }

    /// An attempt that has waited for long enough.
    pub(crate) fn overdue(&mut self, now: Instant) -> Option<Box<Attempt>> {
        let ticket = *self.waiting.iter().find(|(_, (until, _))| *until <= now)?.0;
        self.hanging.insert(ticket);
        Some(self.waiting.remove(&ticket)?.1)
    }

    /// When the first of those that wait has waited for long enough.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.waiting.values().map(|(until, _)| *until).min()
    }
}

/// The address, if it is written in digits, so that there is nobody to ask.
pub(crate) fn in_digits(host: &str, port: u16) -> Option<SocketAddr> {
    host.parse::<IpAddr>().ok().map(|address| SocketAddr::new(address, port))
}
