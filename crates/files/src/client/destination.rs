//! The place of a transfer's files, once it is known what the source is.

use crate::error::Error;
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::disk::{DIR_BITS, Metadata, OWNER_MODE, SET_GROUP_ID};
use crate::path::RelPath;
use crate::protocol::control::{Base, DirStat};
use crate::root::{Links, Root};
use crate::transfer::{Placement, Source};

/// A directory that exists, and how files are placed below it.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) dir: PathBuf,
    pub(super) placement: Placement,
    /// Empty directory.
    pub(super) fresh: bool,
    /// Made for this transfer; gets the mode of the directory that it copies.
    pub(super) made: bool,
}

/// Determines the place. A single file goes to `destination`, or into it if that is a directory or ends in `/`; what
/// is in a directory, or matches a pattern, goes directly into it. Without a destination: to the source's own name in
/// the working directory; matches of a pattern go into that.
pub(super) fn place(
    base: Base,
    name: Option<RelPath>,
    dir: Option<DirStat>,
    source: &Source,
    destination: Option<&Path>,
    durable: bool,
    metadata: &Metadata,
) -> Result<Place, Error> {
    match (base, name) {
        (Base::File | Base::Link, Some(name)) => place_file(name, destination, durable),
        _ => place_tree(destination.unwrap_or(own_name(source)), dir, durable, metadata),
    }
}

/// The name that a source's copy has by itself, in the working directory.
pub(super) fn own_name(source: &Source) -> &Path {
    match source {
        Source::Path(path) => path.name().map_or(Path::new("."), |name| Path::new(OsStr::from_bytes(name))),
        Source::Glob(_) => Path::new("."),
    }
}

/// The place that [`place`] would determine. Nothing is made, and nothing refused.
pub(super) fn look_at(
    base: Base,
    name: Option<RelPath>,
    source: &Source,
    destination: Option<&Path>,
) -> (PathBuf, Placement) {
    let here = Path::new(".");
    match (base, name) {
        (Base::File | Base::Link, Some(name)) => {
            let destination = destination.unwrap_or(here);
            let given = destination.file_name().and_then(|name| RelPath::new(name.as_bytes()).ok());
            match given {
                Some(given) if !destination.is_dir() && !destination.as_os_str().as_bytes().ends_with(b"/") => {
                    let parent = destination.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(here);
                    (parent.to_owned(), Placement::As(given))
                }
                _ => (destination.to_owned(), Placement::As(name)),
            }
        }
        _ => (destination.unwrap_or(own_name(source)).to_owned(), Placement::Below),
    }
}

/// Beginning of keys in an object store, and the place of files there. There are no directories that could be looked at.
pub(super) fn place_objects(base: Base, name: Option<RelPath>, prefix: &str) -> Result<(String, Placement), String> {
    let (above, last) = match (base, name) {
        (Base::File | Base::Link, Some(name)) if prefix.is_empty() || prefix.ends_with('/') => (prefix, Some(name)),
        (Base::File | Base::Link, Some(_)) => {
            let (above, last) = prefix.rsplit_once('/').unwrap_or(("", prefix));
            (above, Some(RelPath::new(last).map_err(|error| error.to_string())?))
        }
        _ => (prefix, None),
    };
    Ok((above.trim_end_matches('/').to_owned(), last.map_or(Placement::Below, Placement::As)))
}

fn place_file(name: RelPath, destination: Option<&Path>, durable: bool) -> Result<Place, Error> {
    let here = Path::new(".");
    let Some(destination) = destination else { return place_as(here, name) };
    let wants_dir = destination.as_os_str().as_bytes().ends_with(b"/");
    if wants_dir && !destination.exists() {
        make_dirs(destination, durable)?;
    }
    if destination.is_dir() || wants_dir {
        return place_as(destination, name);
    }
    let refused = |reason: &str| Error::Destination { path: destination.to_owned(), reason: reason.to_owned() };
    let name = destination.file_name().and_then(|name| RelPath::new(name.as_bytes()).ok());
    let name = name.ok_or_else(|| refused("not the name of a file"))?;
    let parent = destination.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(here);
    if !parent.is_dir() {
        return Err(refused("its directory does not exist"));
    }
    place_as(parent, name)
}

