//! Messages of servers: objects with `re`.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::bounded::at_most;
use super::changes::{ChangesReply, FollowingReply};
use super::entry::ListEntry;
use super::fields::{check_leaf_bytes, check_stat, cut_reason};
use super::head::Head;
use super::holders::HoldersReply;
use super::publish::PublishedReply;
use super::push::{PushCredit, PushReply, PushedReply};
use super::{check_size, frames, parse_error};
use crate::digest::{Digest, LeafSize};
#[cfg(doc)]
use crate::limits::MODE_MAX;
use crate::limits::{FEATURES_MAX, FETCH_FILES_MAX, LEAVES_MAX, LEAVES_PAGE_MAX, LIST_PAGE_ENTRIES_MAX, VIA_MAX};
use crate::protocol::follow::ServerId;
use crate::protocol::{ErrorCode, WireError};
use crate::root::Timestamp;

/// A server's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Version, limits and features of the server.
    Hello(HelloReply),
    /// A page of a listing.
    List(ListPage),
    /// Metadata of files of a fetch.
    Files(FilesReply),
    /// A digest that was not known when the metadata was sent.
    Digest(DigestReply),
    /// A file was sent completely and did not change meanwhile.
    End {
        /// Id of the fetch.
        id: u32,
        /// Index of the file.
        n: u32,
    },
    /// The data sent of a file must be discarded.
    Void(VoidReply),
    /// The fetch is over.
    Done {
        /// Id of the fetch.
        id: u32,
    },
    /// Chaining values follow in an attachment.
    Leaves(LeavesReply),
    /// A follow begins, or begins again.
    Following(FollowingReply),
    /// A page of changes.
    Changes(ChangesReply),
    /// A push may begin.
    Push(PushReply),
    /// More of a push may be sent.
    Credit(PushCredit),
    /// A pushed file is in place.
    Pushed(PushedReply),
    /// A version is published.
    Published(PublishedReply),
    /// Holders.
    Holders(HoldersReply),
    /// Why this side sends slowly.
    Slow(SlowReply),
    /// A request was ended early.
    Cancelled(Cancelled),
    /// A request failed.
    Error(ErrorReply),
    /// A message of a later protocol version, to be ignored.
    Unknown,
}

/// "hello".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelloReply {
    /// Version of the protocol.
    pub protocol: u32,
    /// Name and version of the program, for logs.
    pub software: String,
    /// Largest body frame that the server sends.
    pub chunk_bytes_max: u64,
    /// Files that it takes in one fetch.
    pub fetch_files_max: u32,
    /// Requests of one client that may be open at a time.
    pub requests_max: u32,
    /// Optional features.
    #[serde(default, deserialize_with = "at_most::<FEATURES_MAX, _, _>")]
    pub features: Vec<String>,
    /// The servers that what this one has comes through, the first one first, itself last.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "at_most::<VIA_MAX, _, _>")]
    pub via: Vec<ServerId>,
}

/// A page of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListPage {
    /// Id of the listing.
    pub id: u32,
    /// Kind of the listed path.
    pub base: Base,
    /// Metadata of a listed directory itself; in the first page only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<DirStat>,
    /// At most [`LIST_PAGE_ENTRIES_MAX`].
    #[serde(deserialize_with = "at_most::<LIST_PAGE_ENTRIES_MAX, _, _>")]
    pub entries: Vec<ListEntry>,
    /// Another page can be asked for.
    #[serde(default)]
    pub more: bool,
}

/// Metadata of the listed directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirStat {
    /// Permission bits, at most [`MODE_MAX`].
    #[serde(deserialize_with = "permission_bits")]
    pub mode: u32,
    /// Time of the last change of its content.
    pub mtime: Timestamp,
}

fn permission_bits<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let mode = u32::deserialize(deserializer)?;
    check_stat(0, mode).map(|()| mode).map_err(serde::de::Error::custom)
}

/// Kind of the listed path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Base {
    /// A directory: its entries are listed.
    Dir,
    /// A file, the only entry.
    File,
    /// A link, the only entry.
    Link,
    /// A glob: its matches are listed.
    Glob,
}

/// Metadata of files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesReply {
    /// Id of the fetch.
    pub id: u32,
    /// One or more files, at most [`FETCH_FILES_MAX`].
    #[serde(deserialize_with = "at_most::<FETCH_FILES_MAX, _, _>")]
    pub files: Vec<FileAnswer>,
}

