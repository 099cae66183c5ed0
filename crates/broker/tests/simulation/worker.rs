//! A numbered worker: echoes what it gets, in any order, at any time, over any of its connections, and more than once.

use crate::ends::{End, Io, attached};
use crate::history::{JOIN, part_frame, reply_frame};
use crate::node::frames_of;
use bytes::Bytes;
use towpath_broker::core::Millis;
use towpath_requests::Body;
use towpath_requests::numbered::{Block, FromWorker, Status, ToWorker, Token, WORKER_HEADER};

struct Job {
    token: Token,
    body: Body,
    at: Millis,
    execution: u64,
    parts: u32,
    sent: u32,
    /// Whether it came on a connection that is gone.
    orphan: bool,
}

pub struct Worker {
    index: usize,
    service: &'static str,
    credit: u32,
    jobs: Vec<Job>,
    executions: u64,
    is_connected: bool,
    is_leaving: bool,
}

/// The reply to a request: in one frame if the request is one, and large.
pub fn reply_to(execution: u64, parts: u32, request: &Body) -> Body {
    if let Some(frame) = request.single().filter(|frame| frame.len() > 1_000 && parts == 0) {
        return Body::from([reply_frame(execution, 0).as_bytes(), JOIN.as_bytes(), frame].concat());
    }
    Body::of_frames([Bytes::from(reply_frame(execution, parts))].into_iter().chain(frames_of(request)))
}

impl Worker {
    pub fn new(index: usize, service: &'static str, credit: u32) -> Worker {
        Worker { index, service, credit, jobs: Vec::new(), executions: 0, is_connected: false, is_leaving: false }
    }

    fn orphans(&self) -> u32 {
        self.jobs.iter().filter(|job| job.orphan).count() as u32
    }

    fn take(&mut self, io: &mut Io, token: Token, body: Body) {
        self.executions += 1;
        let execution = (self.index as u64) << 32 | self.executions;
        let parts = if io.rng.percent(20) { io.rng.between(1, 4) as u32 } else { 0 };
        let wait = match io.rng.below(20) {
            // It hangs.
            0 if !io.calm => 100_000,
            1 | 2 if !io.calm => io.rng.between(100, 900),
            _ => io.rng.below(25),
        };
        self.jobs.push(Job { token, body, at: io.now + wait, execution, parts, sent: 0, orphan: false });
    }

    fn work(&mut self, io: &mut Io, block: &mut Block) {
        let mut index = 0;
        while let Some(job) = self.jobs.get_mut(index) {
            if job.at > io.now {
                index += 1;
                continue;
            }
            if job.sent < job.parts {
                let part = Body::of_frames([Bytes::from(part_frame(job.execution, job.sent))]);
                FromWorker::reply(block, job.token, Status::OK, Some(job.sent), &part);
                job.sent += 1;
                job.at = io.now + io.rng.below(15);
                continue;
            }
            let job = self.jobs.swap_remove(index);
            let ends = !io.calm && job.parts == 0 && job.body.length() > 1_000 && io.rng.percent(30);
            if io.rng.percent(4) {
                FromWorker::reply(block, job.token, Status::FAILED, None, &Body::from("it didn't work"));
            } else {
                FromWorker::reply(block, job.token, Status::OK, None, &reply_to(job.execution, job.parts, &job.body));
            }
            if io.rng.percent(6) {
                // Once more, as if it had been executed by another process with the same name.
                let again = reply_to(job.execution + (1 << 31), 0, &job.body);
                FromWorker::reply(block, job.token, Status::OK, None, &again);
            }
            if ends && !self.is_leaving {
                // It ends behind a reply that goes to the broker's disk.
                self.is_leaving = true;
                FromWorker::leaving(block);
                io.close = true;
            }
            if job.orphan && !self.is_leaving {
                FromWorker::credit(block, self.credit - self.orphans().min(self.credit));
            }
        }
    }
}

impl End for Worker {
    fn connected(&mut self, io: &mut Io) {
        self.is_connected = true;
        let mut block = Block::default();
        FromWorker::ready(&mut block, self.credit - self.orphans().min(self.credit), self.service.as_bytes());
        io.send(WORKER_HEADER, &mut block);
    }

    fn disconnected(&mut self, io: &mut Io) {
        (self.is_connected, self.is_leaving) = (false, false);
        // What has been sent of a reply may be lost: all of it is sent again, or nothing more.
        self.jobs.retain(|job| job.sent == 0 || io.rng.percent(50));
        for job in &mut self.jobs {
            (job.orphan, job.sent) = (true, 0);
        }
    }

    fn receive(&mut self, io: &mut Io, frames: &[Bytes]) {
        assert_eq!(frames[0], WORKER_HEADER);
        let mut rest = &frames[1][..];
        while !rest.is_empty() {
            match ToWorker::decode(&mut rest).expect("the broker can be understood") {
                ToWorker::Request { token, content, .. } => {
                    let body = content.to_body(&frames[1], attached(frames)).expect("it has a body");
                    self.take(io, token, body);
                }
                // Not all workers can stop what they do.
                ToWorker::Cancel { token } if io.rng.percent(70) => self.jobs.retain(|job| job.token != token),
                ToWorker::Cancel { .. } | ToWorker::Welcome { .. } | ToWorker::Identity { .. } | ToWorker::Leave => {}
            }
        }
        let held = self.jobs.iter().filter(|job| !job.orphan).count();
        assert!(held <= 3 * self.credit as usize + 8, "far more than it takes at a time: {held}");
    }

    fn wake(&mut self, io: &mut Io) -> Millis {
        if io.calm {
            for job in &mut self.jobs {
                job.at = job.at.min(io.now + 20);
            }
        }
        if !self.is_connected {
            return Millis::MAX;
        }
        let mut block = Block::default();
        if io.has_space {
            self.work(io, &mut block);
        }
        if !io.calm && io.rng.percent(1) {
            FromWorker::credit(&mut block, io.rng.below(u64::from(self.credit) + 1) as u32);
        } else if io.calm || io.rng.percent(10) {
            FromWorker::credit(&mut block, self.credit - self.orphans().min(self.credit));
        }
        if !io.calm && io.rng.percent(1) && !self.is_leaving {
            self.is_leaving = true;
            FromWorker::leaving(&mut block);
        }
        io.close |= self.is_leaving && (self.jobs.is_empty() || io.calm);
        io.send(WORKER_HEADER, &mut block);
        let next = self.jobs.iter().map(|job| job.at).min().unwrap_or(Millis::MAX);
        if io.has_space { next.max(io.now + 1) } else { io.now + 20 }
    }

    fn restart(&mut self, _: &mut Io) {
        self.jobs.clear();
    }

    fn is_done(&self) -> bool {
        true
    }
}
