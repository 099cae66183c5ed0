//! Files of another server as the files of this one.

use super::directories::{Directories, DirectoryPages, Found, Unlisted};
use super::known::{KnownFiles, Questions};
use crate::commands::cache_args::cache_stats;
use crate::commands::outage::{Outages, Tried};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use towpath_cache::{Cache, Content, Each, PIECE_BYTES, Version};
use towpath_files::client::{Error, Fault, FileClient, KnownFile};
use towpath_files::digest::{Digested, LeafSize, Validator};
use towpath_files::path::RelPath;
use towpath_files::protocol::ErrorCode;
use towpath_files::relay::Via;
use towpath_files::root::{FileKind, RootError};
use towpath_files::server::source::{self, Attributes, CacheStats, Opened, OpenedDir, Outage, Pieces, Source};

/// Time for which an opening file waits for the origin, which may have to hash it. Then the client tries again, and the origin goes on.
const OPEN_TIME: Duration = Duration::from_secs(20);
/// The same for files that are asked for before they are opened.
const AHEAD_TIME: Duration = Duration::from_secs(2);
/// Files that are asked for at a time.
const AHEAD_MAX: usize = 512;
/// Time for which a file isn't asked for again that wasn't known in time.
const SLOW_TIME: Duration = Duration::from_secs(1);
/// A question that failed within this time had an old connection.
const LOST_TIME: Duration = Duration::from_secs(1);

/// The files below a path of a server.
#[derive(Clone, Debug)]
pub(super) struct OriginSource(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    client: FileClient,
    /// The served path there.
    top: RelPath,
    cache: Cache<Origin>,
    known: KnownFiles,
    directories: Directories,
    asking: Questions<RelPath>,
    listing: Questions<RelPath>,
    outage: Outages,
}

impl OriginSource {
    /// Fails if there is no such directory, or no server.
    pub(super) fn open(client: FileClient, top: RelPath, cache: Cache<Origin>) -> Result<OriginSource, Error> {
        let shared = Shared {
            known: KnownFiles::new(),
            directories: Directories::new(),
            asking: Questions::new(),
            listing: Questions::new(),
            outage: Outages::default(),
            client,
            top,
            cache,
        };
        let refused = |code, message: &str| Error::Refused { code, message: message.to_owned() };
        match shared.directories.list(&shared.top, &shared.client) {
            Ok(Found::Dir(_)) => Ok(OriginSource(Arc::new(shared))),
            Ok(Found::File(_)) => Err(refused(ErrorCode::NotFound, "it is a file; name the directory that it is in")),
            Err(Unlisted::Origin(error)) => Err(error),
            Err(Unlisted::Here(error)) => Err(Error::Local(error.to_string())),
        }
    }
}

impl Shared {
    /// A path on the origin.
    fn there(&self, path: &RelPath) -> Result<RelPath, RootError> {
        if self.top.is_root() || path.is_root() {
            return Ok(if path.is_root() { self.top.clone() } else { path.clone() });
        }
        Ok(RelPath::new([self.top.as_bytes(), b"/", path.as_bytes()].concat())?)
    }

    /// Asks the origin, unless it is away.
    fn ask<T>(&self, ask: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
        if let Some(Outage { reason, .. }) = self.outage.get() {
            return Err(Error::Connect { endpoint: self.client.options().endpoint.to_string(), reason });
        }
        let (began, mut outcome) = (Instant::now(), ask());
        // The connection may have been lost before this question.
        if began.elapsed() < LOST_TIME && matches!(&outcome, Err(error) if is_out(error)) {
            outcome = ask();
        }
        if let Some(error) = outcome.as_ref().err().filter(|error| is_out(error)) {
            let (client, top) = (self.client.clone(), [self.top.clone()]);
            self.outage.begin(Some(error.to_string()), move || match client.look_up(&top, OPEN_TIME) {
                Ok(_) => Tried::Reached,
                Err(error) if error.fault() == Fault::Cancelled => Tried::Ended,
                Err(error) => Tried::Failed(error.to_string()),
            });
        }
        outcome
    }

