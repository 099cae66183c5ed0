//! Modes and times: which ones files and directories get, and what the destination refuses of them.

use rustix::io::Errno;

use super::destination::Destination;
use super::notices::Notice;
use super::partial::root_error;
use crate::path::RelPath;
use crate::root::RootError;
use crate::transfer::DiskError;

/// Mode bits of files. Set-user-id and its like are left out: a server must not make programs that run with the rights
/// of the user who fetched them.
const FILE_BITS: u32 = 0o777;
/// Mode bits of directories. Without the sticky bit, anyone who can write into one could remove what others have
/// there.
pub(crate) const DIR_BITS: u32 = 0o1777;
/// A server never lets everybody write.
const OTHERS_WRITE: u32 = 0o002;
/// Inherited by directories in the folder of a group, so that what is made in them belongs to the group, too.
pub(crate) const SET_GROUP_ID: u32 = 0o2000;
/// The umask if the system doesn't report it.
const UMASK_DEFAULT: u32 = 0o022;

/// Which of the server's permission bits files and directories get. Set-user-id and set-group-id are in none of them;
/// directories keep a set-group-id bit that they inherit here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Modes {
    /// The bits that the umask of this process leaves, as with cp.
    #[default]
    Umask,
    /// All bits but the permission of everybody to write.
    Preserve,
    /// None: everything gets the mode of what is made here.
    Ignore,
}

/// The server's metadata that files and directories get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metadata {
    modes: Modes,
    umask: u32,
    times: bool,
}

impl Default for Metadata {
    fn default() -> Self {
        Self::new(Modes::default(), true)
    }
}

impl Metadata {
    pub(crate) fn new(modes: Modes, times: bool) -> Self {
        Self { modes, umask: umask(), times }
    }

    /// The mode of a file that has this one on the server.
    pub(crate) fn file_mode(&self, mode: u32) -> u32 {
        match self.modes {
            Modes::Umask => mode & FILE_BITS & !self.umask,
            Modes::Preserve => mode & FILE_BITS & !OTHERS_WRITE,
            Modes::Ignore => 0o666 & !self.umask,
        }
    }

    /// The mode of a directory that has this one on the server.
    pub(crate) fn dir_mode(&self, mode: u32) -> u32 {
        match self.modes {
            Modes::Umask => mode & DIR_BITS & !self.umask,
            Modes::Preserve => mode & DIR_BITS & !OTHERS_WRITE,
            Modes::Ignore => 0o777 & !self.umask,
        }
    }

    /// Whether the modes of existing files and directories are set.
    pub(crate) fn has_modes(&self) -> bool {
        self.modes != Modes::Ignore
    }

    pub(crate) fn has_times(&self) -> bool {
        self.times
    }
}

impl Destination {
    /// Takes the result of setting a mode. Where that is refused, the content is there all the same: it is counted, and
    /// the summary says so.
    pub(super) fn mode_set(&self, done: Result<(), RootError>, local: &RelPath) -> Result<(), DiskError> {
        // Without modes only a partial file's is set, which is private.
        let notice = Some(&self.notices.modes).filter(|_| self.options.metadata.has_modes());
        or_refused(done, notice, local)
    }

    /// Sets a time, if times are set, and takes the result as [`Destination::mode_set`] does.
    pub(super) fn set_time(
        &self,
        local: &RelPath,
        set: impl FnOnce() -> Result<(), RootError>,
    ) -> Result<(), DiskError> {
        if !self.options.metadata.has_times() {
            return Ok(());
        }
        or_refused(set(), Some(&self.notices.times), local)
    }
}

fn or_refused(done: Result<(), RootError>, notice: Option<&Notice>, local: &RelPath) -> Result<(), DiskError> {
    match done {
        Err(error) if is_refusal(&error) => {
            if let Some(notice) = notice {
                notice.add(|| format!("{local}: {error}"));
            }
            Ok(())
        }
        done => done.map_err(|error| root_error("cannot set mode and time", &error)),
    }
}

/// Whether the file system has no such metadata, or keeps it from this user: FAT, network shares, sandboxes.
fn is_refusal(error: &RootError) -> bool {
    match error {
        RootError::Denied => true,
        RootError::Io(error) => {
            let refusals = [Errno::OPNOTSUPP, Errno::NOSYS, Errno::INVAL, Errno::OVERFLOW, Errno::RANGE];
            Errno::from_io_error(error).is_some_and(|errno| refusals.contains(&errno))
        }
        _ => false,
    }
}

/// The umask of this process. Reading it by umask(2) would change it for other threads for a moment.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let octal = status.lines().find_map(|line| line.strip_prefix("Umask:")).map(str::trim);
    octal.and_then(|octal| u32::from_str_radix(octal, 8).ok()).unwrap_or(UMASK_DEFAULT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_a_hostile_server_let_nobody_else_write() {
        let metadata = |modes| Metadata { modes, umask: 0o027, times: true };
        for (modes, file, dir) in
            [(Modes::Umask, 0o750, 0o1750), (Modes::Preserve, 0o775, 0o1775), (Modes::Ignore, 0o640, 0o750)]
        {
            let metadata = metadata(modes);
            assert_eq!((metadata.file_mode(0o7777), metadata.dir_mode(0o7777)), (file, dir), "{modes:?}");
        }
        assert_eq!(metadata(Modes::Preserve).file_mode(0o644), 0o644);
        assert_eq!(metadata(Modes::Umask).file_mode(0o400), 0o400);
    }
}
