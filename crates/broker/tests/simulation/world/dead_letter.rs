//! Dead letters of brokers, when all is over.

use super::Sim;
use crate::ends::SERVICES;
use towpath_broker::core::{Action, Kind, Peer};
use towpath_requests::Body;
use towpath_requests::numbered::Status;

/// Times that it is looked whether something has come back: a hung worker has it for a while.
const ROUNDS_MAX: usize = 60;

/// No connection of anybody else.
const COLLECTOR: Peer = 100_000;

impl Sim {
    /// Takes a broker's dead letters, as a worker does, and checks them against its replies to clients.
    pub(super) fn check_aside(&mut self, index: usize) -> Result<(), String> {
        let mut kept = self.nodes[index].ended_letters.clone();
        for _ in 0..ROUNDS_MAX {
            self.collect_aside(index, &mut kept)?;
            // That it isn't needed any more goes to the disk, too. What was sent to its service again may fail there and come back.
            let end = self.now + 3_000;
            while self.now < end {
                self.step(true)?;
            }
            if self.nodes[index].core().is_some_and(|core| core.dead_letters() == 0) {
                break;
            }
        }
        self.history.check_aside(if self.plan.shared { 0 } else { index }, &kept)
    }

    fn collect_aside(&mut self, index: usize, kept: &mut Vec<Body>) -> Result<(), String> {
        self.turn(index);
        let node = &mut self.nodes[index];
        let now = self.now + node.ahead;
        let core = &mut node.broker.as_mut().expect("it is alive").core;
        kept.extend(core.letter_bodies());
        for (peer, service) in (COLLECTOR..).zip(SERVICES) {
            let mut actions = Vec::new();
            core.worker_ready(now, peer, Kind::Numbered, format!("aside.{service}").as_bytes(), u32::MAX);
            loop {
                core.take_actions(&mut actions);
                for action in actions.drain(..) {
                    let Action::Dispatch { token, .. } = action else { return Err(format!("{action:?}")) };
                    core.worker_reply(now, peer, &token, Status::OK, None, Body::default());
                    self.tally.kept_aside += 1;
                }
                // It is given some at a time.
                if !core.flushed(now) {
                    break;
                }
            }
            core.peer_gone(now, peer);
        }
        Ok(())
    }
}