    /// The version of a file that is there now, or was a moment ago. While the origin is away, the last one.
    fn version(&self, path: &RelPath) -> Result<KnownFile, RootError> {
        let ask = || {
            if let Some(file) = self.known.fresh(path) {
                return Ok(file);
            }
            if self.known.is_slow(path) {
                return Err(slow());
            }
            let looked = self.ask(|| self.client.look_up(std::slice::from_ref(path), OPEN_TIME));
            match looked.map(|mut found| found.pop().flatten()) {
                Ok(Some(Ok(file))) => Ok(self.known.remember(file)),
                Ok(Some(Err(error))) => {
                    self.known.forget(path);
                    Err(failed(&error))
                }
                Ok(None) => {
                    self.known.note_slow(path.clone(), SLOW_TIME);
                    Err(slow())
                }
                Err(error) => match self.known.last(path).filter(|_| is_out(&error)) {
                    Some(last) => Ok(last),
                    None => Err(failed(&error)),
                },
            }
        };
        match self.known.fresh(path) {
            Some(file) => Ok(file),
            None => self.asking.alone(path, ask),
        }
    }

    /// The directory or file at a path.
    fn find(&self, path: &RelPath) -> Result<Found, RootError> {
        self.listing.alone(path, || {
            if let Some(directory) = self.directories.fresh(path) {
                return Ok(Found::Dir(directory));
            }
            let listed = self.ask(|| match self.directories.list(path, &self.client) {
                Ok(found) => Ok(Ok(found)),
                Err(Unlisted::Origin(error)) => Err(error),
                Err(Unlisted::Here(error)) => Ok(Err(error)),
            });
            match listed {
                Ok(found) => found,
                Err(error) => match self.known.last(path).filter(|_| is_out(&error)) {
                    Some(file) => Ok(Found::File(attributes(&file))),
                    None => Err(failed(&error)),
                },
            }
        })
    }

    fn content(&self, file: KnownFile) -> Content<Origin> {
        Content::new(Some(self.cache.clone()), Origin { client: self.client.clone(), file })
    }
}

impl Source for OriginSource {
    fn stat(&self, path: &RelPath) -> Result<Attributes, RootError> {
        let path = self.0.there(path)?;
        if let Some(file) = self.0.known.fresh(&path) {
            return Ok(attributes(&file));
        }
        self.0.find(&path).map(|found| match found {
            Found::Dir(directory) => directory.attributes,
            Found::File(attributes) => attributes,
        })
    }

    fn open(&self, path: &RelPath) -> Result<Opened, RootError> {
        if path.is_root() {
            return Err(RootError::NotAFile);
        }
        let file = self.0.version(&self.0.there(path)?)?;
        let attributes = attributes(&file);
        let object = OriginFile { content: self.0.content(file), shared: Arc::clone(&self.0) };
        Ok(Opened { attributes, content: source::Content::Pieces(Arc::new(object)) })
    }

    fn open_dir(&self, path: &RelPath) -> Result<OpenedDir, RootError> {
        match self.0.find(&self.0.there(path)?)? {
            Found::Dir(directory) => Ok(OpenedDir::Pages(Box::new(DirectoryPages::new(directory)))),
            Found::File(_) => Err(RootError::NotADirectory),
        }
    }

    fn will_open(&self, paths: &mut dyn Iterator<Item = &RelPath>) {
        let shared = &*self.0;
        let soon: Vec<_> = paths.take(AHEAD_MAX).filter_map(|path| shared.there(path).ok()).collect();
        let unknown: Vec<_> = soon.iter().filter(|path| shared.known.fresh(path).is_none()).cloned().collect();
        // One alone is asked for when it is opened.
        if unknown.len() > 1 {
            let found = shared.ask(|| shared.client.look_up(&unknown, AHEAD_TIME)).unwrap_or_default();
            for file in found.into_iter().flatten().flatten() {
                shared.known.remember(file);
            }
        }
        for file in soon.iter().filter_map(|path| shared.known.fresh(path)).filter(|file| file.size() <= PIECE_BYTES) {
            shared.content(file).begin();
        }
    }

    fn cache(&self) -> Option<CacheStats> {
        Some(cache_stats(&self.0.cache))
    }

    fn outage(&self) -> Option<Outage> {
        self.0.outage.get()
    }

