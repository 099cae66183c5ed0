//! Clients and workers of other makes, which know neither numbers nor credit.

use crate::ends::{End, Io, SERVICES, request_body};
use crate::history::{Event, part_frame};
use crate::node::frames_of;
use crate::worker::reply_to;
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use towpath_broker::core::Millis;
use towpath_requests::Body;
use towpath_requests::majordomo::{CLIENT_01, CLIENT_02, WORKER_01, WORKER_02};

fn byte(byte: u8) -> Bytes {
    Bytes::from(vec![byte])
}

/// A client of MDP/0.1 that sends several requests at once with an envelope each, or of MDP/0.2 with one after the other.
pub struct StockClient {
    index: usize,
    second: bool,
    next: u64,
    left: u64,
    waiting: BTreeMap<u64, Vec<Bytes>>,
    ask_at: Millis,
    is_connected: bool,
}

impl StockClient {
    pub fn new(index: usize, second: bool, requests: u64) -> StockClient {
        StockClient { index, second, next: 1, left: requests, waiting: BTreeMap::new(), ask_at: 0, is_connected: false }
    }

    fn ask(&mut self, io: &mut Io) {
        let number = self.next;
        self.next += 1;
        self.left -= 1;
        let body = request_body(io, "stock", self.index, number);
        io.history.add(io.now, Event::StockAsked { key: (self.index, number), body: body.clone() });
        self.waiting.insert(number, Vec::new());
        let service = match io.rng.below(10) {
            0 => "mmi.echo",
            one => SERVICES[one as usize % 2],
        };
        let head = if self.second {
            vec![Bytes::from_static(CLIENT_02), byte(1)]
        } else {
            vec![Bytes::from(number.to_string()), Bytes::new(), Bytes::from_static(CLIENT_01)]
        };
        let frames = head.into_iter().chain([Bytes::from_static(service.as_bytes())]);
        io.out.push(frames.chain(frames_of(&body)).collect());
    }
}

impl End for StockClient {
    fn connected(&mut self, _: &mut Io) {
        self.is_connected = true;
    }

    fn disconnected(&mut self, io: &mut Io) {
        self.is_connected = false;
        for (number, _) in std::mem::take(&mut self.waiting) {
            io.history.add(io.now, Event::StockGaveUp { key: (self.index, number) });
        }
    }

    fn receive(&mut self, io: &mut Io, frames: &[Bytes]) {
        let (number, partial, body) = if self.second {
            assert_eq!(frames[0], CLIENT_02);
            let number = self.waiting.keys().next().copied();
            (number.expect("a reply to nothing"), frames[1][0] == 2, &frames[3..])
        } else {
            assert_eq!(frames[2], CLIENT_01);
            (String::from_utf8_lossy(&frames[0]).parse().expect("its own envelope"), false, &frames[4..])
        };
        let parts = self.waiting.get_mut(&number).expect("a reply to nothing");
        parts.extend_from_slice(body);
        if partial {
            return;
        }
        let mut frames = self.waiting.remove(&number).unwrap_or_default();
        if self.second
            && let Some(reply) = frames.iter().find(|frame| frame.starts_with(b"reply ")).cloned()
        {
            // A worker that died has left parts of its reply, which only their contents distinguish from those of the next one.
            let reply = String::from_utf8_lossy(&reply).into_owned();
            let execution = reply.split(' ').nth(1).unwrap_or_default().to_owned();
            let own = format!("part {execution} ");
            frames.retain(|frame| !frame.starts_with(b"part ") || frame.starts_with(own.as_bytes()));
        } else if self.second {
            frames.retain(|frame| !frame.starts_with(b"part "));
        }
        io.history.add(io.now, Event::StockGot { key: (self.index, number), body: Body::of_frames(frames) });
    }

    fn wake(&mut self, io: &mut Io) -> Millis {
        if io.calm || self.left == 0 || !self.is_connected {
            return Millis::MAX;
        }
        let most = if self.second { 1 } else { 12 };
        if io.now >= self.ask_at && io.has_space {
            self.ask_at = io.now + io.rng.between(1, 60);
            for _ in 0..io.rng.between(1, 8) {
                if self.waiting.len() < most && self.left > 0 {
                    self.ask(io);
                }
            }
        }
        self.ask_at.max(io.now + 5)
    }

    fn restart(&mut self, _: &mut Io) {}

    fn is_done(&self) -> bool {
        self.waiting.is_empty()
    }
}

struct Job {
    address: Bytes,
    body: Body,
    execution: u64,
    parts: u32,
    sent: u32,
}

