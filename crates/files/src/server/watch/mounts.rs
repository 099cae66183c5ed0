//! File systems that are mounted below the served directory. A mount point without its file system, or with an empty one, is no reason to
//! delete what was there.
//!
//! The kernel's table of mounts shows it, unlike the numbers of devices, which change with each mount of some file systems.

use crate::catalogue::Catalogue;
use crate::path::RelPath;
use crate::root::{Root, RootError};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The table of mounts that this thread sees.
const TABLE: &str = "/proc/thread-self/mountinfo";
/// Bytes of it that are read at a time, and altogether.
const READ_BYTES: usize = 64 << 10;
const TABLE_BYTES_MAX: usize = 64 << 20;
/// Mount points that are remembered.
const KNOWN_MAX: usize = 4096;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Mounts {
    /// Mount points, and the numbers of the mounts; `None` if the kernel doesn't report it.
    mounted: Option<BTreeMap<RelPath, u64>>,
    /// Mount points that are in use, or were and may come back: until then the entries published there stay.
    known: BTreeSet<RelPath>,
}

/// Changes since the table was read before.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Changed {
    pub(super) mounted: Vec<RelPath>,
    pub(super) gone: Vec<RelPath>,
}

impl Mounts {
    /// With what was known before a restart.
    pub(super) fn known_before(known: BTreeSet<RelPath>) -> Mounts {
        Mounts { mounted: None, known }
    }

    /// Mount points in use, and earlier ones.
    pub(super) fn known(&self) -> &BTreeSet<RelPath> {
        &self.known
    }

    /// Mount points.
    pub(super) fn mounted(&self) -> impl Iterator<Item = &RelPath> {
        self.mounted.iter().flat_map(BTreeMap::keys)
    }

    /// Whether a file system is mounted there.
    pub(super) fn is_mounted(&self, path: &RelPath) -> bool {
        self.mounted.as_ref().is_some_and(|mounted| mounted.contains_key(path))
    }

    /// Reads the table again.
    pub(super) fn read(&mut self, root: &Root) -> Changed {
        let read = table().map_err(RootError::Io).and_then(|table| Ok(below(&table, &root.place_in_system()?)));
        let Ok(now) = read else {
            self.mounted = None;
            return Changed::default();
        };
        let before = self.mounted.take().unwrap_or_default();
        let is_new = |(path, mount): &(&RelPath, &u64)| before.get(*path) != Some(*mount);
        let mounted = now.iter().filter(is_new).map(|(path, _)| path.clone()).collect();
        let gone = before.into_keys().filter(|path| !now.contains_key(path)).collect();
        let space = KNOWN_MAX.saturating_sub(self.known.len());
        self.known
            .extend(now.keys().filter(|path| !self.known.contains(*path)).take(space).cloned().collect::<Vec<_>>());
        self.mounted = Some(now);
        Changed { mounted, gone }
    }

    /// Forgets mount points where nothing is mounted any more: nothing is missing there, or a person has released it.
    pub(super) fn forget_gone(&mut self) {
        if let Some(mounted) = &self.mounted {
            self.known.retain(|path| mounted.contains_key(path));
        }
    }

    /// The missing paths that may only be out of sight, and why. `is_found`: whether something was found below a path.
    pub(super) fn out_of_sight(
        &self,
        catalogue: &Catalogue,
        gone: &[RelPath],
        is_found: impl Fn(&RelPath) -> bool,
    ) -> Option<(&'static str, Vec<RelPath>)> {
        let mounted = self.mounted.as_ref().filter(|_| !self.known.is_empty() && !gone.is_empty())?;
        let set: HashSet<_> = gone.iter().map(RelPath::as_bytes).collect();
        let has_all_gone = |known: &RelPath| {
            let children = catalogue.children(known.as_bytes());
            !children.is_empty() && children.iter().all(|(path, _)| set.contains(&**path)) && !is_found(known)
        };
        let (mut reason, mut hidden) = (None, Vec::new());
        for known in &self.known {
            let why = match mounted.contains_key(known) {
                false => "a file system that was mounted below the served directory is gone",
                true if has_all_gone(known) => "a file system mounted below the served directory is empty",
                true => continue,
            };
            let before = hidden.len();
            // With the directories that lead to it.
            let concerns = |path: &&RelPath| path.below(known).is_some() || known.below(path).is_some();
            hidden.extend(gone.iter().filter(concerns).cloned());
            reason = reason.or((hidden.len() > before).then_some(why));
        }
        reason.map(|reason| (reason, hidden))
    }
}

