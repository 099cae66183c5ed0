//! Paths below a root, as they travel on the wire: bytes, `/` between names, never leading out.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;

/// The most bytes of a whole path.
pub const PATH_BYTES_MAX: usize = 4096;
/// The most bytes of one name in a path.
pub const NAME_BYTES_MAX: usize = 255;

/// Why bytes are not a path below a root.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// Longer than [`PATH_BYTES_MAX`].
    #[error("path longer than {PATH_BYTES_MAX} bytes")]
    TooLong,
    /// A name longer than [`NAME_BYTES_MAX`].
    #[error("name longer than {NAME_BYTES_MAX} bytes")]
    NameTooLong,
    /// The path begins with `/`.
    #[error("absolute path; leave out the / at its beginning")]
    Absolute,
    /// Two `/` in a row, or one at the end.
    #[error("empty name in path")]
    EmptyName,
    /// A name is `.` or `..`.
    #[error("`.` or `..` in path")]
    Dots,
    /// The path contains a NUL byte.
    #[error("NUL in path")]
    Nul,
    /// A name contains `/` (only where one name alone is expected).
    #[error("`/` in name")]
    Slash,
}

/// A path below a root: no empty names, no `.` or `..`, no NUL, not absolute, within the limits.
///
/// The root itself is the empty path. The bytes need not be UTF-8; [`Display`](fmt::Display) escapes what isn't, and control
/// characters, so that a path from a peer can be put into a log or onto a terminal.
///
/// A valid path is safe to *name* something below a root; [`Root`](crate::root::Root) sees to it that no symbolic link leads outside.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelPath(Box<[u8]>);

impl RelPath {
    /// The root itself.
    pub fn root() -> RelPath {
        RelPath::default()
    }

    /// Checks bytes and makes them a path.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<RelPath, PathError> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Ok(RelPath::root());
        }
        if bytes.len() > PATH_BYTES_MAX {
            return Err(PathError::TooLong);
        }
        if bytes.starts_with(b"/") {
            return Err(PathError::Absolute);
        }
        for name in bytes.split(|&byte| byte == b'/') {
            check_name(name)?;
        }
        Ok(RelPath(bytes.into_boxed_slice()))
    }

    /// Returns whether this is the root itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes, as they travel.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The path for the standard library's interfaces.
    pub fn as_os_str(&self) -> &OsStr {
        OsStr::from_bytes(&self.0)
    }

    /// This path with one more name below it.
    pub fn join(&self, name: &[u8]) -> Result<RelPath, PathError> {
        check_name(name)?;
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + name.len());
        bytes.extend_from_slice(&self.0);
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        if bytes.len() > PATH_BYTES_MAX {
            return Err(PathError::TooLong);
        }
        Ok(RelPath(bytes.into_boxed_slice()))
    }

    /// Parent directory and last name. None for the root.
    pub fn split(&self) -> Option<(RelPath, &[u8])> {
        let name = self.name()?;
        let parent = self.0.len().saturating_sub(name.len() + 1);
        Some((RelPath(self.0.get(..parent)?.into()), name))
    }

    /// Parent directory. None for the root.
    pub fn parent(&self) -> Option<RelPath> {
        self.split().map(|(parent, _)| parent)
    }

    /// The last name. None for the root.
    pub fn name(&self) -> Option<&[u8]> {
        self.names().next_back()
    }

    /// The names from the root downwards.
    pub fn names(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.0.split(|&byte| byte == b'/').filter(|name| !name.is_empty())
    }

    /// The rest of this path below `base`: the root if they are the same, None if this isn't below it.
    pub fn below(&self, base: &RelPath) -> Option<RelPath> {
        if base.is_root() {
            return Some(self.clone());
        }
        let rest = self.0.strip_prefix(base.as_bytes())?;
        match rest {
            [] => Some(RelPath::root()),
            [b'/', rest @ ..] => Some(RelPath(rest.into())),
            _ => None,
        }
    }
}

/// Checks one name of a path.
pub fn check_name(name: &[u8]) -> Result<(), PathError> {
    match name {
        b"" => Err(PathError::EmptyName),
        b"." | b".." => Err(PathError::Dots),
        _ if name.len() > NAME_BYTES_MAX => Err(PathError::NameTooLong),
        _ if name.contains(&0) => Err(PathError::Nul),
        _ if name.contains(&b'/') => Err(PathError::Slash),
        _ => Ok(()),
    }
}

/// Beginning of the names of files that transfers keep beside what they receive.
pub const TRANSFER_PREFIX: &[u8] = b".tow-";
/// Hex digits in such a name.
pub const TRANSFER_HASH_DIGITS: usize = 16;
/// Their ends.
const TRANSFER_SUFFIXES: [&[u8]; 5] = [b".part", b".state", b".follow", b".changes", b".acting"];

/// Name of the directory of versions, which isn't among the served files.
pub const VERSIONS_NAME: &[u8] = b".tow-versions";

