//! Messages about holders.
// docs/protocol/follow.md, "Who has what".

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::bounded::at_most;
use super::fields::{WirePath, required_path};
use crate::digest::Digest;
use crate::limits::{
    HAVE_HOLDERS_MAX, HOLDER_ERROR_BYTES_MAX, HOLDER_NAME_BYTES_MAX, HOLDER_PATH_BYTES_MAX, HOLDERS_PAGE_MAX,
};
use crate::path::RelPath;
use crate::protocol::WireError;
use crate::protocol::follow::{CopyId, Cursor};

/// "have".
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Have {
    /// The client itself; of a relay, also those behind it. At most [`HAVE_HOLDERS_MAX`].
    #[serde(deserialize_with = "at_most::<HAVE_HOLDERS_MAX, _, _>")]
    pub holders: Vec<Holder>,
}

/// "fetches_for": this connection fetches for a follower that reports what it has on another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchesFor {
    /// The follower's name.
    pub name: HolderName,
    /// Which copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<CopyId>,
}

/// A follower's account of itself: its verified content, and what keeps it from having more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Its name.
    pub name: HolderName,
    /// Which copy: there may be several of a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy: Option<CopyId>,
    /// Everything up to it is in place; nothing without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Cursor>,
    /// Synced to the disk.
    #[serde(default)]
    pub durable: bool,
    /// The version that is in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Digest>,
    /// The path whose versions it follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub versions_of: Option<VersionsOf>,
    /// Its last error, until it works again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<HolderError>,
    /// The part of what it knows of that isn't in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacks: Option<Lacks>,
    /// Why it isn't there any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<Left>,
    /// Milliseconds since it said so, of one that is passed on.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ago_ms: u64,
}

impl Holder {
    /// One of which nothing but its name is known.
    pub fn new(name: HolderName) -> Holder {
        Holder {
            name,
            copy: None,
            cursor: None,
            durable: false,
            version: None,
            versions_of: None,
            error: None,
            lacks: None,
            left: None,
            ago_ms: 0,
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// An error that keeps a follower from going on, which it tries again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderError {
    /// In its own words.
    pub text: ErrorText,
    /// Failures in a row.
    pub tries: u32,
    /// Milliseconds since the first of them.
    pub since_ms: u64,
}

/// The part of what a follower knows of that isn't in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lacks {
    /// Files.
    pub files: u64,
    /// Their bytes that aren't here.
    pub bytes: u64,
    /// Estimated time until they are, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_left: Option<u64>,
}

/// Why a follower isn't there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Left {
    /// Ended by itself, as it was to.
    Ended,
    /// Its connection to a relay has ended.
    Lost,
}

/// An error of 1 to [`HOLDER_ERROR_BYTES_MAX`] bytes of printable text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ErrorText(Box<str>);

impl ErrorText {
    /// The text that is nearest to an error.
    pub fn near(text: &str) -> ErrorText {
        let text = nearest(text, HOLDER_ERROR_BYTES_MAX);
        ErrorText(if text.is_empty() { "an error".into() } else { text.into() })
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for ErrorText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() || text.len() > HOLDER_ERROR_BYTES_MAX || text.chars().any(char::is_control) {
            let limits = format!("an error has 1 to {HOLDER_ERROR_BYTES_MAX} bytes and no control characters");
            return Err(serde::de::Error::custom(limits));
        }
        Ok(ErrorText(text.into()))
    }
}

/// A path whose versions are followed, of at most [`HOLDER_PATH_BYTES_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionsOf(RelPath);

impl VersionsOf {
    /// A path, unless it is too long.
    pub fn new(path: &RelPath) -> Option<VersionsOf> {
        (path.as_bytes().len() <= HOLDER_PATH_BYTES_MAX).then(|| VersionsOf(path.clone()))
    }

    /// The path.
    pub fn path(&self) -> &RelPath {
        &self.0
    }
}