/// Places a file under a name in a directory. A link there is replaced, except one that nobody means to lose by that,
/// such as /dev/stdout.
fn place_as(dir: &Path, name: RelPath) -> Result<Place, Error> {
    let path = dir.join(name.as_os_str());
    if let Ok(target) = path.read_link() {
        // A file that a process has open is a file, too, and its link in /dev is all the same not to be replaced.
        let is_special = path.metadata().is_ok_and(|there| !there.is_file() && !there.is_dir());
        if is_special || target.starts_with("/proc") {
            let reason = format!("it is a link to {}, which is no file that could be replaced", target.display());
            return Err(Error::Destination { path, reason });
        }
    }
    Ok(Place { dir: dir.to_owned(), placement: Placement::As(name), fresh: false, made: false })
}

fn place_tree(destination: &Path, dir: Option<DirStat>, durable: bool, metadata: &Metadata) -> Result<Place, Error> {
    let refused = |reason: &str| Error::Destination { path: destination.to_owned(), reason: reason.to_owned() };
    let mode = dir.filter(|_| metadata.has_modes()).map(|dir| metadata.dir_mode(dir.mode));
    let own_mode = || destination.metadata().map_or(0, |own| own.mode());
    // A copied directory stays one over an interruption, which the next transfer can't know.
    let open_up = |mode: u32| {
        let mode = mode | OWNER_MODE | own_mode() & SET_GROUP_ID;
        std::fs::set_permissions(destination, Permissions::from_mode(mode))
    };
    if !destination.exists() {
        make_dirs(destination, durable)?;
        if let Some(Err(error)) = mode.map(open_up) {
            // Said in the end, when it is to get its mode.
            tracing::debug!(%error, "cannot set the mode of the destination");
        }
        return Ok(Place { dir: destination.to_owned(), placement: Placement::Below, fresh: true, made: true });
    }
    if !destination.is_dir() {
        return Err(refused("it is not a directory"));
    }
    // A copy that can't be written into, as its original can't.
    let is_closed = |mode: &u32| mode & OWNER_MODE != OWNER_MODE && own_mode() & DIR_BITS == *mode;
    let made = mode.filter(is_closed).is_some_and(|mode| open_up(mode).is_ok());
    let fresh = std::fs::read_dir(destination).is_ok_and(|mut entries| entries.next().is_none());
    if fresh {
        // Nothing below it will be looked at.
        let root = Root::directory(destination, Links::Never).and_then(|root| root.open_dir(&RelPath::root()));
        root.and_then(|dir| dir.check_writable())
            .map_err(|error| refused(&format!("cannot write into it: {error}")))?;
    }
    Ok(Place { dir: destination.to_owned(), placement: Placement::Below, fresh, made })
}

