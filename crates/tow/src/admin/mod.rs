//! The operator's view: a socket, and TCP addresses if they are asked for, on which a server or broker answers questions over HTTP, and the client
//! of it.
//!
//! A thread of its own with a small runtime accepts connections ([`server`]), checks access ([`access`]), and asks the event loop through a
//! [`View`] ([`api`], [`metrics`]). None of it may keep a server from ending. A socket that can't be had doesn't keep it from starting; an address that
//! that it should listen on does.

mod access;
mod actions;
mod api;
mod args;
mod blocks;
pub mod client;
mod figures;
mod history;
mod leader;
mod lists;
mod metrics;
mod operator;
mod page;
mod place;
mod problems;
mod process;
mod sampler;
mod server;
mod supervisor;
mod things;
mod token;
mod tokens;
mod view;

use self::actions::Actions;
pub use self::args::AdminArgs;
use self::args::{Http, Page};
pub use self::blocks::Blocks;
use self::history::History;
pub use self::lists::sort;
pub use self::place::own_directory;
pub use self::problems::cause_of;
use self::problems::{Problems, Tracker};
use self::process::Disk;
use self::sampler::Sampler;
use self::tokens::Tokens;
use self::view::Refusal;
use crate::cli::audit::Audit;
use crate::cli::exit::Failure;
use crate::cli::output::eprint_line;
use std::io::{IsTerminal, stderr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use towpath_sockets::{Endpoint, IpcListener};
pub use view::{BrokerView, FilesView, List, View};
#[cfg(feature = "nats")]
pub use view::{members_json, monitored_json, stream_json};

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

/// State that the threads share.
struct Shared {
    program: &'static str,
    http: HttpPlaces,
    /// The page that was begun to be served for `tow page`.
    late_page: Mutex<Option<String>>,
    actions: Actions,
    blocks: Blocks,
    tokens: Tokens,
    tracker: Mutex<Tracker>,
    history: Mutex<History>,
    disk: Disk,
    started: Instant,
    started_at: SystemTime,
    running: OnceLock<Running>,
    is_stopping: AtomicBool,
}

/// Its TCP addresses.
#[derive(Default)]
struct HttpPlaces {
    page: Option<String>,
    token_file: Option<String>,
    metrics: Option<String>,
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

    /// URL of the page.
    fn page(&self) -> Option<String> {
        let late = || self.late_page.lock().unwrap_or_else(PoisonError::into_inner).clone();
        self.http.page.clone().or_else(late)
    }

    /// Problems at the moment, and the moment: the time since the start.
    fn problems(&self, running: &Running) -> Result<(Problems, Duration), Refusal> {
        let mut found = running.view.problems()?;
        found.extend(problems::of_process(&process::look(&self.disk)));
        let mut tracker = self.tracker.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.started.elapsed();
        let (problems, changes) = tracker.update(now, found);
        self.note_changes(changes);
        Ok((problems, now))
    }

    fn figures(&self) -> figures::Server {
        let started = self.started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
        figures::Server { started: started.as_secs(), is_ready: self.state() == State::Ready }
    }
}

/// A server about which questions are answered.
pub struct About<'a> {
    /// `serve` or `broker`.
    pub program: &'static str,
    /// The directory of its state.
    pub state: Option<&'a Path>,
    /// The directory that it serves.
    pub served: Option<&'a Path>,
    /// The audit file.
    pub audit: Option<&'a Audit>,
    /// Peers that are blocked.
    pub blocks: &'a Blocks,
}

/// The socket of a server, until it is dropped.
pub struct Admin {
    shared: Arc<Shared>,
    /// Saves the history.
    _sampler: Sampler,
    /// Removes the socket's file.
    _listener: Option<IpcListener>,
}

/// Handle that announces the server's end.
pub struct Stopping(Arc<Shared>);

impl Stopping {
    /// The server has been asked to end.
    pub fn begin(&self) {
        self.0.is_stopping.store(true, Ordering::Relaxed);
        supervisor::stopping();
    }
}

impl Admin {
    /// Listens for questions about a server that is starting.
    ///
    /// # Errors
    /// An address of the options can't be listened on or answered at, or there is no token for it.
    pub fn start(arguments: AdminArgs, about: &About<'_>) -> Result<Admin, Failure> {
        let Http { listeners, page, tokens, metrics } = arguments.http(about.state, about.served)?;
        let (url, token_file) =
            page.as_ref().map(|page| (page.url.clone(), page.token_file.display().to_string())).unzip();
        let shared = Arc::new(Shared {
            program: about.program,
            http: HttpPlaces { page: url, token_file, metrics: metrics.clone() },
            late_page: Mutex::default(),
            actions: Actions::new(about.audit.cloned()),
            blocks: about.blocks.clone(),
            tokens,
            tracker: Mutex::default(),
            history: Mutex::new(sampler::history_of(about.program)),
            disk: Disk::of(about.state),
            started: Instant::now(),
            started_at: SystemTime::now(),
            running: OnceLock::new(),
            is_stopping: AtomicBool::new(false),
        });
        let listener = match listen(about.program, arguments.admin_socket) {
            Ok((listener, path)) => {
                tracing::info!(socket = %path.display(), "tow status asks on this socket");
                Some(listener)
            }
            Err(reason) => {
                tracing::warn!(%reason, "no socket for tow status");
                None
            }
        };
        let is_asked_for = !listeners.is_empty();
        match server::start(&shared, listener.as_ref(), listeners) {
            Ok(()) => {}
            Err(error) if is_asked_for => {
                return Err(Failure::failed(format_args!("cannot answer on --admin or --metrics: {error}")));
            }
            Err(error) => tracing::warn!(%error, "cannot start the thread that answers tow status"),
        }
        if let Some(page) = &page {
            announce(page);
        }
        if let Some(url) = &metrics {
            tracing::info!(url, "metrics");
        }
        let state = about.state.map(Path::to_owned).or_else(place::state_directory);
        let sampler = Sampler::start(&shared, state.as_deref());
        Ok(Admin { shared, _sampler: sampler, _listener: listener })
    }

    /// The server listens, and this shows it.
    pub fn ready(&self, view: impl View + 'static, endpoints: &[Endpoint]) {
        let endpoints = endpoints.iter().map(ToString::to_string).collect();
        if let Some(questions) = view.questions() {
            questions.answer_with(leader::handler(&self.shared));
        }
        // It is called once.
        let _ = self.shared.running.set(Running { view: Box::new(view), endpoints });
        supervisor::ready();
    }

    /// For what is called when the server is asked to end.
    pub fn stopping(&self) -> Stopping {
        Stopping(Arc::clone(&self.shared))
    }
}

/// Says where the page is. The token is for a person at a terminal: logs are kept, and read by others.
fn announce(Page { url, token, token_file }: &Page) {
    tracing::info!(url, token_file = %token_file.display(), "page for browsers; it needs the token in this file");
    if stderr().is_terminal() {
        eprint_line(format_args!("{url}#token={}", token.as_str()));
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
