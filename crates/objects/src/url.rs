//! Addresses of prefixes.

use std::fmt;
use std::str::FromStr;

/// Begins an address.
const SCHEME: &str = "s3://";
/// Longest key, in bytes, as S3 has it.
pub(crate) const KEY_BYTES_MAX: usize = 1024;
/// Lengths of a bucket's name. Stores that aren't AWS take longer ones than its 63.
const BUCKET_BYTES: std::ops::RangeInclusive<usize> = 1..=255;

/// A bucket and a prefix of its keys: `s3://bucket/prefix`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectUrl {
    /// Name of the bucket.
    pub bucket: String,
    /// Keys below it begin with this, without a slash at its ends; empty for the whole bucket.
    pub prefix: String,
}

impl ObjectUrl {
    /// Whether an argument is such an address, perhaps a wrong one.
    pub fn is_one(text: &str) -> bool {
        text.starts_with(SCHEME)
    }

    /// The key of a path below the prefix.
    pub fn key(&self, path: &str) -> String {
        match (self.prefix.is_empty(), path.is_empty()) {
            (true, _) => path.to_owned(),
            (false, true) => self.prefix.clone(),
            (false, false) => format!("{}/{path}", self.prefix),
        }
    }
}

impl FromStr for ObjectUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<ObjectUrl, String> {
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| format!("{text} doesn't begin with {SCHEME}"))?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if !BUCKET_BYTES.contains(&bucket.len()) || !bucket.bytes().all(fits) {
            return Err(format!("{text} has no name of a bucket: use s3://bucket/prefix"));
        }
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let is_path = |name: &str| !matches!(name, "" | "." | "..") && !name.chars().any(|c| c.is_ascii_control());
        if prefix.len() > KEY_BYTES_MAX || (!prefix.is_empty() && !prefix.split('/').all(is_path)) {
            return Err(format!("the prefix in {text} is no path: it has an empty part, . or .., or is too long"));
        }
        Ok(ObjectUrl { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

impl fmt::Display for ObjectUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.bucket, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_prefix_is_a_path() {
        let url: ObjectUrl = "s3://data/models/v1/".parse().unwrap();
        assert_eq!((url.bucket.as_str(), url.prefix.as_str()), ("data", "models/v1"));
        assert_eq!((url.key("a/b"), url.key("")), ("models/v1/a/b".to_owned(), "models/v1".to_owned()));
        let whole: ObjectUrl = "s3://data".parse().unwrap();
        assert_eq!((whole.key("a"), whole.key("")), ("a".to_owned(), String::new()));
        for wrong in
            ["data/x", "s3://", "s3:///x", "s3://a b/x", "s3://b//x", "s3://b/../x", "s3://b/x//", "s3://b/a\nb"]
        {
            assert!(wrong.parse::<ObjectUrl>().is_err(), "{wrong}");
        }
    }
}
