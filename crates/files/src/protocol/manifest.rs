//! The manifest of a version: what was below a path when it was published (`docs/formats/version.md`).

use super::control::{Change, ChangeContent};
use crate::limits::{CATALOGUE_PATHS_MAX, LABEL_BYTES_MAX};
use crate::path::is_reserved;

/// The directory of versions, as clients know it.
pub const VERSIONS: &str = ".tow-versions";
/// The manifest of a version, in its directory.
pub const MANIFEST: &str = "manifest";
/// The files of a version, in its directory.
pub const TREE: &str = "tree";
/// The first line.
pub const HEAD: &str = "{\"towpath\":\"manifest\",\"format\":1}\n";

/// A text that is no manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct ManifestError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
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

/// Whether a text can be the label of a version.
pub fn is_label(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    !text.is_empty() && text.len() <= LABEL_BYTES_MAX && !text.starts_with('.') && text.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
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
