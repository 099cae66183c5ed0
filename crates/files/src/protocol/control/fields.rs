//! Members of messages: paths, link targets, times, links to follow.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits::{FILE_BYTES_MAX, LEAF_BYTES_MIN, MODE_MAX, PATH_BYTES_MAX, REASON_BYTES_MAX};
use crate::path::{PathError, RelPath};
use crate::protocol::WireError;
use crate::root::Timestamp;

/// A path on the wire: `path`, or `path_b64` where it is not UTF-8. Only its length is checked; [`WirePath::to_rel_path`] checks the rest.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct WirePath(Vec<u8>);

/// Target of a symbolic link, as stored: `target`, or `target_b64`. Only its length is checked.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct LinkTarget(Vec<u8>);

macro_rules! byte_string {
    ($name:ident, $plain:literal, $base64:literal) => {
        impl $name {
            /// The bytes.
            pub fn as_bytes(&self) -> &[u8] {
                &self.0
            }

            /// The bytes, moved out.
            pub fn into_bytes(self) -> Vec<u8> {
                self.0
            }

            /// From the two members that can hold it, of which at most one may be there.
            pub(super) fn from_members(plain: Option<String>, base64: Option<String>) -> Result<Option<Self>, String> {
                Ok(bytes_from_members($plain, plain, base64)?.map(Self))
            }
        }

        impl From<Vec<u8>> for $name {
            fn from(bytes: Vec<u8>) -> Self {
                Self(bytes)
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "\"{}\"", self.0.escape_ascii())
            }
        }

        /// A map of one member: made to be flattened into the object around it.
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut map = serializer.serialize_map(Some(1))?;
                match std::str::from_utf8(&self.0) {
                    Ok(text) => map.serialize_entry($plain, text)?,
                    Err(_) => map.serialize_entry($base64, &BASE64.encode(&self.0))?,
                }
                map.end()
            }
        }
    };
}

byte_string!(WirePath, "path", "path_b64");
byte_string!(LinkTarget, "target", "target_b64");

impl WirePath {
    /// The path below a root.
    ///
    /// # Errors
    /// The path is absolute or has `..`, an empty or an over-long name: see [`RelPath::new`].
    pub fn to_rel_path(&self) -> Result<RelPath, PathError> {
        RelPath::new(self.0.as_slice())
    }
}

impl From<&RelPath> for WirePath {
    fn from(path: &RelPath) -> Self {
        Self(path.as_bytes().to_vec())
    }
}

/// The path of a request that needs one.
pub(super) fn required_path(path: Option<String>, path_b64: Option<String>) -> Result<WirePath, WireError> {
    WirePath::from_members(path, path_b64).map_err(WireError::bad)?.ok_or_else(|| WireError::bad("`path` is missing"))
}

/// Links that are followed by a listing, as long as they stay below the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FollowLinks {
    /// None: a link is an entry of its own.
    #[default]
    None,
    /// The listed path itself.
    Path,
    /// That, and every link that is listed.
    All,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(super) fn follows_none(follow: &FollowLinks) -> bool {
    *follow == FollowLinks::None
}

fn bytes_from_members(name: &str, plain: Option<String>, base64: Option<String>) -> Result<Option<Vec<u8>>, String> {
    let bytes = match (plain, base64) {
        (None, None) => return Ok(None),
        (Some(text), None) => text.into_bytes(),
        (None, Some(text)) => BASE64.decode(text).map_err(|_| format!("`{name}_b64` is not base64"))?,
        (Some(_), Some(_)) => return Err(format!("both `{name}` and `{name}_b64`")),
    };
    if bytes.len() > PATH_BYTES_MAX {
        return Err(format!("`{name}` is longer than {PATH_BYTES_MAX} bytes"));
    }
    Ok(Some(bytes))
}

/// `[seconds, nanoseconds]`.
impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.seconds, self.nanoseconds).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (seconds, nanoseconds) = Deserialize::deserialize(deserializer)?;
        if nanoseconds >= 1_000_000_000 {
            return Err(serde::de::Error::custom("nanoseconds are over 999,999,999"));
        }
        Ok(Self { seconds, nanoseconds })
    }
}

/// Truncates a text from the wire to [`REASON_BYTES_MAX`], at a character boundary.
pub(super) fn cut_reason(mut text: String) -> String {
    let end = (0..=REASON_BYTES_MAX).rev().find(|&at| text.is_char_boundary(at));
    if text.len() > REASON_BYTES_MAX {
        text.truncate(end.unwrap_or(0));
    }
    text
}

/// Checks members that stat(2) has.
pub(super) fn check_stat(size: u64, mode: u32) -> Result<(), String> {
    if size > FILE_BYTES_MAX {
        return Err("`size` is over 2^63 - 1".to_owned());
    }
    if mode > MODE_MAX {
        return Err("`mode` has more than permission bits".to_owned());
    }
    Ok(())
}

/// Checks the size of a leaf.
pub(super) fn check_leaf_bytes(leaf_bytes: u64) -> Result<(), String> {
    if leaf_bytes < LEAF_BYTES_MIN || !leaf_bytes.is_power_of_two() {
        return Err("`leaf_bytes` is not a power of two from 1 MiB up".to_owned());
    }
    Ok(())
}
