//! The versions that a server has published.

use super::super::assembler::Inbound;
use super::super::connection::{ConnectOptions, Connection, ConnectionEvent};
use super::super::get::GetError;
use super::super::transfer::{Source, TransferError};
use super::exclude::Excludes;
use super::pages::{FOLLOW_ID, Pages};
use crate::digest::Digest;
use crate::limits::VERSIONS_MAX;
use crate::path::RelPath;
use crate::protocol::control::{ChangeContent, ErrorReply, Reply, Request, request_id};
use crate::protocol::follow::Cursor;
use crate::protocol::manifest::{MANIFEST, VERSIONS, is_label};
use crate::root::Timestamp;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use towpath_blocking::CancelToken;

/// A version as its server tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// What it is called.
    pub label: String,
    /// Digest of its manifest.
    pub digest: Digest,
    /// Its number.
    pub seq: u64,
    /// When it was published.
    pub published: Timestamp,
    /// Bytes of its manifest.
    pub manifest_bytes: u64,
}

/// What is known of the versions.
#[derive(Debug)]
pub(super) struct VersionList {
    pages: Pages,
    known: BTreeMap<RelPath, Version>,
    pub(super) cursor: Option<Cursor>,
}

impl VersionList {
    pub(super) fn new() -> Result<VersionList, TransferError> {
        let source = RelPath::new(VERSIONS).map_err(|error| TransferError::unmet(error.to_string()))?;
        let pages = Pages::new(Source::Path(source), Excludes::default(), None);
        Ok(VersionList { pages, known: BTreeMap::new(), cursor: None })
    }

    /// The connection is lost.
    pub(super) fn lost(&mut self) {
        self.pages.lost();
    }

    /// What is to be sent.
    pub(super) fn next_request(&mut self) -> Option<Request> {
        self.pages.next_request()
    }

    /// Takes an answer to the follow: whether all versions are known.
    pub(super) fn reply(&mut self, json: &[u8]) -> Result<bool, TransferError> {
        match Reply::decode(json)? {
            Reply::Following(following) => {
                if self.pages.following(&following)? {
                    self.known.clear();
                }
                Ok(false)
            }
            Reply::Changes(page) => {
                let page = self.pages.page(page)?;
                for placed in page.changes {
                    match label(&placed.local).zip(Some(placed.change.content)) {
                        Some((label, ChangeContent::File { size, mtime, digest, .. })) => {
                            let seq = placed.change.seq;
                            let version = Version { label, digest, seq, published: mtime, manifest_bytes: size };
                            self.known.insert(placed.local, version);
                        }
                        Some(_) => _ = self.known.remove(&placed.local),
                        None => {}
                    }
                    if self.known.len() > VERSIONS_MAX {
                        return TransferError::protocol("more versions than a server may have");
                    }
                }
                if page.live {
                    self.pages.seen = None;
                }
                self.cursor = Some(page.cursor);
                Ok(page.live)
            }
            Reply::Error(ErrorReply { code, message, .. }) => Err(TransferError::Refused { code, message }),
            _ => Ok(false),
        }
    }

    /// The versions, oldest first.
    pub(super) fn versions(&self) -> Vec<Version> {
        let mut versions: Vec<_> = self.known.values().cloned().collect();
        versions.sort_by_key(|version| version.seq);
        versions
    }

    pub(super) fn newest(&self) -> Option<&Version> {
        self.known.values().max_by_key(|version| version.seq)
    }
}

/// The label of the version whose manifest this is.
fn label(path: &RelPath) -> Option<String> {
    let (above, name) = path.split()?;
    let label = std::str::from_utf8(above.as_bytes()).ok()?;
    (name == MANIFEST.as_bytes() && is_label(label)).then(|| label.to_owned())
}

/// The versions of a server, oldest first.
///
/// # Errors
/// There is no connection, the server refuses or has nothing to follow, or nothing happens for too long.
pub fn versions(connect: &ConnectOptions, cancel: &CancelToken) -> Result<Vec<Version>, GetError> {
    let mut connection = Connection::open(connect, cancel)?;
    let mut list = VersionList::new()?;
    let unreachable = |reason: String| GetError::Connect { endpoint: connect.endpoint.to_string(), reason };
    let (mut since, mut limit, mut last_reason) = (Instant::now(), connect.connect_timeout, "no answer".to_owned());
    loop {
        if cancel.is_cancelled() {
            return Err(TransferError::Cancelled.into());
        }
        if since.elapsed() > limit {
            return Err(unreachable(last_reason));
        }
        connection.poll(Duration::from_millis(100))?;
        while let Some(event) = connection.next() {
            match event {
                ConnectionEvent::Connected => {
                    (since, limit) = (Instant::now(), connect.idle_timeout);
                    list.next_request().iter().for_each(|request| connection.send(request));
                }
                ConnectionEvent::Lost { reason } => return Err(unreachable(reason)),
                ConnectionEvent::Failed { reason } => last_reason = reason,
                ConnectionEvent::Refused { reason, refusal } => return Err(connect.refused(reason, refusal)),
                ConnectionEvent::ProtocolError(error) => return Err(TransferError::from(error).into()),
                ConnectionEvent::Inbound(Inbound::Control { json, .. }) if request_id(&json) == Some(FOLLOW_ID) => {
                    since = Instant::now();
                    if list.reply(&json)? {
                        connection.close();
                        return Ok(list.versions());
                    }
                    if !matches!(Reply::decode(&json), Ok(Reply::Following(_))) {
                        list.next_request().iter().for_each(|request| connection.send(request));
                    }
                }
                ConnectionEvent::Arriving | ConnectionEvent::FileSent { .. } | ConnectionEvent::Inbound(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_manifests_of_labels_are_versions() {
        let label = |path: &str| label(&path.parse().unwrap());
        assert_eq!(label("v1/manifest").as_deref(), Some("v1"));
        for other in ["v1", "v1/tree", "manifest", "a/b/manifest", ".new-v1/manifest", "v 1/manifest"] {
            assert_eq!(label(other), None, "{other}");
        }
    }
}
