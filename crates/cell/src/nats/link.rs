//! The loop of the log's thread: one operation at a time, as the member wants it.

use super::bodies::Bodies;
use super::server::Server;
use super::shared::{Change, Place, Shared};
use super::stretches::{Oldest, Stretches, first_block};
use super::{CellState, NatsError, NatsOptions, getrandom};
use crate::block::{BrokerId, HEADER_BYTES, Kind, TermSecret};
use crate::figures::{CellFigures, StreamState};
use crate::member::{Event, Member, Millis, Operation, Role, Settings};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use towpath_journal::Recovered;

/// Idle time after which a leader shows that it is there.
const BEAT_AFTER: Millis = 1_000;
/// How often the stream's size and settings are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The same after a trim, and while there is no space.
const LOOK_SOON: Duration = Duration::from_millis(500);
/// After a trim that failed.
const TRIM_AGAIN: Duration = Duration::from_secs(2);

/// After a look whether entries fit that didn't.
const NO_SPACE_AGAIN: Duration = Duration::from_millis(20);

/// A block on its way.
#[derive(Debug, Clone, Copy)]
enum InFlight {
    /// Entries of the broker.
    Entries { records: u64, bytes: usize },
    /// Records of a stretch that is trimmed.
    Copies,
}

/// Work of trimming.
#[derive(Debug)]
struct Trim {
    oldest: Oldest,
    /// Blocks of copies that aren't appended yet.
    copies: VecDeque<Vec<u8>>,
}

pub(super) struct Link {
    server: Server,
    options: NatsOptions,
    shared: Arc<Shared>,
    member: Member,
    stretches: Stretches,
    bodies: Bodies,
    /// Entries that were taken from the broker, and how many bytes of them are appended.
    records: Vec<u8>,
    done: usize,
    in_flight: Option<InFlight>,
    trim: Option<Trim>,
    trim_at: Instant,
    stream: StreamState,
    look_at: Instant,
    /// Bytes appended since the stream was looked at.
    grown: u64,
    /// Messages that were read, other than to trim.
    read: u64,
    started: Instant,
    content_max: usize,
    /// The next entries don't fit.
    has_no_space: bool,
    is_leaving: bool,
    /// As it was published last.
    place: Place,
}

impl Link {
    pub fn new(
        server: Server,
        stream: StreamState,
        options: NatsOptions,
        (broker, secret): (BrokerId, TermSecret),
        shared: Arc<Shared>,
    ) -> Link {
        let message_bytes_max = server.message_bytes_max();
        // A small log has small blocks, so that it can be trimmed in small steps.
        let content_max = (message_bytes_max - HEADER_BYTES).min((stream.bytes_max / 32) as usize);
        let mut member = Member::new(Settings {
            broker,
            endpoint: options.endpoint.clone(),
            takeover_after: options.takeover_after.as_millis() as Millis,
            beat_after: BEAT_AFTER,
            message_bytes_max,
        });
        member.set_next_secret(secret);
        let now = Instant::now();
        shared.update(|figures| {
            (figures.cell, figures.nats.stream) = (options.cell.clone(), stream.clone());
        });
        Link {
            server,
            bodies: Bodies::new(options.shared_dir()),
            options,
            shared,
            member,
            stretches: Stretches::new(stream.bytes_max),
            records: Vec::new(),
            done: 0,
            in_flight: None,
            trim: None,
            trim_at: now,
            stream,
            look_at: now + LOOK_EVERY,
            grown: 0,
            read: 0,
            started: now,
            content_max,
            has_no_space: false,
            is_leaving: false,
            place: Place::default(),
        }
    }

    fn now(&self) -> Millis {
        self.started.elapsed().as_millis() as Millis
    }

