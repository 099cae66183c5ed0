//! A member of a cell on a stream in NATS: a thread with a runtime of its own.

mod beside;
mod bodies;
mod link;
mod members;
mod monitor;
mod questions;
mod server;
mod shared;
mod stretches;

pub use questions::Questions;
pub use shared::{Change, Place};

use crate::block::{RECORD_BYTES_MAX, TermSecret, VERSION};
use crate::figures::{CellFigures, MemberFigures, Monitored, StreamState};
use server::Server;
use shared::Shared;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use towpath_journal::{Entry, JournalError, Lsn};
use towpath_spool::SharedBodies;

/// Records that wait for the log, in bytes, above which no more are taken.
const PENDING_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Time in which each member says twice how it is.
const ACCOUNTS_WITHIN: Duration = Duration::from_millis(2200);
/// Longest name of a cell.
pub const NAME_BYTES_MAX: usize = 32;

/// A cell's log, and the way to it.
#[derive(Clone)]
pub struct NatsOptions {
    /// Addresses of NATS servers. One may have a user and a password for all, or a token.
    pub servers: Vec<String>,
    /// Name of the cell: letters, digits, `-` and `_`.
    pub cell: String,
    /// Replicas that the stream has at least.
    pub replicas: u64,
    /// Silence of the log after which a standby leads.
    pub takeover_after: Duration,
    /// Endpoint of this broker, for people and clients.
    pub endpoint: String,
    /// File of credentials.
    pub credentials: Option<PathBuf>,
    /// File of certificates that sign those of the servers.
    pub ca: Option<PathBuf>,
    /// Files of a certificate and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Where all brokers have large bodies.
    pub bodies: Option<Arc<dyn SharedBodies>>,
    /// URLs of the servers' monitoring ports.
    pub monitors: Vec<String>,
}

impl std::fmt::Debug for NatsOptions {
    /// Without passwords.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NatsOptions")
            .field("servers", &self.addresses())
            .field("cell", &self.cell)
            .finish_non_exhaustive()
    }
}

impl NatsOptions {
    /// Addresses without users and passwords.
    pub fn addresses(&self) -> String {
        let address = |server: &String| match (server.split_once("://"), server.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, address))) => format!("{scheme}://{address}"),
            (None, Some((_, address))) => address.to_owned(),
            _ => server.clone(),
        };
        self.servers.iter().map(address).collect::<Vec<_>>().join(",")
    }

    /// Checks the name and the URLs.
    pub fn check(&self) -> Result<(), NatsError> {
        self.monitors.iter().try_for_each(|url| monitor::address(url).map(|_| ()))?;
        let is_good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        match self.cell.len() {
            1..=NAME_BYTES_MAX if self.cell.chars().all(is_good) => Ok(()),
            _ => Err(NatsError::Name),
        }
    }
}

/// Why a cell's log can't be used, each with what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NatsError {
    /// An address.
    #[error("an address of NATS is like nats://HOST:4222: {0}")]
    Address(String),
    /// The URL of a monitoring port.
    #[error("the monitoring port of a NATS server is like http://HOST:8222: {0}")]
    Monitor(String),
    /// The cell's name.
    #[error("a cell's name has 1 to {NAME_BYTES_MAX} letters, digits, '-' and '_'")]
    Name,
    /// A file can't be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// No connection.
    #[error(
        "cannot connect to NATS at {at}: {why}. Start nats-server with JetStream (nats-server --jetstream), or correct the address, the login or the certificates"
    )]
    Connect {
        /// Addresses.
        at: String,
        /// Why.
        why: String,
    },
    /// Too old.
    #[error("this NATS is version {0}; a cell needs 2.14 or newer")]
    TooOld(String),
    /// Its messages are too small.
    #[error("this NATS takes messages of {0} bytes at most; set max_payload to 1MB, its default")]
    SmallPayload(usize),
    /// No answer.
    #[error(
        "JetStream of NATS doesn't answer ({0}). It may have no quorum, be off (nats-server --jetstream), or this user may not use it"
    )]
    NoAnswer(String),
    /// Refused by NATS.
    #[error("NATS refuses it: {description} (code {code})")]
    Refused {
        /// JetStream's code.
        code: u64,
        /// Its words.
        description: String,
    },
    /// There is no stream.
    #[error(
        "there is no log of the cell {0}: tow queue init makes it, once. If there was one, its stream is gone, with all that was in it"
    )]
    NoStream(String),
    /// Wrong settings.
    #[error("the stream TOW_{cell} has wrong settings: {}", wrong.join("; "))]
    Wrong {
        /// The cell.
        cell: String,
        /// Each, with its cure.
        wrong: Vec<String>,
    },
    /// Somebody emptied it.
    #[error(
        "the log of the cell {0} was emptied by somebody: all messages were purged. To begin anew, delete its stream (nats stream rm TOW_{0}), \
         then tow queue init"
    )]
    Emptied(String),
    /// The thread.
    #[error("the thread of the cell's log: {0}")]
    Thread(String),
}

