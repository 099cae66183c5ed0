//! The plain dialect: requests in order, one frame a message, no credit.

use super::pipeline::Pipeline;
use super::{Action, Ending, Envelope, IfShort, LogEvent, Outgoing, Part, Shared, Slot, Ticket};
use crate::limits::PLAIN_FRAME_BYTES;
use crate::protocol::WireError;
use crate::protocol::control::WirePath;
use crate::protocol::envelope::client_of;
use crate::protocol::plain::{PlainRequest, error_frames};
use crate::server::Failure;
use crate::server::jobs::{Job, Load, LoadHow, Loaded, Open};
use crate::server::limits::{PIPELINE_BYTES_MAX, PLAIN_OPEN_MAX};
use crate::server::pace::Pace;
use crate::server::stats::{RequestKind, TransferStats, Wait};
use bytes::Bytes;
use std::collections::VecDeque;

#[derive(Debug)]
pub(super) struct Plain<F> {
    ticket: Ticket,
    waiting: VecDeque<Waiting>,
    /// Number of the first of `waiting`.
    request: u64,
    /// The first of `waiting` waits for its file to be opened.
    is_opening: bool,
    /// The first of `waiting` is being sent, from this version of its file.
    sending: Option<Sending<F>>,
    /// Files kept open for requests that read on, least recently used first.
    open: Vec<(KeptName, KeptFile<F>)>,
    /// The last refusal: a client that asks for pieces ahead is refused once.
    refused: Option<(KeptName, String)>,
    pipeline: Pipeline<PlainPiece<F>>,
}

#[derive(Debug)]
struct Waiting {
    envelope: Envelope,
    request: Result<PlainRequest, String>,
}

/// The client, if the connection is a proxy's, and the path.
type KeptName = (Vec<Bytes>, Option<Bytes>);

#[derive(Clone, Debug)]
struct KeptFile<F> {
    file: F,
    size: u64,
    /// Bytes of pieces that were asked for.
    read: u64,
    /// Whether the read is still to be logged, in one line for all pieces.
    is_unlogged: bool,
}

#[derive(Debug)]
struct Sending<F> {
    open: KeptFile<F>,
    /// Start of the part that is not begun.
    offset: u64,
    end: u64,
    frame_bytes: u64,
    /// An empty frame follows the last one.
    is_terminated: bool,
}

#[derive(Debug)]
struct PlainPiece<F> {
    /// Number of its request.
    request: u64,
    envelope: Envelope,
    content: Content<F>,
}

#[derive(Debug)]
enum Content<F> {
    File { file: F, offset: u64 },
    Frames(Vec<Bytes>),
}

impl<F: Clone> Plain<F> {
    pub(super) fn new(ticket: Ticket) -> Plain<F> {
        Plain {
            ticket,
            waiting: VecDeque::new(),
            request: 0,
            is_opening: false,
            sending: None,
            open: Vec::new(),
            refused: None,
            pipeline: Pipeline::default(),
        }
    }

    pub(super) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Requests that are not over.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn request(
        &mut self,
        envelope: Envelope,
        request: Result<PlainRequest, WireError>,
        shared: &mut Shared<F>,
    ) {
        self.waiting.push_back(Waiting { envelope, request: request.map_err(|error| error.message) });
        self.progress(shared);
    }

    pub(super) fn opened(&mut self, result: Result<(F, u64), Failure>, shared: &mut Shared<F>) {
        self.is_opening = false;
        let Some(Waiting { envelope, request: Ok(request) }) = self.waiting.front() else { return };
        let name = (client_of(envelope).to_vec(), request.path.clone());
        match result {
            Ok((file, size)) => {
                self.refused.take_if(|(of, _)| *of == name);
                let is_whole = request.range.is_none();
                self.forget(&name, shared);
                if self.open.len() >= PLAIN_OPEN_MAX {
                    let (oldest, _) = &self.open[0];
                    self.forget(&oldest.clone(), shared);
                }
                let Some(Waiting { request: Ok(request), .. }) = self.waiting.front() else { return };
                let open = KeptFile { file, size, read: 0, is_unlogged: !is_whole };
                self.sending = Some(Sending::new(open.clone(), request));
                self.open.push((name, open));
            }
            Err(failure) => {
                let path = path_of(request);
                let reads_on = request.range.is_some_and(|range| range.offset > 0);
                self.forget(&name, shared);
                let refused = Some((name, failure.message.clone()));
                if !(reads_on && self.refused == refused) {
                    let (what, failure) = (RequestKind::Fetch, failure.clone());
                    shared.actions.push_back(Action::Log(LogEvent::Refused { what, count: 1, path, failure }));
                    self.refused = refused;
                }
                self.fail(failure.message, shared);
            }
        }
        self.progress(shared);
    }