    /// Until the broker closes it.
    pub async fn run(mut self) {
        loop {
            self.take_events();
            if let Some(deadline) = self.shared.closing() {
                let is_empty = self.records.is_empty() && !self.shared.has_records() && self.in_flight.is_none();
                if is_empty && !std::mem::replace(&mut self.is_leaving, true) {
                    self.member.leave();
                }
                if self.member.has_left() || std::time::Instant::now() >= deadline {
                    return;
                }
            }
            self.look().await;
            self.trim().await;
            self.tidy().await;
            self.submit();
            self.publish_state();
            match self.member.next(self.now()) {
                Some(Operation::Publish { message, expected }) => {
                    let answer = self.server.publish(message, expected).await;
                    self.member.published(self.now(), answer);
                }
                Some(Operation::Read { after }) => {
                    let answer = self.server.read(after).await;
                    self.read += answer.as_ref().map_or(0, |messages| messages.len() as u64);
                    self.member.read(self.now(), answer);
                }
                None => self.rest().await,
            }
        }
    }

    /// Waits until something is to be done.
    async fn rest(&self) {
        let due = self.started + Duration::from_millis(self.member.due());
        let wait = due.min(self.look_at);
        // Whether there is space now is known when the stream was looked at, or trimmed.
        let wait = if self.has_no_space { wait.min(Instant::now() + NO_SPACE_AGAIN) } else { wait };
        let wait = wait.max(Instant::now() + Duration::from_millis(1));
        let _ = tokio::time::timeout_at(wait, self.shared.changed.notified()).await;
    }

