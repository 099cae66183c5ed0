//! What the demo has running, and its end when it is interrupted.

use crate::cli::exit::Failure;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The processes that the demo has started. An interruption kills them, so that nothing that waits for one of them waits on; the
/// folder is removed by whom it belongs to, who sees the interruption then.
#[derive(Clone, Default)]
pub struct Processes(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    told: Notify,
}

#[derive(Default)]
struct State {
    is_over: bool,
    /// Of children that nobody has waited for: no other process can have their ids.
    running: Vec<Pid>,
}

impl Processes {
    /// None yet. SIGINT and SIGTERM are interruptions from now on.
    pub fn until_interrupted() -> Result<Processes, Failure> {
        let processes = Processes::default();
        let ended = processes.clone();
        crate::runtime::signals::on_end(move || ended.end())?;
        Ok(processes)
    }

    fn end(&self) {
        let mut state = self.state();
        state.is_over = true;
        for pid in &state.running {
            // It fails only for one that has ended already.
            let _ = kill_process(*pid, Signal::KILL);
        }
        drop(state);
        self.0.told.notify_one();
    }

    /// A panic leaves nothing half done here, and what runs must be ended all the same.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses to go on after an interruption.
    pub fn go_on(&self) -> Result<(), Failure> {
        if self.state().is_over { Err(Failure::failed("interrupted")) } else { Ok(()) }
    }

    /// Ends with an interruption. For one task only.
    pub async fn interrupted(&self) {
        self.0.told.notified().await;
    }

    /// Starts a process, unless it is too late for that.
    pub fn start(&self, program: &mut Command) -> Result<Running, Failure> {
        let mut state = self.state();
        if state.is_over {
            return Err(Failure::failed("interrupted"));
        }
        let child = program.stdin(Stdio::null()).spawn();
        let child = child.map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
        let pid = Pid::from_child(&child);
        state.running.push(pid);
        Ok(Running { child, pid: Some(pid), processes: self.clone() })
    }

    /// Starts a program of ours that tells on its first line where it listens.
    pub fn start_listening(&self, program: &mut Command) -> Result<(Running, String), Failure> {
        let mut running = self.start(program.env("TOW_LOG", "error").stdout(Stdio::piped()))?;
        let output = running.child.stdout.take().ok_or_else(|| Failure::failed("it has no output"))?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).map_err(Failure::failed)?;
        let endpoint = line.trim().rsplit_once(" on ").map(|(_, endpoint)| endpoint.to_owned());
        let endpoint = endpoint.ok_or_else(|| Failure::failed(format!("it did not start: {line:?}")))?;
        Ok((running, endpoint))
    }
}

/// A child process that doesn't outlive this one.
pub struct Running {
    pub child: Child,
    /// Until it may be another process's.
    pid: Option<Pid>,
    processes: Processes,
}

impl Running {
    /// Ends it with SIGKILL, as a crash would.
    pub fn crash(&mut self) {
        self.forget();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end, once its output has ended: gives whether it succeeded.
    pub fn finish(&mut self) -> Result<bool, Failure> {
        self.forget();
        Ok(self.child.wait().map_err(Failure::failed)?.success())
    }

    /// For when it is about to be waited for.
    fn forget(&mut self) {
        if let Some(pid) = self.pid.take() {
            self.processes.state().running.retain(|running| *running != pid);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.crash();
    }
}
