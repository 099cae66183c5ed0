//! Pages of changes, for those who follow.

use super::pool::{Context, Pool, Requester};
use super::{Answer, RequestState};
use crate::catalogue::{Catalogue, ChangesSince, Content, Entry, PageLimits, Position};
use crate::digest::HashError;
use crate::limits::{
    CHANGES_PAGE_BYTES_MAX, CHANGES_PAGE_ENTRIES_MAX, CHANGES_PAGE_UNREAD_BYTES_MAX, CHANGES_PAGE_UNREAD_MAX,
};
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::protocol::control::{Change, ChangesReply, FollowState, FollowingReply, Reply, Unread};
use crate::protocol::follow::FollowFrom;
use crate::server::Failure;
use crate::server::client_root::ClientRoot;
use crate::server::follow::Followed;
use crate::server::open_file::OpenFile;
use bytes::Bytes;
use std::sync::Arc;

/// Entries that are looked at before others may have the catalogue.
const EXAMINED_MAX: usize = 4096;
/// Bytes of a page beside its changes.
const PAGE_EXTRA_BYTES: usize = 256;

/// Makes the next page of a follow, if there are any changes.
#[derive(Debug)]
pub(crate) struct Changes {
    pub(crate) followed: Arc<Followed>,
    /// Its position; `None` before it has begun.
    pub(crate) at: Option<Position>,
    pub(crate) from: FollowFrom,
    /// Whether the follower is up to date: it was sent `live`, and nothing since.
    pub(crate) is_live: bool,
    /// Number of the list of unreadable paths that it was sent last.
    pub(crate) unread_sent: u64,
    pub(crate) form: PageForm,
}

/// Form of a page.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum PageForm {
    /// As JSON, for the follow of this id.
    Json(u32),
    /// At most this many entries.
    Entries(usize),
}

/// The next page of a follow, and its new position.
#[derive(Debug)]
pub(crate) struct ChangesAnswer {
    /// Set where the follow begins, or begins again.
    pub(crate) began: Option<FollowingReply>,
    pub(crate) page: Option<ChangesPage>,
    /// The new position of the follow.
    pub(crate) at: Option<Position>,
    pub(crate) unread_sent: u64,
}

/// A page of changes.
#[derive(Debug)]
pub(crate) struct ChangesPage {
    /// The follower is up to date with it.
    pub(crate) live: bool,
    pub(crate) body: ChangesBody,
}

/// The changes of a page.
#[derive(Debug)]
pub(crate) enum ChangesBody {
    Json(Bytes),
    Entries(Vec<(Arc<[u8]>, Entry)>),
}

impl Changes {
    pub(super) fn start(self, pool: &mut Pool, requester: Requester) {
        // Reads memory only, so that no mount can hold it up.
        let (_, group) = pool.group(requester, &Default::default(), None);
        pool.run(
            &pool.list,
            group,
            requester,
            |failure| Answer::Changes(Err(failure)),
            move |context| {
                let published = context.published.as_deref();
                let unwatched = || {
                    let message = "this server doesn't watch its directory (tow serve --watch)";
                    Failure::new(ErrorCode::Unsupported, message)
                };
                let answer = published.ok_or_else(unwatched).and_then(|published| self.make(published));
                Answer::Changes(answer)
            },
        );
    }

    pub(in crate::server) fn make(
        self,
        published: &crate::server::watch::SharedCatalogue,
    ) -> Result<ChangesAnswer, Failure> {
        let followed = &self.followed;
        let filter = followed.filter()?;
        let (id, changes) = match self.form {
            PageForm::Json(id) => (id, entries_max()),
            PageForm::Entries(count) => (0, count),
        };
        let bytes = CHANGES_PAGE_BYTES_MAX - CHANGES_PAGE_UNREAD_BYTES_MAX - PAGE_EXTRA_BYTES;
        let limits = PageLimits { changes, bytes, examined: EXAMINED_MAX };
        let (mut at, mut from, mut began) = (self.at, self.from, None);
        loop {
            let catalogue = published.read();
            // Nobody may take it for a server on which everything is gone.
            if catalogue.is_of_versions() && !filter.is_of_versions() {
                let message = "this relay passes on versions only (tow follow --versions)";
                return Err(Failure::new(ErrorCode::Unsupported, message));
            }
            let Some(position) = at else {
                let Some((position, state)) = followed.begin(from, &catalogue) else {
                    return Ok(ChangesAnswer { began, page: None, at, unread_sent: self.unread_sent });
                };
                let (cursor, head) = (followed.cursor(position), followed.head(position, &catalogue));
                began = Some(FollowingReply { id, state, cursor, head, server: catalogue.server });
                at = Some(position);
                continue;
            };
            match catalogue.changes_since(position, |path| followed.may_see(path) && filter.wants(path), limits) {
                ChangesSince::Restart => (at, from) = (None, FollowFrom::Beginning),
                ChangesSince::Changes { changes, position, live } => {
                    at = Some(position);
                    // An empty page is only sent to say that the follower is up to date, once. The plain dialect can't say more.
                    let has_unread = self.unread_sent != catalogue.unread_changes();
                    let has_unread = has_unread && matches!(self.form, PageForm::Json(_));
                    let is_new = live && (has_unread || !self.is_live || began.is_some());
                    if changes.is_empty() && !is_new {
                        if position.cursor().seq < catalogue.head() {
                            continue;
                        }
                        return Ok(ChangesAnswer { began, page: None, at, unread_sent: self.unread_sent });
                    }
                    let head = followed.head(position, &catalogue);
                    let may_see = |path: &[u8]| followed.may_see(path) && filter.wants(path);
                    let (unread, unread_more) = if live { unread(&catalogue, may_see) } else { (Vec::new(), 0) };
                    let unread_sent = if live { catalogue.unread_changes() } else { self.unread_sent };
                    drop(catalogue);
                    let body = match self.form {
                        PageForm::Entries(_) => ChangesBody::Entries(changes),
                        PageForm::Json(id) => {
                            let changes = changes.into_iter().map(wire).collect();
                            let cursor = followed.cursor(position);
                            let page = ChangesReply { id, cursor, head, live, changes, unread, unread_more };
                            ChangesBody::Json(Reply::Changes(page).encode().into())
                        }
                    };
                    return Ok(ChangesAnswer { began, page: Some(ChangesPage { live, body }), at, unread_sent });
                }
            }
        }
    }
}

