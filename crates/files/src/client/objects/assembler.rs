//! The thread that checks leaves, gathers them to parts, and has the store asked.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use bytes::Bytes;
use towpath_blocking::{BlockingPool, PoolLimits};

use super::content::{Content, Upload};
use super::{DISK_QUEUE_BYTES_MAX, ObjectAttributes, ObjectError, ObjectOptions, ObjectStore, ObjectUpload, Shared};
use crate::digest::Digest;
use crate::path::RelPath;
use crate::transfer::{
    ContentKey, ContentSpec, DiskCommand, DiskError, DiskReport, FileKey, Found, Part, SmallFile, SmallOutcome, Version,
};

/// Requests that a store has at a time.
const REQUESTS_MAX: usize = 16;
const LIMITS: PoolLimits =
    PoolLimits { name: "objects-io", threads_max: REQUESTS_MAX, hung_max: 0, per_group_max: REQUESTS_MAX };
const ABORT_LIMITS: PoolLimits = PoolLimits { name: "objects-abort", threads_max: 4, hung_max: 0, per_group_max: 4 };
/// Memory of parts that aren't whole.
const GATHERED_BYTES_MAX: u64 = 256 << 20;
/// How often it is said that the store has requests.
const ALIVE_EVERY: Duration = Duration::from_millis(500);
/// Longest key of S3.
const KEY_BYTES_MAX: usize = 1024;

/// Events for the thread.
pub(super) enum Event {
    Command(DiskCommand),
    Answer(Answer),
    /// Abort what isn't complete, and end.
    End,
}

/// The end of a request to the store.
pub(super) enum Answer {
    Found {
        file: FileKey,
        local: RelPath,
        listed: Version,
        found: Result<Option<(u64, ObjectAttributes)>, ObjectError>,
    },
    Small {
        file: FileKey,
        local: RelPath,
        bytes: u64,
        credit: u64,
        done: Result<(), ObjectError>,
    },
    Begun {
        content: ContentKey,
        done: Result<Arc<dyn ObjectUpload>, ObjectError>,
    },
    Part {
        content: ContentKey,
        bytes: u64,
        done: Result<(), ObjectError>,
    },
    /// Of an object that was put as a whole.
    Put {
        file: FileKey,
        local: RelPath,
        bytes: u64,
        done: Result<(), ObjectError>,
    },
    Completed {
        file: FileKey,
        local: RelPath,
        upload: Arc<dyn ObjectUpload>,
        done: Result<(), ObjectError>,
    },
    Aborted {
        key: String,
        done: Result<(), ObjectError>,
    },
}

pub(super) struct Assembler {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    options: ObjectOptions,
    events: Receiver<Event>,
    /// For the answers of the store.
    answers: Sender<Event>,
    reports: Sender<DiskReport>,
    shared: Arc<Shared>,
    wake: Box<dyn Fn() + Send + Sync>,
    pool: BlockingPool,
    aborts: BlockingPool,
    has_ended: Arc<AtomicBool>,
    /// Requests that have no answer yet.
    requests: usize,
    /// Those of them that leave something in the store which is to be removed, or is in place.
    uncertain: usize,
    contents: HashMap<ContentKey, Content>,
}

impl Assembler {
    pub(super) fn new(
        store: Arc<dyn ObjectStore>,
        prefix: String,
        options: ObjectOptions,
        (answers, events): (Sender<Event>, Receiver<Event>),
        reports: Sender<DiskReport>,
        shared: Arc<Shared>,
        wake: Box<dyn Fn() + Send + Sync>,
    ) -> io::Result<Assembler> {
        Ok(Assembler {
            store,
            prefix,
            options,
            events,
            answers,
            reports,
            shared,
            wake,
            // With a first thread, so that each request has an answer.
            pool: BlockingPool::started(LIMITS)?,
            aborts: BlockingPool::started(ABORT_LIMITS)?,
            has_ended: Arc::default(),
            requests: 0,
            uncertain: 0,
            contents: HashMap::new(),
        })
    }

