//! Faults, and the invariants that hold all the same.

use super::Sim;
use crate::ends::SERVICES;
use towpath_broker::core::LetterAction;

impl Sim {
    /// Makes a fault.
    pub(super) fn trouble(&mut self) {
        let (seat, node) = (self.rng.index(self.seats.len()), self.rng.index(self.nodes.len()));
        let mut at = self.rng.below(self.weights.iter().sum());
        let kind = self.weights.iter().position(|&weight| {
            let hit = at < weight;
            at = at.saturating_sub(weight);
            hit
        });
        if self.net.trace {
            println!("{} trouble {kind:?} for node {node} or end {seat}", self.now);
        }
        match kind {
            Some(0) => {
                if let Some(id) = self.seats[seat].link {
                    self.net.cut(self.now, id);
                }
            }
            Some(1) => self.let_go(seat, false),
            Some(2) => self.seats[seat].away_until = self.now + self.rng.between(20, 1_500),
            Some(3) => self.nodes[node].away_until = self.now + self.rng.between(20, 900),
            Some(4) => {
                self.nodes[node].ahead += if self.nodes[node].ahead < 120_000 && self.rng.percent(5) {
                    30_000
                } else {
                    self.rng.between(1, 400)
                }
            }
            Some(5) if self.nodes[node].broker.is_some() => self.crash(node),
            Some(6) => *self.nodes[node].log().failing() ^= true,
            Some(7) => {
                self.let_go(seat, false);
                self.with(seat, false, |end, io| end.restart(io));
            }
            Some(8) if self.nodes[node].broker.is_some() => {
                self.tally.stops += 1;
                let until = self.now + self.rng.below(1_500);
                let (ending, mut world) = self.world(node);
                ending.stop(&mut world, until);
            }
            Some(9) if self.nodes[node].is_leading() => {
                let (service, paused) = (SERVICES[self.rng.index(SERVICES.len())], self.rng.percent(50));
                let (paused_on, mut world) = self.world(node);
                paused_on.pause(&mut world, service, paused);
            }
            Some(10) if self.nodes[node].broker.is_some() => {
                let service = SERVICES[self.rng.index(SERVICES.len())];
                let one = self.rng.percent(70).then(|| self.rng.index(64));
                let (purging, mut world) = self.world(node);
                match one {
                    Some(which) => purging.end_one(&mut world, service, which),
                    None => purging.purge(&mut world, service),
                }
            }
            Some(11) if self.nodes[node].broker.is_some() => {
                let action = if self.rng.percent(90) { LetterAction::Requeue } else { LetterAction::Drop };
                let mut done = 0;
                for service in SERVICES {
                    let one = self.rng.percent(30).then(|| self.rng.index(64));
                    let (acting, mut world) = self.world(node);
                    done += match one {
                        Some(which) => acting.act_on_letter(&mut world, service, which, action),
                        None => acting.act_on_letters(&mut world, service, action),
                    };
                }
                self.tally.letters += done as u64;
                // A crash while that is on its way to the disk.
                if done > 0 && self.rng.percent(60) {
                    self.turn(node);
                    self.crash(node);
                }
            }
            Some(12) if self.nodes[node].broker.is_some() => {
                let on = self.rng.percent(40);
                let (draining, mut world) = self.world(node);
                draining.drain(&mut world, on);
            }
            _ => {}
        }
    }

    fn crash(&mut self, node: usize) {
        // It may have ended in good order.
        if self.nodes[node].broker.is_none() {
            return;
        }
        self.tally.crashes += 1;
        self.count(node);
        let (dying, mut world) = self.world(node);
        dying.crash(&mut world);
        self.nodes[node].away_until = self.now + self.rng.between(10, 600);
    }

    /// Bounds hold at every moment, each with what may come on top of it.
    pub(super) fn check_bounds(&self) -> Result<(), String> {
        for node in &self.nodes {
            let Some(core) = node.core() else { continue };
            core.check();
            let settings = core.settings();
            // A stock client can't be refused: it stops being read after the request that was one too many.
            let stock = 2;
            let held: usize = core.workers().map(|worker| worker.credit as usize + 1).sum();
            // What workers held, and what was parked for a client that reads again, goes back into the queue.
            let back = held.max(16) + 3 * settings.client_requests_max;
            for service in core.services() {
                if service.waiting > settings.service_requests_max + stock + back {
                    return Err(format!("at {}: a queue over its bound: {service:?}", self.now));
                }
            }
            let (requests, bytes) = core.load();
            if requests > settings.requests_max + stock + settings.client_requests_max {
                return Err(format!("at {}: {requests} requests", self.now));
            }
            // Replies take the place of requests, and are as large here, with a frame in front; parts are collected.
            if bytes > settings.bytes_max + requests * 600 + stock * 8_000 {
                return Err(format!("at {}: {bytes} bytes for {requests} requests", self.now));
            }
        }
        Ok(())
    }
}
