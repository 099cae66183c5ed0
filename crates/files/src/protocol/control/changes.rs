//! Messages about what changes at the server.
// docs/protocol/follow.md has the tables.

use serde::{Deserialize, Serialize};

use super::bounded::at_most;
use super::fields::{LinkTarget, WirePath, check_stat};
use super::request::ListTarget;
use crate::digest::Digest;
use crate::limits::{CHANGES_PAGE_ENTRIES_MAX, CHANGES_PAGE_UNREAD_MAX};
use crate::protocol::follow::{Cursor, FollowFrom, ServerId};
use crate::root::Timestamp;

/// "follow".
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FollowRequest {
    /// The client's number for this request.
    pub id: u32,
    /// The followed path.
    #[serde(flatten)]
    pub target: ListTarget,
    /// Its beginning.
    pub from: FollowFrom,
}

/// A follow begins, or begins again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowingReply {
    /// Id of the follow.
    pub id: u32,
    /// Kind of the pages that come next.
    pub state: FollowState,
    /// Its beginning.
    pub cursor: Cursor,
    /// The newest number.
    pub head: u64,
    /// The server that the files come from in the first place, if it has a lasting number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerId>,
}

/// Kind of the first pages of a follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FollowState {
    /// Everything that is there.
    Full,
    /// Changes since the cursor.
    Changes,
}

/// A page of changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangesReply {
    /// Id of the follow.
    pub id: u32,
    /// The client's position once all of this is in place.
    pub cursor: Cursor,
    /// The newest number.
    pub head: u64,
    /// Whether nothing more is known now.
    #[serde(default)]
    pub live: bool,
    /// At most [`CHANGES_PAGE_ENTRIES_MAX`], by ascending number.
    #[serde(deserialize_with = "at_most::<CHANGES_PAGE_ENTRIES_MAX, _, _>")]
    pub changes: Vec<Change>,
    /// With `live`: what is there, can't be read by the server, and so isn't published. At most [`CHANGES_PAGE_UNREAD_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[serde(deserialize_with = "at_most::<CHANGES_PAGE_UNREAD_MAX, _, _>")]
    pub unread: Vec<Unread>,
    /// The number of further ones.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unread_more: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A path that the server can't read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawUnread")]
pub struct Unread {
    /// From the root.
    #[serde(flatten)]
    pub path: WirePath,
    /// A directory, of which not all that is in it is known.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub dir: bool,
}

#[derive(Deserialize)]
struct RawUnread {
    path: Option<String>,
    path_b64: Option<String>,
    #[serde(default)]
    dir: bool,
}

impl TryFrom<RawUnread> for Unread {
    type Error = String;

    fn try_from(RawUnread { path, path_b64, dir }: RawUnread) -> Result<Self, String> {
        Ok(Unread { path: WirePath::from_members(path, path_b64)?.ok_or("`path` is missing")?, dir })
    }
}

/// The newest entry of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawChange")]
pub struct Change {
    /// Its number.
    pub seq: u64,
    /// From the root.
    #[serde(flatten)]
    pub path: WirePath,
    /// Its content.
    #[serde(flatten)]
    pub content: ChangeContent,
}

/// Content of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ChangeContent {
    /// A finished regular file.
    File {
        /// Bytes.
        size: u64,
        /// Time of the last change of its content.
        mtime: Timestamp,
        /// Permission bits.
        mode: u32,
        /// Its digest.
        digest: Digest,
    },
    /// A directory.
    Dir {
        /// Permission bits.
        mode: u32,
    },
    /// A symbolic link.
    Link {
        /// As stored.
        #[serde(flatten)]
        target: LinkTarget,
        /// Time of its last change.
        mtime: Timestamp,
    },
    /// A deletion.
    Gone,
}

#[derive(Deserialize)]
struct RawChange {
    seq: u64,
    path: Option<String>,
    path_b64: Option<String>,
    #[serde(rename = "type")]
    kind: RawKind,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    mtime: Timestamp,
    #[serde(default)]
    mode: u32,
    target: Option<String>,
    target_b64: Option<String>,
    digest: Option<Digest>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum RawKind {
    File,
    Dir,
    Link,
    Gone,
}

impl TryFrom<RawChange> for Change {
    type Error = String;

