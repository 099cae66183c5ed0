//! Child processes of the demo, which end when it is interrupted.

use crate::cli::exit::Failure;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Running child processes. A signal kills them, so that nothing waits for one of them any longer.
#[derive(Clone, Default)]
pub struct Processes(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    interrupted: Notify,
}

#[derive(Default)]
struct State {
    is_interrupted: bool,
    /// Children not waited for yet, so no other process has their ids.
    running: Vec<Pid>,
}

impl Processes {
    /// No processes. Listens for signals from now on.
    pub fn until_signal() -> Result<Processes, Failure> {
        let processes = Processes::default();
        let ended = processes.clone();
        crate::runtime::signals::on_stop_signal(move || ended.end())?;
        Ok(processes)
    }

    fn end(&self) {
        let mut state = self.state();
        state.is_interrupted = true;
        for pid in &state.running {
            // Fails only if it has ended.
            let _ = kill_process(*pid, Signal::KILL);
        }
        drop(state);
        self.0.interrupted.notify_one();
    }

    /// A panic leaves the state consistent, and processes must be ended all the same.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails after an interruption.
    pub fn check(&self) -> Result<(), Failure> {
        if self.state().is_interrupted { Err(Failure::failed("interrupted")) } else { Ok(()) }
    }

    /// Waits for an interruption. For one task only.
    pub async fn interrupted(&self) {
        self.0.interrupted.notified().await;
    }

    /// Starts a process; fails after an interruption.
    pub fn start(&self, program: &mut Command) -> Result<Running, Failure> {
        let mut state = self.state();
        if state.is_interrupted {
            return Err(Failure::failed("interrupted"));
        }
        let child = program.stdin(Stdio::null()).spawn();
        let child = child.map_err(|error| Failure::failed(format!("cannot start: {error}")))?;
        let pid = Pid::from_child(&child);
        state.running.push(pid);
        Ok(Running { child, pid: Some(pid), processes: self.clone() })
    }

    /// Starts a server; returns its endpoint, from the first line of its output.
    pub fn start_listening(&self, program: &mut Command) -> Result<(Running, String), Failure> {
        let mut running = self.start(program.env("TOW_LOG", "error").stdout(Stdio::piped()))?;
        let output = running.child.stdout.take().ok_or_else(|| Failure::failed("the server has no output"))?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).map_err(Failure::failed)?;
        let endpoint = line.trim().rsplit_once(" on ").map(|(_, endpoint)| endpoint.to_owned());
        let endpoint = endpoint.ok_or_else(|| Failure::failed(format!("the server did not start: {line:?}")))?;
        Ok((running, endpoint))
    }
}

/// Child process, killed on drop.
pub struct Running {
    pub child: Child,
    /// `None` once the process was waited for.
    pid: Option<Pid>,
    processes: Processes,
}

impl Running {
    /// Kills it by SIGKILL, like a crash.
    pub fn crash(&mut self) {
        self.forget();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end; returns true on success. Read its output to the end first.
    pub fn finish(&mut self) -> Result<bool, Failure> {
        self.forget();
        Ok(self.child.wait().map_err(Failure::failed)?.success())
    }

    /// Call before waiting for it: its id may be reused after.
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