    /// Gives the member the next block.
    fn submit(&mut self) {
        if !self.member.can_submit() {
            return;
        }
        let last_id = self.stretches.content.last_id();
        if let Some(trim) = &mut self.trim
            && let Some(copies) = trim.copies.pop_front()
        {
            self.in_flight = Some(InFlight::Copies);
            return self.member.submit(&copies, last_id);
        }
        if self.records.is_empty() {
            let Some(records) = self.shared.take_records() else { return };
            (self.records, self.done) = (records, 0);
        }
        // What NATS has no space for would be in the way of trimming, which needs some too.
        let space = self.space_beside(self.stream.bytes_max / 32) as usize;
        let (end, records) = first_block(&self.records[self.done..], self.content_max.min(space));
        self.has_no_space = end > space;
        if self.has_no_space {
            return;
        }
        let block = &self.records[self.done..self.done + end];
        if records == 0 {
            // Its own encoder has written them.
            return self.member.stop(self.now(), "entries that can't be read".to_owned());
        }
        self.member.submit(block, last_id);
        self.in_flight = Some(InFlight::Entries { records, bytes: end });
        self.shared.began();
        self.done += end;
        if self.done == self.records.len() {
            self.records.clear();
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.member.next_event() {
            match event {
                Event::Restarted => {
                    self.stretches = Stretches::new(self.stream.bytes_max);
                    self.bodies.restart();
                    (self.in_flight, self.trim) = (None, None);
                    self.records.clear();
                }
                Event::Read(block) => self.add(&block),
                Event::Won(block) => {
                    self.add(&block);
                    self.win(block.epoch);
                }
                Event::Lost => {
                    tracing::warn!("this broker doesn't lead the cell any more");
                    let mut secret = TermSecret::default();
                    match getrandom(&mut secret.0) {
                        Ok(()) => self.member.set_next_secret(secret),
                        Err(error) => tracing::warn!(%error, "the next term has the same secret"),
                    }
                    self.shared.change(Change::Lost);
                }
                Event::Durable(block) => {
                    self.bodies.appended();
                    self.grown += block.bytes;
                    self.add(&block);
                    if block.kind == Kind::Records
                        && let Some(InFlight::Entries { records, bytes }) = self.in_flight.take()
                    {
                        self.shared.persisted(records, bytes);
                    }
                }
            }
        }
    }

    fn add(&mut self, block: &crate::Block) {
        if let Err(why) = self.stretches.add(block) {
            self.member.stop(self.now(), why);
        }
    }

    fn win(&mut self, epoch: u64) {
        let last_id = self.last_id();
        match self.stretches.content.take_requests(|place| self.bodies.open(place)) {
            Ok(requests) => {
                tracing::info!(epoch, requests = requests.len(), "this broker leads the cell");
                self.trim_at = Instant::now();
                self.shared.change(Change::Won(Recovered { requests, cut: None, next_id: last_id + 1 }));
            }
            Err(error) => self.member.stop(self.now(), error.to_string()),
        }
    }

    fn last_id(&self) -> u64 {
        self.stretches.content.last_id().max(self.member.last_id())
    }

    /// Looks at the stream now and then.
    async fn look(&mut self) {
        if Instant::now() < self.look_at {
            return;
        }
        self.look_at = Instant::now() + if self.has_no_space { LOOK_SOON } else { LOOK_EVERY };
        let answer = self.server.state(self.options.replicas).await;
        let failure = match &answer {
            Ok(Some(_)) => None,
            Ok(None) => Some(NatsError::NoStream(self.options.cell.clone()).to_string()),
            Err(error) => Some(error.to_string()),
        };
        self.shared.update(|figures| {
            let before = figures.nats.unanswered.as_ref().map_or(0, |(count, _)| *count);
            figures.nats.unanswered = failure.map(|why| (before.saturating_add(1), why));
        });
        if let Ok(Some(stream)) = answer {
            self.shared.update(|figures| figures.nats.stream = stream.clone());
            for wrong in stream.wrong.iter().filter(|wrong| !self.stream.wrong.contains(wrong)) {
                tracing::error!("a setting of the stream was changed: {wrong}");
            }
            (self.stream, self.grown) = (stream, 0);
        }
    }

    /// Removes bodies that no record needs, if this broker leads.
    async fn tidy(&mut self) {
        if self.member.role() != Role::Leading {
            self.stretches.content.take_unneeded_bodies();
        } else if self.bodies.tidy(&mut self.stretches.content).await {
            self.member.beat();
        }
    }

    /// Trims the log, a step at a time.
    async fn trim(&mut self) {
        if !self.member.can_submit() || self.is_leaving || Instant::now() < self.trim_at {
            return;
        }
        let Some(trim) = self.trim.take() else {
            let Some(oldest) = self.stretches.oldest(self.has_no_space) else { return };
            let copies = if oldest.is_needed { self.copies(&oldest).await } else { Ok(VecDeque::new()) };
            match copies {
                Ok(copies) => self.trim = Some(Trim { oldest, copies }),
                Err(why) => self.not_trimmed(&why),
            }
            return;
        };
        if !trim.copies.is_empty() {
            self.trim = Some(trim);
            return;
        }
        if !self.stretches.is_free(&trim.oldest) {
            return self.not_trimmed("not all that is needed was found in it");
        }
        match self.server.purge_below(trim.oldest.end).await {
            Ok(()) => {
                let before = self.stretches.bytes();
                self.stretches.remove(&trim.oldest);
                self.stream.bytes = self.stream.bytes.saturating_sub(before - self.stretches.bytes());
                self.member.beat();
                self.look_at = self.look_at.min(Instant::now() + LOOK_SOON);
            }
            Err(why) => self.not_trimmed(&why),
        }
    }

    fn not_trimmed(&mut self, why: &str) {
        tracing::warn!(why, "the beginning of the cell's log can't be trimmed now");
        self.trim_at = Instant::now() + TRIM_AGAIN;
    }

    /// Blocks of the records that are needed of the oldest stretch.
    async fn copies(&mut self, oldest: &Oldest) -> Result<VecDeque<Vec<u8>>, String> {
        let mut messages: Vec<(u64, Bytes)> = Vec::new();
        let mut after = oldest.first - 1;
        while after + 1 < oldest.end {
            let more = self.server.read(after).await?;
            let Some((last, _)) = more.last() else { return Err("its messages aren't there".to_owned()) };
            after = *last;
            messages.extend(more);
        }
        let copies = self.stretches.copies(oldest, &messages)?;
        let (mut blocks, mut rest) = (VecDeque::new(), &copies[..]);
        while !rest.is_empty() {
            let (end, records) = first_block(rest, self.content_max);
            if records == 0 {
                return Err("its records can't be read".to_owned());
            }
            blocks.push_back(rest[..end].to_vec());
            rest = &rest[end..];
        }
        Ok(blocks)
    }

    /// Why the broker may take no more requests, and whether that is for want of space.
    fn failure(&self) -> Option<(String, bool)> {
        if let Some(why) = self.member.failure() {
            return Some((why.to_owned(), why.contains("maximum bytes") || why.contains("resource")));
        }
        None
    }

    /// Bytes that new requests may have. The rest is for outcomes.
    fn space(&self) -> u64 {
        self.space_beside(self.stream.bytes_max / 8)
    }

    /// Bytes that the log may still have beside so many.
    fn space_beside(&self, bytes: u64) -> u64 {
        self.stream.bytes_max.saturating_sub(self.stream.bytes + self.grown + bytes)
    }

    fn publish_state(&mut self) {
        let (member, stretches) = (&self.member, &self.stretches);
        let leader = member.leader();
        let update = |figures: &mut CellFigures| {
            let is_same = figures.leader.as_ref().map(|(epoch, endpoint)| (*epoch, endpoint.as_str())) == leader;
            if figures.role != Some(member.role()) || !is_same {
                let (epoch, leader) = leader.unwrap_or_default();
                tracing::info!(role = member.role().name(), epoch, leader, "the cell");
            }
            figures.role = Some(member.role());
            if !is_same {
                figures.leader = leader.map(|(epoch, endpoint)| (epoch, endpoint.to_owned()));
            }
            (figures.seen, figures.read, figures.bytes_max) = (member.seen(), self.read, self.stream.bytes_max);
            figures.behind = if member.role() == Role::Leading { 0 } else { self.server.behind() };
            figures.log.segments = stretches.count();
            figures.log.log_bytes = stretches.bytes();
            figures.log.needed_bytes = stretches.needed();
            figures.log.requests = stretches.content.requests() as u64;
        };
        self.shared.publish(update, self.space(), self.failure());
        let place = self.place();
        if place != self.place {
            self.place = place.clone();
            self.shared.moved(place);
        }
    }

    fn place(&self) -> Place {
        let (Some(secret), Some((_, endpoint))) = (self.member.secret(), self.member.leader()) else {
            return Place::Nowhere;
        };
        match self.member.role() {
            Role::Leading => Place::Here { secret },
            Role::Standby => Place::There { endpoint: endpoint.to_owned(), secret },
            Role::CatchingUp => Place::Nowhere,
        }
    }
}

/// Reads a log to its end, and on for a while to see whether somebody leads.
pub(super) async fn look(server: &mut Server, within: Duration) -> CellState {
    let settings = Settings {
        broker: [0; 16],
        endpoint: String::new(),
        takeover_after: Millis::MAX,
        beat_after: Millis::MAX,
        message_bytes_max: server.message_bytes_max(),
    };
    let (mut member, mut stretches) = (Member::new(settings), Stretches::new(u64::MAX));
    let started = Instant::now();
    let (mut is_led, mut end) = (false, None::<Instant>);
    let mut failure = None;
    while failure.is_none() && !is_led && end.is_none_or(|end| Instant::now() < end) {
        let now = started.elapsed().as_millis() as Millis;
        match member.next(now) {
            Some(Operation::Read { after }) => {
                let answer = server.read(after).await;
                member.read(started.elapsed().as_millis() as Millis, answer);
            }
            // Nothing is appended without a takeover.
            Some(Operation::Publish { .. }) => break,
            None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
        while let Some(event) = member.next_event() {
            match event {
                Event::Restarted => stretches = Stretches::new(u64::MAX),
                Event::Read(block) => {
                    is_led = end.is_some() && block.kind != Kind::Leave;
                    failure = stretches.add(&block).err();
                }
                Event::Won(_) | Event::Lost | Event::Durable(_) => {}
            }
        }
        failure = failure.or(member.failure().map(str::to_owned));
        if member.role() == Role::Standby && end.is_none() {
            end = Some(Instant::now() + within);
        }
    }
    CellState {
        stream: StreamState::default(),
        members: Vec::new(),
        format: 0,
        leader: member.leader().map(|(epoch, endpoint)| (epoch, endpoint.to_owned())),
        requests: stretches.content.requests() as u64,
        needed_bytes: stretches.needed(),
        is_led,
        failure,
    }
}
