//! Messages about files that clients push.
// docs/protocol/push.md has the tables.

use bytes::Bytes;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::bounded::at_most;
use super::fields::{WirePath, check_stat, required_path};
use super::request::{Range, check_ranges};
use crate::digest::Digest;
use crate::limits::{CHUNK_BYTES_MIN, HAVE_RANGES_MAX};
use crate::protocol::WireError;
use crate::root::Timestamp;

/// "push".
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PushRequest {
    /// The client's number for this request.
    pub id: u32,
    /// From the root.
    #[serde(flatten)]
    pub path: WirePath,
    /// Bytes, at most 2^63 - 1.
    pub size: u64,
    /// Time of the last change of its content.
    pub mtime: Timestamp,
    /// Permission bits.
    pub mode: u32,
    /// BLAKE3 of the whole file.
    pub digest: Digest,
    /// State of the path without which the file isn't put there.
    #[serde(rename = "if", skip_serializing_if = "Expected::is_anything")]
    pub expected: Expected,
    /// Sync the file before it is confirmed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub durable: bool,
    /// The whole file, if it is small and sent with the request: the attachment.
    #[serde(skip)]
    pub content: Option<Bytes>,
}

/// State of a path without which a file isn't put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Expected {
    /// Any: a file or link that is there is replaced.
    #[default]
    Anything,
    /// Nothing is there.
    Nothing,
    /// A file of this digest is there.
    Digest(Digest),
}

impl Expected {
    fn is_anything(&self) -> bool {
        *self == Self::Anything
    }
}

impl Serialize for Expected {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self::Digest(digest) = self else { return serializer.serialize_none() };
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry("digest", digest)?;
        map.end()
    }
}

/// A push may begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushReply {
    /// Id of the push.
    pub id: u32,
    /// Ranges that the server has, ascending and not overlapping: they are not to be sent.
    #[serde(deserialize_with = "at_most::<HAVE_RANGES_MAX, _, _>")]
    pub have: Vec<Range>,
    /// Largest body frame.
    pub chunk_bytes: u64,
    /// Bytes that may be sent.
    pub credit_bytes: u64,
}

impl PushReply {
    pub(super) fn check(self) -> Result<Self, WireError> {
        check_ranges(&self.have)?;
        if self.chunk_bytes < CHUNK_BYTES_MIN {
            return Err(WireError::bad(format!("`chunk_bytes` is under {CHUNK_BYTES_MIN}")));
        }
        Ok(self)
    }
}

/// More of a push may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushCredit {
    /// Id of the push.
    pub id: u32,
    /// Bytes, added to what is left of earlier credit.
    pub bytes: u64,
}

/// A pushed file is in place: whole, verified and under its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PushedReply {
    /// Id of the push, which is over.
    pub id: u32,
    /// Its digest.
    pub digest: Digest,
    /// Synced to disk.
    #[serde(default)]
    pub durable: bool,
    /// The number of the change, if the server watches its directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// The file was there already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub same: bool,
}

#[derive(Deserialize)]
pub(super) struct RawPush {
    id: u32,
    path: Option<String>,
    path_b64: Option<String>,
    size: u64,
    mtime: Timestamp,
    #[serde(default = "mode_default")]
    mode: u32,
    digest: Digest,
    #[serde(default, rename = "if", deserialize_with = "present")]
    expected: Option<Option<RawExpected>>,
    #[serde(default)]
    durable: bool,
}

#[derive(Deserialize)]
struct RawExpected {
    digest: Digest,
}

fn mode_default() -> u32 {
    0o644
}

/// Distinguishes null from a missing member.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl RawPush {
    pub(super) fn check(self) -> Result<PushRequest, WireError> {
        let path = required_path(self.path, self.path_b64)?;
        check_stat(self.size, self.mode).map_err(WireError::bad)?;
        let expected = match self.expected {
            None => Expected::Anything,
            Some(None) => Expected::Nothing,
            Some(Some(RawExpected { digest })) => Expected::Digest(digest),
        };
        let Self { id, size, mtime, mode, digest, durable, .. } = self;
        Ok(PushRequest { id, path, size, mtime, mode, digest, expected, durable, content: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::control::{Reply, Request};

    #[test]
    fn condition_is_anything_nothing_or_a_digest() {
        let digest = Digest::of(b"x");
        let members = format!(r#""op":"push","id":9,"path":"in/a","size":5,"mtime":[7,0],"digest":"{digest}""#);
        for (more, expected) in [
            (String::new(), Expected::Anything),
            (r#","if":null"#.to_owned(), Expected::Nothing),
            (format!(r#","if":{{"digest":"{digest}"}}"#), Expected::Digest(digest)),
        ] {
            let request = Request::decode(format!("{{{members}{more}}}").as_bytes()).unwrap();
            let Request::Push(push) = &request else { panic!("{request:?}") };
            assert_eq!((push.expected, push.mode, push.durable), (expected, 0o644, false));
            assert_eq!(Request::decode(&request.encode()).unwrap(), request);
        }
        for wrong in [r#","if":7"#, r#","if":{}"#, r#","mode":65536"#, r#","size":9223372036854775808"#] {
            assert!(Request::decode(format!("{{{members}{wrong}}}").as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn answers_are_checked() {
        let reply = |text: &str| Reply::decode(text.as_bytes());
        let good = r#"{"re":"push","id":9,"have":[[0,5],[7,1]],"chunk_bytes":4096,"credit_bytes":1}"#;
        let Reply::Push(push) = reply(good).unwrap() else { panic!() };
        assert_eq!(
            reply(std::str::from_utf8(&Reply::Push(push.clone()).encode()).unwrap()).unwrap(),
            Reply::Push(push)
        );
        for (from, to) in [("[7,1]", "[3,1]"), ("4096", "4095"), ("[0,5]", "[0,0]")] {
            assert!(reply(&good.replace(from, to)).is_err(), "{to}");
        }
    }
}