    pub(super) fn loaded(&mut self, slot: Slot, result: Result<Loaded<F>, Failure>, shared: &mut Shared<F>) {
        if let Some(piece) = self.pipeline.ready(slot) {
            match result {
                // Nothing is compressed here.
                Ok(Loaded::InPlace | Loaded::Packed(_)) => {}
                Ok(Loaded::InFile(file, offset)) => piece.content = Content::File { file, offset },
                Ok(Loaded::Copied(bytes)) => piece.content = Content::Frames(vec![bytes]),
                Err(failure) => {
                    piece.content = Content::Frames(error_frames(&failure.message).into());
                    let failed = piece.request;
                    // The error is the last frame of its request.
                    self.pipeline.drop_behind(slot, |piece| piece.request == failed);
                    if self.request == failed && self.sending.is_some() {
                        self.next_request();
                    }
                }
            }
        }
        self.progress(shared);
    }

    pub(super) fn next_message(&mut self, shared: &mut Shared<F>) -> Option<Outgoing<F>> {
        let (slot, length, _) = self.pipeline.next_ready()?;
        if shared.in_socket_bytes > 0 && shared.in_socket_bytes + length > PIPELINE_BYTES_MAX {
            return None;
        }
        let piece = self.pipeline.remove(slot)?;
        let mut parts: Vec<_> = piece.envelope.into_iter().map(Part::Bytes).collect();
        match piece.content {
            Content::File { file, offset } => {
                shared.hand_over(self.ticket, slot, length, file.clone());
                parts.push(Part::File { file, offset, length, slot, if_short: IfShort::Close });
            }
            Content::Frames(frames) => parts.extend(frames.into_iter().map(Part::Bytes)),
        }
        self.progress(shared);
        Some(Outgoing { ticket: None, parts })
    }

    /// The wait of the first request, and the bytes of it that were begun.
    pub(super) fn wait(&self) -> Option<(Wait, u64)> {
        if self.waiting.is_empty() && self.pipeline.is_empty() {
            return None;
        }
        let wait = if self.is_opening || self.pipeline.is_loading() { Wait::Disk } else { Wait::Receiver };
        Some((wait, self.sending.as_ref().map_or(0, |sending| sending.offset)))
    }

    /// Statistics of the first request.
    pub(super) fn stats(&self) -> Option<TransferStats> {
        let front = self.waiting.front();
        let path = front.and_then(|waiting| waiting.request.as_ref().ok()?.path.as_deref());
        if front.is_none() && self.pipeline.is_empty() {
            return None;
        }
        Some(TransferStats {
            kind: RequestKind::Fetch,
            id: None,
            path: path.unwrap_or_default().to_vec(),
            files: self.waiting.len(),
            files_done: 0,
            sent_bytes: self.sending.as_ref().map_or(0, |sending| sending.offset),
            received_bytes: 0,
            done_bytes: self.sending.as_ref().map_or(0, |sending| sending.offset),
            total_bytes: self.sending.as_ref().map(|sending| sending.open.size),
            all_done_bytes: self.sending.as_ref().map_or(0, |sending| sending.offset),
            all_total_bytes: self.sending.as_ref().map(|sending| sending.open.size),
            wait: self.wait().map(|(wait, _)| wait),
            slow: None,
            pace: Pace::default(),
        })
    }

    /// Begins pieces while the pipeline has space.
    fn progress(&mut self, shared: &mut Shared<F>) {
        while !self.is_opening && self.pipeline.has_space() {
            let Some(front) = self.waiting.front() else { return };
            let Some(sending) = &mut self.sending else {
                self.start(shared);
                continue;
            };
            let slot = shared.slot();
            let length = sending.frame_bytes.min(sending.end - sending.offset);
            let (request, envelope) = (self.request, front.envelope.clone());
            let is_at_end = sending.offset + length == sending.open.size;
            if let Ok(request) = &front.request
                && request.range.is_some()
            {
                let (ticket, name) = (self.ticket, (client_of(&front.envelope), &request.path));
                let kept = self.open.iter_mut().find(|((client, path), _)| (&client[..], path) == name);
                if let Some((_, kept)) = kept {
                    kept.read += length;
                    let ended = is_at_end.then(|| kept.ended(ticket, path_of(request), Ending::Done)).flatten();
                    shared.actions.extend(ended.map(Action::Log));
                }
            }
            if length == 0 {
                if let Ok(request) = &front.request
                    && request.range.is_none()
                {
                    let (ticket, path, bytes) = (self.ticket, path_of(request), sending.end);
                    let ended = LogEvent::Ended { ticket, path, files: 1, bytes, ending: Ending::Done };
                    shared.actions.push_back(Action::Log(ended));
                }
                // The end of a whole file, or of a piece that is past the end: a frame without bytes.
                let content = Content::Frames(vec![Bytes::new()]);
                self.pipeline.begin(slot, 0, PlainPiece { request, envelope, content });
                self.pipeline.ready(slot);
                self.next_request();
                continue;
            }
            let (file, offset) = (sending.open.file.clone(), sending.offset);
            sending.offset += length;
            let is_last = !sending.is_terminated;
            let content = Content::File { file: file.clone(), offset };
            self.pipeline.begin(slot, length, PlainPiece { request, envelope, content });
            let load = Load { slot, file, offset, length, how: LoadHow::AnyVersion };
            shared.start(self.ticket, Job::Load(load));
            if is_last {
                self.next_request();
            }
        }
    }

