//! Finds the addresses of names beside the hub's thread: a resolver that hangs must not stop the peers that are here.

use crate::connector::Attempt;
use crate::transport;
use crate::waker::Waker;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};

/// The addresses of a name, in the order in which to try them.
pub(crate) type Addresses = io::Result<Vec<SocketAddr>>;

/// Looks names up for one hub, each in a thread of its own. An attempt waits for its answer, so a connector has one such thread at most.
pub(crate) struct Resolver {
    /// What a thread asks, and waits for.
    pub(crate) look_up: fn(&str, u16) -> Addresses,
    waker: Waker,
    waiting: HashMap<u64, Box<Attempt>>,
    next_ticket: u64,
    sender: Sender<(u64, Addresses)>,
    found: Receiver<(u64, Addresses)>,
}

impl Resolver {
    pub(crate) fn new(waker: Waker) -> Resolver {
        let (sender, found) = channel();
        Resolver { look_up: transport::resolve, waker, waiting: HashMap::new(), next_ticket: 0, sender, found }
    }

    /// Begins to look up a name for an attempt. The hub is woken when [`Resolver::next`] has the answer.
    pub(crate) fn begin(&mut self, attempt: Box<Attempt>, host: String, port: u16) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.insert(ticket, attempt);
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
        if self.waiting.is_empty() {
            return None;
        }
        let (ticket, addresses) = self.found.try_recv().ok()?;
        Some((self.waiting.remove(&ticket)?, addresses))
    }
}

/// The address, if it is written in digits, so that there is nobody to ask.
pub(crate) fn in_digits(host: &str, port: u16) -> Option<SocketAddr> {
    host.parse::<IpAddr>().ok().map(|address| SocketAddr::new(address, port))
}
