//! Joins pushes with their connection and their files.

use super::super::connection::Connection;
use super::super::exchange::{Operation, POLL_MAX, Turn, WaitLimit};
use super::contents::Item;
use super::sending::Sending;
use super::{OnEvent, PushEvent, PushFile, PushOptions, PushProgress, Show};
use crate::digest::{Digest, FileHasher, HashError};
use crate::error::Error;
use crate::limits::{CHUNK_BYTES_MIN, PUSH_CHUNK_BYTES_MAX, PUSH_CONTENT_BYTES_MAX, PUSHES_MAX};
use crate::protocol::ErrorCode;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::{ErrorReply, PushRequest, PushedReply, Range, Reply, Request, Slow, WirePath};
use crate::protocol::data::{Body, DataEntry, DataHeader};
use crate::root::FileStat;
use crate::transfer::HASH_BYTES_PER_SECOND_MIN;
use crate::transfer::pacing::{Pacer, piece_bytes};
use crate::transfer::reconnects::Reconnects;
use crate::transfer::slowness::Slowness;
use bytes::Bytes;
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_blocking::CancelToken;
use towpath_sockets::{FileRange, Message};

/// Files that are pushed at a time, but for small ones.
const LARGE_PUSHES_MAX: usize = 8;
/// Bytes of all files that are pushed at a time, over which there are no more than that.
const SMALL_PUSHES_BYTES: u64 = 8 << 20;
/// Bytes that are hashed before the connection has its turn.
const HASH_SLICE_BYTES: u64 = 8 << 20;
/// Files of these, at most.
const HASH_SLICE_FILES: usize = 64;
/// Waits before a push that the server has no space for is tried again: doubled each time.
const BUSY_WAIT_MIN: Duration = Duration::from_millis(50);
const BUSY_WAIT_MAX: Duration = Duration::from_secs(2);

/// A file that is being pushed.
#[derive(Debug)]
struct Task {
    item: Item,
    open: Arc<File>,
    stat: FileStat,
    digest: Option<Digest>,
    /// Of its last offer.
    id: u32,
    phase: Phase,
    busy_wait: Duration,
    resumed_bytes: u64,
}

#[derive(Debug)]
enum Phase {
    Hashing(Box<FileHasher>),
    /// To be offered at this time.
    Waiting(Instant),
    Offered,
    Sending(Sending),
}

pub(super) struct Driver<'a> {
    options: &'a PushOptions,
    on_event: &'a mut OnEvent<'a>,
    show: &'a mut Show<'a>,
    cancel: &'a CancelToken,
    is_connected: bool,
    /// Why the server has no space, if that is the last that it said.
    busy: Option<String>,
    /// Files that aren't begun.
    files: VecDeque<Item>,
    tasks: Vec<Task>,
    next_id: u32,
    /// Counts progress.
    steps: u64,
    reconnects: Reconnects,
    progress: PushProgress,
    /// Small files are sent with their offer, which saves a round trip, until the server turns out to have one.
    sends_contents: bool,
    pacer: Option<Pacer>,
    slowness: Slowness,
}

impl<'a> Driver<'a> {
    pub(super) fn new(
        options: &'a PushOptions,
        items: Vec<Item>,
        on_event: &'a mut OnEvent<'_>,
        show: &'a mut Show<'_>,
        cancel: &'a CancelToken,
    ) -> Driver<'a> {
        let progress = PushProgress {
            files: items.len() as u64,
            bytes: items.iter().fold(0, |sum: u64, item| sum.saturating_add(item.size)),
            ..PushProgress::default()
        };
        Driver {
            options,
            on_event,
            show,
            cancel,
            is_connected: false,
            busy: None,
            files: items.into(),
            tasks: Vec::new(),
            next_id: 0,
            steps: 0,
            reconnects: Reconnects::default(),
            progress,
            sends_contents: options.bytes_per_second.is_none(),
            pacer: options.bytes_per_second.map(|rate| {
                Pacer::new(rate, piece_bytes(Some(rate), PUSH_CHUNK_BYTES_MAX, CHUNK_BYTES_MIN), Instant::now())
            }),
            slowness: Slowness::new(Instant::now()),
        }
    }
}

