//! Joins a follower with its connection and its disk.

use super::super::connection::Connection;
use super::super::exchange::{Connector, Operation, POLL_MAX, Turn, WaitLimit};
use super::super::get::workers;
use super::super::output::{DISK_QUEUE_BYTES_MAX, Sink};
use super::account::Account;
use super::follower::Follower;
use super::pages::FOLLOW_ID;
use super::{FollowEnd, FollowOptions, OnEvent, last_words};
use crate::disk::{Disk, DiskOptions};
use crate::error::Error;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::request_id;
use crate::transfer::Output;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_blocking::CancelToken;

pub(super) struct Driver<'a> {
    options: &'a FollowOptions,
    sink: Sink,
    pieces_read: u64,
    follower: Follower<'a>,
}

impl Driver<'_> {
    pub(super) fn run(
        connector: &Arc<Connector>,
        options: &FollowOptions,
        account: &Account,
        on_event: &mut OnEvent<'_>,
        cancel: &CancelToken,
        was_connected: &mut bool,
    ) -> Result<FollowEnd, Error> {
        let refused = |reason: String| Error::Destination { path: options.destination.clone(), reason };
        let idle_timeout = connector.options.idle_timeout;
        let follower = Follower::open(options, account.clone(), idle_timeout, on_event, Instant::now())?;
        let mut exchange = connector.exchange(cancel)?;
        exchange.assume_connected_before(*was_connected);
        let waker = exchange.waker();
        let ledger = Arc::clone(&follower.ledger);
        let disk = Disk::of_follower(&options.destination, disk_options(options), ledger, move || waker.wake())
            .map_err(|error| refused(error.to_string()))?;
        disk.lock_tree(&options.source).map_err(refused)?;
        let mut driver = Driver { options, sink: Sink::Disk(Box::new(disk)), pieces_read: 0, follower };
        let outcome = exchange.run(&mut driver);
        *was_connected = exchange.was_connected();
        if options.frozen.is_none()
            && let Some(last) = last_words(&outcome, options, account)
        {
            exchange.say(&last);
        }
        exchange.close();
        let ended = driver.sink.end(idle_timeout);
        if outcome.is_ok()
            && let Err(place) = ended
        {
            return Err(Error::Hangs { place, seconds: idle_timeout.as_secs() });
        }
        outcome
    }

    fn tick(&mut self, connection: &mut Connection, now: Instant) -> Result<(), Error> {
        if let Some(time) = connection.round_trip(now) {
            self.follower.transfer.round_trip(time);
        }
        let read = self.sink.pieces_read();
        let reads = std::mem::replace(&mut self.pieces_read, read) != read;
        self.follower.tick(now, reads)?;
        self.outputs(connection)
    }

    fn outputs(&mut self, connection: &mut Connection) -> Result<(), Error> {
        while let Some(output) = self.follower.next_output()? {
            match output {
                Output::Send(request) => connection.send(&request),
                Output::Disk(command) => {
                    if let Some(report) = self.sink.command(command)? {
                        self.follower.disk(report, Instant::now());
                    }
                }
                Output::InPlace => self.sink.forget_installed(),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Operation for Driver<'_> {
    type Outcome = FollowEnd;

    fn turn(&mut self, connection: &mut Connection, now: Instant) -> Result<Turn<FollowEnd>, Error> {
        while let Some(report) = self.sink.next_report() {
            self.follower.disk(report, now);
            self.outputs(connection)?;
        }
        self.tick(connection, now)?;
        self.sink.flush();
        if let Some(end) = self.follower.end {
            return Ok(Turn::Over(end));
        }
        let most = match self.follower.feed {
            Some(_) => self.follower.transfer.deadline().saturating_duration_since(now).min(POLL_MAX),
            None => Duration::MAX,
        };
        Ok(Turn::Wait(self.follower.wait(now).map_or(most, |wait| wait.min(most))))
    }

    fn connected(&mut self, connection: &mut Connection, _now: Instant) -> Result<(), Error> {
        self.follower.connected();
        self.outputs(connection)
    }

    fn lost(&mut self, reason: &str) -> Result<bool, Error> {
        self.follower.lost(reason)?;
        Ok(true)
    }

    fn inbound(&mut self, inbound: Inbound, connection: &mut Connection, now: Instant) -> Result<bool, Error> {
        let is_of_follow = matches!(&inbound, Inbound::Control { json, .. } if request_id(json) == Some(FOLLOW_ID));
        self.follower.inbound(inbound, now)?;
        self.outputs(connection)?;
        Ok(is_of_follow)
    }

    fn arriving(&mut self, now: Instant) {
        self.follower.transfer.arriving(now);
    }

    fn wait_limit(&self) -> WaitLimit {
        let Follower { is_connected, feed, pages, frozen, .. } = &self.follower;
        match is_connected {
            // Another connection is tried for ever, unless following is to end.
            false if self.options.once => WaitLimit::Extra(Duration::ZERO),
            false => WaitLimit::Unlimited,
            // The transfer has a timer of its own, and where all is known nothing is awaited.
            true if feed.is_some() || frozen.is_some() || pages.is_live => WaitLimit::Unlimited,
            // A server may take long to look at everything for the first time.
            true => WaitLimit::WhileAlive,
        }
    }

    /// Back-pressure: while too much is queued for the disk, nothing is read from the connection.
    fn make_space(&mut self, connection: &mut Connection) -> Result<bool, Error> {
        if !self.sink.is_over(DISK_QUEUE_BYTES_MAX) {
            return Ok(true);
        }
        if let Some(report) = self.sink.wait_while_over(DISK_QUEUE_BYTES_MAX, POLL_MAX) {
            self.follower.disk(report, Instant::now());
            self.outputs(connection)?;
        }
        self.tick(connection, Instant::now())?;
        Ok(false)
    }
}

/// Disk options of a follower.
pub(super) fn disk_options(options: &FollowOptions) -> DiskOptions {
    DiskOptions { durable: options.durable, verify: true, workers: workers(), ..DiskOptions::default() }
}
