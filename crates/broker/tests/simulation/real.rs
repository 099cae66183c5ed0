//! The client and the worker of this crate, in the same world.

use crate::ends::{End, Io, SERVICES, attached, request_body};
use crate::history::{Event, part_frame};
use crate::worker::reply_to;
use bytes::Bytes;
use towpath_broker::core::Millis;
use towpath_client::sans_io::{self, Outcome, Work};
use towpath_requests::Body;
use towpath_requests::numbered::{Block, CLIENT_HEADER, ClientId, Status, Token, WORKER_HEADER};

pub struct RealClient {
    index: usize,
    session: sans_io::Client,
    left: u64,
    next: u64,
    submit_at: Millis,
    is_connected: bool,
}

impl RealClient {
    pub fn new(index: usize, requests: u64) -> RealClient {
        let session = sans_io::Client::new(ClientId([index as u8; 16]), 24);
        RealClient { index, session, left: requests, next: 1, submit_at: 0, is_connected: false }
    }

    fn take(io: &mut Io, index: usize, outcome: Outcome, own: bool) {
        let Outcome { number, status, part, body } = outcome;
        if part.is_none() {
            // What it makes of a broker's word is its own.
            let own = own
                || (status == Status::TIMED_OUT
                    && body.single().is_some_and(|why| why.ends_with(b"may have given it to one")));
            io.history.add(io.now, Event::Outcome { key: (index, number), status, body, own });
        }
    }

    fn submit(&mut self, io: &mut Io) {
        let service = match io.rng.below(12) {
            0 => "mmi.echo",
            one => SERVICES[one as usize % 2],
        };
        let body = request_body(io, "request", self.index, self.next);
        let ttl = io.rng.percent(30).then(|| io.rng.between(5, 1_500));
        let volatile = io.rng.percent(20);
        if let Some(number) = self.session.submit(io.now, service, body.clone(), ttl, volatile) {
            assert_eq!(number, self.next, "numbers without gaps");
            (self.next, self.left) = (self.next + 1, self.left - 1);
            let volatile = volatile || service.starts_with("mmi.");
            io.history.add(io.now, Event::Submitted { key: (self.index, number), body, volatile });
        }
    }
}

impl End for RealClient {
    fn connected(&mut self, io: &mut Io) {
        let mut block = Block::default();
        self.session.connected(io.now, &mut block);
        io.history.believed.insert(self.index);
        self.is_connected = true;
        io.send(CLIENT_HEADER, &mut block);
    }

    fn disconnected(&mut self, _: &mut Io) {
        self.session.disconnected();
        self.is_connected = false;
    }

    fn receive(&mut self, io: &mut Io, frames: &[Bytes]) {
        let mut outcomes = Vec::new();
        let taken = self.session.on_block(io.now, &frames[1], attached(frames), |outcome| outcomes.push(outcome));
        taken.expect("the broker can be understood");
        outcomes.into_iter().for_each(|outcome| RealClient::take(io, self.index, outcome, false));
    }

    fn wake(&mut self, io: &mut Io) -> Millis {
        if !io.calm && self.left > 0 && io.now >= self.submit_at {
            self.submit_at = io.now + io.rng.below(70);
            for _ in 0..io.rng.between(1, 6).min(self.left) {
                self.submit(io);
            }
        }
        if !io.calm && self.next > 1 && io.rng.percent(3) {
            let number = io.rng.between(self.next.saturating_sub(10).max(1), self.next - 1);
            if let Some(outcome) = self.session.cancel(io.now, number) {
                RealClient::take(io, self.index, outcome, true);
            }
        }
        let (mut block, mut own) = (Block::default(), Vec::new());
        let mut next = io.now + 20;
        if io.has_space || !self.is_connected {
            next = self.session.pump(io.now, &mut block, |outcome| own.push(outcome)).unwrap_or(Millis::MAX);
        }
        own.into_iter().for_each(|outcome| RealClient::take(io, self.index, outcome, true));
        io.send(CLIENT_HEADER, &mut block);
        io.close |= self.session.is_spoiled();
        if io.calm || self.left == 0 { next } else { next.min(self.submit_at) }
    }

    fn restart(&mut self, _: &mut Io) {}

    fn is_done(&self) -> bool {
        self.is_connected && self.session.is_done()
    }
}

struct Job {
    token: Token,
    body: Body,
    at: Millis,
    execution: u64,
    parts: u32,
    sent: u32,
}

pub struct RealWorker {
    index: usize,
    session: sans_io::Worker,
    jobs: Vec<Job>,
    executions: u64,
}

impl RealWorker {
    pub fn new(index: usize, service: &str, credit: u32) -> RealWorker {
        RealWorker { index, session: sans_io::Worker::new(service, credit), jobs: Vec::new(), executions: 0 }
    }
}

impl End for RealWorker {
    fn connected(&mut self, io: &mut Io) {
        let mut block = Block::default();
        self.session.connected(&mut block);
        io.send(WORKER_HEADER, &mut block);
    }

    fn disconnected(&mut self, _: &mut Io) {
        self.session.disconnected(|work| {
            if let Work::Cancelled(token) = work {
                self.jobs.retain(|job| job.token != token);
            }
        });
    }

    fn receive(&mut self, io: &mut Io, frames: &[Bytes]) {
        let (mut block, mut received) = (Block::default(), Vec::new());
        let taken = self.session.on_block(&frames[1], attached(frames), &mut block, |work| received.push(work));
        taken.expect("the broker can be understood");
        for work in received {
            match work {
                Work::Request(token, body) => {
                    self.executions += 1;
                    let execution = (self.index as u64) << 32 | self.executions;
                    let parts = if io.rng.percent(30) { io.rng.between(1, 4) as u32 } else { 0 };
                    let wait = if io.rng.percent(15) { io.rng.between(100, 900) } else { io.rng.below(25) };
                    self.jobs.push(Job { token, body, at: io.now + wait, execution, parts, sent: 0 });
                }
                Work::Cancelled(token) => self.jobs.retain(|job| job.token != token),
            }
        }
        io.send(WORKER_HEADER, &mut block);
    }

    fn wake(&mut self, io: &mut Io) -> Millis {
        let mut block = Block::default();
        let (now, rng, session) = (io.now, &mut *io.rng, &mut self.session);
        self.jobs.retain_mut(|job| {
            if job.at > now {
                return true;
            }
            if job.sent < job.parts {
                let part = Body::from(part_frame(job.execution, job.sent));
                job.at = now + rng.below(30);
                job.sent += 1;
                return session.reply(job.token, Status::OK, Some(job.sent - 1), &part, &mut block);
            }
            session.reply(job.token, Status::OK, None, &reply_to(job.execution, job.parts, &job.body), &mut block);
            false
        });
        io.send(WORKER_HEADER, &mut block);
        self.jobs.iter().map(|job| job.at).min().unwrap_or(Millis::MAX).max(io.now + 1)
    }

    /// Another process: what it held is gone with it.
    fn restart(&mut self, _: &mut Io) {}

    fn is_done(&self) -> bool {
        true
    }
}