    /// Works until it is to end, or nobody wants anything any more.
    pub(super) fn run(mut self) {
        loop {
            match self.events.recv_timeout(ALIVE_EVERY) {
                Ok(Event::Command(command)) => self.command(command),
                Ok(Event::Answer(answer)) => self.answer(answer),
                Ok(Event::End) | Err(RecvTimeoutError::Disconnected) => return self.end(),
                Err(RecvTimeoutError::Timeout) if self.requests > 0 => {
                    self.shared.alive.fetch_add(1, Ordering::Relaxed);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Aborts all uploads, and waits for that. Requests that are queued fail, and those that run have their threads for as long as they like.
    fn end(mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
        let contents: Vec<_> = self.contents.drain().map(|(_, content)| content).collect();
        contents.into_iter().for_each(|content| self.drop_content(content));
        while self.uncertain > 0 {
            match self.events.recv() {
                Ok(Event::Answer(answer)) => self.answer(answer),
                Ok(Event::Command(_) | Event::End) => {}
                Err(_) => return,
            }
        }
    }

    fn report(&self, report: DiskReport) {
        // The transfer may be over.
        let _ = self.reports.send(report);
        if !self.shared.awake.swap(true, Ordering::AcqRel) {
            (self.wake)();
        }
    }

    /// Has a thread ask the store.
    fn ask(
        &mut self,
        ask: impl FnOnce(&dyn ObjectStore) -> Answer + Send + 'static,
        refuse: impl FnOnce(ObjectError) -> Answer + Send + 'static,
    ) {
        self.requests += 1;
        let (store, answers, has_ended) = (Arc::clone(&self.store), self.answers.clone(), Arc::clone(&self.has_ended));
        let job = move || {
            let answer = match has_ended.load(Ordering::Relaxed) {
                true => refuse(ObjectError { is_for_all: false, message: "the transfer has ended".to_owned() }),
                false => ask(&*store),
            };
            let _ = answers.send(Event::Answer(answer));
        };
        // Fails only without any thread.
        let _ = self.pool.submit(0, 0, job);
    }

    /// The key of a path.
    fn key(&self, local: &RelPath) -> Result<String, DiskError> {
        let refused = |why: &str| Err(DiskError { full: false, message: format!("its name can't be a key: {why}") });
        let Ok(path) = std::str::from_utf8(local.as_bytes()) else { return refused("it isn't UTF-8") };
        if path.chars().any(char::is_control) {
            return refused("it has control characters");
        }
        let key = if self.prefix.is_empty() { path.to_owned() } else { format!("{}/{path}", self.prefix) };
        if key.len() > KEY_BYTES_MAX { refused("it is longer than 1024 bytes") } else { Ok(key) }
    }

    fn command(&mut self, command: DiskCommand) {
        match command {
            DiskCommand::Inspect { file, local, listed, .. } => self.inspect(file, local, listed),
            DiskCommand::CheckSpace { .. } => self.report(DiskReport::Space { free: None }),
            // A key has its directories in it. Those without files aren't there.
            DiskCommand::MakeDir { local } | DiskCommand::FinishDir { local, .. } => {
                self.report(DiskReport::Entry { local, result: Ok(()) });
            }
            DiskCommand::MakeLink { local, .. } => {
                self.shared.notices.left_out_links.add(|| local.to_string());
                self.report(DiskReport::Entry { local, result: Ok(()) });
            }
            DiskCommand::HardLink { file, .. } => {
                let why = "an object has one name".to_owned();
                self.report(DiskReport::Installed { file, result: Err(DiskError { full: false, message: why }) });
            }
            // Attributes of an object can't be changed without the content.
            DiskCommand::Touch { file, .. } => self.report(DiskReport::Installed { file, result: Ok(()) }),
            DiskCommand::Small(small) => self.small(small),
            DiskCommand::Begin(spec) => self.begin(spec),
            DiskCommand::Write { content, part, data } => {
                self.shared.queued_bytes.fetch_sub(data.len() as u64, Ordering::Relaxed);
                self.write(content, part, &data);
            }
            DiskCommand::Zeros { content, offset, length, credit, .. } => self.zeros(content, offset, length, credit),
            DiskCommand::Install { file, content } => self.install(file, content),
            DiskCommand::Abandon { content } | DiskCommand::Leave { content } => {
                if let Some(content) = self.contents.remove(&content) {
                    self.drop_content(content);
                }
            }
            DiskCommand::Reuse { content, .. } => {
                self.report(DiskReport::Reused { content, result: Ok(Vec::new()) });
            }
            // Of partial files, which there are none of.
            DiskCommand::NoteDigest { .. } | DiskCommand::ForgetLeaves { .. } => {}
        }
    }

    fn inspect(&mut self, file: FileKey, local: RelPath, listed: Version) {
        let key = match self.key(&local) {
            Ok(key) => key,
            Err(error) => return self.report(DiskReport::Inspected { file, found: Err(error) }),
        };
        let refused = local.clone();
        self.ask(
            move |store| Answer::Found { file, local, listed, found: store.head(&key) },
            move |error| Answer::Found { file, local: refused, listed, found: Err(error) },
        );
    }

    fn found(&mut self, file: FileKey, listed: Version, found: Option<(u64, ObjectAttributes)>) {
        let found = match found {
            Some((size, ObjectAttributes { digest: Some(digest), modified, .. })) if size == listed.size => {
                if modified == Some(listed.modified) && !self.options.check {
                    Found::Same { touch: false }
                } else if self.options.verify {
                    Found::SameSize(digest)
                } else {
                    Found::Nothing
                }
            }
            // Nobody knows what it is.
            _ => Found::Nothing,
        };
        self.report(DiskReport::Inspected { file, found: Ok(found) });
    }

    fn small(&mut self, small: SmallFile) {
        let (file, credit, bytes) = (small.file, small.credit, small.bytes());
        let key = match self.key(&small.local) {
            Ok(key) => key,
            Err(error) => {
                self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
                return self.report(DiskReport::Small { file, credit, result: Err(error) });
            }
        };
        let content = Bytes::from(small.data.concat());
        let digest = Digest::of(&content);
        if small.digest.is_some_and(|expected| expected != digest) {
            self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return self.report(DiskReport::Small { file, credit, result: Ok(SmallOutcome::Mismatch) });
        }
        let attributes = ObjectAttributes::of(&small.version, Some(digest), &self.options.metadata);
        let local = small.local.clone();
        let answer = move |done| Answer::Small { file, local, bytes, credit, done };
        self.ask(
            {
                let answer = answer.clone();
                move |store| answer(store.put(&key, content, &attributes))
            },
            move |error| answer(Err(error)),
        );
    }

    fn begin(&mut self, spec: ContentSpec) {
        let (id, key) = (spec.content, self.key(&spec.local));
        let content =
            key.and_then(|key| Content::new(spec.clone(), key).map_err(|message| DiskError { full: false, message }));
        match content {
            Ok(content) => {
                let is_one_part = content.is_one_part();
                self.contents.insert(id, content);
                if !is_one_part {
                    self.begin_upload(id);
                }
            }
            Err(error) => drop(self.contents.insert(id, Content::failed(spec, error))),
        }
    }

    /// Whether there is no memory for another part of this length.
    fn is_full(&self, part_bytes: u64) -> bool {
        let gathered: u64 = self.contents.values().map(Content::gathered_bytes).sum();
        gathered > 0 && gathered + part_bytes > GATHERED_BYTES_MAX
    }

    fn write(&mut self, id: ContentKey, part: Part, data: &[u8]) {
        let is_full = self.contents.get(&id).is_some_and(|content| self.is_full(content.part_bytes));
        let Some(content) = self.contents.get_mut(&id) else {
            // It was abandoned: only its credit counts.
            return self.report(part.written(id, Ok(Vec::new())));
        };
        let taken = match &content.failure {
            Some(error) => Err(error.clone()),
            None => content.write(part, data, is_full).map_err(|message| DiskError { full: false, message }),
        };
        let Part { offset, credit, .. } = part;
        let (length, result) = match taken {
            Ok((length, leaves)) => (length, Ok(leaves)),
            Err(error) => (0, Err(error)),
        };
        self.report(DiskReport::Written { content: id, offset, length, credit, result });
        self.advance(id);
    }

    fn zeros(&mut self, id: ContentKey, offset: u64, length: u64, credit: u64) {
        let (mut at, mut all, mut failure) = (offset, Vec::new(), None);
        while at < offset + length {
            let is_full = self.contents.get(&id).is_some_and(|content| self.is_full(content.part_bytes));
            let Some(content) = self.contents.get_mut(&id) else { break };
            if let Some(error) = content.failure.clone() {
                failure = Some(error);
                break;
            }
            match content.write_zeros(at, offset + length - at, is_full) {
                Ok((taken, leaves)) => {
                    all.extend(leaves);
                    at += taken;
                    self.advance(id);
                    // The rest is asked for once more, when there is memory again.
                    if taken == 0 || self.shared.queued_bytes.load(Ordering::Relaxed) > DISK_QUEUE_BYTES_MAX {
                        break;
                    }
                }
                Err(message) => failure = Some(DiskError { full: false, message }),
            }
            if failure.is_some() {
                break;
            }
        }
        let result = failure.map_or(Ok(all), Err);
        self.report(DiskReport::Written { content: id, offset, length: at - offset, credit, result });
    }

    fn install(&mut self, file: FileKey, id: ContentKey) {
        if let Some(content) = self.contents.get_mut(&id) {
            content.install = Some(file);
        }
        self.advance(id);
    }

    /// Does what can be done for a content now.
    fn advance(&mut self, id: ContentKey) {
        let Some(content) = self.contents.get_mut(&id) else { return };
        if let (Some(error), Some(file)) = (&content.failure, content.install) {
            let result = Err(error.clone());
            if let Some(content) = self.contents.remove(&id) {
                self.drop_content(content);
            }
            return self.report(DiskReport::Installed { file, result });
        }
        if content.failure.is_some() {
            return;
        }
        if content.is_one_part() {
            if content.install.is_some() {
                self.put_whole(id);
            }
            return;
        }
        while let Some((index, part)) = content.take_part() {
            self.shared.queued_bytes.fetch_add(part.len() as u64, Ordering::Relaxed);
            content.waiting.push((index, part));
        }
        if let Upload::Begun(upload) = &content.upload {
            let upload = Arc::clone(upload);
            self.put_parts(id, &upload);
        }
    }

    fn put_whole(&mut self, id: ContentKey) {
        let Some(mut content) = self.contents.remove(&id) else { return };
        let Some(file) = content.install else { return };
        let attributes = ObjectAttributes::of(&content.spec.version, content.digest(), &self.options.metadata);
        let bytes = content.take_whole();
        let length = bytes.len() as u64;
        self.shared.queued_bytes.fetch_add(length, Ordering::Relaxed);
        let (key, local) = (content.key, content.spec.local);
        let answer = move |done| Answer::Put { file, local, bytes: length, done };
        self.ask(
            {
                let answer = answer.clone();
                move |store| answer(store.put(&key, bytes, &attributes))
            },
            move |error| answer(Err(error)),
        );
    }

    fn begin_upload(&mut self, id: ContentKey) {
        let Some(content) = self.contents.get_mut(&id) else { return };
        content.upload = Upload::Beginning;
        let attributes = ObjectAttributes::of(&content.spec.version, content.digest(), &self.options.metadata);
        let key = content.key.clone();
        self.uncertain += 1;
        self.ask(
            move |store| Answer::Begun { content: id, done: store.begin(&key, &attributes) },
            move |error| Answer::Begun { content: id, done: Err(error) },
        );
    }

    fn put_parts(&mut self, id: ContentKey, upload: &Arc<dyn ObjectUpload>) {
        let waiting = self.contents.get_mut(&id).map(|content| {
            content.on_their_way += content.waiting.len();
            std::mem::take(&mut content.waiting)
        });
        for (index, part) in waiting.into_iter().flatten() {
            let bytes = part.len() as u64;
            let (upload, index) = (Arc::clone(upload), u32::try_from(index).unwrap_or(u32::MAX));
            self.ask(
                move |_| Answer::Part { content: id, bytes, done: upload.put_part(index, part) },
                move |error| Answer::Part { content: id, bytes, done: Err(error) },
            );
        }
        let Some(content) = self.contents.get(&id) else { return };
        if let (Some(file), true, 0) = (content.install, content.is_taken(), content.on_their_way) {
            let Some(content) = self.contents.remove(&id) else { return };
            let (local, upload) = (content.spec.local, Arc::clone(upload));
            let answer = move |done, upload| Answer::Completed { file, local, upload, done };
            let (refuse, refused) = (answer.clone(), Arc::clone(&upload));
            self.uncertain += 1;
            self.ask(move |_| answer(upload.complete(), upload), move |error| refuse(Err(error), refused));
        }
    }

    fn answer(&mut self, answer: Answer) {
        self.requests -= 1;
        self.shared.alive.fetch_add(1, Ordering::Relaxed);
        match answer {
            Answer::Found { file, local, listed, found } => match found {
                Ok(found) => self.found(file, listed, found),
                Err(error) => {
                    let found = Err(self.failed(&local, &error));
                    self.report(DiskReport::Inspected { file, found });
                }
            },
            Answer::Small { file, local, bytes, credit, done } => {
                self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
                let result = done.map(|()| SmallOutcome::Installed).map_err(|error| self.failed(&local, &error));
                self.report(DiskReport::Small { file, credit, result });
            }
            Answer::Begun { content: id, done } => {
                self.uncertain -= 1;
                match (done, self.contents.get_mut(&id)) {
                    (Ok(upload), Some(content)) => content.upload = Upload::Begun(upload),
                    (Ok(upload), None) => self.abort(upload),
                    (Err(error), Some(content)) => {
                        content.upload = Upload::No;
                        self.content_failed(id, &error);
                    }
                    (Err(_), None) => {}
                }
                self.advance(id);
            }
            Answer::Part { content: id, bytes, done } => {
                self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
                if let Some(content) = self.contents.get_mut(&id) {
                    content.on_their_way -= 1;
                    if let Err(error) = done {
                        self.content_failed(id, &error);
                    }
                }
                self.advance(id);
            }
            Answer::Put { file, local, bytes, done } => {
                self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
                let result = done.map_err(|error| self.failed(&local, &error));
                self.report(DiskReport::Installed { file, result });
            }
            Answer::Completed { file, local, upload, done } => {
                self.uncertain -= 1;
                if done.is_err() {
                    // It may be complete all the same, if the answer was lost: aborting does no harm then.
                    self.abort(upload);
                }
                let result = done.map_err(|error| self.failed(&local, &error));
                self.report(DiskReport::Installed { file, result });
            }
            Answer::Aborted { key, done } => {
                self.uncertain -= 1;
                if let Err(error) = done {
                    tracing::warn!(key, %error, "cannot remove the parts of an upload that was given up");
                }
            }
        }
    }

    /// The failure, for the transfer. One that concerns all objects ends it.
    fn failed(&self, local: &RelPath, error: &ObjectError) -> DiskError {
        if error.is_for_all {
            self.fail_all(error);
        } else {
            tracing::debug!(%local, %error, "a request to the object store failed");
        }
        DiskError { full: false, message: error.message.clone() }
    }

    fn fail_all(&self, error: &ObjectError) {
        let _ = self.shared.failure.set(error.clone());
    }

    fn content_failed(&mut self, id: ContentKey, error: &ObjectError) {
        let Some(content) = self.contents.get(&id) else { return };
        let failure = self.failed(&content.spec.local, error);
        if let Some(content) = self.contents.get_mut(&id) {
            content.fail(failure);
            drop_waiting(&self.shared, content);
        }
    }

    /// Removes what was put of a content that isn't wanted.
    fn drop_content(&mut self, mut content: Content) {
        drop_waiting(&self.shared, &mut content);
        if let Upload::Begun(upload) = content.upload {
            self.abort(upload);
        }
    }

    /// Parts that are on their way don't keep it waiting.
    fn abort(&mut self, upload: Arc<dyn ObjectUpload>) {
        self.requests += 1;
        self.uncertain += 1;
        let answers = self.answers.clone();
        let job = move || {
            let (key, done) = (format!("{upload:?}"), upload.abort());
            let _ = answers.send(Event::Answer(Answer::Aborted { key, done }));
        };
        let _ = self.aborts.submit(0, 0, job);
    }
}

/// Drops parts that wait for an upload which isn't wanted.
fn drop_waiting(shared: &Shared, content: &mut Content) {
    let bytes = content.waiting.drain(..).map(|(_, part)| part.len() as u64).sum();
    shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
}