    fn try_from(raw: RawChange) -> Result<Self, String> {
        let RawChange { seq, size, mtime, mode, .. } = raw;
        let path = WirePath::from_members(raw.path, raw.path_b64)?.ok_or("`path` is missing")?;
        check_stat(size, mode)?;
        let content = match raw.kind {
            RawKind::File => {
                ChangeContent::File { size, mtime, mode, digest: raw.digest.ok_or("a file without `digest`")? }
            }
            RawKind::Dir => ChangeContent::Dir { mode },
            RawKind::Link => {
                let target = LinkTarget::from_members(raw.target, raw.target_b64)?;
                ChangeContent::Link { target: target.ok_or("a link without `target`")?, mtime }
            }
            RawKind::Gone => ChangeContent::Gone,
        };
        Ok(Change { seq, path, content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::control::{Reply, Request};
    use crate::protocol::follow::Epoch;

    fn round_trip(json: &str, expected: Reply) {
        assert_eq!(Reply::decode(json.as_bytes()), Ok(expected.clone()));
        assert_eq!(Reply::decode(&expected.encode()), Ok(expected));
    }

    #[test]
    fn messages_are_as_documented() {
        let cursor = Cursor { epoch: Epoch([0xab; 16]), seq: 9 };
        let epoch = "ab".repeat(16);
        let (digest, mtime) = (Digest::of(b"hello"), Timestamp { seconds: 7, nanoseconds: 8 });
        let change = |seq, path: &[u8], content| Change { seq, path: path.to_vec().into(), content };
        let file = ChangeContent::File { size: 5, mtime, mode: 0o644, digest };
        let link = ChangeContent::Link { target: b"a".to_vec().into(), mtime };
        let changes = vec![
            change(1, b"a", file),
            change(2, b"\xff", ChangeContent::Dir { mode: 0o755 }),
            change(3, b"l", link),
            change(9, b"b", ChangeContent::Gone),
        ];
        let json = format!(
            r#"{{"re":"changes","id":7,"cursor":"{epoch}-9","head":12,"live":true,"changes":[
            {{"seq":1,"path":"a","type":"file","size":5,"mtime":[7,8],"mode":420,"digest":"{digest}"}},
            {{"seq":2,"path_b64":"/w==","type":"dir","mode":493}},
            {{"seq":3,"path":"l","type":"link","target":"a","mtime":[7,8]}},
            {{"seq":9,"path":"b","type":"gone"}}],"unread":[{{"path":"u","dir":true}},{{"path":"v"}}],"unread_more":3}}"#
        );
        let unread = |path: &str, dir| Unread { path: path.as_bytes().to_vec().into(), dir };
        let unread = vec![unread("u", true), unread("v", false)];
        let page = ChangesReply { id: 7, cursor, head: 12, live: true, changes, unread, unread_more: 3 };
        round_trip(&json, Reply::Changes(page));
        let following = FollowingReply { id: 7, state: FollowState::Full, cursor, head: 12, server: None };
        let json = format!(r#"{{"re":"following","id":7,"state":"full","cursor":"{epoch}-9","head":12}}"#);
        round_trip(&json, Reply::Following(following));
        let lasting = FollowingReply { server: Some(ServerId([0xab; 16])), ..following };
        let json = json.replace("}", &format!(r#","server":"{epoch}"}}"#));
        round_trip(&json, Reply::Following(lasting));
        let json = format!(r#"{{"op":"follow","id":7,"path":"models","from":"{epoch}-9"}}"#);
        let target = ListTarget::Path(b"models".to_vec().into());
        let request = Request::Follow(FollowRequest { id: 7, target, from: FollowFrom::Cursor(cursor) });
        assert_eq!(Request::decode(json.as_bytes()), Ok(request.clone()));
        assert_eq!(String::from_utf8(request.encode()).unwrap(), json);
        let from_the_beginning = Request::decode(br#"{"op":"follow","id":7,"glob":"*.bin"}"#);
        assert!(matches!(from_the_beginning, Ok(Request::Follow(FollowRequest { from: FollowFrom::Beginning, .. }))));
    }

    #[test]
    fn changes_that_lack_something_are_refused() {
        for change in [
            r#"{"seq":1,"path":"a","type":"file","size":5,"mtime":[7,8],"mode":420}"#,
            r#"{"seq":1,"path":"a","type":"link"}"#,
            r#"{"seq":1,"type":"gone"}"#,
            r#"{"path":"a","type":"gone"}"#,
            r#"{"seq":1,"path":"a","type":"pipe"}"#,
            r#"{"seq":1,"path":"a","type":"dir","mode":65536}"#,
            r#"{"seq":-1,"path":"a","type":"gone"}"#,
        ] {
            let json =
                format!(r#"{{"re":"changes","id":7,"cursor":"{}-9","head":12,"changes":[{change}]}}"#, "ab".repeat(16));
            assert!(Reply::decode(json.as_bytes()).is_err(), "{change}");
        }
        for from in ["\"later\"", "7", "\"\""] {
            let json = format!(r#"{{"op":"follow","id":7,"from":{from}}}"#);
            assert!(Request::decode(json.as_bytes()).is_err(), "{from}");
        }
    }
}
