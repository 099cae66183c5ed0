//! Files that clients push: one thread receives them all, with a disk as a client has it.
//!
//! The sessions see to the credit and to the order of pieces. Here is what needs the disk: where a file may go, what is there of it already,
//! what it may take, whether it is what was announced, and its name at the end.

mod admission;
mod known;
mod outcome;
mod receiver;
mod space;

use super::jobs::{PushJob, PushUpdate, Requester};
use super::session::Ticket;
use super::watch::SharedCatalogue;
use crate::path::RelPath;
use receiver::Receiver;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

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
}

impl PushOptions {
    /// Pushes to this directory, without limits but the disk's.
    pub fn new(directory: RelPath) -> PushOptions {
        PushOptions { directory, max_bytes: None, max_files: None, idle_timeout: IDLE_TIMEOUT }
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
    /// The server ends.
    Stop,
}

/// The thread that receives.
#[derive(Debug)]
pub(super) struct Pushes(Sender<Order>);

impl Pushes {
    /// Starts the thread. `send_update` is called by it.
    pub(super) fn start(
        options: PushOptions,
        served: &Path,
        published: Option<Arc<SharedCatalogue>>,
        send_update: Box<dyn Fn(Requester, PushUpdate) + Send>,
    ) -> Result<Pushes, String> {
        let (sender, orders) = channel();
        let path = served.join(options.directory.as_os_str());
        let receiver = Receiver::new(options, path, published, send_update, sender.clone())?;
        let thread = std::thread::Builder::new().name("tow-push".to_owned());
        thread.spawn(move || receiver.run(&orders)).map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Pushes(sender))
    }

    /// Starts a job of a push.
    pub(super) fn start_job(&self, requester: Requester, job: PushJob) {
        // Fails only if the thread has ended, with the server.
        let _ = self.0.send(Order::Job(requester, job));
    }

    /// A client is gone, or one of its pushes is over. What has arrived is kept.
    pub(super) fn end(&self, key: u64, ticket: Option<Ticket>) {
        let _ = self.0.send(Order::End(key, ticket));
    }
}

impl Drop for Pushes {
    fn drop(&mut self) {
        let _ = self.0.send(Order::Stop);
    }
}