/// A worker that does one thing after the other, and can't be cancelled.
pub struct StockWorker {
    index: usize,
    service: &'static str,
    second: bool,
    jobs: VecDeque<Job>,
    work_at: Millis,
    beat_at: Millis,
    executions: u64,
    is_connected: bool,
    /// Its connection was lost, and its library hasn't reported that.
    is_unaware: bool,
}

impl StockWorker {
    pub fn new(index: usize, service: &'static str, second: bool) -> StockWorker {
        StockWorker {
            index,
            service,
            second,
            jobs: VecDeque::new(),
            work_at: 0,
            beat_at: 0,
            executions: 0,
            is_connected: false,
            is_unaware: false,
        }
    }

    fn say(&self, command: u8, more: impl IntoIterator<Item = Bytes>) -> Vec<Bytes> {
        let head = match self.second {
            true => vec![Bytes::from_static(WORKER_02)],
            false => vec![Bytes::new(), Bytes::from_static(WORKER_01)],
        };
        head.into_iter().chain([byte(command)]).chain(more).collect()
    }

    fn ready(&mut self, io: &mut Io) {
        let ready = self.say(1, [Bytes::from_static(self.service.as_bytes())]);
        io.out.push(ready);
    }

    fn work(&mut self, io: &mut Io) {
        let Some(job) = self.jobs.front_mut() else { return };
        self.work_at = io.now + if io.rng.percent(8) && !io.calm { io.rng.between(100, 700) } else { io.rng.below(15) };
        if job.sent < job.parts {
            let part = [job.address.clone(), Bytes::new(), Bytes::from(part_frame(job.execution, job.sent))];
            job.sent += 1;
            let frames = self.say(3, part);
            return io.out.push(frames);
        }
        let Some(job) = self.jobs.pop_front() else { return };
        let reply = frames_of(&reply_to(job.execution, job.parts, &job.body));
        let frames = self.say(if self.second { 4 } else { 3 }, [job.address, Bytes::new()].into_iter().chain(reply));
        if io.rng.percent(3) {
            io.out.push(frames.clone());
        }
        io.out.push(frames);
    }
}

impl End for StockWorker {
    fn connected(&mut self, io: &mut Io) {
        self.is_connected = true;
        if !std::mem::take(&mut self.is_unaware) {
            self.ready(io);
        }
    }

    fn disconnected(&mut self, io: &mut Io) {
        self.is_connected = false;
        // If a part was lost without its worker knowing, nobody could know that the reply isn't whole.
        self.is_unaware = io.rng.percent(40) && self.jobs.front().is_none_or(|job| job.sent == 0);
        if !self.is_unaware {
            self.jobs.clear();
        }
    }

    fn receive(&mut self, io: &mut Io, frames: &[Bytes]) {
        let rest = if self.second { &frames[1..] } else { &frames[2..] };
        let (heartbeat, disconnect) = if self.second { (5, 6) } else { (4, 5) };
        match rest[0][0] {
            2 => {
                self.executions += 1;
                let execution = (self.index as u64) << 32 | self.executions;
                let parts = if self.second && io.rng.percent(25) { io.rng.between(1, 3) as u32 } else { 0 };
                let body = Body::of_frames(rest[3..].iter().cloned());
                self.work_at = io.now + if io.rng.percent(6) && !io.calm { 600 } else { io.rng.below(20) };
                self.jobs.push_back(Job { address: rest[1].clone(), body, execution, parts, sent: 0 });
            }
            command if command == heartbeat => {}
            command if command == disconnect => match io.rng.below(3) {
                0 => io.close = true,
                1 => {
                    self.jobs.clear();
                    self.ready(io);
                }
                // It finishes what it has under its new name, from the beginning.
                _ => {
                    self.jobs.iter_mut().for_each(|job| job.sent = 0);
                    self.ready(io);
                }
            },
            command => panic!("an unknown command {command}"),
        }
    }

    fn wake(&mut self, io: &mut Io) -> Millis {
        if !self.is_connected {
            return Millis::MAX;
        }
        if io.calm {
            self.work_at = self.work_at.min(io.now + 20);
        }
        if !self.jobs.is_empty() && io.now >= self.work_at && io.has_space {
            self.work(io);
        }
        if io.now >= self.beat_at {
            // It is silent for too long now and then.
            self.beat_at = io.now + if io.rng.percent(3) && !io.calm { 900 } else { 90 };
            let beat = self.say(if self.second { 5 } else { 4 }, []);
            io.out.push(beat);
        }
        let next = if self.jobs.is_empty() { self.beat_at } else { self.beat_at.min(self.work_at) };
        next.max(io.now + 1)
    }

    fn restart(&mut self, _: &mut Io) {
        self.jobs.clear();
        self.is_unaware = false;
    }

    fn is_done(&self) -> bool {
        true
    }
}
