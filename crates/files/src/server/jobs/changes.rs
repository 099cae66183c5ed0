//! Pages of changes, for those who follow.

use super::pool::{Pool, Requester};
use super::{Answer, RequestState};
use crate::catalogue::{Entry, Owed, PageLimits, Position};
use crate::limits::{CHANGES_PAGE_BYTES_MAX, CHANGES_PAGE_ENTRIES_MAX};
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::protocol::control::{Change, ChangesReply, FollowState, FollowingReply, Reply};
use crate::protocol::follow::{Cursor, FollowFrom};
use crate::server::Failure;
use crate::server::client_root::ClientRoot;
use crate::server::follow::Followed;
use bytes::Bytes;
use std::sync::Arc;

/// Entries that are looked at before others may have the catalogue.
const EXAMINED_MAX: usize = 4096;
/// What a page has beside its changes, in bytes.
const PAGE_EXTRA_BYTES: usize = 256;

/// Changes of a page: few in tests, so that a state has several pages.
const PAGE_ENTRIES: usize = if cfg!(test) { 5 } else { CHANGES_PAGE_ENTRIES_MAX };

/// Makes the next page of a follow, if there is anything to tell.
#[derive(Debug)]
pub(crate) struct Changes {
    pub(crate) followed: Arc<Followed>,
    /// Where it is; `None` before it has begun.
    pub(crate) at: Option<Position>,
    pub(crate) from: FollowFrom,
    /// It has been told that it is up to date, and nothing since.
    pub(crate) is_live: bool,
    pub(crate) form: PageForm,
}

/// How a page is wanted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum PageForm {
    /// As JSON, for the follow of this id.
    Json(u32),
    /// At most so many entries.
    Entries(usize),
}

/// What there is to tell.
#[derive(Debug)]
pub(crate) struct ChangesTold {
    /// It begins, or begins again.
    pub(crate) began: Option<FollowingReply>,
    pub(crate) page: Option<ChangesPage>,
    /// Where the follow is then.
    pub(crate) at: Option<Position>,
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
                let told = published.ok_or_else(unwatched).and_then(|published| self.tell(published));
                Answer::Changes(told)
            },
        );
    }

    pub(in crate::server) fn tell(self, published: &crate::server::watch::Published) -> Result<ChangesTold, Failure> {
        let followed = &self.followed;
        let filter = followed.filter()?;
        let (id, changes) = match self.form {
            PageForm::Json(id) => (id, PAGE_ENTRIES),
            PageForm::Entries(count) => (0, count),
        };
        let limits = PageLimits { changes, bytes: CHANGES_PAGE_BYTES_MAX - PAGE_EXTRA_BYTES, examined: EXAMINED_MAX };
        let (mut at, mut from, mut began) = (self.at, self.from, None);
        loop {
            let catalogue = published.read();
            // Nobody may take it for a server on which everything is gone.
            if catalogue.is_of_versions() && !filter.is_of_versions() {
                let message = "this relay passes on versions only (tow follow --versions)";
                return Err(Failure::new(ErrorCode::Unsupported, message));
            }
            let Some(position) = at else {
                let Some((position, state)) = catalogue.begin(followed.inner_from(from)) else {
                    return Ok(ChangesTold { began, page: None, at });
                };
                began = Some(FollowingReply { id, state, cursor: followed.cursor(position), head: catalogue.head() });
                at = Some(position);
                continue;
            };
            match catalogue.owed(position, |path| followed.may_tell(path) && filter.wants(path), limits) {
                Owed::Restart => (at, from) = (None, FollowFrom::Beginning),
                Owed::Changes { changes, position, live } => {
                    at = Some(position);
                    // Nobody is told twice that there is nothing, except that it is all there is.
                    let is_news = live && !(self.is_live && began.is_none());
                    if changes.is_empty() && !is_news {
                        if position.cursor().seq < catalogue.head() {
                            continue;
                        }
                        return Ok(ChangesTold { began, page: None, at });
                    }
                    let head = catalogue.head();
                    drop(catalogue);
                    let body = match self.form {
                        PageForm::Entries(_) => ChangesBody::Entries(changes),
                        PageForm::Json(id) => {
                            ChangesBody::Json(encode(id, followed.cursor(position), head, live, changes))
                        }
                    };
                    return Ok(ChangesTold { began, page: Some(ChangesPage { live, body }), at });
                }
            }
        }
    }
}

fn encode(id: u32, cursor: Cursor, head: u64, live: bool, changes: Vec<(Arc<[u8]>, Entry)>) -> Bytes {
    let wire = |(path, entry): (Arc<[u8]>, Entry)| Change {
        seq: entry.seq,
        path: path.to_vec().into(),
        content: entry.content.to_wire(),
    };
    let changes = changes.into_iter().map(wire).collect();
    Reply::Changes(ChangesReply { id, cursor, head, live, changes }).encode().into()
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
                        let root = ClientRoot::new(snapshot.root(&context.root), permissions.clone());
                        let opened = crate::server::open_file::OpenFile::open(&root, &path)?;
                        if !self.entry.is_file(&opened.stat) {
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
}
