//! Files that clients push: one thread receives them all, with a disk as a client has it.
//!
//! The sessions see to the credit and to the order of pieces. Here is what needs the disk: where a file may go, what is there of it already,
//! what it may take, whether it is what was announced, and its name at the end.

mod admission;
mod known;
mod outcome;
mod receiver;
mod space;
mod store;

use super::Failure;
use super::jobs::Context;
use super::jobs::{PushJob, PushUpdate, Requester};
use super::session::Ticket;
use super::source::{Source, Stored};
use super::watch::SharedCatalogue;
use crate::path::RelPath;
use crate::root::make_private_dir;
use receiver::Receiver;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver as Ended, Sender, channel};
use std::time::Duration;
use store::{END_WITHIN, StoreJobs};

/// After so long without a byte of it a push ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Options for pushes to a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PushOptions {
    /// The directory below the served one that files may be pushed to.
    pub directory: RelPath,
    /// Bytes that all files below it may have, incomplete ones included.
    pub max_bytes: Option<u64>,
    /// Files and directories that may be below it.
    pub max_files: Option<u64>,
    /// After so long without a byte of it a push ends. What has arrived is kept.
    pub idle_timeout: Duration,
    /// If another source than a directory is served: a directory of this machine, of this server alone, in which files arrive. It is made if there is
    /// none. The limits are for what is in it.
    pub staging: Option<PathBuf>,
}

impl PushOptions {
    /// Pushes to this directory, without limits but the disk's.
    pub fn new(directory: RelPath) -> PushOptions {
        PushOptions { directory, max_bytes: None, max_files: None, idle_timeout: IDLE_TIMEOUT, staging: None }
    }
}

/// A command for the thread.
#[derive(Debug)]
enum Order {
    Job(Requester, PushJob),
    /// A client is gone, or one of its pushes is over.
    End(u64, Option<Ticket>),
    /// The disk has reports.
    Reports,
    /// The look at the path of a push in the store.
    Looked(u64, Result<Option<Stored>, Failure>),
    /// A file was put into the store; false: its path isn't as expected.
    Stored(u64, Result<bool, Failure>),
    /// The server ends.
    Stop,
}

/// The thread that receives.
#[derive(Debug)]
pub(super) struct Pushes {
    orders: Sender<Order>,
    /// Closed at the end of the thread, if that is waited for.
    ended: Option<Ended<()>>,
}

impl Pushes {
    /// Starts the thread. `elsewhere`: another source than a directory, which is served. `send_update` is called by the thread.
    pub(super) fn start(
        options: PushOptions,
        served: &Path,
        published: Option<Arc<SharedCatalogue>>,
        elsewhere: Option<(Arc<dyn Source>, Arc<Context>)>,
        send_update: Box<dyn Fn(Requester, PushUpdate) + Send>,
    ) -> Result<Pushes, String> {
        let (sender, orders) = channel();
        let no_thread = |error: std::io::Error| format!("cannot start a thread: {error}");
        let path = match (&options.staging, &elsewhere) {
            (Some(staging), Some(_)) => staging.clone(),
            _ => served.join(options.directory.as_os_str()),
        };
        let store = match elsewhere {
            Some((source, context)) => {
                make_private_dir(&path).map_err(|error| error.to_string())?;
                Some(StoreJobs::start(source, context, sender.clone()).map_err(no_thread)?)
            }
            None => None,
        };
        let (alive, ended) = channel();
        let ended = store.is_some().then_some(ended);
        let receiver = Receiver::new(options, path, published, store, send_update, sender.clone())?;
        let thread = std::thread::Builder::new().name("tow-push".to_owned());
        let run = move || {
            let _alive: Sender<()> = alive;
            receiver.run(&orders);
        };
        thread.spawn(run).map_err(no_thread)?;
        Ok(Pushes { orders: sender, ended })
    }

    /// Starts a job of a push.
    pub(super) fn start_job(&self, requester: Requester, job: PushJob) {
        // Fails only if the thread has ended, with the server.
        let _ = self.orders.send(Order::Job(requester, job));
    }

    /// A client is gone, or one of its pushes is over. What has arrived is kept.
    pub(super) fn end(&self, key: u64, ticket: Option<Ticket>) {
        let _ = self.orders.send(Order::End(key, ticket));
    }
}

impl Drop for Pushes {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Stop);
        if let Some(ended) = &self.ended {
            // Nothing is ever sent: its end is the answer.
            let _ = ended.recv_timeout(END_WITHIN);
        }
    }
}
