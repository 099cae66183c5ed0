//! Control messages: `TOW1`, a JSON object, attachments ("Control messages").
//!
//! Requests have `op`, replies have `re`. Unknown members are ignored; an unknown `op` is an error `unsupported`, an unknown
//! `re` is [`Reply::Unknown`]: that is how the protocol grows.

mod bounded;
mod changes;
mod confirm;
mod entry;
mod fields;
mod head;
mod holders;
mod page;
mod publish;
mod push;
mod reply;
mod request;

pub use changes::{Change, ChangeContent, ChangesReply, FollowRequest, FollowState, FollowingReply, Unread};
pub use confirm::{Confirm, ConfirmedFile};
pub use entry::{EntryKind, ListEntry};
pub use fields::{FollowLinks, LinkTarget, WirePath};
pub use holders::{
    ErrorText, FetchesFor, Have, Holder, HolderError, HolderName, HoldersReply, HoldersRequest, HoldersWanted,
    KnownHolder, Lacks, Left, VersionsOf,
};
pub use page::PageWriter;
pub use publish::{PublishRequest, PublishedReply};
pub use push::{Expected, PushCredit, PushReply, PushRequest, PushedReply};
pub use reply::{
    Base, Cancelled, DigestReply, DirStat, ErrorReply, FileAnswer, FileMetadata, FilesReply, HelloReply, LeavesReply,
    ListPage, Reply, SlowReply, TcpBuffer, VoidReply,
};
pub use request::{
    Compression, DigestWish, FetchFile, FetchRequest, LeavesRequest, ListRequest, ListTarget, Range, Request, Slow,
    Unless,
};

use bytes::Bytes;

use super::{CONTROL_TAG, WireError};
use crate::limits::CONTROL_BYTES_MAX;

/// Id of the request that a server's message belongs to, if it can be read.
pub fn request_id(json: &[u8]) -> Option<u32> {
    check_size(json).ok()?;
    head::Head::read(json, "re").ok()?.id
}

/// A JSON object as the two frames of a control message.
fn frames(json: Vec<u8>) -> [Bytes; 2] {
    [Bytes::from_static(CONTROL_TAG), json.into()]
}

/// Rejects JSON over its limit before parsing.
fn check_size(json: &[u8]) -> Result<(), WireError> {
    if json.len() > CONTROL_BYTES_MAX {
        return Err(WireError::bad(format!("control message is over {CONTROL_BYTES_MAX} bytes")));
    }
    Ok(())
}

/// The error of a parser, with the position, which helps to debug a client.
fn parse_error(error: &serde_json::Error) -> WireError {
    WireError::bad(error.to_string())
}
