//! Directories that are this user's.

use super::{Dir, FileKind, FileStat, Links, Root, RootError};
use crate::path::RelPath;
use rustix::fs::{lstat, stat};
use rustix::io::Errno;
use std::fs::DirBuilder;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

const MODE: u32 = 0o700;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Makes a directory, and those above it, for this user alone. Fails if there is one of another user's. One into which others can write is
/// reported to the operator: volumes of containers are made so. Links in the path are followed.
pub fn make_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(MODE).create(path)?;
    let there = FileStat::from(stat(path)?);
    let shown = path.display();
    if there.owner != 0 && there.owner != own_user(path)? {
        let owner = there.owner;
        return Err(io::Error::other(format!(
            "{shown} belongs to another user ({owner}), who could replace what is in it"
        )));
    }
    if there.mode & WRITABLE_BY_OTHERS != 0 {
        let mode = format!("{:04o}", there.mode);
        tracing::warn!(path = %shown, mode, "others can write into this directory, and remove what is kept there: chmod 700");
    }
    Ok(())
}

/// Fails if something is at a path, and isn't a directory of this user's. The directory above may be anybody's.
pub fn check_own_dir(path: &Path) -> io::Result<()> {
    let there = match lstat(path) {
        Ok(there) => FileStat::from(there),
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno.into()),
    };
    if there.kind != FileKind::Dir || there.owner != own_user(path.parent().unwrap_or(path))? {
        let shown = path.display();
        return Err(io::Error::other(format!("{shown} is no directory of this user's: remove it")));
    }
    Ok(())
}

/// User id that this process's files have in a directory.
fn own_user(directory: &Path) -> io::Result<u32> {
    let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    let root = Root::directory(directory, Links::Never).map_err(io::Error::other)?;
    Ok(root.open_dir(&RelPath::root()).map_err(io::Error::other)?.user())
}

impl Dir {
    /// User id that this process's files have here.
    fn user(&self) -> u32 {
        self.own_user(format!(".tow-{:016x}", RandomState::new().hash_one(0)).as_bytes())
    }

    /// Opens a regular file for reading and writing if it is this user's alone. `None` if it isn't, or something else has the name, such as a
    /// link: where others can write into the directory, they may have put it there, to read or to make up what is in it.
    pub fn open_private(&self, name: &[u8]) -> Result<Option<std::fs::File>, RootError> {
        match self.open_writable(name) {
            Ok((file, stat)) => Ok(stat.is_private_to(self.user()).then_some(file)),
            Err(RootError::Outside | RootError::NotAFile | RootError::Denied) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn directories_are_private_and_those_of_others_are_refused() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a/b");
        make_private_dir(&path).unwrap();
        for made in [&path, path.parent().unwrap()] {
            assert_eq!(made.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        }
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
            assert!(make_private_dir(&path).unwrap_err().to_string().contains("another user"));
            check_own_dir(&path).unwrap_err();
            std::os::unix::fs::chown(&path, Some(0), None).unwrap();
        }
        check_own_dir(&path).unwrap();
        check_own_dir(&temp.path().join("missing")).unwrap();
        symlink("a/b", temp.path().join("link")).unwrap();
        check_own_dir(&temp.path().join("link")).unwrap_err();
    }

    #[test]
    fn only_files_of_this_user_alone_are_opened() {
        let temp = tempfile::tempdir().unwrap();
        let at = |name: &str| temp.path().join(name);
        for name in ["own", "shared", "twice"] {
            std::fs::write(at(name), name).unwrap();
            std::fs::set_permissions(at(name), Permissions::from_mode(0o600)).unwrap();
        }
        std::fs::set_permissions(at("shared"), Permissions::from_mode(0o620)).unwrap();
        std::fs::hard_link(at("twice"), at("again")).unwrap();
        symlink("own", at("link")).unwrap();
        std::fs::create_dir(at("dir")).unwrap();
        let dir = Root::directory(temp.path(), Links::Never).unwrap().open_dir(&RelPath::root()).unwrap();
        assert!(dir.open_private(b"own").unwrap().is_some());
        for name in ["shared", "twice", "again", "link", "dir"] {
            assert!(dir.open_private(name.as_bytes()).unwrap().is_none(), "{name}");
        }
        assert!(matches!(dir.open_private(b"missing"), Err(RootError::NotFound)));
    }
}
