//! The guard of `tow work`: a process that kills its commands when it is gone, however it ended. They would go on while other workers run the
//! same requests. It knows a command as soon as that has started, before its input comes; killed in between, this process leaves it behind.

use crate::cli::auth_args::PASSWORD;
use crate::cli::exit::Failure;
use crate::runtime::signals::on_stop_signal;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, Command, ExitCode, Stdio};
use std::sync::Arc;

/// First argument of the guard.
pub const COMMAND: &str = "work-guard";

/// Writing end of the pipe to the guard. It closes when this process ends: no other process has it.
#[derive(Debug)]
pub struct Guard(ChildStdin);

impl Guard {
    /// Starts the guard, in a process group of its own: a signal from the terminal isn't for it.
    pub fn start() -> io::Result<Arc<Guard>> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(COMMAND).env_remove(PASSWORD).process_group(0);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let pipe = child.stdin.take().ok_or_else(|| io::Error::other("no pipe"))?;
        // A guard that is stopped must not stop this process too.
        rustix::io::ioctl_fionbio(&pipe, true)?;
        Ok(Arc::new(Guard(pipe)))
    }

    /// Has a process group killed with this process.
    pub fn watch(self: &Arc<Guard>, group: Pid) -> Watched {
        self.write(group.as_raw_nonzero().get());
        Watched { guard: Arc::clone(self), group }
    }

    /// Writes a record of four bytes, which a pipe takes whole or not at all.
    fn write(&self, record: i32) {
        if let Err(error) = (&self.0).write_all(&record.to_ne_bytes()) {
            tracing::error!(%error, "the guard is gone: commands will survive if this process is killed");
        }
    }
}

/// A process group that is killed with this process.
#[derive(Debug)]
pub struct Watched {
    guard: Arc<Guard>,
    group: Pid,
}

impl Watched {
    pub fn group(&self) -> Pid {
        self.group
    }
}

impl Drop for Watched {
    /// Its id may be another's now.
    fn drop(&mut self) {
        self.guard.write(-self.group.as_raw_nonzero().get());
    }
}

/// Runs the guard: reads process groups, and those that have ended as negative numbers. Kills the rest at the end of the input.
pub fn run() -> Result<ExitCode, Failure> {
    // It ends after what it guards. Under its own name, so that killing processes by the name `tow` spares it.
    on_stop_signal(|| {})?;
    let _ = rustix::thread::set_name(c"work-guard");
    let mut input = io::stdin().lock();
    let (mut groups, mut record) = (HashSet::new(), [0; 4]);
    while input.read_exact(&mut record).is_ok() {
        let number = i32::from_ne_bytes(record);
        match Pid::from_raw(number.saturating_abs()) {
            Some(group) if number > 0 => groups.insert(group),
            Some(group) => groups.remove(&group),
            None => continue,
        };
    }
    for group in groups {
        // Without SIGTERM before: another worker may have the request already.
        let _ = kill_process_group(group, Signal::KILL);
    }
    Ok(ExitCode::SUCCESS)
}
