//! Names at the destination: of partial files, of what a pattern matches, and the targets of links.

use std::hash::{BuildHasher, RandomState};

use super::Source;
use crate::filter::Excludes;
pub use crate::path::is_reserved;
use crate::path::{NAME_BYTES_MAX, PATH_BYTES_MAX, RelPath, TRANSFER_HASH_DIGITS, TRANSFER_PREFIX};

const PART_SUFFIX: &[u8] = b".part";
const STATE_SUFFIX: &[u8] = b".state";
const FOLLOW_SUFFIX: &[u8] = b".follow";

/// The names of the partial file and of its state for a file of this name: `.tow-<16 hex digits of the BLAKE3 of the
/// name>.part` and `.state`, beside it. A hash, since the name itself may be as long as names can be.
pub fn partial_names(name: &[u8]) -> (Vec<u8>, Vec<u8>) {
    with_stem(&hash_digits(name))
}

/// The name of the state of a partial file; `None` if this isn't the name of one.
pub fn state_of(part: &[u8]) -> Option<Vec<u8>> {
    let stem = part.strip_suffix(PART_SUFFIX).filter(|_| is_reserved(part))?;
    Some([stem, STATE_SUFFIX].concat())
}

/// Whether this is the name of a partial file, or of the state of one.
pub fn is_partial(name: &[u8]) -> bool {
    is_reserved(name) && (name.ends_with(PART_SUFFIX) || name.ends_with(STATE_SUFFIX))
}

/// Names of a partial file and its state that nobody can take in advance.
pub fn random_names() -> (Vec<u8>, Vec<u8>) {
    with_stem(format!("{:016x}", RandomState::new().hash_one(0)).as_bytes())
}

fn hash_digits(bytes: &[u8]) -> Vec<u8> {
    let hash = blake3::hash(bytes).to_hex();
    hash.as_bytes().get(..TRANSFER_HASH_DIGITS).unwrap_or_default().to_vec()
}

fn with_stem(digits: &[u8]) -> (Vec<u8>, Vec<u8>) {
    ([TRANSFER_PREFIX, digits, PART_SUFFIX].concat(), [TRANSFER_PREFIX, digits, STATE_SUFFIX].concat())
}

/// Key of a source in the names of files that belong to all of it. No file has such a name, as it has slashes.
pub fn source_key(source: &Source) -> Vec<u8> {
    match source {
        Source::Path(path) => [b"/path/", path.as_bytes()].concat(),
        Source::Glob(glob) => [b"/glob/", glob.as_bytes()].concat(),
    }
}

/// The name of the record of a follower of this source.
pub fn follow_name(source: &Source, exclude: &Excludes) -> Vec<u8> {
    [TRANSFER_PREFIX, &follow_digits(source, exclude), FOLLOW_SUFFIX].concat()
}

/// Whether a name is that of a record of a follower.
pub fn is_follow_name(name: &[u8]) -> bool {
    is_reserved(name) && name.ends_with(FOLLOW_SUFFIX)
}

/// The names of the files with what a program has still to act on for such a follower, and is acting on.
pub fn changes_names(source: &Source, exclude: &Excludes) -> [Vec<u8>; 2] {
    let digits = follow_digits(source, exclude);
    [&b".changes"[..], b".acting"].map(|suffix| [TRANSFER_PREFIX, &digits, suffix].concat())
}

fn follow_digits(source: &Source, exclude: &Excludes) -> Vec<u8> {
    let excluded = exclude.patterns().map(|pattern| [b"\0exclude/", pattern.as_bytes()].concat());
    hash_digits(&[source_key(source), excluded.collect::<Vec<_>>().concat()].concat()).to_vec()
}

/// A name with something behind it, shortened so that it may be one, below this directory; between letters if it is UTF-8.
pub fn with_suffix(parent: &RelPath, name: &[u8], suffix: &str) -> Vec<u8> {
    let space = NAME_BYTES_MAX.min(PATH_BYTES_MAX.saturating_sub(parent.as_bytes().len() + 1));
    let space = space.saturating_sub(suffix.len()).min(name.len());
    let end = std::str::from_utf8(name).ok().and_then(|text| (0..=space).rfind(|end| text.is_char_boundary(*end)));
    [name.get(..end.unwrap_or(space)).unwrap_or_default(), suffix.as_bytes()].concat()
}

/// The last name of a path, as a path.
pub fn own_name(path: &RelPath) -> Option<RelPath> {
    path.name().and_then(|name| RelPath::new(name).ok())
}

