//! The command of `tow follow --exec`, which is run each time the copy is up to date after changes.
//!
//! Changes are appended to one file in the destination until it is up to date. That file then gets the name of another one, which is the
//! command's input and is removed at its end. What a crash leaves of them is for the next run: no change is lost. What other users have put
//! under these names isn't used.

use crate::cli::auth_args::PASSWORD;
use crate::cli::output::eprint_line;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use towpath_files::path::{Escaped, RelPath};
use towpath_files::root::{Dir, FileStat, Links, Root, RootError};

const FILE_MODE: u32 = 0o600;
/// Attempts to make a file whose name others take.
const ATTEMPTS_MAX: usize = 16;

/// Runs the command on a thread of its own, so that following goes on meanwhile.
pub struct Exec {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

struct Shared {
    command: OsString,
    destination: PathBuf,
    /// Name of the file of changes that the command is still to be run for.
    pending: OsString,
    /// Of those that it is run for.
    acting: OsString,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The destination, once it is there.
    dir: Option<Arc<Dir>>,
    /// `pending`, if it was opened.
    file: Option<File>,
    /// Whether nothing was noted since the copy was last up to date.
    is_whole: bool,
    seq: u64,
    is_ended: bool,
    failed: bool,
}

impl Exec {
    /// Keeps changes in the destination, in files of these names.
    pub fn start(command: OsString, destination: PathBuf, [pending, acting]: [OsString; 2]) -> io::Result<Exec> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let shared = Shared { command, destination, pending, acting, state, changed };
        let shared = Arc::new(shared);
        let runner = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("exec".to_owned()).spawn(move || runner.run())?;
        Ok(Exec { shared, thread })
    }

    /// Keeps a change for the command.
    pub fn note(&self, change: &str) -> io::Result<()> {
        let mut state = self.shared.lock();
        state.is_whole = false;
        let dir = self.shared.dir(&mut state)?;
        let name = self.shared.pending.as_bytes();
        let file = match state.file.take().filter(|file| has_name(&dir, name, file)) {
            Some(file) => file,
            None => open_pending(&dir, name)?,
        };
        let file = state.file.insert(file);
        file.write_all(format!("{change}\n").as_bytes())
    }

    /// The copy is up to date: the command is run if there were changes.
    pub fn up_to_date(&self, seq: u64) {
        let mut state = self.shared.lock();
        (state.is_whole, state.seq) = (true, seq);
        self.shared.changed.notify_all();
    }

    /// Waits for the command, and says whether it succeeded the last time.
    pub fn finish(self) -> bool {
        self.shared.lock().is_ended = true;
        self.shared.changed.notify_all();
        self.thread.join().is_ok() && !self.shared.lock().failed
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dir(&self, state: &mut State) -> io::Result<Arc<Dir>> {
        if let Some(dir) = &state.dir {
            return Ok(Arc::clone(dir));
        }
        let root = Root::directory(&self.destination, Links::Never).map_err(io::Error::other)?;
        let dir = Arc::new(root.open_dir(&RelPath::root()).map_err(io::Error::other)?);
        state.dir = Some(Arc::clone(&dir));
        Ok(dir)
    }

    fn run(&self) {
        while let Some((seq, dir, input)) = self.next() {
            let outcome = self.run_command(seq, input);
            if let Err(reason) = &outcome {
                eprint_line(format_args!("tow: the command of --exec failed: {reason}"));
            }
            let removed = dir.remove_file(self.acting.as_bytes());
            let mut state = self.lock();
            state.failed = outcome.is_err();
            if let Err(error) = removed {
                let name = Escaped(self.acting.as_bytes());
                eprint_line(format_args!("tow: cannot remove {name}: {error}; --exec ends"));
                state.failed = true;
                return;
            }
        }
    }

    /// Waits until the command is to be run: the number up to which the copy is up to date, and the command's input. `None` at the end.
    fn next(&self) -> Option<(u64, Arc<Dir>, File)> {
        let mut state = self.lock();
        loop {
            if state.is_whole {
                let dir = self.dir(&mut state).ok();
                if let Some((dir, input)) = dir.and_then(|dir| self.input(&dir, &mut state).map(|input| (dir, input))) {
                    return Some((state.seq, dir, input));
                }
            }
            if state.is_ended {
                return None;
            }
            state.is_whole = false;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The events that a crash left, or else those since.
    fn input(&self, dir: &Dir, state: &mut State) -> Option<File> {
        let (pending, acting) = (self.pending.as_bytes(), self.acting.as_bytes());
        let input = own(dir, acting).and_then(|left| match left {
            Some(left) => Ok(Some(left)),
            None if own(dir, pending)?.is_some() => {
                dir.rename(pending, dir, acting)?;
                state.file = None;
                // Again: the name may have got another file meanwhile.
                own(dir, acting)
            }
            None => Ok(None),
        });
        input.unwrap_or_else(|error| {
            eprint_line(format_args!("tow: the command of --exec isn't run: {}: {error}", Escaped(acting)));
            state.failed = true;
            None
        })
    }

    fn run_command(&self, seq: u64, input: File) -> Result<(), String> {
        // Standard output has the lines of this program.
        let prepared = || -> io::Result<_> { Ok((input, io::stderr().as_fd().try_clone_to_owned()?)) };
        let status = prepared().and_then(|(input, output)| {
            Command::new("/bin/sh")
                .args([OsStr::new("-c"), &self.command])
                .env_remove(PASSWORD)
                .env("TOW_FOLLOW_SEQ", seq.to_string())
                .stdin(input)
                .stdout(Stdio::from(output))
                .status()
        });
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(status.to_string()),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Opens a file if it is there and this user's alone. What others have put there is removed.
fn own(dir: &Dir, name: &[u8]) -> Result<Option<File>, RootError> {
    match dir.open_private(name) {
        Ok(None) => {
            eprint_line(format_args!("tow: {}: it isn't this user's alone, and isn't used", Escaped(name)));
            dir.remove_file(name)?;
            Ok(None)
        }
        Err(RootError::NotFound) => Ok(None),
        opened => opened,
    }
}

/// Opens the file of changes to write behind what is in it, or makes it.
fn open_pending(dir: &Dir, name: &[u8]) -> io::Result<File> {
    let failed = |error: RootError| io::Error::other(format!("{}: {error}", Escaped(name)));
    for _ in 0..ATTEMPTS_MAX {
        if let Some(mut file) = own(dir, name).map_err(failed)? {
            file.seek(SeekFrom::End(0))?;
            return Ok(file);
        }
        match dir.create_file(name, FILE_MODE) {
            Err(RootError::Exists) => {}
            created => return created.map_err(failed),
        }
    }
    Err(failed(RootError::Exists))
}

/// Whether this file has this name.
fn has_name(dir: &Dir, name: &[u8], file: &File) -> bool {
    let named = dir.existing(name).ok().flatten();
    let own = FileStat::try_from(file).ok();
    named.zip(own).is_some_and(|(named, own)| (named.device, named.inode) == (own.device, own.inode))
}