fn wire((path, entry): (Arc<[u8]>, Entry)) -> Change {
    Change { seq: entry.seq, path: path.to_vec().into(), content: entry.content.to_wire() }
}

/// Unreadable paths that a follower may see, and how many more there are.
fn unread(catalogue: &Catalogue, may_see: impl Fn(&[u8]) -> bool) -> (Vec<Unread>, u64) {
    let (all, mut more) = catalogue.unread();
    let (mut listed, mut bytes) = (Vec::new(), 0);
    for (path, dir) in all.iter().filter(|(path, _)| may_see(path.as_bytes())) {
        bytes += Content::Gone.cost(path.as_bytes());
        if listed.len() < CHANGES_PAGE_UNREAD_MAX && bytes <= CHANGES_PAGE_UNREAD_BYTES_MAX {
            listed.push(Unread { path: path.into(), dir: *dir });
        } else {
            more += 1;
        }
    }
    (listed, more)
}

/// Whether a full state begins with it.
pub(crate) fn is_full(began: &FollowingReply) -> bool {
    began.state == FollowState::Full
}

/// Reads a piece of a published file, if it still is what was published.
#[derive(Debug)]
pub(crate) struct ReadPiece {
    pub(crate) path: Arc<[u8]>,
    pub(crate) entry: Entry,
    pub(crate) offset: u64,
    pub(crate) length: usize,
}

impl ReadPiece {
    pub(super) fn start(self, pool: &mut Pool, requester: Requester, request: &Arc<RequestState>) {
        let permissions = request.permissions.clone();
        let path = RelPath::new(self.path.to_vec());
        // A root that was replaced isn't held on to.
        let snapshot = crate::server::snapshot::RootSnapshot::default();
        let (_, group) = pool.group(requester, &snapshot, path.as_ref().ok());
        pool.run(
            &pool.files,
            group,
            requester,
            |failure| Answer::Piece(Err(failure)),
            move |context| {
                let piece =
                    path.map_err(|error| Failure::new(ErrorCode::NotFound, error.to_string())).and_then(|path| {
                        let root = ClientRoot::new(snapshot.root(&context.served), permissions.clone());
                        let opened = OpenFile::open(&root, &path)?;
                        if !self.is_content(context, &path, &opened)? {
                            return Err(Failure::changed("the file changed"));
                        }
                        let piece = opened.read(self.offset, self.length)?;
                        opened.check()?;
                        Ok(piece.into())
                    });
                Answer::Piece(piece)
            },
        );
    }

    /// Whether a file still has the content that is published.
    fn is_content(&self, context: &Context, path: &RelPath, opened: &OpenFile) -> Result<bool, Failure> {
        // Only what is on this machine is published.
        let Some(stat) = &opened.attributes.local else { return Ok(false) };
        if self.entry.is_file(stat) {
            return Ok(true);
        }
        if let Some(published) = &context.published {
            published.found(path, stat);
        }
        let Content::File { digest, .. } = self.entry.content else { return Ok(false) };
        if !self.entry.may_be_file(stat) {
            return Ok(false);
        }
        let mut progress = None;
        loop {
            match context.hasher.slice(opened, stat, &mut progress, || false) {
                Ok(Some(digested)) => return Ok(digested.digest == digest),
                Ok(None) => {}
                Err(HashError::Io(error)) => return Err(Failure::io(&error)),
                Err(_) => return Ok(false),
            }
        }
    }
}

#[cfg(not(test))]
const fn entries_max() -> usize {
    CHANGES_PAGE_ENTRIES_MAX
}

#[cfg(test)]
fn entries_max() -> usize {
    PAGE_ENTRIES.get()
}

#[cfg(test)]
std::thread_local! {
    /// Entries of a page: a simulation has few.
    pub(crate) static PAGE_ENTRIES: std::cell::Cell<usize> = const { std::cell::Cell::new(CHANGES_PAGE_ENTRIES_MAX) };
}
