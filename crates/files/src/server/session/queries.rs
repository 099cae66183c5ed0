//! Listings, and operations with one answer: what is answered by control messages.

use super::shared::Shared;
use super::{Action, Envelope, Ticket};
use crate::protocol::ErrorCode;
use crate::protocol::control::{ListRequest, ListTarget, WirePath};
use crate::protocol::envelope::client_of;
use crate::server::Failure;
use crate::server::jobs::{Job, List, Page};
use crate::server::limits::{PAGE_BYTES_EXPECTED, PAGES_AHEAD_MAX, REPLIES_WAITING_MAX, REPLY_BYTES_WAITING_MAX};
use crate::server::operations::{Answered, Operation};
use crate::server::stats::RequestKind;
use std::collections::VecDeque;

/// Open listings and operations of a client.
#[derive(Debug, Default)]
pub(super) struct Queries {
    open: Vec<Query>,
    /// Listings whose next page was requested and is not being made, in the order of their turns.
    pages_wanted: VecDeque<Ticket>,
}

#[derive(Debug)]
struct Query {
    id: u32,
    ticket: Ticket,
    envelope: Envelope,
    what: RequestKind,
    /// The path that it is about, for the operator.
    path: WirePath,
    /// For a listing.
    pages: Option<Pages>,
}

/// Requested pages of a listing.
#[derive(Debug)]
struct Pages {
    /// Pages requested and not made.
    asked: u32,
    is_making: bool,
    /// The request, until the listing is begun.
    request: Option<ListRequest>,
}

impl Query {
    fn refuse<F>(&self, failure: Failure, shared: &mut Shared<F>) {
        shared.refuse(&self.envelope, (self.what, self.id), self.path.clone(), failure);
    }
}

impl Queries {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = (u32, Ticket, &Envelope)> {
        self.open.iter().map(|query| (query.id, query.ticket, &query.envelope))
    }

    pub(super) fn list<F>(&mut self, ticket: Ticket, envelope: Envelope, request: ListRequest, shared: &mut Shared<F>) {
        let id = request.id;
        let path = match &request.target {
            ListTarget::Path(path) => path.clone(),
            ListTarget::Glob { glob } => glob.clone().into_bytes().into(),
        };
        let pages = Pages { asked: 1, is_making: false, request: Some(request) };
        self.open.push(Query { id, ticket, envelope, what: RequestKind::List, path, pages: Some(pages) });
        self.pages_wanted.push_back(ticket);
        self.make_pages(shared);
    }

    /// Starts an operation.
    pub(super) fn start<F>(
        &mut self,
        ticket: Ticket,
        envelope: Envelope,
        operation: Box<dyn Operation>,
        shared: &mut Shared<F>,
    ) {
        let (id, what, path) = (operation.id(), operation.kind(), operation.path().clone());
        self.open.push(Query { id, ticket, envelope, what, path, pages: None });
        shared.start(ticket, Job::Operation(operation));
    }

    /// Takes the answer of an operation.
    pub(super) fn answered<F>(&mut self, ticket: Ticket, result: Result<Answered, Failure>, shared: &mut Shared<F>) {
        let Some(at) = self.open.iter().position(|query| query.ticket == ticket) else { return };
        let query = self.open.swap_remove(at);
        match result {
            Ok(answered) => {
                let (json, attachment) = answered.into_frames();
                shared.reply_json(&query.envelope, json, attachment);
            }
            Err(failure) => query.refuse(failure, shared),
        }
        shared.actions.push_back(Action::Release { ticket, take_back: false });
    }

    /// Requests another page of a listing.
    pub(super) fn more<F>(&mut self, envelope: &Envelope, id: u32, shared: &mut Shared<F>) {
        let of_client = |query: &&mut Query| client_of(&query.envelope) == client_of(envelope);
        let listing = self.open.iter_mut().filter(|query| query.id == id).find(of_client);
        let Some((ticket, pages)) = listing.and_then(|query| Some((query.ticket, query.pages.as_mut()?))) else {
            let message = "no listing of this id has more";
            return shared.error(envelope, Some(id), Failure::new(ErrorCode::BadRequest, message));
        };
        // Further ones are ignored: the next page answers them too.
        if pages.asked <= PAGES_AHEAD_MAX {
            pages.asked += 1;
            if pages.asked == 1 {
                self.pages_wanted.push_back(ticket);
                self.make_pages(shared);
            }
        }
    }

    pub(super) fn cancel<F>(&mut self, ticket: Ticket, shared: &mut Shared<F>) {
        self.open.retain(|query| query.ticket != ticket);
        self.pages_wanted.retain(|of| *of != ticket);
        self.make_pages(shared);
    }

    pub(super) fn listed<F>(&mut self, ticket: Ticket, result: Result<Page, Failure>, shared: &mut Shared<F>) {
        let Some(at) = self.open.iter().position(|query| query.ticket == ticket) else { return };
        let Some(query) = self.open.get_mut(at) else { return };
        match result {
            Ok(page) => {
                shared.reply_json(&query.envelope, page.json, None);
                if page.more
                    && let Some(pages) = &mut query.pages
                {
                    pages.is_making = false;
                    pages.asked = pages.asked.saturating_sub(1);
                    if pages.asked > 0 {
                        self.pages_wanted.push_back(ticket);
                    }
                    return self.make_pages(shared);
                }
            }
            Err(failure) => query.refuse(failure, shared),
        }
        self.open.swap_remove(at);
        shared.actions.push_back(Action::Release { ticket, take_back: false });
        self.make_pages(shared);
    }

    /// Starts requested pages while few are being made and few replies wait: a client that doesn't read can't make this hold more.
    pub(super) fn make_pages<F>(&mut self, shared: &mut Shared<F>) {
        if self.pages_wanted.is_empty() {
            return;
        }
        let is_made = |query: &&Query| query.pages.as_ref().is_some_and(|pages| pages.is_making);
        let mut making = self.open.iter().filter(is_made).count();
        while shared.replies.len() + making < REPLIES_WAITING_MAX
            && shared.reply_bytes + making * PAGE_BYTES_EXPECTED < REPLY_BYTES_WAITING_MAX
        {
            let Some(ticket) = self.pages_wanted.pop_front() else { return };
            let query = self.open.iter_mut().find(|query| query.ticket == ticket);
            let Some(pages) = query.and_then(|query| query.pages.as_mut()) else { continue };
            pages.is_making = true;
            making += 1;
            let begin = pages.request.take();
            shared.start(ticket, Job::List(List { begin }));
        }
    }
}