impl Operation for Driver<'_> {
    type Outcome = ();

    fn turn(&mut self, connection: &mut Connection, now: Instant) -> Result<Turn<()>, Error> {
        self.open_files()?;
        let is_hashing = self.hash()?;
        self.offer(connection);
        self.send(connection, now);
        connection.watch_buffers(now);
        let wait = self.own_wait(connection, now);
        if self.slowness.note(wait, now) && self.is_connected {
            connection.send(&Request::Credit { bytes: 0, slow: self.slowness.said() });
        }
        let shown = self.shown();
        (self.show)(shown);
        if self.tasks.is_empty() && self.files.is_empty() {
            return Ok(Turn::Over(()));
        }
        Ok(Turn::Wait(if is_hashing { Duration::ZERO } else { POLL_MAX.min(self.wait(now)) }))
    }

    fn connected(&mut self, _connection: &mut Connection, now: Instant) -> Result<(), Error> {
        self.is_connected = true;
        self.slowness = Slowness::new(now);
        Ok(())
    }

    fn lost(&mut self, reason: &str) -> Result<bool, Error> {
        self.is_connected = false;
        (self.on_event)(PushEvent::Interrupted { reason: format!("the connection is lost: {reason}") })?;
        if let Some(times) = self.reconnects.lost_at(self.steps) {
            return Err(Error::Breaking { times });
        }
        // What the server has is found out when it is offered again.
        for task in self.tasks.iter_mut().filter(|task| !matches!(task.phase, Phase::Hashing(_))) {
            task.phase = Phase::Waiting(Instant::now());
        }
        Ok(true)
    }

    fn inbound(&mut self, inbound: Inbound, _connection: &mut Connection, _now: Instant) -> Result<bool, Error> {
        let Inbound::Control { json, .. } = inbound else { return Ok(false) };
        let steps = self.steps;
        self.reply(Reply::decode(&json)?)?;
        Ok(self.steps > steps)
    }

    fn file_sent(&mut self, tag: u64, whole: bool, connection: &mut Connection) -> Result<(), Error> {
        let at = self.tasks.iter().position(|task| u64::from(task.id) == tag).filter(|_| !whole);
        if let Some(at) = at {
            let task = self.tasks.remove(at);
            connection.send(&Request::Cancel { id: task.id });
            self.file_failed(task.item.file, None, "it shrank while it was sent".to_owned())?;
        }
        Ok(())
    }

    fn wait_limit(&self) -> WaitLimit {
        let is_hashing = self.tasks.iter().any(|task| matches!(task.phase, Phase::Hashing(_)));
        match self.is_connected && is_hashing {
            // Nothing is awaited of the server.
            true => WaitLimit::Unlimited,
            // One that hashes what is at the path may be silent meanwhile.
            false => WaitLimit::Extra(self.hashing_time()),
        }
    }

    fn failed(&mut self, error: Error) -> Result<(), Error> {
        match (error, self.busy.take()) {
            (Error::Stalled { connected: true, .. }, Some(message)) => {
                Err(Error::Refused { code: ErrorCode::Busy, message })
            }
            (error, _) => Err(error),
        }
    }
}

