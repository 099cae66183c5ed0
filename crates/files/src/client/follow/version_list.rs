//! The versions that a server has published.

use super::super::connection::Connection;
use super::super::exchange::{Connector, Operation, Turn, WaitLimit};
use super::pages::{FOLLOW_ID, Pages};
use crate::digest::Digest;
use crate::error::Error;
use crate::filter::Excludes;
use crate::limits::{VERSIONS_LISTED_MAX, VERSIONS_MAX};
use crate::path::RelPath;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::{ChangeContent, ErrorReply, FollowingReply, Reply, Request, request_id};
use crate::protocol::follow::Cursor;
use crate::protocol::manifest::{MANIFEST, VersionName, versions_of};
use crate::root::Timestamp;
use crate::transfer::Source;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use towpath_blocking::CancelToken;

/// A version as its server announces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The path that it is of, and what it is called.
    pub name: VersionName,
    /// Digest of its manifest.
    pub digest: Digest,
    /// Its number.
    pub seq: u64,
    /// When it was published.
    pub published: Timestamp,
    /// Bytes of its manifest.
    pub manifest_bytes: u64,
}

/// The versions of all paths of a server, and its present number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Oldest first.
    pub versions: Vec<Version>,
    /// The newest number of any change.
    pub head: u64,
}

/// The known versions.
#[derive(Debug)]
pub(super) struct VersionList {
    /// The path that they are of.
    of: RelPath,
    /// Whether versions of paths below it count too.
    with_below: bool,
    pages: Pages,
    known: BTreeMap<RelPath, Version>,
    pub(super) cursor: Option<Cursor>,
    /// The last word of the server on where it begins, until it is taken.
    pub(super) begun: Option<FollowingReply>,
    head: u64,
}

impl VersionList {
    pub(super) fn new(of: &RelPath, with_below: bool) -> Result<VersionList, Error> {
        let source = versions_of(of).map_err(|error| Error::unmet(error.to_string()))?;
        let pages = Pages::new(Source::Path(source), Excludes::default(), None);
        let (of, known) = (of.clone(), BTreeMap::new());
        Ok(VersionList { of, with_below, pages, known, cursor: None, begun: None, head: 0 })
    }

    /// The version whose manifest this is.
    fn name(&self, remote: &RelPath) -> Option<VersionName> {
        let (name, rest) = VersionName::split_known(remote.as_bytes())?;
        (rest == MANIFEST.as_bytes() && (self.with_below || name.of == self.of)).then_some(name)
    }

    /// The connection is lost.
    pub(super) fn lost(&mut self) {
        self.pages.lost();
    }

    /// The next request to send.
    pub(super) fn next_request(&mut self) -> Option<Request> {
        self.pages.next_request(1)
    }

    /// Takes an answer to the follow: whether all versions are known.
    pub(super) fn reply(&mut self, json: &[u8]) -> Result<bool, Error> {
        match Reply::decode(json)? {
            Reply::Following(following) => {
                if self.pages.following(&following)? {
                    self.known.clear();
                }
                self.head = following.head;
                self.begun = Some(following);
                Ok(false)
            }
            Reply::Changes(page) => {
                self.head = page.head;
                let page = self.pages.page(page)?;
                for placed in page.changes {
                    match self.name(&placed.remote).zip(Some(placed.change.content)) {
                        Some((name, ChangeContent::File { size, mtime, digest, .. })) => {
                            let seq = placed.change.seq;
                            let version = Version { name, digest, seq, published: mtime, manifest_bytes: size };
                            self.known.insert(placed.local, version);
                        }
                        Some(_) => _ = self.known.remove(&placed.local),
                        None => {}
                    }
                    if self.known.len() > (if self.with_below { VERSIONS_LISTED_MAX } else { VERSIONS_MAX }) {
                        return Error::protocol("more versions than a server may have");
                    }
                }
                if page.live {
                    self.pages.seen = None;
                }
                self.cursor = Some(page.cursor);
                Ok(page.live)
            }
            Reply::Error(ErrorReply { code, message, .. }) => Err(Error::Refused { code, message }),
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

/// The versions of all paths of a server, and its present number.
pub(in crate::client) fn versions(connector: &Connector, cancel: &CancelToken) -> Result<Versions, Error> {
    let list = VersionList::new(&RelPath::root(), true)?;
    connector.run(&mut Listed { list, is_complete: false }, cancel)
}

/// A list of versions, until it is complete.
struct Listed {
    list: VersionList,
    is_complete: bool,
}

impl Operation for Listed {
    type Outcome = Versions;

    fn turn(&mut self, _connection: &mut Connection, _now: Instant) -> Result<Turn<Versions>, Error> {
        if self.is_complete {
            return Ok(Turn::Over(Versions { versions: self.list.versions(), head: self.list.head }));
        }
        Ok(Turn::Wait(Duration::MAX))
    }

    fn connected(&mut self, connection: &mut Connection, _now: Instant) -> Result<(), Error> {
        self.list.next_request().iter().for_each(|request| connection.send(request));
        Ok(())
    }

    fn inbound(&mut self, inbound: Inbound, connection: &mut Connection, _now: Instant) -> Result<bool, Error> {
        let Inbound::Control { json, .. } = inbound else { return Ok(false) };
        if request_id(&json) != Some(FOLLOW_ID) {
            return Ok(false);
        }
        self.is_complete = self.list.reply(&json)?;
        self.list.next_request().iter().for_each(|request| connection.send(request));
        Ok(true)
    }

    /// A server may take long to look at everything for the first time.
    fn wait_limit(&self) -> WaitLimit {
        WaitLimit::WhileAlive
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_manifests_of_labels_are_versions() {
        let label = |of: &str, with_below, path: &str| {
            let list = VersionList::new(&of.parse().unwrap(), with_below).unwrap();
            list.name(&path.parse().unwrap()).map(|name| name.label)
        };
        assert_eq!(label("", false, ".tow-versions/v1/manifest").as_deref(), Some("v1"));
        assert_eq!(label("a", false, ".tow-versions/=a/v1/manifest").as_deref(), Some("v1"));
        assert_eq!(label("", true, ".tow-versions/=a/v1/manifest").as_deref(), Some("v1"));
        // Those of another path aren't.
        assert_eq!(label("", false, ".tow-versions/=a/v1/manifest"), None);
        assert_eq!(label("a", false, ".tow-versions/=a/=b/v1/manifest"), None);
        for other in ["v1", "v1/tree", "manifest", "a/b/manifest", ".new-v1/manifest", "v 1/manifest"] {
            assert_eq!(label("", true, &format!(".tow-versions/{other}")), None, "{other}");
        }
    }
}
