//! Messages about versions.
// docs/protocol/follow.md, "Versions".

use serde::{Deserialize, Serialize};

use super::fields::WirePath;
use crate::digest::Digest;
use crate::protocol::WireError;
use crate::protocol::manifest::is_label;

/// "publish".
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PublishRequest {
    /// The client's number for this request.
    pub id: u32,
    /// The directory whose content is frozen; empty for the root.
    #[serde(flatten)]
    pub path: WirePath,
    /// The version's label. By default the first 16 digits of its digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Versions that are kept, this one included; the oldest are removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keep: Option<u32>,
}

#[derive(Deserialize)]
pub(super) struct RawPublish {
    id: u32,
    path: Option<String>,
    path_b64: Option<String>,
    label: Option<String>,
    keep: Option<u32>,
}

impl RawPublish {
    pub(super) fn check(self) -> Result<PublishRequest, WireError> {
        let path = WirePath::from_members(self.path, self.path_b64).map_err(WireError::bad)?.unwrap_or_default();
        if self.label.as_deref().is_some_and(|label| !is_label(label)) {
            return Err(WireError::bad(
                "a label has 1 to 64 letters, digits, `.`, `_` and `-`, and doesn't begin with `.`",
            ));
        }
        if self.keep == Some(0) {
            return Err(WireError::bad("`keep` is at least 1"));
        }
        Ok(PublishRequest { id: self.id, path, label: self.label, keep: self.keep })
    }
}

/// A version is published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedReply {
    /// Id of the request.
    pub id: u32,
    /// Digest of its manifest.
    pub version: Digest,
    /// Its label.
    pub label: String,
    /// Its number.
    pub seq: u64,
    /// Files in it.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Whether it was there before.
    #[serde(default)]
    pub same: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::control::{Reply, Request};

    #[test]
    fn messages_are_as_documented() {
        let json = r#"{"op":"publish","id":9,"path":"models","label":"v1","keep":5}"#;
        let request = Request::Publish(PublishRequest {
            id: 9,
            path: b"models".to_vec().into(),
            label: Some("v1".to_owned()),
            keep: Some(5),
        });
        assert_eq!(Request::decode(json.as_bytes()), Ok(request.clone()));
        assert_eq!(String::from_utf8(request.encode()).unwrap(), json);
        let version = Digest::of(b"v");
        let published =
            PublishedReply { id: 9, version, label: "v1".to_owned(), seq: 7, files: 2, bytes: 30, same: false };
        let reply = Reply::Published(published);
        assert_eq!(Reply::decode(&reply.encode()), Ok(reply));
        for bad in [r#""label":"../x""#, r#""label":"""#, r#""label":".new""#, r#""keep":0"#, r#""keep":-1"#] {
            assert!(Request::decode(format!(r#"{{"op":"publish","id":9,{bad}}}"#).as_bytes()).is_err(), "{bad}");
        }
    }
}