impl Driver<'_> {
    /// Time until a push is offered again, or a piece may leave.
    fn wait(&self, now: Instant) -> Duration {
        let waits = self.tasks.iter().filter_map(|task| match task.phase {
            Phase::Waiting(at) => Some(at.saturating_duration_since(now)),
            Phase::Sending(ref sending) if sending.next_bytes().is_some() => {
                self.pacer.as_ref().map(|pacer| pacer.next().saturating_duration_since(now))
            }
            _ => None,
        });
        waits.filter(|_| self.is_connected).min().unwrap_or(POLL_MAX)
    }

    /// The cause for which sending waits on this side: its rate, or its disk.
    fn own_wait(&self, connection: &Connection, now: Instant) -> Option<Slow> {
        let may_send = |task: &Task| matches!(&task.phase, Phase::Sending(sending) if sending.next_bytes().is_some());
        let is_limited = self.pacer.as_ref().is_some_and(|pacer| pacer.next() > now);
        match self.tasks.iter().any(may_send) {
            true if is_limited => Some(Slow::Rate),
            _ => connection.awaits_disk().then_some(Slow::Disk),
        }
    }

    fn shown(&self) -> PushProgress {
        let of_task = |task: &Task| match &task.phase {
            Phase::Sending(sending) => task.stat.size - sending.left(),
            _ => 0,
        };
        let bytes_done = self.progress.bytes_done + self.tasks.iter().map(of_task).sum::<u64>();
        PushProgress { bytes_done, ..self.progress }
    }

    /// Notes progress.
    fn step(&mut self) {
        self.steps += 1;
        self.busy = None;
    }

    /// How long the server may hash files that are as large as these: before it answers, and before one that is sent gets its name.
    fn hashing_time(&self) -> Duration {
        let is_hashed = |task: &&Task| match &task.phase {
            Phase::Offered => true,
            Phase::Sending(sending) => sending.left() == 0,
            Phase::Hashing(_) | Phase::Waiting(_) => false,
        };
        let bytes: u64 = self.tasks.iter().filter(is_hashed).map(|task| task.stat.size).sum();
        Duration::from_secs(bytes / HASH_BYTES_PER_SECOND_MIN)
    }

    fn open_files(&mut self) -> Result<(), Error> {
        while self.tasks.len() < PUSHES_MAX {
            let bytes: u64 = self.tasks.iter().map(|task| task.stat.size).sum();
            if self.tasks.len() >= LARGE_PUSHES_MAX && bytes > SMALL_PUSHES_BYTES {
                return Ok(());
            }
            let Some(item) = self.files.pop_front() else { return Ok(()) };
            match item.open() {
                Ok((open, stat)) => self.tasks.push(Task {
                    item,
                    open: Arc::new(open),
                    digest: None,
                    id: 0,
                    phase: Phase::Hashing(Box::new(FileHasher::new(&stat))),
                    stat,
                    busy_wait: BUSY_WAIT_MIN,
                    resumed_bytes: 0,
                }),
                Err(reason) => self.file_failed(item.file, None, reason)?,
            }
        }
        Ok(())
    }

    /// Hashes a part of a file, or some small ones; whether there is more to hash.
    fn hash(&mut self) -> Result<bool, Error> {
        let (mut bytes, mut at) = (0, 0);
        for _ in 0..HASH_SLICE_FILES {
            let hashing = |task: &Task| matches!(task.phase, Phase::Hashing(_));
            let Some(next) = self.tasks.iter().skip(at).position(hashing) else { return Ok(false) };
            at += next;
            let Some(task) = self.tasks.get(at) else { return Ok(false) };
            if bytes > 0 && bytes + task.stat.size > HASH_SLICE_BYTES {
                break;
            }
            bytes += task.stat.size;
            self.hash_one(at)?;
        }
        Ok(true)
    }

    /// Hashes a part of the file of a task.
    fn hash_one(&mut self, at: usize) -> Result<(), Error> {
        self.steps += u64::from(self.is_connected);
        let Some(task) = self.tasks.get_mut(at) else { return Ok(()) };
        let Phase::Hashing(hasher) = &mut task.phase else { return Ok(()) };
        let hashed = match hasher.advance(&task.open, HASH_SLICE_BYTES, || self.cancel.is_cancelled()) {
            Ok(false) | Err(HashError::GivenUp) => return Ok(()),
            Ok(true) => match std::mem::replace(&mut task.phase, Phase::Waiting(Instant::now())) {
                Phase::Hashing(hasher) => hasher.finish(&task.open),
                _ => return Ok(()),
            },
            Err(error) => Err(error),
        };
        match hashed {
            Ok(digested) => task.digest = Some(digested.digest),
            Err(error) => {
                let task = self.tasks.remove(at);
                self.file_failed(task.item.file, None, error.to_string())?;
            }
        }
        Ok(())
    }

    /// Offers what is hashed to the server.
    fn offer(&mut self, connection: &mut Connection) {
        if !self.is_connected {
            return;
        }
        let now = Instant::now();
        for task in &mut self.tasks {
            let (Phase::Waiting(at), Some(digest)) = (&task.phase, task.digest) else { continue };
            if *at > now {
                continue;
            }
            // Another one each time, so that no answer is taken for that to another offer.
            self.next_id = self.next_id.wrapping_add(1).max(1);
            task.id = self.next_id;
            task.phase = Phase::Offered;
            let FileStat { size, modified: mtime, mode, .. } = task.stat;
            let (expected, durable) = (self.options.expected, self.options.durable);
            let path = WirePath::from(&task.item.file.remote);
            let (id, mode) = (task.id, mode & 0o777);
            // One that has shrunk meanwhile is refused when its content comes.
            let content = (self.sends_contents && size <= PUSH_CONTENT_BYTES_MAX)
                .then(|| content(&task.open, size))
                .and_then(Result::ok);
            let push = PushRequest { id, path, size, mtime, mode, digest, expected, durable, content: None };
            connection.send_message(Request::Push(push).to_frames().into_iter().chain(content).collect());
        }
    }

    /// Sends what the server gave credit for, at the rate.
    fn send(&mut self, connection: &mut Connection, now: Instant) {
        for task in &mut self.tasks {
            let Phase::Sending(sending) = &mut task.phase else { continue };
            while let Some(bytes) = sending.next_bytes()
                && let bytes = self.pacer.as_mut().map_or(bytes, |pacer| pacer.take(bytes, now))
                && let Some(Range { offset, length }) = sending.next_piece(bytes)
            {
                let entry = DataEntry { n: 0, end: false, body: Body::Plain, offset, length, body_length: length };
                // A piece is within the limits; the codec catches a mistake.
                let Ok(header) = (DataHeader { id: task.id, entries: vec![entry] }).encode() else { return };
                let range = FileRange::new(Arc::clone(&task.open), offset, length).tagged(task.id.into());
                connection.send_message(Message::new().with(header).with(range));
            }
        }
    }

    fn reply(&mut self, reply: Reply) -> Result<(), Error> {
        let id = match &reply {
            Reply::Push(push) => push.id,
            Reply::Credit(credit) => credit.id,
            Reply::Pushed(pushed) => pushed.id,
            Reply::Error(ErrorReply { id: Some(id), .. }) => *id,
            Reply::Error(ErrorReply { id: None, code, message }) => {
                return Err(Error::Refused { code: *code, message: message.clone() });
            }
            _ => return Ok(()),
        };
        let Some(at) = self.tasks.iter().position(|task| task.id == id) else { return Ok(()) };
        let Some(task) = self.tasks.get_mut(at) else { return Ok(()) };
        match reply {
            Reply::Push(push) if matches!(task.phase, Phase::Offered) => {
                self.sends_contents = self.pacer.is_none();
                let sending = Sending::new(task.stat.size, &push);
                task.resumed_bytes = task.stat.size - sending.left();
                task.phase = Phase::Sending(sending);
                task.busy_wait = BUSY_WAIT_MIN;
                self.step();
            }
            Reply::Credit(credit) => {
                if let Phase::Sending(sending) = &mut task.phase {
                    sending.credit(credit.bytes);
                    self.step();
                }
            }
            Reply::Pushed(pushed) => {
                self.step();
                self.sends_contents &= !pushed.same;
                let task = self.tasks.remove(at);
                self.pushed(task, &pushed)?;
            }
            Reply::Error(ErrorReply { code: ErrorCode::Busy, message, .. }) => {
                self.busy = Some(message);
                task.phase = Phase::Waiting(Instant::now() + task.busy_wait);
                task.busy_wait = (task.busy_wait * 2).min(BUSY_WAIT_MAX);
            }
            Reply::Error(ErrorReply { code, message, .. }) => {
                self.step();
                let task = self.tasks.remove(at);
                self.file_failed(task.item.file, Some(code), format!("the server says: {message} ({code})"))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn pushed(&mut self, task: Task, pushed: &PushedReply) -> Result<(), Error> {
        let Task { item, stat, digest, resumed_bytes, .. } = task;
        let Some(digest) = digest.filter(|digest| *digest == pushed.digest) else {
            return Err(Error::Protocol("it confirms a file of another digest".to_owned()));
        };
        self.progress.files_done += 1;
        self.progress.bytes_done += stat.size;
        let PushedReply { seq, durable, same, .. } = *pushed;
        if self.options.remove_source
            && let Err(reason) = item.remove(&stat)
        {
            let text = format!("{}: it is on the server, and stays here: {reason}", item.file.local.display());
            (self.on_event)(PushEvent::Warning(text))?;
        }
        let file = item.file;
        (self.on_event)(PushEvent::Pushed { file, size: stat.size, digest, seq, durable, same, resumed_bytes })?;
        Ok(())
    }

    fn file_failed(&mut self, file: PushFile, code: Option<ErrorCode>, reason: String) -> Result<(), Error> {
        self.progress.files_done += 1;
        (self.on_event)(PushEvent::Failed { file, code, reason })?;
        Ok(())
    }
}

/// The content of a file of this size.
fn content(file: &File, size: u64) -> std::io::Result<Bytes> {
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes.into())
}