impl Serialize for VersionsOf {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        WirePath::from(&self.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for VersionsOf {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Members {
            path: Option<String>,
            path_b64: Option<String>,
        }
        let Members { path, path_b64 } = Members::deserialize(deserializer)?;
        let path = required_path(path, path_b64).map_err(|error| serde::de::Error::custom(error.message))?;
        let path = path.to_rel_path().map_err(serde::de::Error::custom)?;
        VersionsOf::new(&path).ok_or_else(|| serde::de::Error::custom("the path is too long"))
    }
}

/// The beginning of a text, without control characters.
fn nearest(text: &str, bytes_max: usize) -> String {
    let mut near: String = text.chars().filter(|char| !char.is_control()).take(bytes_max).collect();
    while near.len() > bytes_max {
        near.pop();
    }
    near
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
        let name = nearest(text, HOLDER_NAME_BYTES_MAX);
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
            copy: Some(CopyId([0xab; 16])),
            cursor: Some(cursor),
            durable: true,
            version: Some(digest),
            ..Holder::new(HolderName::new("gpu-17").unwrap())
        };
        let json = format!(
            r#"{{"op":"have","holders":[{{"name":"gpu-17","copy":"{epoch}","cursor":"{epoch}-9","durable":true,"version":"{digest}"}}]}}"#
        );
        let have = Request::Have(Have { holders: vec![holder.clone()] });
        assert_eq!(Request::decode(json.as_bytes()), Ok(have.clone()));
        assert_eq!(String::from_utf8(have.encode()).unwrap(), json);
        let nothing = Holder {
            versions_of: VersionsOf::new(&"models".parse().unwrap()),
            error: Some(HolderError { text: ErrorText::near("no space left\n"), tries: 9, since_ms: 720_000 }),
            lacks: Some(Lacks { files: 2, bytes: 734, seconds_left: Some(60) }),
            left: Some(Left::Lost),
            ago_ms: 40,
            ..Holder::new(HolderName::new("db-3").unwrap())
        };
        let json = r#"{"op":"have","holders":[{"name":"db-3","durable":false,"versions_of":{"path":"models"},"#
            .to_owned()
            + r#""error":{"text":"no space left","tries":9,"since_ms":720000},"#
            + r#""lacks":{"files":2,"bytes":734,"seconds_left":60},"left":"lost","ago_ms":40}]}"#;
        let have = Request::Have(Have { holders: vec![nothing] });
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
        let said = |member: &str| have(&format!(r#"{{"name":"a",{member}}}"#));
        let failed = |text: &str| said(&format!(r#""error":{{"text":{text},"tries":1,"since_ms":0}}"#));
        assert!(failed(&format!("{:?}", "e".repeat(256))).is_ok());
        for text in [format!("{:?}", "e".repeat(257)), r#""""#.to_owned(), r#""a\u001b[2J""#.to_owned()] {
            assert!(failed(&text).is_err(), "{text}");
        }
        assert!(said(&format!(r#""versions_of":{{"path":"{}"}}"#, "p".repeat(255))).is_ok());
        for member in [
            format!(r#""versions_of":{{"path":"{}/{}"}}"#, "p".repeat(200), "p".repeat(56)),
            r#""versions_of":{"path":"../a"}"#.to_owned(),
            r#""left":"early""#.to_owned(),
            r#""lacks":{"files":-1,"bytes":0}"#.to_owned(),
        ] {
            assert!(said(&member).is_err(), "{member}");
        }
        let many = |count: usize| vec![holder(r#""a""#); count].join(",");
        assert!(have(&many(HAVE_HOLDERS_MAX)).is_ok());
        assert!(have(&many(HAVE_HOLDERS_MAX + 1)).is_err());
        for json in [r#"{"op":"holders","id":1}"#, r#"{"op":"holders","seq":1}"#, r#"{"op":"have"}"#] {
            assert!(Request::decode(json.as_bytes()).is_err(), "{json}");
        }
    }
}
