//! File systems that take other spellings of a name: in other cases, or short names as FAT has them.

use super::resolve::Resolver;
use super::{Links, Root, RootError};
use crate::path::RelPath;
use rustix::fs::OFlags;
use rustix::io::Errno;

const LOOKING: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW);

impl Root {
    /// Whether each name of a path that is there is in its directory with this spelling. Elsewhere rules about it would say nothing.
    pub fn is_spelled(&self, path: &RelPath) -> Result<bool, RootError> {
        if let Some((versions, path)) = self.version(path) {
            return versions.is_spelled(&path);
        }
        debug_assert_eq!(self.resolver.links(), Links::Never);
        for at in prefixes(path) {
            if may_be_another(&self.resolver, &at)? && !self.has_name(&at)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether [`Root::is_spelled`] is true according to the kernel's cache alone. False if unknown. Doesn't block.
    pub fn is_known_to_be_spelled(&self, path: &RelPath) -> bool {
        if let Some((versions, path)) = self.version(path) {
            return versions.is_known_to_be_spelled(&path);
        }
        let is_absent =
            |other: Vec<u8>| self.resolver.open_in_cache(&other, LOOKING).is_err_and(|errno| errno == Errno::NOENT);
        prefixes(path).all(|at| !is_short(&at) && other_spellings(&at).into_iter().all(is_absent))
    }

    /// Whether a name is in its directory's list, or isn't there at all.
    fn has_name(&self, path: &RelPath) -> Result<bool, RootError> {
        let Some((parent, name)) = path.split() else { return Ok(true) };
        match self.resolver.open(path, LOOKING) {
            Ok(_) => self.any_dir(&parent)?.lists(name),
            // A link above it is no matter of spelling.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(true),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// The path, and those above it but for the root.
fn prefixes(path: &RelPath) -> impl Iterator<Item = RelPath> {
    std::iter::successors(Some(path.clone()), RelPath::parent).filter(|path| !path.is_root())
}

/// Whether another spelling of the last name leads somewhere too, so that this one may not be the directory's own.
fn may_be_another(resolver: &Resolver, path: &RelPath) -> Result<bool, RootError> {
    if is_short(path) {
        return Ok(true);
    }
    for other in other_spellings(path) {
        let Ok(other) = RelPath::new(other) else { continue };
        match resolver.open(&other, LOOKING) {
            Ok(_) => return Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NAMETOOLONG | Errno::INVAL | Errno::ILSEQ) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(false)
}

/// Whether the last name may be one that FAT has made.
fn is_short(path: &RelPath) -> bool {
    path.name().is_some_and(|name| name.contains(&b'~'))
}

/// The path with the last name in other cases: a file system that ignores case finds one of them.
fn other_spellings(path: &RelPath) -> Vec<Vec<u8>> {
    let Some((parent, name)) = path.split() else { return Vec::new() };
    let mut toggled = name.to_vec();
    for byte in &mut toggled {
        *byte = if byte.is_ascii_lowercase() { byte.to_ascii_uppercase() } else { byte.to_ascii_lowercase() };
    }
    // Not all of them know of letters beyond ASCII.
    let others = match std::str::from_utf8(name) {
        _ if toggled != name => vec![toggled],
        Ok(text) if !text.is_ascii() => vec![text.to_uppercase().into_bytes(), text.to_lowercase().into_bytes()],
        _ => Vec::new(),
    };
    let below = |other: Vec<u8>| if parent.is_root() { other } else { [parent.as_bytes(), b"/", &other].concat() };
    others.into_iter().filter(|other| other != name).map(below).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn other_spellings_are_those_of_the_last_name() {
        let others = |path: &str| -> Vec<String> {
            let others = other_spellings(&path.parse().unwrap());
            others.into_iter().map(|other| String::from_utf8(other).unwrap()).collect()
        };
        assert_eq!(others("a/Secret.txt"), ["a/sECRET.TXT"]);
        assert_eq!(others("é1"), ["É1"]);
        assert_eq!(others("ß"), ["SS"]);
        assert_eq!(others("aé"), ["Aé"]);
        assert!(others("a/1_2").is_empty() && others("日本").is_empty());
    }

    #[test]
    fn names_are_as_they_are_spelled_where_cases_differ() {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("dir")).unwrap();
        for name in ["dir/a", "dir/A", "dir/b~1", "dir/é"] {
            std::fs::write(temp.path().join(name), "").unwrap();
        }
        let root = Root::serve(temp.path()).unwrap().without_links();
        for name in ["dir/a", "dir/A", "dir/b~1", "dir/é", "dir/missing", "dir/missing~1", "no/dir", ""] {
            assert!(root.is_spelled(&name.parse().unwrap()).unwrap(), "{name}");
        }
    }
}
