//! A transfer, a server and a disk: what happens next is drawn from a seed.

use crate::error::Error;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use proptest::prelude::TestCaseError;
use towpath_quota::Quota;

use super::disk::SimDisk;
use super::server::SimServer;
use crate::client::ordered_writer::OrderedWriter;
use crate::filter::Filter;
use crate::path::RelPath;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::FollowLinks;
use crate::transfer::{LIST_ENTRIES_MAX, Output, Placement, Source, Totals, Transfer, TransferOptions};

/// Far more steps than any transfer here takes.
const STEPS_MAX: usize = 200_000;

/// A random generator that repeats a failing case.
pub struct Draw(u64);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }

    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// Bytes that compress by about a half.
pub fn noise(count: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; count];
    blake3::Hasher::new_keyed(&[1; 32]).update(&seed.to_be_bytes()).finalize_xof().fill(&mut bytes);
    bytes.iter_mut().for_each(|byte| *byte &= 0x0f);
    bytes
}

/// How many of each fault may happen.
#[derive(Default)]
pub struct Faults {
    pub cuts: usize,
    pub voids: usize,
    pub changes: usize,
    pub corruptions: usize,
}

pub struct World {
    pub server: SimServer,
    pub disk: SimDisk,
    /// Carries out the commands instead of the disk.
    pub(crate) writer: Option<OrderedWriter>,
    pub options: TransferOptions,
    pub faults: Faults,
    pub fresh: bool,
    pub cancel_after_pieces: Option<usize>,
    draw: Draw,
    begun: Instant,
    now: Instant,
}

pub struct Outcome {
    pub totals: Totals,
    pub failure: Option<Error>,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let now = Instant::now();
        let options = TransferOptions {
            source: Source::Path(RelPath::root()),
            window_bytes: 8 << 20,
            windows: Quota::new(0),
            chunk_bytes: 256 << 10,
            compress: None,
            verify: true,
            check: false,
            durable: false,
            bytes_per_second: None,
            idle_timeout: Duration::from_secs(60),
            follow: FollowLinks::None,
            in_order: false,
            objects: false,
            max_bytes: None,
            max_entries: LIST_ENTRIES_MAX,
            filter: Filter::default(),
            sweep: false,
        };
        Self {
            server: SimServer::default(),
            disk: SimDisk::default(),
            writer: None,
            options,
            faults: Faults::default(),
            fresh: false,
            cancel_after_pieces: None,
            draw: Draw::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            begun: now,
            now,
        }
    }

    pub fn elapsed(&self) -> Duration {
        self.now.duration_since(self.begun)
    }

    /// Runs a transfer to its end.
    pub fn run(&mut self) -> Outcome {
        self.server.window_bytes = self.options.window_bytes;
        let mut transfer = Transfer::new(self.options.clone(), self.now);
        let mut to_client: VecDeque<Inbound> = VecDeque::new();
        transfer.connected();
        for _ in 0..STEPS_MAX {
            while let Some(output) = transfer.next_output() {
                match output {
                    Output::Send(request) => self.server.requests.push_back(request),
                    Output::OpenDestination { name, .. } => {
                        let placement = name.map_or(Placement::Below, Placement::As);
                        transfer.destination(placement, self.fresh);
                    }
                    Output::Disk(command) => self.disk.commands.push_back(command),
                    Output::Warn(_) | Output::InPlace => {}
                    Output::Sweep => transfer.swept(Vec::new(), self.now),
                    Output::Finished => {
                        assert!(transfer.next_output().is_none(), "nothing comes after the end");
                        let cancelled = std::mem::take(&mut self.server.requests);
                        cancelled.into_iter().for_each(|request| drop(self.server.take(request, &mut self.draw)));
                        let (totals, failure) = transfer.into_outcome();
                        return Outcome { totals, failure };
                    }
                }
            }
            self.step(&mut transfer, &mut to_client);
        }
        panic!("the transfer does not end: {transfer:?}");
    }

    fn step(&mut self, transfer: &mut Transfer, to_client: &mut VecDeque<Inbound>) {
        self.now += Duration::from_micros(self.draw.below(1000) as u64);
        if self.faults.cuts > 0 && self.draw.one_in(40) {
            self.faults.cuts -= 1;
            to_client.clear();
            self.server.cut();
            transfer.disconnected();
            // The disk goes on while there is no connection.
            for _ in 0..self.draw.below(5) {
                self.disk_step(transfer);
            }
            transfer.connected();
            return;
        }
        if self.faults.changes > 0 && self.draw.one_in(60) {
            self.faults.changes -= 1;
            self.server.change_one(&mut self.draw);
        }
        match self.draw.below(4) {
            0 => {
                if let Some(request) = self.server.requests.pop_front() {
                    to_client.extend(self.server.take(request, &mut self.draw));
                }
            }
            1 => to_client.extend(self.server.send_some(&mut self.draw, &mut self.faults)),
            2 => self.disk_step(transfer),
            _ => {
                if let Some(inbound) = to_client.pop_front() {
                    if matches!(inbound, Inbound::BodyEnd)
                        && let Some(pieces) = &mut self.cancel_after_pieces
                    {
                        *pieces = pieces.saturating_sub(1);
                    }
                    transfer.inbound(inbound, self.now);
                    if self.cancel_after_pieces == Some(0) {
                        self.cancel_after_pieces = None;
                        transfer.cancel();
                    }
                }
            }
        }
        let idle = self.server.is_idle() && to_client.is_empty() && self.disk.commands.is_empty();
        if idle && transfer_waits(transfer) {
            self.now = transfer.deadline();
            transfer.tick(self.now);
        }
    }

    fn disk_step(&mut self, transfer: &mut Transfer) {
        let report = match &mut self.writer {
            Some(writer) => self.disk.commands.pop_front().and_then(|command| writer.command(command).unwrap()),
            None => self.disk.step(&mut self.draw),
        };
        if let Some(report) = report {
            transfer.disk(report, self.now);
        }
    }

    /// Checks that what is installed is what the server has, or had during the transfer.
    pub fn check_installed(&self) -> Result<(), TestCaseError> {
        for (path, file) in &self.server.files {
            let installed = self.disk.installed.get(path.as_bytes());
            let right = installed == Some(&file.content)
                || installed.is_some_and(|installed| self.server.former.contains(&(path.clone(), installed.clone())));
            proptest::prop_assert!(right, "{} differs", path);
        }
        Ok(())
    }
}

/// Whether only time can make a difference.
fn transfer_waits(transfer: &mut Transfer) -> bool {
    transfer.outputs.is_empty()
}
