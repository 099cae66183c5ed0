//! A follower without a connection: a test decides what happens next. The destination, its record and the disk are real.

use super::account::Account;
use super::follower::Follower;
use super::{FollowEvent, FollowOptions};
use crate::disk::{Disk, DiskOptions};
use crate::error::Error;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::Request;
use crate::protocol::follow::Cursor;
use crate::transfer::{DiskCommand, DiskError, DiskReport, Output};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// As by default.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Far more than the disk takes for a command.
const REPORT_WAIT: Duration = Duration::from_secs(20);

pub(crate) use super::pages::FOLLOW_ID;

pub(crate) struct SimulatedFollower {
    follower: Follower<'static>,
    disk: Disk,
    commands: VecDeque<DiskCommand>,
    pub(crate) requests: VecDeque<Request>,
    pub(crate) is_connected: bool,
    /// Bytes that are free at the disk.
    pub(crate) space: u64,
    events: Rc<RefCell<Vec<FollowEvent>>>,
}

impl SimulatedFollower {
    pub(crate) fn start(options: FollowOptions, now: Instant) -> Result<SimulatedFollower, Error> {
        let events = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::clone(&events);
        let on_event = Box::new(move |event| {
            seen.borrow_mut().push(event);
            Ok(())
        });
        // A test has few of them.
        let options: &FollowOptions = Box::leak(Box::new(options));
        let account = Account::new(options, None);
        let follower = Follower::open(options, account, IDLE_TIMEOUT, Box::leak(on_event), now)?;
        // One worker: what it does is in the order of the commands.
        let disk_options = DiskOptions { workers: 1, ..super::driver::disk_options(options) };
        let ledger = Arc::clone(&follower.ledger);
        let disk = Disk::of_follower(&options.destination, disk_options, ledger, || {}).expect("a disk");
        let (commands, requests) = (VecDeque::new(), VecDeque::new());
        Ok(SimulatedFollower { follower, disk, commands, requests, is_connected: false, space: u64::MAX, events })
    }

    pub(crate) fn connected(&mut self) -> Result<(), Error> {
        self.is_connected = true;
        self.follower.connected();
        self.outputs()
    }

    pub(crate) fn lost(&mut self) -> Result<(), Error> {
        self.is_connected = false;
        self.requests.clear();
        self.follower.lost("it was cut")?;
        self.outputs()
    }

    pub(crate) fn inbound(&mut self, inbound: Inbound, now: Instant) -> Result<(), Error> {
        self.follower.inbound(inbound, now)?;
        self.outputs()
    }

    pub(crate) fn tick(&mut self, now: Instant) -> Result<(), Error> {
        self.follower.tick(now, false)?;
        self.outputs()
    }

    /// Carries out the next command.
    pub(crate) fn disk_step(&mut self, now: Instant) -> Result<(), Error> {
        let Some(command) = self.commands.pop_front() else { return Ok(()) };
        let reports = !matches!(
            command,
            DiskCommand::Begin(_)
                | DiskCommand::NoteDigest { .. }
                | DiskCommand::ForgetLeaves { .. }
                | DiskCommand::Abandon { .. }
                | DiskCommand::Leave { .. }
        );
        if let Some(report) = no_space(&command, self.space) {
            self.follower.disk(report, now);
            return self.outputs();
        }
        let shown = format!("{command:?}");
        self.disk.command(command);
        self.disk.flush();
        if reports {
            let report = self.disk.wait_report(REPORT_WAIT);
            let report = report.unwrap_or_else(|| panic!("no report of {}", &shown[..shown.len().min(200)]));
            self.follower.disk(report, now);
        }
        self.outputs()
    }

    fn outputs(&mut self) -> Result<(), Error> {
        while let Some(output) = self.follower.next_output()? {
            match output {
                Output::Send(request) => self.requests.push_back(request),
                Output::Disk(command) => self.commands.push_back(command),
                Output::InPlace => self.disk.forget_installed(),
                _ => {}
            }
        }
        // Without a connection it is dropped.
        if !self.is_connected {
            self.requests.clear();
        }
        Ok(())
    }

    /// Whether the disk has something to do.
    pub(crate) fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    /// Whether a page is being put in place.
    pub(crate) fn is_busy(&self) -> bool {
        self.follower.feed.is_some()
    }

    /// Everything up to it is in place, as the record says.
    pub(crate) fn cursor(&self) -> Option<Cursor> {
        self.follower.record.cursor()
    }

    /// Whether something failed, or is held.
    pub(crate) fn is_incomplete(&self) -> bool {
        let Follower { failed, gone, waiting, pages, .. } = &self.follower;
        !failed.is_empty() || !gone.is_empty() || !waiting.is_empty() || pages.seen.is_some()
    }

    pub(crate) fn take_events(&mut self) -> Vec<FollowEvent> {
        std::mem::take(&mut self.events.borrow_mut())
    }

    /// When something is to be done.
    pub(crate) fn wait(&self, now: Instant) -> Option<Duration> {
        self.follower.wait(now)
    }
}

/// The report of a disk with little space, if it makes a difference.
fn no_space(command: &DiskCommand, space: u64) -> Option<DiskReport> {
    let full = || DiskError { full: true, message: "the disk is full".to_owned() };
    match command {
        DiskCommand::CheckSpace { .. } => Some(DiskReport::Space { free: Some(space) }),
        DiskCommand::Small(small) if small.bytes() > space => {
            Some(DiskReport::Small { file: small.file, credit: small.credit, result: Err(full()) })
        }
        DiskCommand::Write { content, part, data } if data.len() as u64 > space => {
            Some(part.written(*content, Err(full())))
        }
        _ => None,
    }
}
