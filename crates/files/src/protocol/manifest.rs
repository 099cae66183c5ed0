//! The manifest of a version: what was below a path when it was published.
// docs/formats/version.md has the bytes.

use super::control::{Change, ChangeContent};
use crate::limits::{CATALOGUE_PATHS_MAX, LABEL_BYTES_MAX};
use crate::path::{PathError, RelPath, is_reserved};

/// The directory of versions, as clients know it.
pub const VERSIONS: &str = ".tow-versions";
/// The manifest of a version, in its directory.
pub const MANIFEST: &str = "manifest";
/// The files of a version, in its directory.
pub const TREE: &str = "tree";
/// Before each name of a path, in the directory of its versions: no label begins with it.
pub const OF_PREFIX: u8 = b'=';
/// The first line.
pub const HEAD: &str = "{\"towpath\":\"manifest\",\"format\":1}\n";

/// A text that is no manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct ManifestError {
    /// The line, from 1.
    pub line: usize,
    /// The mistake.
    pub why: String,
}

/// A line. Lines are numbered by their entries, from 1.
pub fn line(entry: &Change) -> Vec<u8> {
    // Every member is a number, a text or a list of them: nothing that serde_json can refuse.
    let mut line = serde_json::to_vec(entry).unwrap_or_default();
    line.push(b'\n');
    line
}

