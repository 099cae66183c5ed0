//! Who has what: what clients say of it, and what they ask.

use super::follow::salted;
use super::watch::Published;
use crate::limits::HOLDERS_PAGE_MAX;
use crate::protocol::ErrorCode;
use crate::protocol::control::{ErrorReply, Holder, HoldersRequest, Reply};
use crate::relay::Holders;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Notes what holders have. What nobody can have yet is left out.
pub(super) fn note(
    address: &str,
    tenant: u64,
    user: Option<&Arc<str>>,
    (said, salt): (Vec<Holder>, u128),
    published: Option<Arc<Published>>,
    holders: &Mutex<Holders>,
) {
    let Some(published) = published else { return };
    let mut left_out = 0;
    let mut holders = holders.lock().unwrap_or_else(PoisonError::into_inner);
    for mut holder in said {
        // Cursors are good only with the same permissions.
        holder.cursor = salted(holder.cursor, salt);
        if published.read().may_have(holder.cursor) {
            holders.note(tenant, user, holder, Instant::now());
        } else {
            left_out += 1;
        }
    }
    if left_out > 0 {
        tracing::debug!(%address, holders = left_out, "left out: they have what isn't published");
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