/// Whether a name is that of a partial file, of its state, of what a follower keeps, or of versions. No such file is received or published.
pub fn is_reserved(name: &[u8]) -> bool {
    if !name.starts_with(b".") {
        return false;
    }
    // Some file systems take other cases for the same name.
    let name = &*name.to_ascii_lowercase();
    if name == VERSIONS_NAME {
        return true;
    }
    let Some(rest) = name.strip_prefix(TRANSFER_PREFIX) else { return false };
    let stem = TRANSFER_SUFFIXES.iter().find_map(|suffix| rest.strip_suffix(*suffix));
    stem.is_some_and(|stem| stem.len() == TRANSFER_HASH_DIGITS && stem.iter().all(u8::is_ascii_hexdigit))
}

/// Displays bytes from a peer safely in a log or on a terminal: control characters, backslashes and invalid UTF-8 are escaped.
#[derive(Copy, Clone)]
pub struct Escaped<'a>(pub &'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        for chunk in self.0.utf8_chunks() {
            for character in chunk.valid().chars() {
                match character {
                    '\\' => f.write_str("\\\\")?,
                    _ if character.is_control() || is_invisible(character) => {
                        write!(f, "{}", character.escape_unicode())?;
                    }
                    _ => f.write_char(character)?,
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Characters that reorder what a terminal shows, end a line, or can't be seen: with them a name could be made to look like another. Joiners
/// (U+200C, U+200D) are not among them, as words of some languages need them.
fn is_invisible(character: char) -> bool {
    matches!(
        character,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    )
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_root() { f.write_str(".") } else { Escaped(&self.0).fmt(f) }
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", Escaped(&self.0))
    }
}

impl FromStr for RelPath {
    type Err = PathError;

    fn from_str(text: &str) -> Result<RelPath, PathError> {
        RelPath::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_that_lead_out_are_refused() {
        for (bytes, error) in [
            (&b"/etc/passwd"[..], PathError::Absolute),
            (b"..", PathError::Dots),
            (b"a/../../b", PathError::Dots),
            (b"a/./b", PathError::Dots),
            (b"a//b", PathError::EmptyName),
            (b"a/", PathError::EmptyName),
            (b"a\0b", PathError::Nul),
        ] {
            assert_eq!(RelPath::new(bytes), Err(error), "{}", Escaped(bytes));
        }
    }

    #[test]
    fn limits_are_exact() {
        assert!(RelPath::new(vec![b'a'; NAME_BYTES_MAX]).is_ok());
        assert_eq!(RelPath::new(vec![b'a'; NAME_BYTES_MAX + 1]), Err(PathError::NameTooLong));
        let mut long = b"ab/".repeat(PATH_BYTES_MAX / 3);
        long.push(b'a');
        assert_eq!(long.len(), PATH_BYTES_MAX);
        let longest = RelPath::new(long.clone()).unwrap();
        assert_eq!(longest.join(b"b"), Err(PathError::TooLong));
        long.push(b'a');
        assert_eq!(RelPath::new(long), Err(PathError::TooLong));
    }

    #[test]
    fn splits_and_joins() {
        let path = RelPath::new("a/b/c").unwrap();
        let (parent, name) = path.split().unwrap();
        assert_eq!((parent.as_bytes(), name), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(parent.join(name).unwrap(), path);
        assert_eq!(RelPath::new("a").unwrap().parent(), Some(RelPath::root()));
        assert_eq!(RelPath::root().split(), None);
        assert_eq!(path.below(&RelPath::new("a").unwrap()), Some(RelPath::new("b/c").unwrap()));
        assert_eq!(path.below(&path), Some(RelPath::root()));
        assert_eq!(RelPath::new("ab").unwrap().below(&RelPath::new("a").unwrap()), None);
        assert_eq!(RelPath::root().join(b".."), Err(PathError::Dots));
        assert_eq!(RelPath::root().join(b"a/b"), Err(PathError::Slash));
    }

    #[test]
    fn display_shows_no_control_characters() {
        let path = RelPath::new(&b"a\x1b[31m\xff\\\nb\xc3\xa9\xe2\x80\xae"[..]).unwrap();
        assert_eq!(path.to_string(), "a\\u{1b}[31m\\xff\\\\\\u{a}b\u{e9}\\u{202e}");
    }

    proptest! {
        #[test]
        fn accepted_paths_never_leave_the_root(bytes in "[a./\0é]{0,12}") {
            if let Ok(path) = RelPath::new(bytes.as_bytes()) {
                prop_assert!(!path.as_bytes().contains(&0));
                let mut depth = 0;
                for component in std::path::Path::new(path.as_os_str()).components() {
                    prop_assert!(matches!(component, std::path::Component::Normal(_)));
                    depth += 1;
                }
                prop_assert_eq!(depth, path.names().count());
                if let Some((parent, name)) = path.split() {
                    prop_assert_eq!(parent.join(name).unwrap(), path.clone());
                }
            }
        }
    }
}
