//! The client of files: one object for all that can be asked of a server.

use super::ask::{self, Holding};
use super::connection::ConnectOptions;
use super::exchange::Connector;
use super::follow::{self, Events, FollowEnd, FollowEvent, FollowOptions, Versions};
use super::get::{self, GetOptions, Summary};
use super::listing::{Entries, ListOptions};
use super::open::{self, EachFile, KnownFile, RemoteFile};
use super::push::{self, PushEvent, PushOptions, PushProgress};
use crate::digest::Digested;
use crate::error::Error;
use crate::path::RelPath;
use crate::protocol::control::{HoldersWanted, PublishedReply};
use crate::transfer::Progress;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A client of one server. Clones are the same client.
///
/// Each operation has a connection of its own, so several may go on at a time, from any threads. [`get`](Self::get), [`push`](Self::push),
/// [`follow_with`](Self::follow_with) and the questions block until they are done. [`list`](Self::list), [`open`](Self::open) and
/// [`follow`](Self::follow) have a thread each; dropping what they return ends it.
///
/// Every operation ends with [`Error::Cancelled`] when [`ConnectOptions::cancel`] is cancelled. [`Error::fault`] says whose fault an error is.
#[derive(Clone)]
pub struct FileClient(Arc<Connector>);

impl FileClient {
    /// A client that connects when it is asked for something.
    pub fn new(options: ConnectOptions) -> FileClient {
        FileClient(Arc::new(Connector::new(options)))
    }

    /// A client that is connected.
    ///
    /// # Errors
    /// [`Error::Connect`] if there is no server, or [`Error::Rejected`] if it doesn't let this client in.
    pub fn connect(options: ConnectOptions) -> Result<FileClient, Error> {
        let client = FileClient::new(options);
        client.0.connect(&client.0.options.cancel)?;
        Ok(client)
    }

    /// The server, and how this client talks to it.
    pub fn options(&self) -> &ConnectOptions {
        &self.0.options
    }

    /// Lists a path or a pattern.
    ///
    /// # Errors
    /// There are no more sockets or threads. What else fails is the last item: there is no connection, the server refuses, or nothing happens
    /// for too long.
    pub fn list(&self, options: ListOptions) -> Result<Entries, Error> {
        Entries::start(Arc::clone(&self.0), options, self.0.options.cancel.child())
    }

    /// Gets files. `progress` is called now and then, on this thread: with a path as destination several times a second, so that its silence
    /// shows that this thread hangs in a call to the disk.
    ///
    /// # Errors
    /// The transfer failed as a whole. What has arrived is kept for another one. Failures of single files are in the [`Summary`].
    pub fn get(&self, options: GetOptions, progress: &mut dyn FnMut(Progress)) -> Result<Summary, Error> {
        get::get(&self.0, options, progress, &self.0.options.cancel)
    }

    /// Opens a file to read it in parts. Waits until the server has its digest, for which it may have to hash it.
    ///
    /// # Errors
    /// There is no connection, or the server refuses: with `not-found` if there is no file.
    pub fn open(&self, path: &RelPath) -> Result<RemoteFile, Error> {
        RemoteFile::open(&self.0, path, self.0.options.cancel.child())
    }

    /// Asks for the present versions of files, with their digests, for which the server may have to hash them. What isn't known after the time
    /// limit is `None`; the server goes on with it when it is asked again.
    ///
    /// # Errors
    /// There is no connection, or the server refuses the whole of it.
    pub fn look_up(&self, paths: &[RelPath], limit: Duration) -> Result<Vec<Option<Result<KnownFile, Error>>>, Error> {
        open::look_up(&self.0, paths, limit, &self.0.options.cancel)
    }

    /// Reads a range of a version of a file, verified, on this thread. `take` gets its bytes in order, and ends it by false.
    ///
    /// # Errors
    /// There is no connection, or nothing happens for too long; [`ErrorCode::Changed`](crate::protocol::ErrorCode) if the file is another
    /// version by now.
    pub fn read(&self, file: &KnownFile, range: Range<u64>, take: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), Error> {
        open::read(&self.0, file, range, take, &self.0.options.cancel)
    }

    /// Reads all of several versions of small files, of at most a MiB each, on this thread. `each` gets the content of one after the other, verified,
    /// or why it can't be had, with its index.
    pub fn read_whole(&self, files: &[&KnownFile], each: &mut EachFile<'_>) {
        open::read_whole(&self.0, files, each, &self.0.options.cancel);
    }

    /// The digest of a version of a file, and the values of its leaves, which are asked for the first time.
    ///
    /// # Errors
    /// As of [`read`](Self::read).
    pub fn leaves(&self, file: &KnownFile) -> Result<Arc<Digested>, Error> {
        open::leaves(&self.0, file, &self.0.options.cancel)
    }

    /// Pushes files: returns when each is in place or has failed. What the server has of a file that isn't complete stays there for a day, and
    /// is resumed. `on_event` is called with what happens, and ends the push by an error; `progress` now and then.
    ///
    /// # Errors
    /// There is no connection, nothing happens for too long, a reader fails, or there is no space for its bytes. Failures of single files are
    /// events.
    pub fn push(
        &self,
        options: PushOptions,
        on_event: &mut dyn FnMut(PushEvent) -> io::Result<()>,
        progress: &mut dyn FnMut(PushProgress),
    ) -> Result<(), Error> {
        push::push(&self.0, options, on_event, progress, &self.0.options.cancel)
    }

    /// Follows a path, a pattern, or the versions of a path: brings the destination up to date, and keeps it so.
    ///
    /// # Errors
    /// There are no more threads. What else fails is the last item, as of [`follow_with`](Self::follow_with).
    pub fn follow(&self, options: FollowOptions) -> Result<Events, Error> {
        Events::start(Arc::clone(&self.0), options, self.0.options.cancel.child())
    }

    /// Follows like [`follow`](Self::follow), on this thread: returns when it is up to date with [`FollowOptions::once`], otherwise when it
    /// fails. `on_event` is called with what happens, before it is noted as done.
    ///
    /// # Errors
    /// The server can't be reached at first, refuses, or breaks the protocol; the destination is impossible; or `on_event` failed.
    pub fn follow_with(
        &self,
        options: &FollowOptions,
        on_event: &mut dyn FnMut(FollowEvent) -> io::Result<()>,
    ) -> Result<FollowEnd, Error> {
        follow::follow(&self.0, options, on_event, &self.0.options.cancel)
    }

    /// The versions of all paths of the server, and its present number.
    ///
    /// # Errors
    /// There is no connection, the server refuses or has nothing to follow, or nothing happens for too long.
    pub fn versions(&self) -> Result<Versions, Error> {
        follow::versions(&self.0, &self.0.options.cancel)
    }

    /// Publishes what is below a path as a version; the label is by default the first digits of its digest. Of the versions of the path only the
    /// newest are kept, if a number is given.
    ///
    /// # Errors
    /// There is no connection, or the server refuses: with `changed` if something is being written.
    pub fn publish(&self, path: &RelPath, label: Option<&str>, keep: Option<u32>) -> Result<PublishedReply, Error> {
        ask::publish(&self.0, path, label, keep, &self.0.options.cancel)
    }

    /// How many have something; with `named`, who.
    ///
    /// # Errors
    /// There is no connection, or the server refuses.
    pub fn holding(&self, wanted: HoldersWanted, named: bool) -> Result<Holding, Error> {
        ask::holding(&self.0, wanted, named, &self.0.options.cancel)
    }
}

impl fmt::Debug for FileClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FileClient").field(&self.0.options.endpoint.to_string()).finish()
    }
}
