//! The follow of the plain dialect: changes with the contents of files, under credit.

use super::credit::Credit;
use super::shared::Shared;
use super::{Action, Envelope, LogEvent, Ticket};
use crate::catalogue::{Content, Entry, Position};
use crate::limits::{PIECE_COST_MIN, PLAIN_FRAME_BYTES};
use crate::protocol::control::ListTarget;
use crate::protocol::follow::{Cursor, FollowFrom};
use crate::protocol::plain::{PlainFollow as Request, error_frames, follow_frames};
use crate::server::Failure;
use crate::server::follow::Followed;
use crate::server::jobs::{Changes, ChangesAnswer, ChangesBody, Job, PageForm, ReadPiece, is_full};
use crate::server::stats::{FollowStats, RequestKind};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;

/// Changes that are held.
const CHANGES_MAX: usize = 64;
/// Bytes of waiting replies before nothing more is made.
const WAITING_BYTES_MAX: usize = 1 << 20;

/// The follow of a connection.
#[derive(Debug)]
pub(super) struct PlainFollow {
    ticket: Ticket,
    envelope: Envelope,
    followed: Arc<Followed>,
    from: FollowFrom,
    /// Its position once `changes` are sent.
    at: Option<Position>,
    changes: VecDeque<(Arc<[u8]>, Entry)>,
    /// Bytes of the first change's file that were sent.
    offset: u64,
    /// A `full` is to be sent.
    full_pending: bool,
    /// A `live` is to be sent when `changes` are.
    live_pending: bool,
    is_live: bool,
    has_changes: bool,
    /// The credit of its client.
    credit: Credit,
    /// A job is running: its credit, if it reads a piece.
    running: Option<u64>,
}

impl PlainFollow {
    pub(super) fn new<F>(
        ticket: Ticket,
        envelope: Envelope,
        request: Request,
        credit: Credit,
        shared: &mut Shared<F>,
    ) -> PlainFollow {
        let target = ListTarget::Path(request.path.to_vec().into());
        let mut follow = PlainFollow {
            ticket,
            envelope,
            followed: Arc::new(Followed::new(target, shared.permissions.clone())),
            from: request.from,
            at: None,
            changes: VecDeque::new(),
            offset: 0,
            full_pending: false,
            live_pending: false,
            is_live: false,
            has_changes: true,
            credit,
            running: None,
        };
        follow.progress(shared);
        follow
    }

    pub(super) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Up to which number everything has been sent, if it has begun.
    pub(super) fn sent(&self) -> Option<u64> {
        // What is held isn't sent yet.
        let held = self.changes.front().map(|(_, entry)| entry.seq.saturating_sub(1));
        held.or_else(|| self.at.map(|at| at.cursor().seq))
    }

    pub(super) fn stats(&self) -> FollowStats {
        let is_live = self.is_live && self.changes.is_empty() && !self.live_pending && !self.has_changes;
        FollowStats { seq: self.sent(), is_live, ..self.followed.stats(self.at) }
    }

    /// Notes that something was published.
    pub(super) fn published<F>(&mut self, shared: &mut Shared<F>) {
        self.has_changes = true;
        self.progress(shared);
    }

    /// Queues a page of changes: false if the follow is over.
    pub(super) fn on_changes<F>(&mut self, result: Result<ChangesAnswer, Failure>, shared: &mut Shared<F>) -> bool {
        self.ended_job(shared);
        match result {
            Ok(ChangesAnswer { began, page, at, .. }) => {
                self.at = at;
                if let Some(began) = began {
                    self.full_pending = is_full(&began);
                    self.is_live = false;
                }
                if let Some(page) = page {
                    (self.live_pending, self.is_live) = (page.live, page.live);
                    self.has_changes |= !page.live;
                    if let ChangesBody::Entries(entries) = page.body {
                        self.changes = entries.into();
                    }
                }
                self.progress(shared);
                true
            }
            Err(failure) => {
                let frames = self.envelope.iter().cloned().chain(error_frames(&failure.message)).collect();
                shared.reply_frames(frames);
                let (what, path) = (RequestKind::Follow, self.followed.path());
                shared.actions.push_back(Action::Log(LogEvent::Refused { what, count: 1, path, failure }));
                false
            }
        }
    }

