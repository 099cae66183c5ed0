//! Members on a log in memory that delays, loses, repeats and mistakes, in virtual time: one seed decides it all.
//!
//! Leaders decide keys in order, each with a value of its own, and may only decide what isn't decided yet. What a leader knew to be in the log must be
//! the beginning of what a reader finds there in the end, and no key may be decided twice.
#![allow(clippy::unwrap_used)]

use crate::block::Kind;
use crate::member::{Event, Member, Millis, Operation, Published, Role, Settings};
use crate::order::Order;
use bytes::Bytes;
use std::panic::{AssertUnwindSafe, catch_unwind};

const MEMBERS: usize = 3;
/// Time with faults, and after it.
const FAULTS_END: Millis = 20_000;
const END: Millis = 30_000;

/// A rule that is taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Messages of former terms, and repeated ones, count.
    Epochs,
    /// A refused message is taken for appended, without a look at the first one behind the expected end.
    FirstBehind,
}

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// An append on its way.
struct Append {
    at: Millis,
    message: Bytes,
    expected: u64,
    by: (usize, u64),
    answered_at: Option<Millis>,
}

enum Answer {
    Published(Published),
    Read(Result<Vec<(u64, Bytes)>, String>),
}

#[derive(Default)]
struct Log {
    messages: Vec<Bytes>,
    appends: Vec<Append>,
    answers: Vec<(Millis, (usize, u64), Answer)>,
}

impl Log {
    fn advance(&mut self, now: Millis, rng: &mut Rng, chaos: bool) {
        self.appends.sort_by_key(|append| append.at);
        while self.appends.first().is_some_and(|append| append.at <= now) {
            let Append { message, expected, by, answered_at, .. } = self.appends.remove(0);
            let last = self.messages.len() as u64;
            // ABA: it looks at the end as it was a moment ago.
            let looks_at = if chaos && rng.percent(25) { last.saturating_sub(1 + rng.below(2)) } else { last };
            let answer = if chaos && rng.percent(3) {
                Published::Unknown("10164".to_owned())
            } else if expected == last || expected == looks_at {
                self.messages.push(message);
                Published::Taken(last + 1)
            } else {
                Published::Refused(Some(last))
            };
            self.answers.extend(answered_at.map(|at| (at, by, Answer::Published(answer))));
        }
    }

    fn read(&self, after: u64, rng: &mut Rng, chaos: bool) -> Vec<(u64, Bytes)> {
        let mut end = self.messages.len() as u64;
        if chaos && rng.percent(20) {
            end = end.saturating_sub(rng.below(6));
        }
        let end = end.min(after + 1 + rng.below(4));
        (after..end).map(|at| (at + 1, self.messages[at as usize].clone())).collect()
    }
}

/// One process of a broker.
struct Process {
    member: Member,
    /// The operation in flight, and when it is given up.
    in_flight: Option<(u64, bool, Millis)>,
    /// Stopped or cut off until then.
    away_until: Millis,
    /// Keys and values in the log, as far as it knows.
    view: Vec<(u64, u64)>,
    submitted: Vec<(u64, u64)>,
}

struct World {
    rng: Rng,
    log: Log,
    processes: Vec<Process>,
    started: u64,
    operations: u64,
    values: u64,
    without: Without,
    /// The view of each leader at the end of its term.
    known: Vec<Vec<(u64, u64)>>,
    terms: u64,
}

fn decisions(records: &[u8]) -> Vec<(u64, u64)> {
    let number = |bytes: &[u8]| u64::from_le_bytes(*bytes.first_chunk().unwrap());
    records.chunks(16).map(|pair| (number(pair), number(&pair[8..]))).collect()
}

impl World {
    fn new(seed: u64, without: Without) -> World {
        let rng = Rng(seed);
        let (log, processes, known) = (Log::default(), Vec::new(), Vec::new());
        let mut world = World { rng, log, processes, started: 0, operations: 0, values: 0, without, known, terms: 0 };
        for _ in 0..MEMBERS {
            let process = world.start();
            world.processes.push(process);
        }
        world
    }

