//! Messages of clients: objects with `op`.

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::bounded::Bounded;
use super::changes::FollowRequest;
use super::confirm::{Confirm, RawConfirm};
use super::fields::{FollowLinks, WirePath, follows_none, required_path};
use super::head::Head;
use super::holders::{FetchesFor, Have, HoldersRequest, RawHolders};
use super::publish::{PublishRequest, RawPublish};
use super::push::{PushRequest, RawPush};
use super::{check_size, frames, parse_error};
use crate::digest::Digest;
use crate::limits::{
    CHUNK_BYTES_DEFAULT, CHUNK_BYTES_MIN, CREDIT_BYTES_MAX, FETCH_FILES_MAX, FILE_BYTES_MAX, FILE_RANGES_MAX,
    GLOB_BYTES_MAX,
};
use crate::protocol::WireError;
use crate::protocol::follow::FollowFrom;
use crate::root::Timestamp;

/// A client's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Asks for version, limits and features of the server.
    Hello,
    /// Asks for a listing.
    List(ListRequest),
    /// Asks for the next page of a listing or a follow.
    More {
        /// Id of the listing or the follow.
        id: u32,
    },
    /// Subscribes to changes.
    Follow(FollowRequest),
    /// Asks for files.
    Fetch(FetchRequest),
    /// Lets the server send more.
    Credit {
        /// Bytes, added to what is left of earlier credit.
        bytes: u64,
        /// Why this side is slow, if it is.
        slow: Option<Slow>,
    },
    /// Asks for the chaining values of a file's leaves.
    Leaves(LeavesRequest),
    /// Ends a request early.
    Cancel {
        /// Id of the request to end.
        id: u32,
    },
    /// Confirms files that were received completely.
    Confirm(Confirm),
    /// Offers a file.
    Push(PushRequest),
    /// Freezes what is below a path.
    Publish(PublishRequest),
    /// Reports holders.
    Have(Have),
    /// Belongs to a follower's other connection.
    FetchesFor(FetchesFor),
    /// Asks for holders.
    Holders(HoldersRequest),
}

/// "list".
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListRequest {
    /// The client's number for this request.
    pub id: u32,
    /// Target of the listing.
    #[serde(flatten)]
    pub target: ListTarget,
    /// List everything below a directory.
    #[serde(skip_serializing_if = "is_false")]
    pub recursive: bool,
    /// Add each file's digest.
    #[serde(skip_serializing_if = "is_false")]
    pub digest: bool,
    /// Links that are listed as what they lead to.
    #[serde(rename = "follow_links", skip_serializing_if = "follows_none")]
    pub follow: FollowLinks,
}

/// Target of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum ListTarget {
    /// A file, link or directory; empty for the root.
    Path(WirePath),
    /// All matches of a glob.
    Glob {
        /// The pattern.
        glob: String,
    },
}

/// "fetch".
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FetchRequest {
    /// The client's number for this request.
    pub id: u32,
    /// Largest body frame. At least [`CHUNK_BYTES_MIN`]; the server cuts it to its own maximum.
    pub chunk_bytes: u64,
    /// Whether bodies may be compressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compress: Option<Compression>,
    /// When the digests come.
    pub digest: DigestWish,
    /// Credit given with the request.
    #[serde(skip_serializing_if = "is_zero")]
    pub credit_bytes: u64,
    /// The files, 1 to [`FETCH_FILES_MAX`].
    pub files: Vec<FetchFile>,
}

impl FetchRequest {
    /// Approximate memory of the request's files, in bytes.
    pub fn memory_bytes(&self) -> usize {
        let of_ranges =
            |file: &FetchFile| file.ranges.as_ref().map_or(0, |ranges| size_of::<Range>() * ranges.capacity());
        let of_file = |file| of_ranges(file) + file.path.as_bytes().len() + ALLOCATION_BYTES;
        size_of::<FetchFile>() * self.files.capacity() + self.files.iter().map(of_file).sum::<usize>()
    }
}

