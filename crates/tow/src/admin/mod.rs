//! The operator's view: a socket on which a server or broker answers questions over HTTP, and the client of it.
//!
//! A thread of its own with a small runtime accepts connections ([`server`]), and asks the event loop through a [`View`] ([`api`], [`metrics`]).
//! None of it may keep a server from starting or ending: what fails is logged.

mod api;
pub mod client;
mod metrics;
mod place;
mod server;
mod supervisor;
mod view;

use crate::cli::exit::Failure;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};
use towpath_sockets::{Endpoint, IpcListener};
pub use view::{BrokerView, FilesView, List, View};

/// Option of `tow serve` and `tow broker`.
#[derive(clap::Args)]
pub struct AdminArgs {
    /// Socket on which `tow status` and its kind ask [default: in $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH", help_heading = "Connections")]
    admin_socket: Option<PathBuf>,
}

/// A server's state as the outside sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not listening yet: what is in the journal is being read.
    Starting,
    Ready,
    Stopping,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Starting => "starting",
            State::Ready => "ready",
            State::Stopping => "stopping",
        }
    }
}

/// What the threads share.
struct Shared {
    program: &'static str,
    started: Instant,
    started_at: SystemTime,
    running: OnceLock<Running>,
    is_stopping: AtomicBool,
}

/// A server that listens.
struct Running {
    view: Box<dyn View>,
    endpoints: Vec<String>,
}

impl Shared {
    fn state(&self) -> State {
        match self.running.get() {
            _ if self.is_stopping.load(Ordering::Relaxed) => State::Stopping,
            None => State::Starting,
            Some(_) => State::Ready,
        }
    }
}

/// The socket of a server, until it is dropped.
pub struct Admin {
    shared: Arc<Shared>,
    /// Removes the socket's file.
    _listener: Option<IpcListener>,
}

/// Tells that a server is about to end.
pub struct Stopping(Arc<Shared>);

impl Stopping {
    /// The server has been asked to end.
    pub fn begin(&self) {
        self.0.is_stopping.store(true, Ordering::Relaxed);
        supervisor::stopping();
    }
}

impl Admin {
    /// Listens for questions about `tow PROGRAM`, which is starting.
    pub fn start(program: &'static str, arguments: AdminArgs) -> Admin {
        let shared = Arc::new(Shared {
            program,
            started: Instant::now(),
            started_at: SystemTime::now(),
            running: OnceLock::new(),
            is_stopping: AtomicBool::new(false),
        });
        let listener = match listen(program, arguments.admin_socket) {
            Ok((listener, path)) => {
                tracing::info!(socket = %path.display(), "tow status asks on this socket");
                Some(listener)
            }
            Err(reason) => {
                tracing::warn!(%reason, "no socket for tow status");
                None
            }
        };
        if let Err(error) = server::start(&shared, listener.as_ref()) {
            tracing::warn!(%error, "cannot start the thread that answers tow status");
        }
        Admin { shared, _listener: listener }
    }

    /// The server listens, and this shows it.
    pub fn ready(&self, view: impl View + 'static, endpoints: &[Endpoint]) {
        let endpoints = endpoints.iter().map(ToString::to_string).collect();
        // It is called once.
        let _ = self.shared.running.set(Running { view: Box::new(view), endpoints });
        supervisor::ready();
    }

    /// For what is called when the server is asked to end.
    pub fn stopping(&self) -> Stopping {
        Stopping(Arc::clone(&self.shared))
    }
}

/// Listens where the operator says, or else where `tow status` looks.
fn listen(program: &str, path: Option<PathBuf>) -> Result<(IpcListener, PathBuf), String> {
    let path = match path {
        Some(path) => path,
        None => place::own_socket(program)?,
    };
    match IpcListener::bind_private(&path) {
        Ok(listener) => Ok((listener, path)),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Sockets of servers on this machine that may answer.
pub fn known_sockets() -> Vec<PathBuf> {
    place::sockets()
}

/// Failure of a question to the server behind a socket.
fn no_answer(socket: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::new(crate::cli::exit::Status::NoServer, format!("{}: {error}", socket.display()))
}