/// Answer about one file of a fetch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawFileAnswer", into = "RawFileAnswer")]
pub enum FileAnswer {
    /// The file follows.
    Metadata(FileMetadata),
    /// The file is as `unless` says; nothing else follows for it.
    Same {
        /// Index of the file.
        n: u32,
    },
    /// The file failed; nothing else follows for it.
    Error {
        /// Index of the file.
        n: u32,
        /// Why.
        code: ErrorCode,
        /// Why, for people.
        message: String,
    },
}

/// Metadata of a file, before its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMetadata {
    /// Index of the file.
    pub n: u32,
    /// Bytes, at most 2^63 - 1.
    pub size: u64,
    /// Time of the last change of its content.
    pub mtime: Timestamp,
    /// Permission bits.
    pub mode: u32,
    /// Digest, if known and requested.
    pub digest: Option<Digest>,
    /// Bytes of a leaf, a power of two.
    pub leaf_bytes: u64,
    /// The file has holes.
    pub sparse: bool,
}

/// A digest that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DigestReply {
    /// Id of the fetch.
    pub id: u32,
    /// Index of the file.
    pub n: u32,
    /// BLAKE3 of the whole file.
    pub digest: Digest,
    /// Bytes of a leaf.
    pub leaf_bytes: u64,
}

/// A file that changed, or failed, while it was sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VoidReply {
    /// Id of the fetch.
    pub id: u32,
    /// Index of the file.
    pub n: u32,
    /// Why.
    pub code: ErrorCode,
    /// Why, for people.
    pub message: String,
}

/// Chaining values: [`crate::limits::LEAF_VALUE_BYTES`] for each, in the frame that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeavesReply {
    /// Id of the request.
    pub id: u32,
    /// First leaf in the attachment.
    pub from: u32,
    /// Leaves in the attachment, at most [`LEAVES_PAGE_MAX`].
    pub count: u32,
    /// Leaves of the file.
    pub total: u32,
}

/// The answer to a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancelled {
    /// Id of the request that is over.
    pub id: u32,
}

/// Why this side sends slowly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowReply {
    /// Id of the fetch.
    pub id: u32,
    /// The cause.
    pub cause: TcpBuffer,
}

/// A TCP buffer that is too small for the connection's round-trip time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TcpBuffer {
    /// That of the side that sends.
    #[serde(rename = "send_buffer")]
    Send,
    /// That of the side that receives.
    #[serde(rename = "receive_buffer")]
    Receive,
}

impl TcpBuffer {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Send => "send buffer",
            Self::Receive => "receive buffer",
        }
    }
}

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// Id of the request; missing where the server could not read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u32>,
    /// Why.
    pub code: ErrorCode,
    /// Why, for people.
    pub message: String,
}

#[derive(Serialize)]
struct Tagged<'a, T> {
    re: &'static str,
    #[serde(flatten)]
    body: &'a T,
}

#[derive(Serialize, Deserialize)]
struct FileOfFetch {
    id: u32,
    n: u32,
}

impl Reply {
    /// The JSON object; empty for [`Reply::Unknown`], which is only received.
    pub fn encode(&self) -> Vec<u8> {
        fn json<T: Serialize>(re: &'static str, body: &T) -> Vec<u8> {
            // Every member is a number, a text or a list of them: nothing that serde_json can refuse.
            serde_json::to_vec(&Tagged { re, body }).unwrap_or_default()
        }
        match self {
            Self::Hello(hello) => json("hello", hello),
            Self::List(page) => json("list", page),
            Self::Files(files) => json("files", files),
            Self::Digest(digest) => json("digest", digest),
            Self::End { id, n } => json("end", &FileOfFetch { id: *id, n: *n }),
            Self::Void(void) => json("void", void),
            Self::Done { id } => json("done", &Cancelled { id: *id }),
            Self::Leaves(leaves) => json("leaves", leaves),
            Self::Following(following) => json("following", following),
            Self::Changes(changes) => json("changes", changes),
            Self::Push(push) => json("push", push),
            Self::Credit(credit) => json("credit", credit),
            Self::Pushed(pushed) => json("pushed", pushed),
            Self::Published(published) => json("published", published),
            Self::Holders(holders) => json("holders", holders),
            Self::Slow(slow) => json("slow", slow),
            Self::Cancelled(cancelled) => json("cancelled", cancelled),
            Self::Error(error) => json("error", error),
            Self::Unknown => Vec::new(),
        }
    }

    /// The two frames of the message; an attachment is for the caller to add.
    pub fn to_frames(&self) -> [Bytes; 2] {
        frames(self.encode())
    }

