//! Who has what: what clients say of it, and what they ask.

use super::follow::salted;
use super::watch::Published;
use crate::limits::HOLDERS_PAGE_MAX;
use crate::protocol::ErrorCode;
use crate::protocol::control::{ErrorReply, Holder, HoldersRequest, Reply};
use crate::relay::{HolderStats, Holders, Speaker};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Notes what holders have. What nobody can have yet is left out. Returns what the speaker has itself, which is the first.
pub(super) fn note(
    address: &str,
    speaker: Speaker<'_>,
    (said, salt): (Vec<Holder>, u128),
    published: Option<&Published>,
    holders: &Mutex<Holders>,
) -> Option<HolderStats> {
    let published = published?;
    let (mut left_out, now) = (0, Instant::now());
    let mut holders = holders.lock().unwrap_or_else(PoisonError::into_inner);
    let via = said.first().map(|own| own.name.clone());
    let mut own = None;
    for (index, mut holder) in said.into_iter().enumerate() {
        // Cursors are good only with the same permissions.
        holder.cursor = salted(holder.cursor, salt);
        if !published.read().may_have(holder.cursor) {
            left_out += 1;
            continue;
        }
        let via = via.as_ref().filter(|_| index > 0);
        if via.is_none() {
            own = Some(stats(&holder, speaker.user, now));
        }
        holders.note(Speaker { via, ..speaker }, holder, now);
    }
    if left_out > 0 {
        tracing::debug!(%address, holders = left_out, "left out: they have what isn't published");
    }
    own
}

fn stats(holder: &Holder, user: Option<&Arc<str>>, said_at: Instant) -> HolderStats {
    HolderStats {
        name: holder.name.as_str().to_owned(),
        copy: holder.copy,
        user: user.map(|user| user.to_string()),
        via: None,
        seq: holder.cursor.seq,
        durable: holder.durable,
        version: holder.version,
        said_at,
    }
}

/// Who has what was asked for.
pub(super) fn answer(request: &HoldersRequest, published: Option<&Published>, holders: &Mutex<Holders>) -> Reply {
    let epoch = published.map(|published| published.read().epoch());
    let holders = holders.lock().unwrap_or_else(PoisonError::into_inner);
    Reply::Holders(holders.answer(request, epoch, HOLDERS_PAGE_MAX, Instant::now()))
}

/// The answer to somebody who doesn't read its answers.
pub(super) fn busy(id: u32) -> Reply {
    Reply::Error(ErrorReply { id: Some(id), code: ErrorCode::Busy, message: "too many answers wait".to_owned() })
}