    fn start(&mut self) -> Process {
        self.started += 1;
        let mut broker = [0; 16];
        broker[..8].copy_from_slice(&self.started.to_le_bytes());
        let mut member = Member::new(Settings {
            broker,
            endpoint: "tcp://127.0.0.1:5555".to_owned(),
            takeover_after: 600,
            beat_after: 200,
            message_bytes_max: 1 << 20,
        });
        if self.without == Without::Epochs {
            member.ignore_epochs();
        }
        Process { member, in_flight: None, away_until: 0, view: Vec::new(), submitted: Vec::new() }
    }

    fn run(&mut self) -> Result<(), String> {
        for now in 0..END {
            let chaos = now < FAULTS_END;
            self.log.advance(now, &mut self.rng, chaos);
            for index in 0..MEMBERS {
                if chaos && self.rng.below(4_000) == 0 {
                    match self.rng.below(3) {
                        0 => self.kill(index),
                        _ => self.processes[index].away_until = now + self.rng.below(2_500),
                    }
                }
                if now >= self.processes[index].away_until {
                    self.step(index, now, chaos);
                }
            }
        }
        self.check()
    }

    fn kill(&mut self, index: usize) {
        self.end_term(index);
        let process = self.start();
        self.processes[index] = process;
    }

    fn end_term(&mut self, index: usize) {
        let process = &mut self.processes[index];
        if process.member.role() == Role::Leading {
            self.known.push(process.view.clone());
        }
    }

    fn step(&mut self, index: usize, now: Millis, chaos: bool) {
        self.take_answer(index, now);
        self.take_events(index);
        let process = &mut self.processes[index];
        if process.member.can_submit() && process.submitted.is_empty() && self.rng.percent(10) {
            let next = process.view.iter().map(|(key, _)| key + 1).max().unwrap_or(1);
            for key in next..next + 1 + self.rng.below(3) {
                self.values += 1;
                process.submitted.push((key, self.values));
            }
            let records: Vec<u8> =
                process.submitted.iter().flat_map(|(k, v)| [k.to_le_bytes(), v.to_le_bytes()].concat()).collect();
            process.member.submit(&records, next);
        }
        if process.in_flight.is_none()
            && let Some(operation) = process.member.next(now)
        {
            self.operations += 1;
            let by = (index, self.operations);
            let mut delay = || match chaos && self.rng.percent(8) {
                true => 20 + self.rng.below(700),
                false => 1 + self.rng.below(6),
            };
            let (there, back) = (delay(), delay());
            let is_lost = chaos && self.rng.percent(5);
            let is_publish = matches!(operation, Operation::Publish { .. });
            process.in_flight = Some((self.operations, is_publish, now + 150));
            let answered_at = (!(chaos && self.rng.percent(5))).then_some(now + there + back);
            match operation {
                _ if is_lost => {}
                Operation::Publish { message, expected } => {
                    self.log.appends.push(Append { at: now + there, message, expected, by, answered_at });
                }
                Operation::Read { after } => {
                    let found = self.log.read(after, &mut self.rng, chaos);
                    self.log.answers.extend(answered_at.map(|at| (at, by, Answer::Read(Ok(found)))));
                }
            }
        }
        self.take_events(index);
    }