/// Allocator overhead of a path, in bytes.
const ALLOCATION_BYTES: usize = 32;

/// One file of a fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FetchFile {
    /// From the root.
    #[serde(flatten)]
    pub path: WirePath,
    /// Requested ranges, ascending and not overlapping; `None` for the whole file. An empty list asks for metadata and digest only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranges: Option<Vec<Range>>,
    /// Don't send the file if it is unchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unless: Option<Unless>,
}

/// `[offset, length]`. Length is at least 1, and `offset + length` at most 2^63 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl Range {
    /// The byte behind the last one. Ranges that were checked never overflow; others saturate.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.length)
    }
}

impl From<(u64, u64)> for Range {
    fn from((offset, length): (u64, u64)) -> Self {
        Self { offset, length }
    }
}

impl From<Range> for (u64, u64) {
    fn from(range: Range) -> Self {
        (range.offset, range.length)
    }
}

/// The version of a file that a client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Unless {
    /// Content of this digest.
    Digest {
        /// BLAKE3.
        digest: Digest,
    },
    /// A file of this size and time.
    Stat {
        /// Bytes.
        size: u64,
        /// Time of the last change of its content.
        mtime: Timestamp,
    },
}

/// How bodies may be compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Each body on its own, as one zstd frame, where it shrinks.
    Zstd,
}

/// When a fetch sends the digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DigestWish {
    /// The metadata waits for it.
    Now,
    /// The digest follows once it is known.
    #[default]
    Later,
    /// Never.
    None,
}

/// "leaves".
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeavesRequest {
    /// The client's number for this request.
    pub id: u32,
    /// From the root.
    #[serde(flatten)]
    pub path: WirePath,
    /// Which version of the file.
    pub digest: Digest,
    /// First leaf wanted.
    pub from: u32,
    /// How many; the server may answer fewer.
    pub count: u32,
}

/// Why a client is slow.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Slow {
    /// A rate of its own.
    Rate,
    /// A disk that doesn't keep up.
    Disk,
}

impl Slow {
    /// All.
    pub const ALL: [Slow; 2] = [Slow::Rate, Slow::Disk];

    /// Its name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Slow::Rate => "rate",
            Slow::Disk => "disk",
        }
    }
}

#[derive(Serialize)]
struct Tagged<'a, T> {
    op: &'static str,
    #[serde(flatten)]
    body: &'a T,
}

#[derive(Serialize, Deserialize)]
struct OnlyId {
    id: u32,
}

#[derive(Serialize, Deserialize)]
struct CreditBody {
    bytes: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slow: Option<String>,
}

impl CreditBody {
    fn check(self) -> Result<Request, WireError> {
        // Later reasons that aren't known here say nothing.
        let slow = Slow::ALL.into_iter().find(|slow| self.slow.as_deref() == Some(slow.as_str()));
        Ok(Request::Credit { bytes: checked_credit(self.bytes)?, slow })
    }
}

#[derive(Serialize)]
struct Nothing {}

impl Request {
    /// The JSON object.
    pub fn encode(&self) -> Vec<u8> {
        fn json<T: Serialize>(op: &'static str, body: &T) -> Vec<u8> {
            // Every member is a number, a text or a list of them: nothing that serde_json can refuse.
            serde_json::to_vec(&Tagged { op, body }).unwrap_or_default()
        }
        match self {
            Self::Hello => json("hello", &Nothing {}),
            Self::List(list) => json("list", list),
            Self::More { id } => json("more", &OnlyId { id: *id }),
            Self::Follow(follow) => json("follow", follow),
            Self::Fetch(fetch) => json("fetch", fetch),
            Self::Credit { bytes, slow } => {
                json("credit", &CreditBody { bytes: *bytes, slow: slow.map(|slow| slow.as_str().to_owned()) })
            }
            Self::Leaves(leaves) => json("leaves", leaves),
            Self::Cancel { id } => json("cancel", &OnlyId { id: *id }),
            Self::Confirm(confirm) => json("confirm", confirm),
            Self::Push(push) => json("push", push),
            Self::Publish(publish) => json("publish", publish),
            Self::Have(have) => json("have", have),
            Self::FetchesFor(follower) => json("fetches_for", follower),
            Self::Holders(holders) => json("holders", holders),
        }
    }