    /// Takes a piece of the first change's file.
    pub(super) fn read<F>(&mut self, result: Result<Bytes, Failure>, shared: &mut Shared<F>) {
        let credit = self.ended_job(shared);
        let Some((path, entry)) = self.changes.front().cloned() else { return };
        let Content::File { size, .. } = entry.content else { return };
        match result {
            Ok(piece) => {
                let length = piece.len() as u64;
                self.send(b"file", &path, entry.seq, [size, self.offset], piece, shared);
                self.offset += length;
                if self.offset >= size {
                    self.next_change();
                }
            }
            Err(failure) => {
                self.credit.add(credit.saturating_sub(PIECE_COST_MIN));
                self.send(b"void", &path, entry.seq, [0, 0], failure.message.into(), shared);
                self.next_change();
            }
        }
        self.progress(shared);
    }

    fn ended_job<F>(&mut self, shared: &mut Shared<F>) -> u64 {
        // It holds no root meanwhile.
        shared.actions.push_back(Action::Release { ticket: self.ticket, take_back: false });
        self.running.take().unwrap_or(0)
    }

    fn next_change(&mut self) {
        self.changes.pop_front();
        self.offset = 0;
    }

    /// Sends what can be sent, and starts what is needed for the rest.
    pub(super) fn progress<F>(&mut self, shared: &mut Shared<F>) {
        while self.running.is_none() && shared.reply_bytes < WAITING_BYTES_MAX {
            let credit = self.credit.available();
            if self.changes.is_empty() && !self.full_pending && !self.live_pending {
                if self.has_changes {
                    self.start_page(shared);
                }
                return;
            }
            if credit < PIECE_COST_MIN {
                return;
            }
            if std::mem::take(&mut self.full_pending) {
                self.credit.take(PIECE_COST_MIN);
                self.send(b"full", b"", 0, [0, 0], Bytes::new(), shared);
                continue;
            }
            let Some((path, entry)) = self.changes.front().cloned() else {
                self.live_pending = false;
                self.credit.take(PIECE_COST_MIN);
                let seq = self.at.map_or(0, |at| self.followed.cursor(at).seq);
                self.send(b"live", b"", seq, [0, 0], Bytes::new(), shared);
                continue;
            };
            let (kind, body): (&[u8], _) = match &entry.content {
                Content::File { size, .. } => {
                    let length = (size - self.offset).min(PLAIN_FRAME_BYTES).min(credit);
                    let cost = length.max(PIECE_COST_MIN);
                    self.credit.take(cost);
                    self.running = Some(cost);
                    let (offset, length) = (self.offset, usize::try_from(length).unwrap_or(0));
                    return shared.start(self.ticket, Job::Piece(ReadPiece { path, entry, offset, length }));
                }
                Content::Dir { .. } => (b"dir", Bytes::new()),
                Content::Link { target, .. } => (b"link", Bytes::copy_from_slice(target)),
                Content::Gone => (b"gone", Bytes::new()),
            };
            self.credit.take((body.len() as u64).max(PIECE_COST_MIN).min(credit));
            self.send(kind, &path, entry.seq, [0, 0], body, shared);
            self.next_change();
        }
    }

    fn start_page<F>(&mut self, shared: &mut Shared<F>) {
        self.has_changes = false;
        self.running = Some(0);
        let PlainFollow { at, from, is_live, .. } = *self;
        let (followed, form) = (Arc::clone(&self.followed), PageForm::Entries(CHANGES_MAX));
        shared.start(self.ticket, Job::Changes(Changes { followed, at, from, is_live, unread_sent: 0, form }));
    }

    fn send<F>(
        &self,
        kind: &'static [u8],
        path: &[u8],
        seq: u64,
        [size, offset]: [u64; 2],
        body: Bytes,
        shared: &mut Shared<F>,
    ) {
        let Some(at) = self.at else { return };
        let cursor = Cursor { seq, ..self.followed.cursor(at) };
        let frames = follow_frames(kind, path, cursor, size, offset, body);
        shared.reply_frames(self.envelope.iter().cloned().chain(frames).collect());
    }
}
