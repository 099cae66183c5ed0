//! Recent events of a server.

use serde_json::{Value, json};
use std::collections::VecDeque;
use towpath_broker::add_name;

/// Events of a kind that are remembered: those of one kind don't push out the others.
const OF_A_KIND_MAX: usize = 60;

/// Bytes of a text. Longer ones are cut.
const TEXT_BYTES_MAX: usize = 300;

/// Bytes of a service's name, or of a peer's id.
const NAME_BYTES_MAX: usize = 255;

/// A kind of event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventKind {
    /// The server was started.
    Started,
    /// The server was ended in good order.
    Stopped,
    /// An operator's action was done.
    Action,
    /// A worker, or a follower, was disconnected.
    Gone,
    /// A problem began.
    Began,
    /// A problem ended.
    Ended,
}

pub const KINDS: [EventKind; 6] =
    [EventKind::Started, EventKind::Stopped, EventKind::Action, EventKind::Gone, EventKind::Began, EventKind::Ended];

impl EventKind {
    /// Its name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            EventKind::Started => "started",
            EventKind::Stopped => "stopped",
            EventKind::Action => "action",
            EventKind::Gone => "gone",
            EventKind::Began => "began",
            EventKind::Ended => "ended",
        }
    }
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventKind,
    /// In seconds since 1970.
    pub time: u32,
    /// For people.
    pub text: String,
    /// The service that it is about.
    pub service: Option<Vec<u8>>,
    /// The id of a connection, which may be gone.
    pub peer: Option<String>,
}

/// The latest events of each kind, the latest last.
#[derive(Debug)]
pub struct Events {
    rings: [VecDeque<(u64, Event)>; KINDS.len()],
    next: u64,
}

impl Default for Events {
    fn default() -> Events {
        Events { rings: Default::default(), next: 1 }
    }
}

impl Events {
    pub fn add(&mut self, mut event: Event) {
        let mut end = event.text.len().min(TEXT_BYTES_MAX);
        while !event.text.is_char_boundary(end) {
            end -= 1;
        }
        event.text = event.text[..end].to_owned();
        event.service.take_if(|name| name.len() > NAME_BYTES_MAX);
        event.peer.take_if(|peer| peer.len() > NAME_BYTES_MAX);
        let ring = &mut self.rings[event.kind as usize];
        if ring.len() >= OF_A_KIND_MAX {
            ring.pop_front();
        }
        ring.push_back((self.next, event));
        self.next += 1;
    }

    /// Forgets those that are older than this many seconds.
    pub fn forget(&mut self, now: u32, kept: u32) {
        for ring in &mut self.rings {
            while ring.front().is_some_and(|(_, event)| event.time.saturating_add(kept) < now) {
                ring.pop_front();
            }
        }
    }

    /// All, in their order.
    pub fn all(&self) -> Vec<&Event> {
        self.numbered().into_iter().map(|(_, event)| event).collect()
    }

    fn numbered(&self) -> Vec<&(u64, Event)> {
        let mut all: Vec<_> = self.rings.iter().flatten().collect();
        all.sort_by_key(|(number, _)| *number);
        all
    }

    /// Those of this time and later; of a service, if one is named. The latest last.
    pub fn json(&self, from: u32, service: Option<&[u8]>) -> Value {
        let is_wanted = |(_, event): &&(u64, Event)| {
            event.time >= from && service.is_none_or(|name| event.service.as_deref() == Some(name))
        };
        self.numbered().into_iter().filter(is_wanted).map(of_event).collect()
    }

    #[cfg(test)]
    pub fn memory_bytes(&self) -> usize {
        let event = |(_, event): &(u64, Event)| {
            event.text.capacity()
                + event.service.as_ref().map_or(0, Vec::capacity)
                + event.peer.as_ref().map_or(0, String::capacity)
        };
        let ring = |ring: &VecDeque<(u64, Event)>| {
            ring.capacity() * size_of::<(u64, Event)>() + ring.iter().map(event).sum::<usize>()
        };
        self.rings.iter().map(ring).sum()
    }
}

fn of_event((number, event): &(u64, Event)) -> Value {
    let mut value = json!({
        "id": number,
        "time": event.time,
        "kind": event.kind.as_str(),
        "text": event.text,
        "service": null,
        "peer": event.peer,
    });
    if let Some(name) = &event.service {
        add_name(&mut value, "service", name);
    }
    value
}