/// The table of mounts, to be polled for changes.
pub(super) fn open_table() -> std::io::Result<File> {
    File::open(TABLE)
}

/// The whole table.
fn table() -> std::io::Result<Vec<u8>> {
    let (file, mut table) = (open_table()?, Vec::new());
    loop {
        let begin = table.len();
        table.resize(begin + READ_BYTES, 0);
        let read = file.read_at(table.get_mut(begin..).unwrap_or_default(), begin as u64)?;
        table.truncate(begin + read);
        if read == 0 || table.len() > TABLE_BYTES_MAX {
            return Ok(table);
        }
    }
}

/// Mount points below a path of the system, with the numbers of their mounts. Of several at one place the last one is seen.
fn below(table: &[u8], top: &[u8]) -> BTreeMap<RelPath, u64> {
    let mount = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let at = unescaped(fields.nth(3)?);
        let below = if top == b"/" { &at[..] } else { at.strip_prefix(top)? };
        let path = RelPath::new(below.strip_prefix(b"/")?).ok()?;
        (!path.is_root()).then_some((path, id))
    };
    table.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

/// A path of the table: space, tab, newline and backslash are three octal digits behind a backslash.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let (mut path, mut rest) = (Vec::with_capacity(field.len()), field);
    while let [first, more @ ..] = rest {
        let digits = more.first_chunk::<3>().filter(|_| *first == b'\\');
        let byte = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        path.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { more.get(3..).unwrap_or_default() } else { more };
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{Content, Identity};
    use crate::protocol::follow::Epoch;

    const LINES: &[u8] = b"22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
        40 22 0:35 / /srv/data rw - tmpfs none rw\n\
        41 40 0:36 / /srv/data/a\\040disk rw shared:1 - tmpfs none rw\n\
        42 41 0:37 /sub /srv/data/a\\040disk/deep rw - btrfs /dev/vdb rw\n\
        43 22 0:38 / /srv/database rw - tmpfs none rw\n\
        44 40 0:39 / /srv/data/a\\040disk rw - tmpfs none rw\nnonsense\n";

    fn path(text: &str) -> RelPath {
        text.parse().unwrap()
    }

    #[test]
    fn mount_points_below_the_root_are_found_in_the_table() {
        let found = below(LINES, b"/srv/data");
        assert_eq!(found, BTreeMap::from([(path("a disk"), 44), (path("a disk/deep"), 42)]));
        assert_eq!(below(LINES, b"/").len(), 4);
        assert_eq!(unescaped(b"\\134\\01\\"), b"\\\\01\\");
        assert!(!table().unwrap().is_empty());
    }

    #[test]
    fn what_was_mounted_and_is_gone_or_empty_is_held() {
        let mut catalogue = Catalogue::new(Epoch([1; 16]));
        for name in ["disk", "disk/a", "disk/b", "other"] {
            catalogue.put(&path(name), Content::Dir { mode: 0 }, Identity::default()).unwrap();
        }
        let mut mounts = Mounts::known_before(BTreeSet::from([path("disk")]));
        let held = |mounts: &Mounts, gone: &[&str], is_found: bool| {
            let gone: Vec<_> = gone.iter().map(|name| path(name)).collect();
            mounts.out_of_sight(&catalogue, &gone, |_| is_found)
        };
        assert!(held(&mounts, &["disk/a"], true).is_none(), "the kernel doesn't report mounts");
        mounts.mounted = Some(BTreeMap::new());
        for gone in ["disk", "disk/a", "disk/a/b"] {
            let (why, hidden) = held(&mounts, &["other", gone], true).unwrap();
            assert!(why.contains("gone") && hidden == [path(gone)], "{gone}");
        }
        assert!(held(&mounts, &["other", "disks"], false).is_none());
        mounts.mounted = Some(BTreeMap::from([(path("disk"), 7)]));
        assert!(held(&mounts, &["disk/a", "disk/b"], false).unwrap().0.contains("empty"));
        assert!(held(&mounts, &["disk/a"], false).is_none() && held(&mounts, &["disk/a", "disk/b"], true).is_none());
        mounts.mounted = Some(BTreeMap::new());
        mounts.forget_gone();
        assert!(held(&mounts, &["disk"], false).is_none());
    }
}
