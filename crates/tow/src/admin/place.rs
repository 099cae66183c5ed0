//! Places of the sockets. A server has its own, and `tow status` looks at all that its user may access.

use rustix::process::geteuid;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use towpath_sockets::IpcListener;

/// End of the names of sockets.
const SUFFIX: &str = "sock";

/// Directory of services, with one for each if there are several: `RuntimeDirectory=towpath/files`.
const SYSTEM_DIRECTORY: &str = "/run/towpath";

/// Files that are looked at in a directory.
const FILES_MAX: usize = 1000;

/// The path of this process's socket: `admin.sock` in the directory that systemd has made for the service, or one named after the program
/// and its process in the user's directory for sockets. Removes what killed servers have left there.
pub fn own_socket(program: &str) -> Result<PathBuf, String> {
    let directory = own_directory().map_err(|why| format!("{why}; use --admin-socket"))?;
    if service_directory().is_some() {
        return Ok(directory.join("admin.sock"));
    }
    for socket in sockets_in(&directory) {
        if let Ok(true) = IpcListener::remove_abandoned(&socket) {
            tracing::debug!(socket = %socket.display(), "removed the socket of a server that was killed");
        }
    }
    Ok(directory.join(format!("{program}-{}.{SUFFIX}", std::process::id())))
}

/// The directory that systemd has made for the service, or else the user's own, which is made if needed.
pub fn own_directory() -> Result<PathBuf, String> {
    if let Some(directory) = service_directory() {
        return Ok(directory);
    }
    let directory = user_directory();
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(failed)?;
    let metadata = std::fs::symlink_metadata(&directory).map_err(failed)?;
    if !metadata.is_dir() || metadata.uid() != geteuid().as_raw() || metadata.mode() & 0o022 != 0 {
        return Err(format!("{}: it is not a directory of this user alone", directory.display()));
    }
    Ok(directory)
}

/// Sockets of this user's servers and of services, also those on which nobody listens any more.
pub fn sockets() -> Vec<PathBuf> {
    let system = PathBuf::from(SYSTEM_DIRECTORY);
    let mut directories = vec![user_directory()];
    directories.extend(service_directory());
    for folder in std::fs::read_dir(&system).into_iter().flatten().take(FILES_MAX).flatten() {
        directories.push(folder.path());
    }
    directories.push(system);
    let mut sockets: Vec<_> = directories.iter().flat_map(|directory| sockets_in(directory)).collect();
    sockets.sort();
    sockets.dedup();
    sockets
}

fn sockets_in(directory: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(directory).into_iter().flatten().take(FILES_MAX).flatten();
    files.map(|file| file.path()).filter(|path| path.extension().is_some_and(|suffix| suffix == SUFFIX)).collect()
}

/// The first directory that systemd has made for the service's sockets (`RuntimeDirectory=`).
fn service_directory() -> Option<PathBuf> {
    first_directory("RUNTIME_DIRECTORY")
}

/// The first directory that systemd has made for the service's state (`StateDirectory=`).
pub fn state_directory() -> Option<PathBuf> {
    first_directory("STATE_DIRECTORY")
}

fn first_directory(variable: &str) -> Option<PathBuf> {
    let directories = std::env::var_os(variable)?;
    std::env::split_paths(&directories).next().filter(|directory| directory.is_absolute())
}

/// The directory of this user's sockets.
pub fn user_directory() -> PathBuf {
    let user = geteuid();
    let of_session = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let of_login = Some(PathBuf::from(format!("/run/user/{}", user.as_raw()))).filter(|path| path.is_dir());
    match of_session.or(of_login) {
        Some(directory) => directory.join("towpath"),
        // As in a container.
        None => std::env::temp_dir().join(format!("towpath-admin-{}", user.as_raw())),
    }
}