/// The directory that all matches of a pattern are below: its leading names without a wildcard, never the last name.
pub fn glob_base(glob: &str) -> RelPath {
    let names: Vec<&str> = glob.split('/').collect();
    let literal = |name: &&&str| !name.contains(['*', '?', '[', '{', '\\']);
    let directories = names.split_last().map(|(_, directories)| directories).unwrap_or_default();
    let base: Vec<&str> = directories.iter().take_while(literal).copied().collect();
    RelPath::new(base.join("/")).unwrap_or_default()
}

/// Whether a symbolic link at `local` that points to `target` stays below the destination, by names alone. `..` counts
/// only before all other names: after another name, which may be a link itself, nothing is known of where it leads.
pub fn link_stays_inside(local: &RelPath, target: &[u8]) -> bool {
    if target.is_empty() || target.starts_with(b"/") || target.contains(&0) {
        return false;
    }
    let depth = local.names().count().saturating_sub(1);
    let mut names = target.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").peekable();
    let up = std::iter::from_fn(|| names.next_if(|name| *name == b"..")).take(depth + 1).count();
    up <= depth && names.all(|name| name != b"..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RelPath {
        text.parse().unwrap()
    }

    #[test]
    fn names_of_partial_files_are_recognized_and_fit() {
        let (part, state) = partial_names(&[b'x'; 255]);
        assert!(is_reserved(&part) && is_reserved(&state) && part.len() < 255);
        assert_ne!(partial_names(b"a"), partial_names(b"b"));
        let (part, state) = random_names();
        assert!(is_reserved(&part) && is_reserved(&state) && random_names().0 != part);
        assert!(is_reserved(&part.to_ascii_uppercase()) && is_reserved(b".Tow-Versions"));
        for name in [&b".tow-notes.part"[..], b".tow-0123456789abcdef.txt", b"tow-0123456789abcdef.part", b""] {
            assert!(!is_reserved(name));
        }
    }

    #[test]
    fn long_names_are_shortened_for_a_suffix() {
        let (root, suffix) = (RelPath::root(), ".tow-conflict-7");
        assert_eq!(with_suffix(&root, b"f", suffix), b"f.tow-conflict-7");
        let long = with_suffix(&root, &[0xff; 255], suffix);
        assert_eq!((long.len(), long.ends_with(suffix.as_bytes())), (255, true));
        let letters = with_suffix(&root, "\u{e4}".repeat(127).as_bytes(), suffix);
        assert_eq!((letters.len(), std::str::from_utf8(&letters).is_ok()), (255, true));
        let letters = with_suffix(&root, format!("x{}", "\u{e4}".repeat(127)).as_bytes(), suffix);
        assert_eq!((letters.len(), std::str::from_utf8(&letters).is_ok()), (254, true));
        let deep = RelPath::new(vec![b"x".repeat(254); 16].join(&b'/')).unwrap();
        let name = with_suffix(&deep, &[b'y'; 16], suffix);
        assert_eq!(deep.join(&name).unwrap().as_bytes().len(), 4096);
    }

    #[test]
    fn the_base_of_a_pattern_has_no_wildcard() {
        for (glob, base) in [
            ("*.c", ""),
            ("src/*.c", "src"),
            ("a/b/**/c", "a/b"),
            ("a/b", "a"),
            ("a", ""),
            ("a/{b,c}/d/*", "a"),
            ("", ""),
        ] {
            assert_eq!(glob_base(glob), path(base), "{glob}");
        }
    }

    #[test]
    fn links_that_lead_out_are_recognized() {
        for (local, target) in [
            ("l", "x"),
            ("l", "a/b"),
            ("a/l", "../x"),
            ("a/l", "./.././x/..y"),
            ("a/b/l", "../../x/y"),
            ("a/l", "./b//c"),
            ("l", "./x"),
            ("l", "."),
        ] {
            assert!(link_stays_inside(&path(local), target.as_bytes()), "{local} -> {target}");
        }
        for (local, target) in [
            ("l", "/etc"),
            ("l", ".."),
            ("a/l", "../../x"),
            ("a/l", "../../.."),
            ("a/l", "b/../../../x"),
            // Where `b` is a link to `.`, say.
            ("l", "b/../x"),
            ("a/l", "../b/../x"),
            ("a/l", "b/.."),
            ("l", ""),
            ("l", "a\0b"),
        ] {
            assert!(!link_stays_inside(&path(local), target.as_bytes()), "{local} -> {target}");
        }
    }
}
