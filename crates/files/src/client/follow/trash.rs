//! The directory in which a follower keeps what it deletes or replaces: `--trash`.

use crate::path::RelPath;
use crate::root::{Dir, FileKind, Links, Root, RootError, set_mode, set_modified};
use crate::transfer::names::with_suffix;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// Of directories: what they had had may have kept others out.
const DIR_MODE: u32 = 0o700;
const FILE_BITS: u32 = 0o777;
/// Attempts to find a free name.
const NAMES_MAX: u64 = 1000;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Trash(Root);

impl Trash {
    pub(super) fn open(path: &Path) -> Result<Trash, RootError> {
        let made = DirBuilder::new().recursive(true).mode(DIR_MODE).create(path);
        made.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists | ErrorKind::NotADirectory => RootError::NotADirectory,
            _ => RootError::Io(error),
        })?;
        Ok(Trash(Root::directory(path, Links::Never)?))
    }

    /// Keeps a file or a link under its path below the destination, with a number behind its name if that is taken. It stays where it is
    /// too, for the caller to replace or to remove. Returns where it is kept.
    pub(super) fn keep(&self, dir: &Dir, name: &[u8], path: &RelPath, seq: u64) -> Result<RelPath, RootError> {
        let (parent, own_name) = path.split().ok_or(RootError::NotAFile)?;
        let (folder, parent) = self.folder(&parent, seq)?;
        for number in 0..NAMES_MAX {
            let suffix = match number {
                0 => String::new(),
                1 => format!(".{seq}"),
                _ => format!(".{seq}-{number}"),
            };
            let new_name = with_suffix(&parent, own_name, &suffix);
            let kept = match dir.link(name, &folder, &new_name) {
                Ok(()) => Ok(()),
                Err(RootError::Exists) => continue,
                // Another file system, or one without links.
                Err(_) => copy(dir, name, &folder, &new_name),
            };
            match kept {
                Err(RootError::Exists) => {}
                kept => return kept.and_then(|()| Ok(parent.join(&new_name)?)),
            }
        }
        Err(RootError::Exists)
    }

    /// Removes what was kept for nothing.
    pub(super) fn forget(&self, kept: &RelPath) -> Result<(), RootError> {
        let (parent, name) = kept.split().ok_or(RootError::NotAFile)?;
        self.0.open_dir(&parent)?.remove_file(name)
    }

    /// The directory for what was in this one. Where a file of that name is kept, it gets a number.
    fn folder(&self, parent: &RelPath, seq: u64) -> Result<(Dir, RelPath), RootError> {
        match self.0.create_dirs(parent, DIR_MODE) {
            Ok(dir) => return Ok((dir, parent.clone())),
            Err(RootError::NotADirectory | RootError::Exists | RootError::Outside) => {}
            Err(error) => return Err(error),
        }
        let mut at = RelPath::root();
        for name in parent.names() {
            let below = at.join(name)?;
            at = match self.0.create_dirs(&below, DIR_MODE) {
                Ok(_) => below,
                Err(_) => at.join(&with_suffix(&at, name, &format!(".{seq}")))?,
            };
        }
        Ok((self.0.create_dirs(&at, DIR_MODE)?, at))
    }
}

/// Copies a file or a link to a free name. What was copied is on the disk then: the original may be removed.
fn copy(from: &Dir, name: &[u8], to: &Dir, new_name: &[u8]) -> Result<(), RootError> {
    if from.stat(name)?.kind == FileKind::Link {
        return to.symlink(&from.read_link(name)?, new_name);
    }
    let (mut source, stat) = from.open_file(name)?;
    let mut file = to.create_file(new_name, 0o600)?;
    let copied = (|| {
        std::io::copy(&mut source, &mut file).map_err(RootError::Io)?;
        set_mode(&file, stat.mode & FILE_BITS)?;
        set_modified(&file, stat.modified)?;
        file.sync_all().map_err(RootError::Io)
    })();
    if copied.is_err() {
        let _ = to.remove_file(new_name);
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_names_get_a_number_and_other_file_systems_a_copy() {
        let temp = tempfile::tempdir().unwrap();
        let (from, to) = (temp.path().join("from"), temp.path().join("to"));
        std::fs::create_dir(&from).unwrap();
        let trash = Trash::open(&to).unwrap();
        let dir = Root::directory(&from, Links::Never).unwrap().open_dir(&RelPath::root()).unwrap();
        let path = |text: &str| text.parse::<RelPath>().unwrap();
        std::os::unix::fs::symlink("f", from.join("l")).unwrap();
        let mut kept = Vec::new();
        for (text, at, seq) in [("1", "d/f", 7), ("2", "d/f", 8), ("3", "d/f", 8), ("4", "d/f/x", 9)] {
            std::fs::write(from.join("f"), text).unwrap();
            let place = trash.keep(&dir, b"f", &path(at), seq).unwrap();
            std::fs::remove_file(from.join("f")).unwrap();
            assert_eq!(std::fs::read_to_string(to.join(place.to_string())).unwrap(), text);
            kept.push(place.to_string());
        }
        assert_eq!(kept, ["d/f", "d/f.8", "d/f.8-2", "d/f.9/x"]);
        let long = "\u{e4}".repeat(127);
        std::fs::write(from.join(&long), "long").unwrap();
        for (seq, length) in [(7, 254), (8, 254), (8, 254), (12345, 255)] {
            let place = trash.keep(&dir, long.as_bytes(), &path(&format!("d/{long}")), seq).unwrap();
            assert_eq!(std::fs::read_to_string(to.join(place.to_string())).unwrap(), "long");
            assert!(place.name().is_some_and(|name| (250..=length).contains(&name.len())), "{place}");
        }
        trash.forget(&path("d/f.8")).unwrap();
        assert!(!to.join("d/f.8").exists());

        std::fs::write(from.join("f"), "5").unwrap();
        let folder = Root::directory(&to, Links::Never).unwrap().open_dir(&RelPath::root()).unwrap();
        copy(&dir, b"f", &folder, b"copied").unwrap();
        copy(&dir, b"l", &folder, b"link").unwrap();
        assert_eq!(std::fs::read_to_string(to.join("copied")).unwrap(), "5");
        assert_eq!(std::fs::read_link(to.join("link")).unwrap(), Path::new("f"));
        assert!(matches!(copy(&dir, b"f", &folder, b"copied"), Err(RootError::Exists)));
    }
}