    fn take_answer(&mut self, index: usize, now: Millis) {
        let process = &mut self.processes[index];
        let Some((operation, is_publish, until)) = process.in_flight else { return };
        let mine = |(at, by, _): &mut (Millis, (usize, u64), Answer)| *at <= now && *by == (index, operation);
        let answer = self.log.answers.extract_if(.., mine).next().map(|(.., answer)| answer);
        let answer = match answer {
            Some(answer) => answer,
            None if now < until => return,
            None if is_publish => Answer::Published(Published::Unknown("no answer".to_owned())),
            None => Answer::Read(Err("no answer".to_owned())),
        };
        process.in_flight = None;
        match answer {
            Answer::Published(Published::Refused(_)) if self.without == Without::FirstBehind => {
                process.member.published(now, Published::Taken(process.member.seen() + 1));
            }
            Answer::Published(answer) => process.member.published(now, answer),
            Answer::Read(answer) => process.member.read(now, answer),
        }
    }

    fn take_events(&mut self, index: usize) {
        let process = &mut self.processes[index];
        while let Some(event) = process.member.next_event() {
            match event {
                Event::Restarted => {
                    process.view.clear();
                    process.submitted.clear();
                }
                Event::Read(block) if block.kind == Kind::Records => process.view.extend(decisions(&block.content)),
                Event::Read(_) => {}
                Event::Won(_) => self.terms += 1,
                Event::Lost => self.known.push(process.view.clone()),
                Event::Durable(block) if block.kind != Kind::Records => {}
                Event::Durable(block) => {
                    assert_eq!(decisions(&block.content), process.submitted, "what is durable is what was submitted");
                    process.view.append(&mut process.submitted);
                }
            }
        }
    }

    fn check(&mut self) -> Result<(), String> {
        (0..MEMBERS).for_each(|index| self.end_term(index));
        let (mut order, mut found) = (Order::default(), Vec::new());
        for (at, message) in self.log.messages.iter().enumerate() {
            order.ignores_epochs = self.without == Without::Epochs;
            let block = order.judge(at as u64 + 1, message).map_err(|fault| format!("{fault:?}"))?;
            found.extend(block.filter(|b| b.kind == Kind::Records).map(|b| decisions(&b.content)).unwrap_or_default());
        }
        for (index, (key, _)) in found.iter().enumerate() {
            if *key != index as u64 + 1 {
                return Err(format!("key {key} is decided in the place of {}", index + 1));
            }
        }
        for known in &self.known {
            if !found.starts_with(known) {
                return Err("what a leader knew to be in the log isn't there".to_owned());
            }
        }
        let leaders = self.processes.iter().filter(|process| process.member.role() == Role::Leading).count();
        let failures: Vec<_> = self.processes.iter().filter_map(|process| process.member.failure()).collect();
        match leaders {
            1 if found.len() > 100 => Ok(()),
            _ => Err(format!("{leaders} leaders in the end, {} decisions, {failures:?}", found.len())),
        }
    }
}

fn run(seed: u64, without: Without) -> Result<u64, String> {
    let run = || {
        let mut world = World::new(seed, without);
        world.run().map(|()| world.terms)
    };
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("it panics".to_owned()))
}

#[test]
fn no_key_is_decided_twice_and_nothing_known_is_lost() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seeds = match number("TOWPATH_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("TOWPATH_SEEDS").unwrap_or(40),
    };
    let mut terms = 0;
    for seed in seeds.clone() {
        terms += run(seed, Without::Nothing).unwrap_or_else(|error| panic!("TOWPATH_SEED={seed}: {error}"));
    }
    let count = seeds.end - seeds.start;
    assert!(count < 10 || terms > 2 * count, "terms: {terms}");
}

/// Promises, as failures name them.
const BROKEN: [&str; 2] = ["is decided in the place of", "knew to be in the log"];

#[track_caller]
fn fails(without: Without) {
    let failure =
        (0..200).find_map(|seed| run(seed, without).err().filter(|why| BROKEN.iter().any(|b| why.contains(b))));
    assert!(failure.is_some(), "{without:?}: the model doesn't need this rule");
}

#[test]
fn model_fails_without_the_epochs_of_blocks() {
    fails(Without::Epochs);
}

#[test]
fn model_fails_without_a_look_at_the_first_block_behind() {
    fails(Without::FirstBehind);
}
