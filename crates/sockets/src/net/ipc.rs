//! Listening on a Unix domain socket. Its file can be removed or replaced by others at any time, and then it isn't ours any more.

use crate::net::transport::BACKLOG;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, inotify};
use rustix::io::Errno;
use socket2::{Domain, SockAddr, Socket, Type};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A listening, non-blocking socket with a name in the file system, which is removed when this is dropped, unless it is another's by then.
#[derive(Debug)]
pub struct IpcListener {
    socket: OwnedFd,
    path: PathBuf,
    file: FileId,
    /// Readable when the file has changed; `None` if it can't be watched.
    watch: Option<OwnedFd>,
}

/// Device and inode of a file. No other file has the same while a socket that is bound to it is open.
type FileId = (u64, u64);

fn file_id(path: &Path) -> io::Result<FileId> {
    std::fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

impl IpcListener {
    /// Listens at a path. A socket that nobody listens on any more is replaced; nothing else is.
    pub(crate) fn bind(path: &Path) -> io::Result<IpcListener> {
        IpcListener::bind_socket(path, new_socket()?)
    }

    /// The same for this process's user alone.
    ///
    /// # Errors
    /// As of bind(2); `AddrInUse` if somebody listens there.
    pub fn bind_private(path: &Path) -> io::Result<IpcListener> {
        let socket = new_socket()?;
        // bind(2) gives the file the mode of the socket, so that there is no moment in which others can connect.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        IpcListener::bind_socket(path, socket)
    }

    /// Removes a socket that a killed process has left behind. True if there was one.
    pub fn remove_abandoned(path: &Path) -> io::Result<bool> {
        let address = SockAddr::unix(path)?;
        let _lock = FolderLock::take(path);
        let is_abandoned = is_abandoned(path, &address)?;
        if is_abandoned {
            std::fs::remove_file(path)?;
        }
        Ok(is_abandoned)
    }

    fn bind_socket(path: &Path, socket: Socket) -> io::Result<IpcListener> {
        let address = SockAddr::unix(path)?;
        let _lock = FolderLock::take(path);
        match socket.bind(&address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if !is_abandoned(path, &address)? {
                    return Err(error);
                }
                std::fs::remove_file(path)?;
                socket.bind(&address)?;
            }
            bound => bound?,
        }
        // Before the lock is released: a socket that doesn't listen looks abandoned.
        socket.listen(BACKLOG)?;
        let (file, watch) = (file_id(path)?, watch(path));
        let watch = watch.inspect_err(|error| tracing::debug!(%error, "cannot watch a socket's file")).ok();
        Ok(IpcListener { socket: socket.into(), path: path.to_owned(), file, watch })
    }

    /// The socket, and the watch on its file.
    pub(crate) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [Some(self.socket.as_fd()), self.watch.as_ref().map(AsFd::as_fd)].into_iter().flatten()
    }

    /// Logs if the file is gone or another since the last call.
    pub(crate) fn report_loss(&mut self) {
        let mut events = [0; 256];
        let is_changed = self.watch.as_ref().is_some_and(|watch| rustix::io::read(watch, &mut events).is_ok());
        let now = if is_changed { file_id(&self.path) } else { return };
        let path = self.path.display();
        match now {
            Ok(file) if file == self.file => {}
            Ok(_) => {
                tracing::error!(
                    "ipc://{path} was replaced: new connections reach the process that did it, not this one"
                );
            }
            Err(error) => {
                tracing::error!(%error, "ipc://{path} was removed: nobody can connect there until this process is restarted");
            }
        }
    }
}

impl AsFd for IpcListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for IpcListener {
    fn drop(&mut self) {
        let _lock = FolderLock::take(&self.path);
        if file_id(&self.path).is_ok_and(|file| file == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn new_socket() -> io::Result<Socket> {
    Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)
}

/// True for a socket left behind by a process that was killed.
fn is_abandoned(path: &Path, address: &SockAddr) -> io::Result<bool> {
    let is_socket = std::fs::symlink_metadata(path)?.file_type().is_socket();
    let connected = new_socket()?.connect(address);
    Ok(is_socket && connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused))
}

/// Watches a socket's file. Removing it changes its number of links, which is an attribute.
fn watch(path: &Path) -> io::Result<OwnedFd> {
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK | inotify::CreateFlags::CLOEXEC)?;
    let changes = inotify::WatchFlags::ATTRIB | inotify::WatchFlags::MOVE_SELF | inotify::WatchFlags::DONT_FOLLOW;
    inotify::add_watch(&watch, path, changes)?;
    Ok(watch)
}

/// Longest wait for a directory's lock, which other processes of ours hold for a moment.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Lock of a socket's directory: between looking at a socket and removing it, no other process of ours may put a new one there.
struct FolderLock(OwnedFd);

impl FolderLock {
    /// `None` if the directory can't be locked, or somebody keeps the lock: that must not keep a server from starting or ending.
    fn take(path: &Path) -> Option<FolderLock> {
        let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat(CWD, folder, flags, Mode::empty()).ok()?;
        let began = Instant::now();
        loop {
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(FolderLock(folder)),
                Err(Errno::AGAIN) if began.elapsed() < LOCK_TIMEOUT => std::thread::sleep(LOCK_PAUSE),
                Err(_) => return None,
            }
        }
    }
}

impl Drop for FolderLock {
    fn drop(&mut self) {
        // Closing isn't enough: a process that another thread is just starting has a copy of the descriptor, which keeps the lock.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}