/// Creates a directory and those above it; syncs their names if they are to be durable.
fn make_dirs(path: &Path, durable: bool) -> Result<(), Error> {
    let missing: Vec<_> = path.ancestors().take_while(|above| !above.exists()).collect();
    let made = std::fs::create_dir_all(path).and_then(|()| {
        let mut parents = missing.iter().filter(|_| durable).filter_map(|made| made.parent());
        parents.try_for_each(|parent| {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            File::open(parent)?.sync_all()
        })
    });
    made.map_err(|error| {
        // Such as a file, where the path ends in a slash, or a link that leads nowhere.
        let is_there = error.kind() == std::io::ErrorKind::AlreadyExists;
        let reason = if is_there { "what has this name is not a directory".to_owned() } else { error.to_string() };
        Error::Destination { path: path.to_owned(), reason }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_goes_to_the_destination_or_into_a_directory() {
        let temp = tempfile::tempdir().unwrap();
        let name = || Some(RelPath::new("a.bin").unwrap());
        let source = Source::Path("x/a.bin".parse().unwrap());
        let at = |destination: &Path| {
            place(Base::File, name(), None, &source, Some(destination), true, &Metadata::default())
        };
        let into = at(temp.path()).unwrap();
        assert_eq!((into.dir.as_path(), into.placement), (temp.path(), Placement::As("a.bin".parse().unwrap())));
        let renamed = at(&temp.path().join("b")).unwrap();
        assert_eq!((renamed.dir.as_path(), renamed.placement), (temp.path(), Placement::As("b".parse().unwrap())));
        let slash = at(&temp.path().join("new/")).unwrap();
        assert_eq!((slash.dir.is_dir(), slash.placement), (true, Placement::As("a.bin".parse().unwrap())));
        assert!(at(&temp.path().join("missing/b")).is_err());
        assert!(at(&temp.path().join("..")).is_ok());
    }

    #[test]
    fn file_gets_a_key_or_goes_below_a_prefix() {
        let name = || Some(RelPath::new("a.bin").unwrap());
        let placed = |prefix: &str| place_objects(Base::File, name(), prefix).unwrap();
        let as_name = |name: &str| Placement::As(name.parse().unwrap());
        assert_eq!(placed(""), (String::new(), as_name("a.bin")));
        assert_eq!(placed("x/y/"), ("x/y".to_owned(), as_name("a.bin")));
        assert_eq!(placed("x/y"), ("x".to_owned(), as_name("y")));
        assert_eq!(placed("y"), (String::new(), as_name("y")));
        assert_eq!(place_objects(Base::Dir, None, "x/y/").unwrap(), ("x/y".to_owned(), Placement::Below));
    }

    /// In a directory of its own: the machine's /dev/stdout isn't to be tried with.
    #[test]
    fn link_to_a_device_or_pipe_is_not_replaced() {
        use std::os::unix::fs::symlink;
        let temp = tempfile::tempdir().unwrap();
        let in_temp = |name: &str| temp.path().join(name);
        let _socket = std::os::unix::net::UnixListener::bind(in_temp("socket")).unwrap();
        std::fs::write(in_temp("file"), b"").unwrap();
        std::fs::create_dir(in_temp("dir")).unwrap();
        let links = [("null", "/dev/null"), ("to-socket", "socket"), ("twice", "null"), ("output", "/proc/self/fd/1")];
        let harmless = [("to-file", "file"), ("nowhere", "missing"), ("to-dir", "dir")];
        for (link, target) in links.iter().chain(&harmless) {
            symlink(target, in_temp(link)).unwrap();
        }
        symlink("/dev/null", in_temp("dir/a.bin")).unwrap();
        let source = Source::Path("a.bin".parse().unwrap());
        for base in [Base::File, Base::Link] {
            let at = |path: &str| {
                place(
                    base,
                    Some("a.bin".parse().unwrap()),
                    None,
                    &source,
                    Some(&in_temp(path)),
                    false,
                    &Metadata::default(),
                )
            };
            for path in links.map(|(link, _)| link).iter().chain(&["dir", "to-dir"]) {
                let reason = at(path).map(|place| place.placement).unwrap_err().to_string();
                assert!(reason.contains("it is a link to "), "{path}: {reason}");
            }
            for path in ["to-file", "nowhere", "file", "new"] {
                assert_eq!(at(path).unwrap().placement, Placement::As(path.parse().unwrap()), "{path}");
            }
        }
    }

    #[test]
    fn trees_go_directly_into_the_destination() {
        let temp = tempfile::tempdir().unwrap();
        let source = Source::Path("x/tree".parse().unwrap());
        let at =
            |destination: &Path| place(Base::Dir, None, None, &source, Some(destination), true, &Metadata::default());
        assert!(at(temp.path()).unwrap().fresh);
        assert!(at(&temp.path().join("a/b")).unwrap().fresh);
        assert!(!at(temp.path()).unwrap().fresh);
        std::fs::write(temp.path().join("file"), b"").unwrap();
        assert!(at(&temp.path().join("file")).is_err());
        std::os::unix::fs::symlink("nowhere", temp.path().join("link")).unwrap();
        let name = || Some(RelPath::new("a.bin").unwrap());
        let refused = |path: &str| {
            let path = temp.path().join(path);
            place(Base::File, name(), None, &source, Some(&path), true, &Metadata::default()).unwrap_err().to_string()
        };
        for path in ["file/", "link/"] {
            assert!(refused(path).contains("is not a directory"), "{}", refused(path));
        }
    }
}