    /// The two frames of the message.
    pub fn to_frames(&self) -> [Bytes; 2] {
        frames(self.encode())
    }

    /// Reads a client's JSON object and checks it against the limits. An error is to be answered, with the request's id if it could be read.
    pub fn decode(json: &[u8]) -> Result<Self, WireError> {
        check_size(json)?;
        let head = Head::read(json, "op")?;
        Self::decode_op(head.tag(), json).map_err(|error| error.of_request(head.id))
    }

    fn decode_op(op: &str, json: &[u8]) -> Result<Self, WireError> {
        fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, WireError> {
            serde_json::from_slice(json).map_err(|error| parse_error(&error))
        }
        match op {
            "hello" => parse::<IgnoredAny>(json).map(|_| Self::Hello),
            "list" => Ok(Self::List(parse::<RawList>(json)?.check()?)),
            "more" => Ok(Self::More { id: parse::<OnlyId>(json)?.id }),
            "follow" => Ok(Self::Follow(parse::<RawFollow>(json)?.check()?)),
            "fetch" => Ok(Self::Fetch(parse::<RawFetch>(json)?.check()?)),
            "credit" => parse::<CreditBody>(json)?.check(),
            "leaves" => Ok(Self::Leaves(parse::<RawLeaves>(json)?.check()?)),
            "cancel" => Ok(Self::Cancel { id: parse::<OnlyId>(json)?.id }),
            "confirm" => Ok(Self::Confirm(parse::<RawConfirm>(json)?.check()?)),
            "push" => Ok(Self::Push(parse::<RawPush>(json)?.check()?)),
            "publish" => Ok(Self::Publish(parse::<RawPublish>(json)?.check()?)),
            "have" => Ok(Self::Have(parse(json)?)),
            "fetches_for" => Ok(Self::FetchesFor(parse(json)?)),
            "holders" => Ok(Self::Holders(parse::<RawHolders>(json)?.check()?)),
            _ => Err(WireError::unsupported("unknown `op`")),
        }
    }
}

#[derive(Deserialize)]
struct RawList {
    id: u32,
    path: Option<String>,
    path_b64: Option<String>,
    glob: Option<String>,
    #[serde(default)]
    recursive: bool,
    #[serde(default)]
    digest: bool,
    #[serde(default, rename = "follow_links")]
    follow: FollowLinks,
}

impl RawList {
    fn check(self) -> Result<ListRequest, WireError> {
        let target = target(self.path, self.path_b64, self.glob)?;
        Ok(ListRequest { id: self.id, target, recursive: self.recursive, digest: self.digest, follow: self.follow })
    }
}

/// The target from the members that can hold it.
fn target(path: Option<String>, path_b64: Option<String>, glob: Option<String>) -> Result<ListTarget, WireError> {
    let path = WirePath::from_members(path, path_b64).map_err(WireError::bad)?;
    match (path, glob) {
        (Some(_), Some(_)) => Err(WireError::bad("both `path` and `glob`")),
        (_, Some(glob)) if glob.len() > GLOB_BYTES_MAX => {
            Err(WireError::bad(format!("`glob` is longer than {GLOB_BYTES_MAX} bytes")))
        }
        (None, Some(glob)) => Ok(ListTarget::Glob { glob }),
        (path, None) => Ok(ListTarget::Path(path.unwrap_or_default())),
    }
}

#[derive(Deserialize)]
struct RawFollow {
    id: u32,
    path: Option<String>,
    path_b64: Option<String>,
    glob: Option<String>,
    #[serde(default)]
    from: FollowFrom,
}