/// A member of a cell. Dropping it ends its part without LEAVE.
#[derive(Debug)]
pub struct CellLog {
    endpoint: String,
    shared: Arc<Shared>,
    questions: Questions,
    thread: Option<JoinHandle<()>>,
}

impl CellLog {
    /// Connects, checks the stream, and begins to read. `wake` is called by the log's thread when something has changed; it must not block.
    pub fn open(options: NatsOptions, wake: impl Fn() + Send + Sync + 'static) -> Result<CellLog, NatsError> {
        options.check()?;
        let mut broker = [0; 16];
        getrandom(&mut broker)?;
        let mut secret = TermSecret::default();
        getrandom(&mut secret.0)?;
        let shared = Arc::new(Shared::new(Box::new(wake)));
        let endpoint = options.endpoint.clone();
        let (questions, asks) = Questions::new(shared.clone());
        let (opened, is_open) = std::sync::mpsc::sync_channel(1);
        let run = {
            let (shared, questions) = (shared.clone(), questions.clone());
            move || {
                let _ended = Ended(shared.clone());
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let runtime = match runtime {
                    Ok(runtime) => runtime,
                    Err(error) => return drop(opened.send(Err(NatsError::Thread(error.to_string())))),
                };
                runtime.block_on(async move {
                    match open(&options).await {
                        Ok((server, state)) => {
                            let _ = opened.send(Ok(()));
                            let accounts = || {
                                beside::Accounts::new(
                                    server.client(),
                                    &options.cell,
                                    &broker,
                                    &options.endpoint,
                                    shared.clone(),
                                )
                            };
                            // They end with the runtime.
                            let asked = questions::run(server.client(), options.cell.clone(), questions, asks);
                            tokio::spawn(asked);
                            let (running, last) = (tokio::spawn(accounts().run()), accounts());
                            if !options.monitors.is_empty() {
                                tokio::spawn(monitor::run(options.monitors.clone(), shared.clone()));
                            }
                            link::Link::new(server, state, options, (broker, secret), shared).run().await;
                            running.abort();
                            last.leave().await;
                        }
                        Err(error) => drop(opened.send(Err(error))),
                    }
                });
            }
        };
        let spawned = std::thread::Builder::new().name("cell".to_owned()).spawn(run);
        let thread = spawned.map_err(|error| NatsError::Thread(error.to_string()))?;
        is_open.recv().unwrap_or_else(|_| Err(NatsError::Thread("it has ended".to_owned())))?;
        Ok(CellLog { endpoint, shared, questions, thread: Some(thread) })
    }

    /// Endpoint of this broker.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Asks the leader, and answers while this broker leads.
    pub fn questions(&self) -> Questions {
        self.questions.clone()
    }

    /// Takes a change of leadership.
    pub fn next_change(&mut self) -> Option<Change> {
        self.shared.next_change()
    }

    /// Appends an entry, while this broker leads. Positions count from 0 since it does.
    ///
    /// Errors: as of [`towpath_journal::Journal::append`].
    pub fn append(&mut self, entry: &Entry) -> Result<Lsn, JournalError> {
        self.shared.append(entry, RECORD_BYTES_MAX, PENDING_BYTES_MAX)
    }

    /// Position below which all entries are in the log for good.
    pub fn durable(&self) -> Lsn {
        Lsn(self.shared.durable())
    }

    /// Requests for which there is no space, if there are any since the last call: they aren't in the log, nor will be.
    pub fn take_given_up(&mut self) -> Option<Vec<u64>> {
        self.shared.take_given_up()
    }

    /// Why nothing can be appended now, and whether that is for want of space.
    pub fn failure(&self) -> Option<(String, bool)> {
        self.shared.failure()
    }