    /// Reads a server's JSON object and checks it against the limits.
    ///
    /// # Errors
    /// Says what is wrong; always the server's fault.
    pub fn decode(json: &[u8]) -> Result<Self, WireError> {
        check_size(json)?;
        let head = Head::read(json, "re")?;
        Self::decode_re(head.tag(), json).map_err(|error| error.of_request(head.id))
    }

    fn decode_re(re: &str, json: &[u8]) -> Result<Self, WireError> {
        fn parse<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, WireError> {
            serde_json::from_slice(json).map_err(|error| parse_error(&error))
        }
        Ok(match re {
            "hello" => Self::Hello(parse(json)?),
            "list" => Self::List(parse(json)?),
            "files" => Self::Files(parse(json)?),
            "digest" => Self::Digest(parse::<DigestReply>(json)?.check()?),
            "end" => {
                let FileOfFetch { id, n } = parse(json)?;
                Self::End { id, n }
            }
            "void" => {
                let void: VoidReply = parse(json)?;
                Self::Void(VoidReply { message: cut_reason(void.message), ..void })
            }
            "done" => Self::Done { id: parse::<Cancelled>(json)?.id },
            "leaves" => Self::Leaves(parse::<LeavesReply>(json)?.check()?),
            "following" => Self::Following(parse(json)?),
            "changes" => Self::Changes(parse(json)?),
            "push" => Self::Push(parse::<PushReply>(json)?.check()?),
            "credit" => Self::Credit(parse(json)?),
            "pushed" => Self::Pushed(parse(json)?),
            "published" => Self::Published(parse(json)?),
            "holders" => Self::Holders(parse(json)?),
            // With another cause it is of a later version.
            "slow" => parse(json).map_or(Self::Unknown, Self::Slow),
            "cancelled" => Self::Cancelled(parse(json)?),
            "error" => {
                let error: ErrorReply = parse(json)?;
                Self::Error(ErrorReply { message: cut_reason(error.message), ..error })
            }
            _ => Self::Unknown,
        })
    }
}

impl DigestReply {
    fn check(self) -> Result<Self, WireError> {
        check_leaf_bytes(self.leaf_bytes).map_err(WireError::bad)?;
        Ok(self)
    }
}

impl LeavesReply {
    fn check(self) -> Result<Self, WireError> {
        let fits = self.from.checked_add(self.count).is_some_and(|end| end <= self.total);
        if !fits || u64::from(self.total) > LEAVES_MAX || self.count > LEAVES_PAGE_MAX {
            return Err(WireError::bad("counts of leaves are over their limits"));
        }
        Ok(self)
    }
}

#[derive(Serialize, Deserialize, Default)]
struct RawFileAnswer {
    n: u32,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    same: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<FileError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtime: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<Digest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    leaf_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    sparse: bool,
}

#[derive(Serialize, Deserialize)]
struct FileError {
    code: ErrorCode,
    message: String,
}

impl TryFrom<RawFileAnswer> for FileAnswer {
    type Error = String;

    fn try_from(raw: RawFileAnswer) -> Result<Self, String> {
        if let Some(error) = raw.error {
            return Ok(Self::Error { n: raw.n, code: error.code, message: cut_reason(error.message) });
        }
        if raw.same {
            return Ok(Self::Same { n: raw.n });
        }
        let (Some(size), Some(mtime), Some(mode)) = (raw.size, raw.mtime, raw.mode) else {
            return Err("metadata needs `size`, `mtime` and `mode`".to_owned());
        };
        let leaf_bytes = raw.leaf_bytes.unwrap_or_else(|| LeafSize::for_file(size).leaf_bytes());
        check_stat(size, mode)?;
        check_leaf_bytes(leaf_bytes)?;
        if size.div_ceil(leaf_bytes) > LEAVES_MAX {
            return Err(format!("a file of more than {LEAVES_MAX} leaves"));
        }
        let sparse = raw.sparse;
        Ok(Self::Metadata(FileMetadata { n: raw.n, size, mtime, mode, digest: raw.digest, leaf_bytes, sparse }))
    }
}

impl From<FileAnswer> for RawFileAnswer {
    fn from(answer: FileAnswer) -> Self {
        match answer {
            FileAnswer::Same { n } => Self { n, same: true, ..Self::default() },
            FileAnswer::Error { n, code, message } => {
                Self { n, error: Some(FileError { code, message }), ..Self::default() }
            }
            FileAnswer::Metadata(file) => Self {
                n: file.n,
                size: Some(file.size),
                mtime: Some(file.mtime),
                mode: Some(file.mode),
                digest: file.digest,
                leaf_bytes: Some(file.leaf_bytes),
                sparse: file.sparse,
                ..Self::default()
            },
        }
    }
}
