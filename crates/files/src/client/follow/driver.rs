//! Joins a follower with its connection and its disk.

use super::super::connection::{Connection, ConnectionEvent};
use super::super::disk::{Disk, DiskOptions};
use super::super::get::{GetError, workers};
use super::super::output::Sink;
use super::super::transfer::{Output, TransferError};
use super::follower::Follower;
use super::{FollowEnd, FollowEvent, FollowOptions};
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_blocking::CancelToken;

/// Bytes that may be queued for the disk; beyond it the connection isn't read.
const DISK_QUEUE_BYTES_MAX: u64 = 64 << 20;
/// Longest wait while something is being fetched, and while nothing is.
const POLL_BUSY_MAX: Duration = Duration::from_millis(100);
const POLL_IDLE_MAX: Duration = Duration::from_secs(10);

pub(super) struct Driver<'a> {
    options: &'a FollowOptions,
    connection: Connection,
    lost_since: Option<Instant>,
    last_reason: Option<String>,
    sink: Sink,
    pieces_read: u64,
    follower: Follower<'a>,
}

impl Driver<'_> {
    pub(super) fn run(
        options: &FollowOptions,
        tell: &mut dyn FnMut(FollowEvent) -> std::io::Result<()>,
        cancel: &CancelToken,
        was_connected: &mut bool,
    ) -> Result<FollowEnd, GetError> {
        let refused = |reason: String| GetError::Destination { path: options.destination.clone(), reason };
        let now = Instant::now();
        let follower = Follower::open(options, tell, now)?;
        let connection = Connection::open(&options.connect, cancel)?;
        let waker = connection.waker();
        let ledger = Arc::clone(&follower.ledger);
        let disk = Disk::of_follower(&options.destination, disk_options(options), ledger, move || waker.wake())
            .map_err(|error| refused(error.to_string()))?;
        disk.lock_tree(&options.source).map_err(refused)?;
        let mut driver = Driver {
            options,
            connection,
            lost_since: Some(now),
            last_reason: None,
            sink: Sink::Disk(Box::new(disk)),
            pieces_read: 0,
            follower,
        };
        let outcome = driver.turns(cancel, was_connected);
        driver.connection.close();
        let ended = driver.sink.end(options.connect.idle_timeout);
        if outcome.is_ok()
            && let Err(place) = ended
        {
            return Err(GetError::Hangs { place, seconds: options.connect.idle_timeout.as_secs() });
        }
        outcome
    }

    fn turns(&mut self, cancel: &CancelToken, was_connected: &mut bool) -> Result<FollowEnd, GetError> {
        loop {
            if cancel.is_cancelled() {
                return Err(TransferError::Cancelled.into());
            }
            self.outputs()?;
            self.sink.flush();
            if let Some(end) = self.follower.end {
                return Ok(end);
            }
            let now = Instant::now();
            self.check_connected(now, *was_connected)?;
            self.connection.poll(self.wait(now))?;
            while let Some(event) = self.connection.next() {
                *was_connected |= matches!(event, ConnectionEvent::Connected);
                self.event(event)?;
                self.wait_for_disk(cancel)?;
            }
            while let Some(report) = self.sink.next_report() {
                self.follower.disk(report, Instant::now());
                self.outputs()?;
            }
            self.tick()?;
        }
    }

    fn wait(&self, now: Instant) -> Duration {
        let is_busy = self.follower.feed.is_some() || self.lost_since.is_some();
        let most = if is_busy { POLL_BUSY_MAX } else { POLL_IDLE_MAX };
        self.follower.wait(now).map_or(most, |wait| wait.min(most))
    }

    /// Gives up where there is no connection: the first one for so long, another one only if following is to end.
    fn check_connected(&mut self, now: Instant, was_connected: bool) -> Result<(), GetError> {
        let connect = &self.options.connect;
        let limit = match was_connected {
            false => connect.connect_timeout,
            true if self.options.once => connect.idle_timeout,
            true => return Ok(()),
        };
        if self.lost_since.is_none_or(|since| now.duration_since(since) < limit) {
            return Ok(());
        }
        let reason = self.last_reason.take().unwrap_or_else(|| "no answer".to_owned());
        Err(GetError::Connect { endpoint: connect.endpoint.to_string(), reason })
    }

    fn tick(&mut self) -> Result<(), GetError> {
        let read = self.sink.pieces_read();
        let reads = std::mem::replace(&mut self.pieces_read, read) != read;
        self.follower.tick(Instant::now(), reads)?;
        self.outputs()
    }

    fn event(&mut self, event: ConnectionEvent) -> Result<(), GetError> {
        match event {
            ConnectionEvent::Connected => {
                if self.lost_since.take().is_some() && self.last_reason.take().is_some() {
                    tracing::info!("connected again");
                }
                self.follower.connected();
            }
            ConnectionEvent::Lost { reason } => {
                self.lost_since = Some(Instant::now());
                self.follower.lost(&reason)?;
                self.last_reason = Some(reason);
            }
            ConnectionEvent::Failed { reason } => self.last_reason = Some(reason),
            ConnectionEvent::Refused { reason, refusal } => {
                return Err(self.options.connect.refused(reason, refusal));
            }
            ConnectionEvent::FileSent { .. } => {}
            ConnectionEvent::Arriving => self.follower.transfer.arriving(Instant::now()),
            ConnectionEvent::ProtocolError(error) => return Err(TransferError::from(error).into()),
            ConnectionEvent::Inbound(inbound) => self.follower.inbound(inbound, Instant::now())?,
        }
        self.outputs()
    }

    /// Back-pressure: while too much is queued for the disk, nothing is read from the connection.
    fn wait_for_disk(&mut self, cancel: &CancelToken) -> Result<(), GetError> {
        while self.sink.is_over(DISK_QUEUE_BYTES_MAX) && !cancel.is_cancelled() {
            if let Some(report) = self.sink.wait_while_over(DISK_QUEUE_BYTES_MAX, POLL_BUSY_MAX) {
                self.follower.disk(report, Instant::now());
                self.outputs()?;
            }
            self.tick()?;
        }
        Ok(())
    }

    fn outputs(&mut self) -> Result<(), GetError> {
        while let Some(output) = self.follower.next_output()? {
            match output {
                Output::Send(request) => self.connection.send(&request),
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

/// How a follower's files are written.
pub(super) fn disk_options(options: &FollowOptions) -> DiskOptions {
    DiskOptions { durable: options.durable, verify: true, workers: workers(), ..DiskOptions::default() }
}
