//! The command of `tow follow --exec`, which is run each time the copy is up to date after changes.
//!
//! Changes are appended to one file in the destination until it is up to date. That file then gets the name of another one, which is the
//! command's input and is removed at its end. What a crash leaves of them is for the next run: no change is lost.

use crate::cli::auth_args::PASSWORD;
use crate::cli::output::eprint_line;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

const FILE_MODE: u32 = 0o600;

/// Runs the command on a thread of its own, so that following goes on meanwhile.
pub struct Exec {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

struct Shared {
    command: OsString,
    /// Changes that the command is still to be run for.
    pending: PathBuf,
    /// Those that it is run for.
    acting: PathBuf,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// `pending`, if it was opened.
    file: Option<File>,
    /// Nothing was noted since the copy was last up to date.
    is_whole: bool,
    seq: u64,
    is_ended: bool,
    failed: bool,
}

impl Exec {
    pub fn start(command: OsString, [pending, acting]: [PathBuf; 2]) -> io::Result<Exec> {
        let shared = Shared { command, pending, acting, state: Mutex::default(), changed: Condvar::new() };
        let shared = Arc::new(shared);
        let runner = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("exec".to_owned()).spawn(move || runner.run())?;
        Ok(Exec { shared, thread })
    }

    /// Keeps a change for the command.
    pub fn note(&self, change: &str) -> io::Result<()> {
        let mut state = self.shared.lock();
        state.is_whole = false;
        let file = match state.file.take() {
            Some(file) => file,
            None => OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(&self.shared.pending)?,
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

    fn run(&self) {
        while let Some(seq) = self.next() {
            let outcome = self.run_command(seq);
            if let Err(reason) = &outcome {
                eprint_line(format_args!("tow: the command of --exec failed: {reason}"));
            }
            let removed = std::fs::remove_file(&self.acting);
            let mut state = self.lock();
            state.failed = outcome.is_err();
            if let Err(error) = removed {
                eprint_line(format_args!("tow: cannot remove {}: {error}; --exec ends", self.acting.display()));
                state.failed = true;
                return;
            }
        }
    }

    /// Waits until the command is to be run: the number up to which the copy is up to date. `None` at the end.
    fn next(&self) -> Option<u64> {
        let mut state = self.lock();
        loop {
            if state.is_whole {
                // Left by a crash, or else what came since.
                if self.acting.exists() || std::fs::rename(&self.pending, &self.acting).is_ok() {
                    state.file = state.file.take().filter(|_| self.pending.exists());
                    return Some(state.seq);
                }
            }
            if state.is_ended {
                return None;
            }
            state.is_whole = false;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn run_command(&self, seq: u64) -> Result<(), String> {
        let prepared = || -> io::Result<_> {
            let input = File::open(&self.acting)?;
            // Standard output has the lines of this program.
            let output = io::stderr().as_fd().try_clone_to_owned()?;
            Ok((input, output))
        };
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