    fn via(&self) -> Option<Arc<Via>> {
        self.0.client.options().via.clone()
    }
}

fn attributes(file: &KnownFile) -> Attributes {
    Attributes {
        kind: FileKind::File,
        size: file.size(),
        modified: file.modified(),
        mode: file.mode(),
        validator: Validator::of(&[&file.digest().0]),
        local: None,
    }
}

/// A version of a file of the origin, for the cache: what has the same content has the same pieces.
#[derive(Debug)]
pub(super) struct Origin {
    client: FileClient,
    file: KnownFile,
}

impl Version for Origin {
    type Error = Error;

    fn size(&self) -> u64 {
        self.file.size()
    }

    fn id(&self) -> [u8; 32] {
        blake3::derive_key("towpath origin 1", &self.file.digest().0)
    }

    fn read(&self, range: Range<u64>, take: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), Error> {
        self.client.read(&self.file, range, take)
    }

    const TOGETHER_MAX: usize = 64;

    fn read_together(versions: &[&Origin], each: &mut Each<'_, Error>) {
        let Some(first) = versions.first() else { return };
        let files: Vec<_> = versions.iter().map(|version| &version.file).collect();
        first.client.read_whole(&files, each);
    }
}

/// An open file of the origin.
#[derive(Debug)]
struct OriginFile {
    content: Content<Origin>,
    shared: Arc<Shared>,
}

impl OriginFile {
    fn outcome<T>(&self, outcome: Result<T, Error>) -> Result<T, RootError> {
        outcome.map_err(|error| {
            let path = self.content.version().file.path();
            match error.fault() {
                Fault::Refusal(ErrorCode::Changed | ErrorCode::NotFound) => self.shared.known.forget(path),
                // Another content under the same size and time.
                Fault::Server if matches!(error, Error::Protocol(_)) => {
                    tracing::warn!(%path, %error, "the origin's file isn't what it was: it is asked for again");
                    self.shared.known.forget(path);
                    return RootError::Changed;
                }
                _ => {}
            }
            failed(&error)
        })
    }
}

impl Pieces for OriginFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, RootError> {
        self.outcome(self.content.read_at(buffer, offset))
    }

    fn digested(&self) -> Result<Option<Arc<Digested>>, RootError> {
        let file = &self.content.version().file;
        let digested = self.outcome(self.shared.client.leaves(file))?;
        // Leaves of another size aren't those that clients of this server know.
        Ok(Some(digested).filter(|digested| digested.leaf_size == LeafSize::for_file(file.size())))
    }

    fn file_at(&self, offset: u64, length: u64, may_wait: bool) -> Result<Option<(Arc<File>, u64)>, RootError> {
        self.outcome(self.content.file_at(offset, length, may_wait))
    }
}

/// Whether the origin can't be reached, or has said nothing for too long.
fn is_out(error: &Error) -> bool {
    error.fault() == Fault::Network || matches!(error, Error::Stalled { .. })
}

fn slow() -> RootError {
    RootError::Busy("the origin is hashing the file".to_owned())
}

/// An error as clients get it; the operator gets the whole of it.
fn failed(error: &Error) -> RootError {
    let busy = |words: &str| RootError::Busy(words.to_owned());
    match (error, error.fault()) {
        (_, Fault::Refusal(ErrorCode::NotFound)) => return RootError::NotFound,
        (_, Fault::Refusal(ErrorCode::Denied)) => return RootError::Denied,
        (_, Fault::Refusal(ErrorCode::NotAFile)) => return RootError::NotAFile,
        (_, Fault::Refusal(ErrorCode::Changed)) => return RootError::Changed,
        (Error::Refused { message, .. }, Fault::Refusal(ErrorCode::Busy)) => return RootError::Busy(message.clone()),
        // The operator knows.
        (_, Fault::Network) => return busy("the origin can't be reached"),
        _ => tracing::warn!(%error, "a request to the origin failed"),
    }
    match (error, error.fault()) {
        (_, Fault::Rejection(_)) => busy("the origin doesn't let this server in"),
        (Error::Stalled { .. }, _) => busy("the origin doesn't answer"),
        (_, Fault::Cancelled) => busy("this server ends"),
        _ => RootError::Io(io::Error::other(error.to_string())),
    }
}
