//! The history of a run, and its checks.
//!
//! The promises: (1) every request ends in exactly one outcome; (2) a reply is that of its request, whole; (3) a number never
//! has two different replies, on the wire of a broker with a journal not even across its deaths; (4) what was acknowledged by
//! ACCEPTED is never lost; (5) a request isn't given to another worker once the broker has got the reply of the one that has it.

use std::collections::{BTreeMap, BTreeSet};
use towpath_broker::core::Millis;
use towpath_requests::Body;
use towpath_requests::numbered::Status;

/// A request of a client, by its number.
pub type Key = (usize, u64);

#[derive(Debug, Clone)]
pub enum Event {
    /// A client has asked.
    Submitted { key: Key, body: Body, volatile: bool },
    /// A client has lost all but its numbers. Asking again, it says this.
    Forgot { key: Key, ghost: Body },
    /// A broker says that a request is on its disk.
    Acknowledged { node: usize, key: Key },
    /// A broker says how a request ended.
    Answered { node: usize, life: u64, key: Key, status: Status, body: Body },
    /// A broker has given a request to a worker.
    Given { node: usize, life: u64, key: Key },
    /// A broker has got the whole reply of the worker that has a request.
    Replied { node: usize, life: u64, key: Key },
    /// The broker has ended the worker's connection since, and may not have taken that reply.
    ReplyDropped { node: usize, life: u64, key: Key },
    /// A log has no space for requests that were not acknowledged: they are kept by the broker alone.
    LogFull,
    /// A client takes an outcome, or makes one because it waits no longer.
    Outcome { key: Key, status: Status, body: Body, own: bool },
    /// A stock client asks, over a connection.
    StockAsked { key: Key, body: Body },
    /// The stock client has a reply.
    StockGot { key: Key, body: Body },
    /// Its connection is gone, and it waits no longer.
    StockGaveUp { key: Key },
}

#[derive(Debug, Default)]
pub struct History {
    /// Requests of which some broker kept a copy as a dead letter, which workers may get whatever has become of the request.
    pub letters: BTreeSet<Key>,
    pub events: Vec<(Millis, Event)>,
    /// Whether the brokers have journals.
    pub journal: bool,
    /// Whether workers lose requests for which they take too long.
    pub may_be_slow: bool,
    /// Clients whose word is to be believed, when they say that no worker had a request.
    pub believed: BTreeSet<usize>,
}

/// The frame that a worker puts before what it was asked: the execution, and how many parts came before.
pub fn reply_frame(execution: u64, parts: u32) -> String {
    format!("reply {execution} after {parts}")
}

/// Between the two in a reply that is one frame.
pub const JOIN: &str = " of ";

/// Whether a reply in one frame had parts before it.
fn with_parts_of(head: &str) -> bool {
    head.split(' ').nth(3) != Some("0")
}

/// One part of a reply.
pub fn part_frame(execution: u64, part: u32) -> String {
    format!("part {execution} {part}")
}

/// Whether a reply is the whole one to a request: `[part]*[reply][request]`, all parts of one execution or none.
fn answers(reply: &Body, request: &Body, with_parts: bool) -> bool {
    let frames: Vec<&[u8]> = reply.frames().into_iter().flatten().collect();
    let Some(at) = frames.iter().position(|frame| frame.starts_with(b"reply ")) else { return false };
    let head = String::from_utf8_lossy(frames[at]).into_owned();
    if let Some((_, rest)) = head.split_once(JOIN) {
        // All in one frame.
        return at == 0 && !with_parts_of(&head) && frames.len() == 1 && request.single() == Some(rest.as_bytes());
    }
    let mut words = head.split(' ').filter_map(|word| word.parse::<u64>().ok());
    let (Some(execution), Some(parts)) = (words.next(), words.next()) else { return false };
    let answered: Vec<Vec<u8>> = frames[..at].iter().map(|frame| frame.to_vec()).collect();
    let made: Vec<Vec<u8>> = (0..parts).map(|part| part_frame(execution, part as u32).into_bytes()).collect();
    let wanted: Vec<&[u8]> = request.frames().into_iter().flatten().collect();
    frames[at + 1..] == wanted && (answered.is_empty() && !with_parts || answered == made)
}

