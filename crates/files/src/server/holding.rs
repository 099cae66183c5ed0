//! Holders: reports of clients, and their questions.

use super::follow::salted;
use super::watch::SharedCatalogue;
use crate::catalogue::{Catalogue, Content};
use crate::limits::HOLDERS_PAGE_MAX;
use crate::protocol::ErrorCode;
use crate::protocol::control::{ErrorReply, Holder, HoldersReply, HoldersRequest, HoldersWanted, Reply};
use crate::protocol::manifest::VERSIONS;
use crate::relay::{HolderStats, Holders, Reporter};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use towpath_rules::{Permissions, Verb};

/// Notes what holders say. Who has what nobody can have yet counts as having nothing. Returns what the speaker says of itself, which is the first.
pub(super) fn note(
    address: &str,
    reporter: Reporter<'_>,
    (said, salt): (Vec<Holder>, u128),
    published: Option<&SharedCatalogue>,
    holders: &Mutex<Holders>,
) -> Option<HolderStats> {
    let published = published?;
    let (mut impossible, now) = (0, Instant::now());
    let mut holders = holders.lock().unwrap_or_else(PoisonError::into_inner);
    let own = said.first().map(|own| (own.name.clone(), own.copy));
    for (index, mut holder) in said.into_iter().enumerate() {
        // Cursors are good only with the same permissions.
        let cursor = holder.cursor.map(|cursor| salted(cursor, salt));
        holder.cursor = cursor.filter(|cursor| published.read().may_have(*cursor));
        if cursor.is_some() && holder.cursor.is_none() {
            impossible += 1;
            holder.version = None;
        }
        let via = own.as_ref().map(|(name, _)| name).filter(|_| index > 0);
        holders.note(Reporter { via, ..reporter }, holder, now);
    }
    if impossible > 0 {
        tracing::debug!(%address, holders = impossible, "they say that they have what isn't published");
    }
    let (name, copy) = own?;
    holders.get(&name, copy, reporter.tenant, now)
}

/// The holders of a change or a version, if the client may read or follow it: names and numbers reveal something too.
pub(super) fn answer(
    request: &HoldersRequest,
    asker: &Permissions,
    published: Option<&SharedCatalogue>,
    holders: &Mutex<Holders>,
) -> Reply {
    let epoch = published.map(|published| published.read().epoch());
    if !published.is_some_and(|published| may_know(request.wanted, asker, &published.read())) {
        return Reply::Holders(HoldersReply { id: request.id, holding: 0, total: 0, holders: Vec::new() });
    }
    let holders = holders.lock().unwrap_or_else(PoisonError::into_inner);
    let mut reply = holders.answer(request, epoch, HOLDERS_PAGE_MAX, Instant::now());
    if !asker.is_unrestricted() {
        for known in &mut reply.holders {
            let seq = if let HoldersWanted::Seq(seq) = request.wanted { seq } else { 0 };
            if let Some(cursor) = &mut known.holder.cursor {
                cursor.seq = cursor.seq.min(seq);
            }
        }
    }
    Reply::Holders(reply)
}

/// Whether a client may know the holders of a change or a version.
fn may_know(wanted: HoldersWanted, asker: &Permissions, catalogue: &Catalogue) -> bool {
    let may = |path: &[u8]| [Verb::Read, Verb::Follow, Verb::Publish].into_iter().any(|verb| asker.may(verb, path));
    match wanted {
        _ if asker.is_unrestricted() => true,
        HoldersWanted::Seq(seq) => catalogue.path_of(seq).is_some_and(|path| may(path)),
        HoldersWanted::Version(version) => catalogue.below(VERSIONS.as_bytes()).any(|(path, entry)| {
            matches!(entry.content, Content::File { digest, .. } if digest == version) && may(path)
        }),
    }
}

/// The answer to a client that doesn't read its answers.
pub(super) fn busy(id: u32) -> Reply {
    Reply::Error(ErrorReply { id: Some(id), code: ErrorCode::Busy, message: "too many answers wait".to_owned() })
}