/// The entries of a manifest: by ascending path, each a file, directory or link with a path that leads nowhere else.
///
/// # Errors
/// It isn't a manifest of this format.
pub fn decode(bytes: &[u8]) -> Result<Vec<Change>, ManifestError> {
    let wrong = |line: usize, why: &str| ManifestError { line: line + 1, why: why.to_owned() };
    let rest = bytes.strip_prefix(HEAD.as_bytes()).ok_or_else(|| wrong(0, "not a manifest of a known format"))?;
    let mut entries: Vec<Change> = Vec::new();
    for (index, text) in rest.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let number = index + 1;
        if number > CATALOGUE_PATHS_MAX {
            return Err(wrong(number, "too many entries"));
        }
        if !text.ends_with(b"\n") {
            return Err(wrong(number, "it is cut off"));
        }
        let entry: Change = serde_json::from_slice(text).map_err(|error| wrong(number, &error.to_string()))?;
        let path = entry.path.to_rel_path().map_err(|error| wrong(number, &error.to_string()))?;
        if entry.seq != number as u64 || entry.content == ChangeContent::Gone || path.is_root() {
            return Err(wrong(number, "not an entry of a manifest"));
        }
        if path.as_bytes() != entry.path.as_bytes() || path.names().any(is_reserved) {
            return Err(wrong(number, "a path that can't be in a manifest"));
        }
        if entries.last().is_some_and(|last| last.path.as_bytes() >= entry.path.as_bytes()) {
            return Err(wrong(number, "paths out of order"));
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// A version: of which path it is, and what it is called there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VersionName {
    /// The published path.
    pub of: RelPath,
    /// Its label.
    pub label: String,
}

impl VersionName {
    /// Its directory, below that of all versions.
    ///
    /// # Errors
    /// The path is too long.
    pub fn directory(&self) -> Result<RelPath, PathError> {
        below_versions(RelPath::root(), &self.of)?.join(self.label.as_bytes())
    }

    /// Its manifest, as clients know it.
    ///
    /// # Errors
    /// The path is too long.
    pub fn manifest(&self) -> Result<RelPath, PathError> {
        versions_of(&self.of)?.join(self.label.as_bytes())?.join(MANIFEST.as_bytes())
    }

    /// Its files, as clients know them.
    ///
    /// # Errors
    /// The path is too long.
    pub fn tree(&self) -> Result<RelPath, PathError> {
        versions_of(&self.of)?.join(self.label.as_bytes())?.join(TREE.as_bytes())
    }

    /// The version that a path below the directory of all versions is in, and the path there.
    pub fn split(path: &[u8]) -> Option<(VersionName, &[u8])> {
        let (mut of, mut rest) = (RelPath::root(), path);
        loop {
            let end = rest.iter().position(|byte| *byte == b'/')?;
            let (name, behind) = (rest.get(..end)?, rest.get(end + 1..)?);
            rest = behind;
            match name.strip_prefix(&[OF_PREFIX]) {
                Some(name) => of = of.join(name).ok()?,
                None => {
                    let label = std::str::from_utf8(name).ok().filter(|label| is_label(label))?.to_owned();
                    return Some((VersionName { of, label }, rest));
                }
            }
        }
    }

    /// The same for a path as clients know it.
    pub fn split_known(path: &[u8]) -> Option<(VersionName, &[u8])> {
        VersionName::split(path.strip_prefix(VERSIONS.as_bytes())?.strip_prefix(b"/")?)
    }
}

/// The directory of the versions of a path, as clients know it: `.tow-versions` for the root, and `.tow-versions/=a/=b` for `a/b`.
///
/// # Errors
/// The path is too long.
pub fn versions_of(path: &RelPath) -> Result<RelPath, PathError> {
    below_versions(RelPath::new(VERSIONS)?, path)
}

fn below_versions(top: RelPath, of: &RelPath) -> Result<RelPath, PathError> {
    of.names().try_fold(top, |at, name| at.join(&[&[OF_PREFIX], name].concat()))
}

/// Whether a text can be the label of a version.
pub fn is_label(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty() && text.len() <= LABEL_BYTES_MAX && !text.starts_with('.') && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_versions_name_their_path() {
        let name = |of: &str, label: &str| VersionName { of: of.parse().unwrap(), label: label.to_owned() };
        for (version, directory) in
            [(name("", "v1"), "v1"), (name("a/b c", "v1"), "=a/=b c/v1"), (name("=a", "x"), "==a/x")]
        {
            assert_eq!(version.directory().unwrap().to_string(), directory);
            assert_eq!(version.tree().unwrap().to_string(), format!(".tow-versions/{directory}/tree"));
            let manifest = version.manifest().unwrap();
            assert_eq!(VersionName::split_known(manifest.as_bytes()), Some((version, &b"manifest"[..])));
        }
        for other in ["v1", "=a/=b", "=a//v1/manifest", ".new-v1/manifest", "=/v1/manifest", "=../v1/manifest"] {
            assert_eq!(VersionName::split(other.as_bytes()), None, "{other}");
        }
        assert_eq!(VersionName::split_known(b".tow-versionsx/v1/manifest"), None);
    }
    use crate::digest::Digest;
    use crate::root::Timestamp;

    fn entry(seq: u64, path: &[u8], content: ChangeContent) -> Change {
        Change { seq, path: path.to_vec().into(), content }
    }

    fn dir(seq: u64, path: &[u8]) -> Change {
        entry(seq, path, ChangeContent::Dir { mode: 0o755 })
    }

    fn text(entries: &[Change]) -> Vec<u8> {
        [HEAD.as_bytes().to_vec()].into_iter().chain(entries.iter().map(line)).flatten().collect()
    }

    #[test]
    fn what_goes_out_comes_back() {
        let mtime = Timestamp { seconds: 7, nanoseconds: 8 };
        let file = ChangeContent::File { size: 5, mtime, mode: 0o644, digest: Digest::of(b"hello") };
        let link = ChangeContent::Link { target: b"a".to_vec().into(), mtime };
        let entries = vec![dir(1, b"a"), entry(2, b"a/f", file), entry(3, b"\xff", link)];
        assert_eq!(decode(&text(&entries)), Ok(entries));
        assert_eq!(decode(HEAD.as_bytes()), Ok(Vec::new()));
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        let gone = entry(1, b"a", ChangeContent::Gone);
        for bad in [
            vec![dir(1, b"../x")],
            vec![dir(1, b"a/../../x")],
            vec![dir(1, b"/etc")],
            vec![dir(1, b"a/")],
            vec![dir(1, b"")],
            vec![dir(1, b"a\0b")],
            vec![dir(1, b".tow-0123456789abcdef.follow")],
            vec![dir(1, b".tow-versions")],
            vec![dir(2, b"a")],
            vec![dir(1, b"b"), dir(2, b"a")],
            vec![dir(1, b"a"), dir(2, b"a")],
            vec![gone],
        ] {
            assert!(decode(&text(&bad)).is_err(), "{bad:?}");
        }
        let whole = text(&[dir(1, b"a")]);
        assert!(decode(&whole[..whole.len() - 1]).is_err());
        assert!(decode(b"").is_err() && decode(b"{}\n").is_err());
    }

    #[test]
    fn labels_are_names() {
        for good in ["v1", "2026-11-28", "a.b_c-D"] {
            assert!(is_label(good), "{good}");
        }
        for bad in ["", ".", "..", ".new-1", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(!is_label(bad), "{bad}");
        }
    }
}