#[derive(Debug, Default)]
struct Known {
    body: Option<Body>,
    volatile: bool,
    ghost: Option<Body>,
    outcomes: Vec<(Status, Body)>,
    acknowledged: Vec<usize>,
    /// Brokers that had acknowledged it when its client forgot it.
    must_know: Vec<usize>,
    answered: BTreeMap<(usize, u64), (Status, Body)>,
    /// Brokers that have said that its outcome was dropped.
    dropped: BTreeSet<usize>,
    /// A worker has been given it.
    is_tried: bool,
    /// Those that have said so after a worker had it, or it was acknowledged.
    over: BTreeSet<usize>,
}

impl History {
    pub fn add(&mut self, now: Millis, event: Event) {
        self.events.push((now, event));
    }

    /// Checks all promises; the first that is broken is the error.
    pub fn check(&self) -> Result<(), String> {
        self.check_numbered()?;
        self.check_stock()
    }

    fn check_numbered(&self) -> Result<(), String> {
        let mut requests: BTreeMap<Key, Known> = BTreeMap::new();
        let given = |(_, event): &(Millis, Event)| match event {
            Event::Given { key, .. } => Some(*key),
            _ => None,
        };
        let given: BTreeSet<Key> = self.events.iter().filter_map(given).collect();
        let mut replied = BTreeSet::new();
        for (now, event) in &self.events {
            let wrong = |what: &str| Err(format!("at {now}: {what}: {event:?}"));
            match event {
                Event::Submitted { key, body, volatile } => {
                    let known = requests.entry(*key).or_default();
                    (known.body, known.volatile) = (Some(body.clone()), *volatile);
                }
                Event::Forgot { key, ghost } => {
                    let known = requests.entry(*key).or_default();
                    // Only what was acknowledged before the first time was surely said in the old words.
                    if known.ghost.is_none() {
                        known.must_know.clone_from(&known.acknowledged);
                        known.ghost = Some(ghost.clone());
                    }
                }
                Event::Acknowledged { node, key } => requests.entry(*key).or_default().acknowledged.push(*node),
                Event::Answered { node, life, key, status, body } => {
                    let Some(known) = requests.get_mut(key) else { return wrong("a reply to nothing") };
                    let Some(asked) = &known.body else { return wrong("a reply to nothing") };
                    if matches!(*status, Status::OK | Status::IN_PARTS) && !answers(body, asked, false) {
                        let is_ghost = known.ghost.as_ref().is_some_and(|ghost| answers(body, ghost, false));
                        if !is_ghost {
                            return wrong("(2) the reply is another request's");
                        }
                        if known.must_know.contains(node) {
                            return wrong("(4) what was acknowledged had been lost");
                        }
                    }
                    // A dropped one.
                    if *status == Status::LOST && body.single().is_some_and(|why| why.starts_with(b"it has ended")) {
                        known.dropped.insert(*node);
                        // An absent client's number that never came is said to be over by the broker's memory alone. If that is lost before the
                        // client has the answer, the request is executed, and has one outcome.
                        if known.is_tried || !known.acknowledged.is_empty() {
                            known.over.insert(*node);
                        }
                        continue;
                    }
                    if self.journal && !known.volatile && known.over.contains(node) {
                        return wrong("(3) a reply after its outcome was dropped");
                    }
                    // With the journal it must be the same one after a death, too.
                    let life = if self.journal && !known.volatile { 0 } else { *life };
                    let first = known.answered.entry((*node, life)).or_insert_with(|| (*status, body.clone()));
                    if *first != (*status, body.clone()) {
                        let first = format!("{first:?}");
                        return wrong(&format!("(3) a second, different reply, after {first}"));
                    }
                }
                Event::Outcome { key, status, body, own } => {
                    let Some(known) = requests.get_mut(key) else { return wrong("an outcome of nothing") };
                    // Our client takes what came behind parts for the reply, or for the loss of those that it hasn't got.
                    let is_of = |answered: &(Status, Body)| match answered.0 {
                        Status::IN_PARTS if *status == Status::LOST => true,
                        Status::IN_PARTS if status.is_ok() => answered.1 == *body,
                        _ => *answered == (*status, body.clone()),
                    };
                    let is_dropped = *status == Status::LOST && !known.dropped.is_empty();
                    if !own && !is_dropped && !known.answered.values().any(is_of) {
                        return wrong("an outcome that nobody sent");
                    }
                    if *status == Status::EXPIRED && self.believed.contains(&key.0) && given.contains(key) {
                        return wrong("a worker had it, or was given it later");
                    }
                    known.outcomes.push((*status, body.clone()));
                    if known.outcomes.len() > 1 {
                        return wrong("(1) a second outcome");
                    }
                }
                Event::Given { node, life, key }
                    if replied.contains(&(*node, *life, *key)) && !self.letters.contains(key) =>
                {
                    return wrong("(5) a worker is given a request that another one has replied to");
                }
                Event::Given { key, .. } => requests.entry(*key).or_default().is_tried = true,
                Event::Replied { node, life, key } if !self.may_be_slow => _ = replied.insert((*node, *life, *key)),
                Event::ReplyDropped { node, life, key } => _ = replied.remove(&(*node, *life, *key)),
                Event::LogFull => {
                    let fragile = requests.values_mut().filter(|known| known.acknowledged.is_empty());
                    fragile.for_each(|known| known.volatile = true);
                }
                Event::Replied { .. }
                | Event::StockAsked { .. }
                | Event::StockGot { .. }
                | Event::StockGaveUp { .. } => {}
            }
        }
        match requests.iter().find(|(_, known)| known.body.is_some() && known.outcomes.is_empty()) {
            Some((key, known)) => Err(format!("(1) no outcome for {key:?}: {known:?}")),
            None => Ok(()),
        }
    }

