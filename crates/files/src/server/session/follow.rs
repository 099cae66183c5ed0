//! Follows: pages of changes, each sent on request, once there are any. Unlike other requests they don't end.

use super::shared::Shared;
use super::{Action, Envelope, Ticket};
use crate::catalogue::Position;
use crate::limits::{CHANGES_PAGE_BYTES_MAX, FOLLOWS_MAX};
use crate::protocol::ErrorCode;
use crate::protocol::control::{FollowRequest, Reply};
use crate::protocol::envelope::client_of;
use crate::protocol::follow::FollowFrom;
use crate::server::Failure;
use crate::server::follow::Followed;
use crate::server::jobs::{Changes, ChangesAnswer, ChangesBody, Job, PageForm};
use crate::server::limits::{PAGES_AHEAD_MAX, REPLIES_WAITING_MAX, REPLY_BYTES_WAITING_MAX};
use crate::server::stats::{FollowStats, RequestKind};
use std::sync::Arc;

/// The follows of a client.
#[derive(Debug, Default)]
pub(super) struct Follows(Vec<Follow>);

#[derive(Debug)]
struct Follow {
    id: u32,
    ticket: Ticket,
    envelope: Envelope,
    followed: Arc<Followed>,
    from: FollowFrom,
    at: Option<Position>,
    /// The number of the last page.
    page_seq: u64,
    /// Pages that may be sent.
    asked: u32,
    is_making: bool,
    /// Whether something was published since the last page was begun.
    has_changes: bool,
    /// The last page said that the client is up to date.
    is_live: bool,
    /// Number of the list of unreadable paths that it was sent last.
    unread_sent: u64,
}

impl Follows {
    pub(super) fn requests(&self) -> impl Iterator<Item = (u32, Ticket, &Envelope)> {
        self.0.iter().map(|follow| (follow.id, follow.ticket, &follow.envelope))
    }

    /// Up to which number each has been sent everything, and the number of its last page.
    pub(super) fn sent(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|follow| (follow.at.map_or(0, |at| at.cursor().seq), follow.page_seq))
    }

    pub(super) fn stats(&self) -> impl Iterator<Item = FollowStats> {
        self.0.iter().map(|follow| FollowStats {
            id: Some(follow.id),
            page_seq: follow.page_seq,
            is_live: follow.is_live && !follow.has_changes,
            ..follow.followed.stats(follow.at)
        })
    }

    /// Whether another one may begin.
    pub(super) fn has_space(&self) -> bool {
        self.0.len() < FOLLOWS_MAX
    }

    pub(super) fn follow<F>(
        &mut self,
        ticket: Ticket,
        envelope: Envelope,
        request: FollowRequest,
        shared: &mut Shared<F>,
    ) {
        self.0.push(Follow {
            id: request.id,
            ticket,
            envelope,
            followed: Arc::new(Followed::new(request.target, shared.permissions.clone())),
            from: request.from,
            at: None,
            page_seq: 0,
            asked: 1,
            is_making: false,
            has_changes: true,
            is_live: false,
            unread_sent: 0,
        });
        self.make_pages(shared);
    }

    /// Asks for another page: whether there is a follow of this id.
    pub(super) fn more<F>(&mut self, envelope: &Envelope, id: u32, shared: &mut Shared<F>) -> bool {
        let of_client = |follow: &&mut Follow| client_of(&follow.envelope) == client_of(envelope);
        let Some(follow) = self.0.iter_mut().filter(|follow| follow.id == id).find(of_client) else { return false };
        // Further ones are ignored: the next page answers them too.
        if follow.asked <= PAGES_AHEAD_MAX {
            follow.asked += 1;
        }
        self.make_pages(shared);
        true
    }

    pub(super) fn cancel(&mut self, ticket: Ticket) {
        self.0.retain(|follow| follow.ticket != ticket);
    }

    /// Notes that something was published.
    pub(super) fn published<F>(&mut self, shared: &mut Shared<F>) {
        self.0.iter_mut().for_each(|follow| follow.has_changes = true);
        self.make_pages(shared);
    }

    /// Sends a page of changes: false if the ticket isn't that of a follow.
    pub(super) fn on_changes<F>(
        &mut self,
        ticket: Ticket,
        result: Result<ChangesAnswer, Failure>,
        shared: &mut Shared<F>,
    ) {
        let Some(at) = self.0.iter().position(|follow| follow.ticket == ticket) else { return };
        let Some(follow) = self.0.get_mut(at) else { return };
        follow.is_making = false;
        // It holds no root meanwhile.
        shared.actions.push_back(Action::Release { ticket, take_back: false });
        match result {
            Ok(ChangesAnswer { began, page, at, unread_sent }) => {
                (follow.at, follow.unread_sent) = (at, unread_sent);
                if let Some(began) = began {
                    shared.reply(&follow.envelope, &Reply::Following(began));
                    follow.is_live = false;
                }
                if let Some(page) = page {
                    follow.asked = follow.asked.saturating_sub(1);
                    follow.is_live = page.live;
                    follow.page_seq = at.map_or(0, |at| at.cursor().seq);
                    // There may be more.
                    follow.has_changes |= !page.live;
                    if let ChangesBody::Json(json) = page.body {
                        shared.reply_json(&follow.envelope, json, None);
                    }
                }
            }
            Err(failure) => {
                let what = (RequestKind::Follow, follow.id);
                shared.refuse(&follow.envelope, what, follow.followed.path(), failure);
                self.0.swap_remove(at);
            }
        }
        self.make_pages(shared);
    }

    /// Starts pages that were asked for where there may be changes, while few replies wait: a client that doesn't read can't make
    /// this hold more.
    pub(super) fn make_pages<F>(&mut self, shared: &mut Shared<F>) {
        let mut making = self.0.iter().filter(|follow| follow.is_making).count();
        for follow in &mut self.0 {
            if shared.replies.len() + making >= REPLIES_WAITING_MAX
                || shared.reply_bytes + making * CHANGES_PAGE_BYTES_MAX >= REPLY_BYTES_WAITING_MAX
            {
                return;
            }
            if follow.asked == 0 || follow.is_making || !follow.has_changes {
                continue;
            }
            (follow.is_making, follow.has_changes) = (true, false);
            making += 1;
            let Follow { at, from, is_live, unread_sent, .. } = *follow;
            let (followed, form) = (Arc::clone(&follow.followed), PageForm::Json(follow.id));
            shared.start(follow.ticket, Job::Changes(Changes { followed, at, from, is_live, unread_sent, form }));
        }
    }

    /// The error for a follow too many.
    pub(super) fn too_many() -> Failure {
        Failure::new(ErrorCode::Busy, format!("more than {FOLLOWS_MAX} follows"))
    }
}