    /// Closes a file that was kept open.
    fn forget(&mut self, name: &KeptName, shared: &mut Shared<F>) {
        if let Some(at) = self.open.iter().position(|(of, _)| of == name) {
            let ((_, path), mut kept) = self.open.remove(at);
            let ended = kept.ended(self.ticket, wire_path(path.as_deref()), Ending::Done);
            shared.actions.extend(ended.map(Action::Log));
        }
    }

    /// The connection is lost: what the log has to say of files that were read in pieces.
    pub(super) fn lost(&self) -> impl Iterator<Item = LogEvent> {
        let is_waiting = !self.waiting.is_empty();
        self.open.iter().filter_map(move |((_, path), kept)| {
            let ending = if is_waiting { Ending::Lost } else { Ending::Done };
            kept.clone().ended(self.ticket, wire_path(path.as_deref()), ending)
        })
    }

    /// Finds the file of the first request, or has it opened.
    fn start(&mut self, shared: &mut Shared<F>) {
        let Some(front) = self.waiting.front() else { return };
        let request = match &front.request {
            Ok(request) => request,
            Err(message) => {
                let message = message.clone();
                return self.fail(message, shared);
            }
        };
        let reads_on = request.range.is_some_and(|range| range.offset > 0);
        let is_known = |(client, path): &KeptName| *path == request.path && *client == client_of(&front.envelope);
        let known = self.open.iter().position(|(name, _)| is_known(name));
        match known {
            Some(at) if reads_on => {
                let entry = self.open.remove(at);
                self.sending = Some(Sending::new(entry.1.clone(), request));
                self.open.push(entry);
            }
            _ => {
                self.is_opening = true;
                let path = request.path.clone();
                shared.start(self.ticket, Job::Open(Open { path }));
            }
        }
    }

    /// Answers the first request with an error, in its turn.
    fn fail(&mut self, message: String, shared: &mut Shared<F>) {
        if let Some(front) = self.waiting.pop_front() {
            let content = Content::Frames(error_frames(&message).into());
            let slot = shared.slot();
            self.pipeline.begin(slot, 0, PlainPiece { request: self.request, envelope: front.envelope, content });
            self.pipeline.ready(slot);
            self.request += 1;
        }
    }

    fn next_request(&mut self) {
        self.sending = None;
        self.waiting.pop_front();
        self.request += 1;
    }
}

fn path_of(request: &PlainRequest) -> WirePath {
    wire_path(request.path.as_deref())
}

fn wire_path(path: Option<&[u8]>) -> WirePath {
    path.unwrap_or_default().to_vec().into()
}

impl<F> KeptFile<F> {
    /// The event of a file that was read in pieces, once.
    fn ended(&mut self, ticket: Ticket, path: WirePath, ending: Ending) -> Option<LogEvent> {
        let bytes = self.read;
        std::mem::take(&mut self.is_unlogged).then_some(LogEvent::Ended { ticket, path, files: 1, bytes, ending })
    }
}

impl<F> Sending<F> {
    fn new(open: KeptFile<F>, request: &PlainRequest) -> Sending<F> {
        let size = open.size;
        match request.range {
            None => Sending { open, offset: 0, end: size, frame_bytes: PLAIN_FRAME_BYTES, is_terminated: true },
            Some(range) => {
                let offset = range.offset.min(size);
                let end = offset + range.size.min(size - offset);
                // A piece is one frame, whatever its size; without bytes it is the empty frame that ends it.
                Sending { open, offset, end, frame_bytes: range.size, is_terminated: offset == end }
            }
        }
    }
}
