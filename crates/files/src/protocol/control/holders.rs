//! Messages about holders.
// docs/protocol/follow.md, "Who has what".

use serde::{Deserialize, Deserializer, Serialize};

use super::bounded::at_most;
use crate::digest::Digest;
use crate::limits::{HAVE_HOLDERS_MAX, HOLDER_NAME_BYTES_MAX, HOLDERS_PAGE_MAX};
use crate::protocol::WireError;
use crate::protocol::follow::{CopyId, Cursor};

/// "have".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Have {
    /// The client itself; of a relay, also those behind it. At most [`HAVE_HOLDERS_MAX`].
    #[serde(deserialize_with = "at_most::<HAVE_HOLDERS_MAX, _, _>")]
    pub holders: Vec<Holder>,
}

/// A follower's verified content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its name.
    pub name: HolderName,
    /// Which copy: there may be several of a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<CopyId>,
    /// Everything up to it is in place.
    pub cursor: Cursor,
    /// Synced to the disk.
    #[serde(default)]
    pub durable: bool,
    /// The version that is in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Digest>,
}

/// A name of 1 to [`HOLDER_NAME_BYTES_MAX`] bytes of printable text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct HolderName(Box<str>);

impl HolderName {
    /// A name, if it can be one.
    ///
    /// # Errors
    /// It is empty, too long, or has control characters.
    pub fn new(name: &str) -> Result<HolderName, String> {
        if name.is_empty() || name.len() > HOLDER_NAME_BYTES_MAX || name.chars().any(char::is_control) {
            return Err(format!("a name has 1 to {HOLDER_NAME_BYTES_MAX} bytes and no control characters"));
        }
        Ok(HolderName(name.into()))
    }

    /// The name that is nearest to a text.
    pub fn near(text: &str) -> HolderName {
        let mut name: String = text.chars().filter(|char| !char.is_control()).take(HOLDER_NAME_BYTES_MAX).collect();
        while name.len() > HOLDER_NAME_BYTES_MAX {
            name.pop();
        }
        HolderName(if name.is_empty() { "unnamed".into() } else { name.into() })
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for HolderName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        HolderName::new(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// "holders".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HoldersRequest {
    /// The client's number for this request.
    pub id: u32,
    /// The content asked for.
    #[serde(flatten)]
    pub wanted: HoldersWanted,
    /// Holders to pass over, by name.
    pub from: u32,
    /// Holders to name at most.
    pub count: u32,
}

/// Content that holders are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HoldersWanted {
    /// Everything up to this number.
    Seq(u64),
    /// This version.
    Version(Digest),
}

#[derive(Deserialize)]
pub(super) struct RawHolders {
    id: u32,
    seq: Option<u64>,
    version: Option<Digest>,
    #[serde(default)]
    from: u32,
    count: Option<u32>,
}

impl RawHolders {
    pub(super) fn check(self) -> Result<HoldersRequest, WireError> {
        let wanted = match (self.seq, self.version) {
            (Some(seq), None) => HoldersWanted::Seq(seq),
            (None, Some(version)) => HoldersWanted::Version(version),
            _ => return Err(WireError::bad("either `seq` or `version` is needed")),
        };
        Ok(HoldersRequest { id: self.id, wanted, from: self.from, count: self.count.unwrap_or(u32::MAX) })
    }
}

/// The holders.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HoldersReply {
    /// Id of the request.
    pub id: u32,
    /// How many have what was asked for.
    pub holding: u32,
    /// Number of known ones.
    pub total: u32,
    /// Known ones, by name. At most [`HOLDERS_PAGE_MAX`].
    #[serde(deserialize_with = "at_most::<HOLDERS_PAGE_MAX, _, _>")]
    pub holders: Vec<KnownHolder>,
}

/// A holder as a server knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownHolder {
    /// Its content.
    #[serde(flatten)]
    pub holder: Holder,
    /// Whether it has the content asked for.
    #[serde(default)]
    pub holds: bool,
    /// The user, or the name of the key, that said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Milliseconds since it was last said.
    pub age_ms: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::control::{Reply, Request};
    use crate::protocol::follow::Epoch;

    #[test]
    fn messages_are_as_documented() {
        let (epoch, digest) = ("ab".repeat(16), Digest::of(b"v"));
        let cursor = Cursor { epoch: Epoch([0xab; 16]), seq: 9 };
        let holder = Holder {
            name: HolderName::new("gpu-17").unwrap(),
            copy: Some(CopyId([0xab; 16])),
            cursor,
            durable: true,
            version: Some(digest),
        };
        let json = format!(
            r#"{{"op":"have","holders":[{{"name":"gpu-17","copy":"{epoch}","cursor":"{epoch}-9","durable":true,"version":"{digest}"}}]}}"#
        );
        let have = Request::Have(Have { holders: vec![holder.clone()] });
        assert_eq!(Request::decode(json.as_bytes()), Ok(have.clone()));
        assert_eq!(String::from_utf8(have.encode()).unwrap(), json);
        for (json, wanted) in [
            (r#"{"op":"holders","id":8,"seq":7,"from":0,"count":5}"#.to_owned(), HoldersWanted::Seq(7)),
            (
                format!(r#"{{"op":"holders","id":8,"version":"{digest}","from":0,"count":5}}"#),
                HoldersWanted::Version(digest),
            ),
        ] {
            let request = Request::Holders(HoldersRequest { id: 8, wanted, from: 0, count: 5 });
            assert_eq!(Request::decode(json.as_bytes()), Ok(request.clone()));
            assert_eq!(String::from_utf8(request.encode()).unwrap(), json);
        }
        let known = KnownHolder { holder, holds: true, user: Some("ann".to_owned()), age_ms: 40 };
        let reply = Reply::Holders(HoldersReply { id: 8, holding: 1, total: 2, holders: vec![known] });
        assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
    }

    #[test]
    fn names_and_counts_over_the_limits_are_refused() {
        let holder = |name: &str| format!(r#"{{"name":{name},"cursor":"{}-9"}}"#, "ab".repeat(16));
        let have = |holders: &str| Request::decode(format!(r#"{{"op":"have","holders":[{holders}]}}"#).as_bytes());
        assert!(have(&holder(&format!("{:?}", "n".repeat(64)))).is_ok());
        for name in [format!("{:?}", "n".repeat(65)), r#""""#.to_owned(), r#""a\u001b[2J""#.to_owned(), "7".to_owned()]
        {
            assert!(have(&holder(&name)).is_err(), "{name}");
        }
        let many = |count: usize| vec![holder(r#""a""#); count].join(",");
        assert!(have(&many(HAVE_HOLDERS_MAX)).is_ok());
        assert!(have(&many(HAVE_HOLDERS_MAX + 1)).is_err());
        for json in [r#"{"op":"holders","id":1}"#, r#"{"op":"holders","seq":1}"#, r#"{"op":"have"}"#] {
            assert!(Request::decode(json.as_bytes()).is_err(), "{json}");
        }
    }
}