    /// Checks that the dead letters that a broker reported are among those that it kept, and are its clients'.
    pub fn check_aside(&self, of: usize, kept: &[Body]) -> Result<(), String> {
        let mut asked: BTreeMap<Key, Vec<&Body>> = BTreeMap::new();
        for (now, event) in &self.events {
            match event {
                Event::Submitted { key, body, .. } | Event::Forgot { key, ghost: body } => {
                    asked.entry(*key).or_default().push(body);
                }
                Event::Answered { node, key, status: Status::ATTEMPTS_USED_UP, body, .. } if *node == of => {
                    let reason = body.single().map(String::from_utf8_lossy).unwrap_or_default();
                    let is_there = asked.get(key).is_some_and(|bodies| bodies.iter().any(|body| kept.contains(body)));
                    if reason.contains("kept for") && !is_there {
                        return Err(format!("at {now}: what was kept aside is lost: {event:?}"));
                    }
                }
                _ => {}
            }
        }
        match kept.iter().find(|kept| !asked.values().flatten().any(|body| body == kept)) {
            Some(kept) => Err(format!("kept aside, and asked by nobody: {kept:?}")),
            None => Ok(()),
        }
    }

    fn check_stock(&self) -> Result<(), String> {
        let mut asked: BTreeMap<Key, (Body, bool)> = BTreeMap::new();
        for (now, event) in &self.events {
            match event {
                Event::StockAsked { key, body } => {
                    asked.insert(*key, (body.clone(), false));
                }
                Event::StockGaveUp { key } => {
                    asked.remove(key);
                }
                Event::StockGot { key, body } => {
                    let Some((request, is_answered)) = asked.get_mut(key) else {
                        return Err(format!("at {now}: a reply to nothing, or after the end: {event:?}"));
                    };
                    if std::mem::replace(is_answered, true) {
                        return Err(format!("at {now}: (1) a second reply: {event:?}"));
                    }
                    let mut frames = body.frames().into_iter().flatten();
                    let is_failure = frames.next().is_some_and(|code| code.len() == 3 && code[0] != b'2');
                    if !is_failure && !answers(body, request, true) {
                        return Err(format!("at {now}: (2) not the whole reply to {request:?}: {event:?}"));
                    }
                }
                _ => {}
            }
        }
        match asked.iter().find(|(_, (_, is_answered))| !is_answered) {
            Some((key, _)) => Err(format!("(1) no reply to the stock client's {key:?}")),
            None => Ok(()),
        }
    }

    /// The events of one request, for people.
    pub fn of(&self, wanted: Key) -> Vec<String> {
        let is_of = |event: &Event| match event {
            Event::Submitted { key, .. }
            | Event::Forgot { key, .. }
            | Event::Acknowledged { key, .. }
            | Event::Answered { key, .. }
            | Event::Outcome { key, .. }
            | Event::Given { key, .. }
            | Event::Replied { key, .. }
            | Event::ReplyDropped { key, .. }
            | Event::StockAsked { key, .. }
            | Event::StockGot { key, .. }
            | Event::StockGaveUp { key } => *key == wanted,
            Event::LogFull => true,
        };
        self.events.iter().filter(|(_, event)| is_of(event)).map(|event| format!("{event:?}")).collect()
    }
}