    /// Takes the place of clients and workers, if it is another one than at the last call.
    pub fn take_place(&mut self) -> Option<Place> {
        self.shared.take_place()
    }

    /// The current term, and the endpoint of its leader.
    pub fn leader(&self) -> Option<(u64, String)> {
        self.shared.leader()
    }

    /// Figures for an operator.
    pub fn figures(&self) -> CellFigures {
        self.shared.figures()
    }

    /// Brings everything to the log, if that takes no longer than this, and leaves the lead to others.
    pub fn close(mut self, within: Duration) {
        self.shared.close(within);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the cell's log has failed");
        }
    }
}

impl Drop for CellLog {
    fn drop(&mut self) {
        self.shared.close(Duration::ZERO);
    }
}

/// Marks the thread as ended, also when it panics.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.ended();
    }
}

fn getrandom(bytes: &mut [u8]) -> Result<(), NatsError> {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(NatsError::Thread(format!("no random numbers can be had: {error}"))),
        }
    }
    Ok(())
}

async fn open(options: &NatsOptions) -> Result<(Server, StreamState), NatsError> {
    let server = Server::connect(options).await?;
    let state = server.state(options.replicas).await?.ok_or_else(|| NatsError::NoStream(options.cell.clone()))?;
    if !state.wrong.is_empty() {
        return Err(NatsError::Wrong { cell: options.cell.clone(), wrong: state.wrong });
    }
    if state.messages == 0 && state.last > 0 {
        return Err(NatsError::Emptied(options.cell.clone()));
    }
    Ok((server, state))
}

/// State of a cell's log, as one sees it who reads the end of it.
#[derive(Debug, Clone)]
pub struct CellState {
    /// The stream.
    pub stream: StreamState,
    /// Members, as far as they have said something meanwhile.
    pub members: Vec<MemberFigures>,
    /// Version of the log's format.
    pub format: u16,
    /// The last term's epoch and the endpoint that its leader gave, if there is one.
    pub leader: Option<(u64, String)>,
    /// Requests that aren't forgotten.
    pub requests: u64,
    /// Bytes of records that are needed.
    pub needed_bytes: u64,
    /// Whether the leader gave a sign of life while the log was read, or has left.
    pub is_led: bool,
    /// Why the log can't be read.
    pub failure: Option<String>,
}

/// Makes the stream of a cell, and the place of large bodies if one is given. False: there is a stream already, with the right settings.
pub fn init(options: &NatsOptions, bytes_max: u64) -> Result<bool, NatsError> {
    options.check()?;
    if let Some(bodies) = &options.bodies {
        bodies.make().map_err(|error| NatsError::File { path: bodies.place().into(), error })?;
    }
    blocking(async {
        let server = Server::connect(options).await?;
        match server.state(options.replicas).await? {
            Some(state) if state.wrong.is_empty() => Ok(false),
            Some(state) => Err(NatsError::Wrong { cell: options.cell.clone(), wrong: state.wrong }),
            None => server.create(options.replicas, bytes_max).await.map(|()| true),
        }
    })
}

/// The stream's state, with what is wrong with it, and what the monitoring ports show.
pub fn check(options: &NatsOptions) -> Result<(StreamState, Vec<Monitored>), NatsError> {
    blocking(async {
        options.check()?;
        let server = Server::connect(options).await?;
        let state = server.state(options.replicas).await?;
        let state = state.ok_or_else(|| NatsError::NoStream(options.cell.clone()))?;
        Ok((state, monitor::look(&options.monitors).await))
    })
}

/// Reads the log of a cell, without a part in it, for as long as a leader may be silent.
pub fn status(options: &NatsOptions) -> Result<CellState, NatsError> {
    blocking(async {
        options.check()?;
        let mut server = Server::connect(options).await?;
        let stream = server.state(options.replicas).await?.ok_or_else(|| NatsError::NoStream(options.cell.clone()))?;
        let accounts = server.accounts(&options.cell).await?;
        let (seen, members) =
            tokio::join!(link::look(&mut server, options.takeover_after), beside::look(accounts, ACCOUNTS_WITHIN));
        Ok(CellState { stream, members: members.seen_by_others(Duration::ZERO), format: VERSION, ..seen })
    })
}

fn blocking<T>(work: impl Future<Output = Result<T, NatsError>>) -> Result<T, NatsError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| NatsError::Thread(error.to_string()))?.block_on(work)
}