impl RawFollow {
    fn check(self) -> Result<FollowRequest, WireError> {
        let target = target(self.path, self.path_b64, self.glob)?;
        Ok(FollowRequest { id: self.id, target, from: self.from })
    }
}

#[derive(Deserialize)]
struct RawFetch {
    id: u32,
    chunk_bytes: Option<u64>,
    compress: Option<String>,
    #[serde(default)]
    digest: DigestWish,
    #[serde(default)]
    credit_bytes: u64,
    files: Bounded<RawFetchFile, FETCH_FILES_MAX>,
}

#[derive(Deserialize)]
struct RawFetchFile {
    path: Option<String>,
    path_b64: Option<String>,
    ranges: Option<Bounded<Range, FILE_RANGES_MAX>>,
    unless: Option<RawUnless>,
}

#[derive(Deserialize)]
struct RawUnless {
    digest: Option<Digest>,
    size: Option<u64>,
    mtime: Option<Timestamp>,
}

impl RawFetch {
    fn check(self) -> Result<FetchRequest, WireError> {
        let chunk_bytes = self.chunk_bytes.unwrap_or(CHUNK_BYTES_DEFAULT);
        if chunk_bytes < CHUNK_BYTES_MIN {
            return Err(WireError::bad(format!("`chunk_bytes` is under {CHUNK_BYTES_MIN}")));
        }
        let compress = match self.compress.as_deref() {
            None => None,
            Some("zstd") => Some(Compression::Zstd),
            Some(_) => return Err(WireError::unsupported("unknown `compress`")),
        };
        let Bounded(files) = self.files;
        if files.is_empty() {
            return Err(WireError::bad(format!("`files` has to have 1 to {FETCH_FILES_MAX} files")));
        }
        let files = files.into_iter().map(RawFetchFile::check).collect::<Result<_, _>>()?;
        let credit_bytes = checked_credit(self.credit_bytes)?;
        Ok(FetchRequest { id: self.id, chunk_bytes, compress, digest: self.digest, credit_bytes, files })
    }
}

impl RawFetchFile {
    fn check(self) -> Result<FetchFile, WireError> {
        let path = required_path(self.path, self.path_b64)?;
        let ranges = self.ranges.map(|Bounded(ranges)| ranges);
        if let Some(ranges) = &ranges {
            check_ranges(ranges)?;
        }
        let unless = match self.unless {
            None => None,
            Some(RawUnless { digest: Some(digest), .. }) => Some(Unless::Digest { digest }),
            Some(RawUnless { size: Some(size), mtime: Some(mtime), .. }) => Some(Unless::Stat { size, mtime }),
            Some(_) => return Err(WireError::bad("`unless` needs `digest`, or `size` and `mtime`")),
        };
        Ok(FetchFile { path, ranges, unless })
    }
}

pub(super) fn check_ranges(ranges: &[Range]) -> Result<(), WireError> {
    let mut end_of_last = 0;
    for range in ranges {
        if range.length == 0 || range.offset > FILE_BYTES_MAX || range.length > FILE_BYTES_MAX - range.offset {
            return Err(WireError::bad("a range is empty or reaches past 2^63 - 1"));
        }
        if range.offset < end_of_last {
            return Err(WireError::bad("ranges have to ascend and not to overlap"));
        }
        end_of_last = range.end();
    }
    Ok(())
}

#[derive(Deserialize)]
struct RawLeaves {
    id: u32,
    path: Option<String>,
    path_b64: Option<String>,
    digest: Digest,
    from: u32,
    count: u32,
}

impl RawLeaves {
    fn check(self) -> Result<LeavesRequest, WireError> {
        let path = required_path(self.path, self.path_b64)?;
        Ok(LeavesRequest { id: self.id, path, digest: self.digest, from: self.from, count: self.count })
    }
}

fn checked_credit(bytes: u64) -> Result<u64, WireError> {
    if bytes > CREDIT_BYTES_MAX { Err(WireError::bad("credit is over 2^53")) } else { Ok(bytes) }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
