//! Follows versions: puts the newest one in place beside the old one, and then switches a link.

use super::super::connection::Connection;
use super::super::exchange::{Connector, Operation, Turn, WaitLimit};
use super::super::get::{Destination, GetOptions, get};
use super::account::Account;
use super::driver::Driver;
use super::finish::{RETRY_MAX, RETRY_MIN, is_full};
use super::frozen::Frozen;
use super::others::Others;
use super::pages::FOLLOW_ID;
use super::passed_versions::{self, is_in_place};
use super::record::{Known, Origin, Record};
use super::report::VIA_EVERY;
use super::version_list::{Version, VersionList};
use super::{FollowEnd, FollowEvent, FollowOptions, OnEvent, last_words};
use crate::digest::Digest;
use crate::error::Error;
use crate::filter::Excludes;
use crate::limits::MANIFEST_BYTES_MAX;
use crate::path::RelPath;
use crate::protocol::ErrorCode;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::{Change, FetchesFor, FollowingReply, Reply, Request, request_id};
use crate::protocol::follow::{Cursor, ServerId};
use crate::protocol::manifest::{TREE, VERSIONS, VersionName, decode, is_label, versions_of};
use crate::root::{Dir, Links, Root, check_own_dir};
use crate::transfer::Source;
use crate::transfer::names::follow_name;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use towpath_blocking::CancelToken;
use towpath_sockets::Waker;

/// The link that leads to the newest version.
const CURRENT: &str = "current";
/// Digits of the digest in the name of a version's directory: labels may come again, for something else.
const DIGITS: usize = 12;
const POLL_MAX: Duration = Duration::from_secs(1);
/// Events of a thread that puts a version in place that may wait.
const EVENTS_WAITING_MAX: usize = 16;

/// Follows the versions of a server, until the newest is in place with [`FollowOptions::once`], otherwise until it is cancelled.
pub(super) fn run(
    connector: &Arc<Connector>,
    options: &FollowOptions,
    account: &Account,
    on_event: &mut OnEvent<'_>,
    cancel: &CancelToken,
    was_connected: &mut bool,
) -> Result<FollowEnd, Error> {
    let refused = |error: io::Error| refused(options, &error);
    std::fs::create_dir_all(&options.destination).map_err(refused)?;
    let Source::Path(of) = &options.source else {
        return Err(Error::unmet("versions are of a path".to_owned()));
    };
    let of = of.clone();
    let unusable = |error: String| refused(io::Error::other(error));
    let source = Source::Path(versions_of(&of).map_err(|error| unusable(error.to_string()))?);
    let top = Root::directory(&options.destination, Links::Never).and_then(|root| root.open_dir(&RelPath::root()));
    let top = top.map_err(|error| unusable(error.to_string()))?;
    let record = Record::open(&top, &source, &Excludes::default()).map_err(|error| match error.is_full() {
        true => Error::DiskFull(format!("cannot write the record of what was followed: {error}")),
        false => unusable(error.to_string()),
    })?;
    account.is_of(record.copy());
    let mut exchange = connector.exchange(cancel)?;
    let mut follower = Versions {
        connector,
        options,
        account,
        on_event,
        cancel,
        waker: exchange.waker(),
        list: VersionList::new(&of, false)?,
        of,
        source,
        top,
        record,
        origin: None,
        is_connected: false,
        is_live: false,
        is_wanted: false,
        installing: None,
        installed: None,
        asked_at: None,
        retry_at: None,
        retry_after: RETRY_MIN,
    };
    exchange.assume_connected_before(*was_connected);
    let outcome = exchange.run(&mut follower);
    *was_connected = exchange.was_connected();
    if let Some(last) = last_words(&outcome, options, account) {
        exchange.say(&last);
    }
    exchange.close();
    // Waits until nothing is written any more.
    drop(follower);
    outcome
}

fn refused(options: &FollowOptions, error: &io::Error) -> Error {
    if is_full(error) {
        return Error::DiskFull(error.to_string());
    }
    Error::Destination { path: options.destination.clone(), reason: error.to_string() }
}

struct Versions<'a> {
    connector: &'a Arc<Connector>,
    options: &'a FollowOptions,
    account: &'a Account,
    on_event: &'a mut OnEvent<'a>,
    cancel: &'a CancelToken,
    waker: Waker,
    /// The path that the versions are of.
    of: RelPath,
    /// The path that is followed to learn of them.
    source: Source,
    /// The destination.
    top: Dir,
    /// Whose versions are in the destination, and that `current` is this follower's.
    record: Record,
    origin: Option<Origin>,
    list: VersionList,
    is_connected: bool,
    /// Whether all versions are known.
    is_live: bool,
    /// Whether all versions are known, and the newest isn't in place.
    is_wanted: bool,
    /// The version that is being put in place, by a thread of its own.
    installing: Option<Installing>,
    /// The version in place: its label and digest.
    installed: Option<(String, Digest)>,
    /// When a relay has last asked which servers the versions come through.
    asked_at: Option<Instant>,
    retry_at: Option<Instant>,
    /// The pause after the next failure.
    retry_after: Duration,
}

impl Operation for Versions<'_> {
    type Outcome = FollowEnd;

    fn turn(&mut self, connection: &mut Connection, now: Instant) -> Result<Turn<FollowEnd>, Error> {
        if let Some(end) = self.look_at_installing(now)? {
            return Ok(Turn::Over(end));
        }
        if self.retry_at.take_if(|at| *at <= now).is_some() {
            self.is_wanted = true;
        }
        if self.installing.is_none() && std::mem::take(&mut self.is_wanted) {
            self.newest()?;
        }
        self.say(connection, now);
        self.ask_via(connection);
        Ok(Turn::Wait(POLL_MAX))
    }

    fn connected(&mut self, connection: &mut Connection, now: Instant) -> Result<(), Error> {
        (self.is_connected, self.asked_at) = (true, None);
        self.account.connected();
        self.say(connection, now);
        self.ask(connection);
        Ok(())
    }

    fn lost(&mut self, reason: &str) -> Result<bool, Error> {
        (self.is_connected, self.is_live) = (false, false);
        self.list.lost();
        (self.on_event)(FollowEvent::Interrupted { reason: format!("the connection is lost: {reason}") })?;
        Ok(true)
    }

    fn inbound(&mut self, inbound: Inbound, connection: &mut Connection, _now: Instant) -> Result<bool, Error> {
        let Inbound::Control { json, .. } = inbound else { return Ok(false) };
        if request_id(&json) != Some(FOLLOW_ID) {
            self.hello(&json)?;
            return Ok(false);
        }
        self.is_live = self.list.reply(&json)?;
        self.is_wanted = self.is_live;
        if let Some(following) = self.list.begun.take() {
            self.begins(&following)?;
        }
        self.ask(connection);
        Ok(true)
    }

    fn wait_limit(&self) -> WaitLimit {
        match self.is_connected {
            // Another connection is tried for ever, unless following is to end.
            false if self.options.once => WaitLimit::Extra(Duration::ZERO),
            false => WaitLimit::Unlimited,
            true if self.is_live => WaitLimit::Unlimited,
            // A server may take long to look at everything for the first time.
            true => WaitLimit::WhileAlive,
        }
    }
}

impl Versions<'_> {
    /// Looks whose versions are in the destination: those of another server or path aren't touched.
    fn begins(&mut self, following: &FollowingReply) -> Result<(), Error> {
        let origin = Origin::new(&self.source, following.server, following.cursor.epoch);
        self.record.check_origin(&origin, self.options)?;
        let current = RelPath::new(CURRENT).map_err(|error| Error::unmet(error.to_string()))?;
        let mut others = Others::default();
        others.look(&self.options.destination, &follow_name(&self.source, &Excludes::default()));
        others.take_over(&self.top, &mut self.record, &origin, (&current, false), self.options)?;
        self.record.note_origin(&origin).map_err(|error| self.refused(&error))?;
        self.origin = Some(origin);
        Ok(())
    }

    fn refused(&self, error: &io::Error) -> Error {
        refused(self.options, error)
    }

    /// A relay asks which servers the versions come through.
    fn ask_via(&mut self, connection: &mut Connection) {
        let is_due = self.asked_at.is_none_or(|asked| asked.elapsed() >= VIA_EVERY);
        if self.options.relay.is_some() && self.is_connected && is_due {
            connection.send(&Request::Hello);
            self.asked_at = Some(Instant::now());
        }
    }

    fn hello(&self, json: &[u8]) -> Result<(), Error> {
        match (&self.options.relay, Reply::decode(json)) {
            (Some(relay), Ok(Reply::Hello(hello))) => {
                relay.comes_through(&hello.via).map_err(|error| Error::unmet(error.to_string()))
            }
            _ => Ok(()),
        }
    }

    fn ask(&mut self, connection: &mut Connection) {
        if let Some(request) = self.list.next_request() {
            connection.send(&request);
        }
    }

    /// Begins to put the newest version in place, if it isn't.
    fn newest(&mut self) -> Result<(), Error> {
        let Some(version) = self.list.newest().cloned() else {
            if self.options.once {
                let message = "no version is published".to_owned();
                return Err(Error::Unmet { code: ErrorCode::NotFound, message });
            }
            return self.passing().pass_on(None);
        };
        if self
            .installed
            .as_ref()
            .is_some_and(|(label, digest)| (label, digest) == (&version.name.label, &version.digest))
        {
            return self.passing().pass_on(None);
        }
        let work = Work {
            connector: Arc::clone(self.connector),
            account: Account::new(self.options, None),
            fetches_for: self.account.fetches_for(),
            of: self.of.clone(),
            version,
            passing: self.passing(),
            cancel: self.cancel.child(),
        };
        let started = Installing::start(work, self.waker.clone());
        self.installing = Some(started.map_err(|error| Error::unmet(format!("cannot start a thread: {error}")))?);
        Ok(())
    }

    fn passing(&self) -> Passing {
        Passing {
            options: self.options.clone(),
            server: self.origin.as_ref().and_then(|origin| origin.server),
            cursor: self.list.cursor,
            versions: self.list.versions(),
        }
    }

    /// Takes what the thread says that puts a version in place. The end, if that is wanted then.
    fn look_at_installing(&mut self, now: Instant) -> Result<Option<FollowEnd>, Error> {
        while let Some(installing) = &mut self.installing {
            self.account.lacks_as(&installing.account);
            match installing.next() {
                None => return Ok(None),
                Some(Said::Event(event)) => (self.on_event)(event)?,
                Some(Said::Over(outcome)) => {
                    if let Some(installing) = self.installing.take() {
                        return self.installed(installing, outcome, now);
                    }
                }
            }
        }
        Ok(None)
    }

    /// Takes the outcome of putting a version in place.
    fn installed(
        &mut self,
        installing: Installing,
        outcome: Result<FollowEnd, Error>,
        now: Instant,
    ) -> Result<Option<FollowEnd>, Error> {
        match outcome {
            Ok(FollowEnd::UpToDate) => {
                let Version { name: VersionName { label, .. }, digest, seq, .. } = installing.version.clone();
                self.installed = Some((label.clone(), digest));
                self.claim_current().map_err(|error| self.refused(&error))?;
                self.retry_after = RETRY_MIN;
                self.account.works();
                self.account.lacks((0, 0), now);
                self.account.has_version(digest, self.list.cursor);
                (self.on_event)(FollowEvent::Version { label, version: digest, seq })?;
                Ok(self.options.once.then_some(FollowEnd::UpToDate))
            }
            Ok(end) if self.options.once => Ok(Some(end)),
            Err(error) if self.options.once || matches!(error, Error::Cancelled) => Err(error),
            outcome => {
                let why = outcome
                    .map_or_else(|error| error.to_string(), |_| "something could not be put in place".to_owned());
                let label = &installing.version.name.label;
                let own = installing.account.error().unwrap_or_else(|| why.clone());
                self.account.fails(&format!("version {label}: {own}"), now);
                let reason = format!("version {label}: {why}; trying again in {} s", self.retry_after.as_secs());
                (self.on_event)(FollowEvent::Interrupted { reason })?;
                self.retry_at = Some(now + self.retry_after);
                self.retry_after = (self.retry_after * 2).min(RETRY_MAX);
                Ok(None)
            }
        }
    }

    /// Notes that `current` is of this follower.
    fn claim_current(&mut self) -> io::Result<()> {
        let target = std::fs::read_link(self.options.destination.join(CURRENT))?;
        let current = RelPath::new(CURRENT).map_err(|error| io::Error::other(error.to_string()))?;
        self.record.put(&current, Known::Link(Digest::of(target.as_os_str().as_bytes())))?;
        self.record.flush()
    }

    /// Says what is in place, and what isn't.
    fn say(&mut self, connection: &mut Connection, now: Instant) {
        if !self.is_connected {
            return;
        }
        if let Some((_, version)) = &self.installed {
            self.account.has_version(*version, self.list.cursor);
        }
        if let Some(request) = self.account.next_request(now) {
            connection.send(&request);
        }
    }
}

/// Labels of the version that is in place now, and of the one before.
type Labels<'a> = [Option<&'a str>; 2];

/// The known versions, for a relay's server.
struct Passing {
    options: FollowOptions,
    server: Option<ServerId>,
    cursor: Option<Cursor>,
    versions: Vec<Version>,
}

impl Passing {
    /// Passes on those in place, of these labels only if there are any.
    fn pass_on(&self, kept: Option<&Labels<'_>>) -> Result<(), Error> {
        let Some(cursor) = self.cursor else { return Ok(()) };
        let mut versions = self.versions.clone();
        versions.retain(|version| kept.is_none_or(|kept| kept.contains(&Some(&version.name.label))));
        passed_versions::pass_on(&self.options, self.server, cursor, versions)
    }
}

/// A version to put in place.
struct Work {
    connector: Arc<Connector>,
    /// Reports lacks and errors of this work.
    account: Account,
    fetches_for: FetchesFor,
    of: RelPath,
    version: Version,
    passing: Passing,
    cancel: CancelToken,
}

/// An event of a thread that puts a version in place, or its outcome.
enum Said {
    Event(FollowEvent),
    Over(Result<FollowEnd, Error>),
}

/// A thread that puts a version in place. Dropping it cancels it, and waits for its end.
struct Installing {
    version: Version,
    account: Account,
    cancel: CancelToken,
    said: Option<Receiver<Said>>,
    thread: Option<JoinHandle<()>>,
}

impl Installing {
    fn start(work: Work, waker: Waker) -> io::Result<Installing> {
        let (version, account, cancel) = (work.version.clone(), work.account.clone(), work.cancel.clone());
        let (says, said) = sync_channel(EVENTS_WAITING_MAX);
        let thread = std::thread::Builder::new().name("tow-version".to_owned()).spawn(move || {
            let on_event = &mut |event| {
                let is_taken = says.send(Said::Event(event)).is_ok();
                waker.wake();
                if is_taken { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
            };
            let outcome = install(&work, on_event);
            // Fails if nobody waits for it any more.
            let _ = says.send(Said::Over(outcome));
            waker.wake();
        })?;
        Ok(Installing { version, account, cancel, said: Some(said), thread: Some(thread) })
    }

    /// The next word of it, if there is one.
    fn next(&mut self) -> Option<Said> {
        match self.said.as_ref()?.try_recv() {
            Ok(said) => Some(said),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(Said::Over(Err(Error::unmet("the thread that puts versions in place has ended".to_owned()))))
            }
        }
    }
}

impl Drop for Installing {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.said = None;
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            tracing::error!("the thread that puts versions in place has panicked");
        }
    }
}

/// Puts a version in place, and switches the link to it.
fn install(work: &Work, on_event: &mut OnEvent<'_>) -> Result<FollowEnd, Error> {
    let Work { connector, account, of, version, passing, cancel, .. } = work;
    let options = &passing.options;
    let destination = &options.destination;
    let refused = |error: io::Error| refused(options, &error);
    let digits: String = version.digest.to_string().chars().take(DIGITS).collect();
    let label = &*version.name.label;
    let name = format!("{label}.{digits}");
    // What is passed on is kept as its server has it.
    let is_passed_on = options.relay.is_some();
    let unusable = |error: crate::path::PathError| refused(io::Error::other(error));
    let versions = versions_of(of).map_err(unusable)?;
    let tree = version.name.tree().map_err(unusable)?;
    let top = if is_passed_on { destination.join(versions.as_os_str()) } else { destination.clone() };
    let whole = top.join(if is_passed_on { label } else { &name });
    let is_there = if is_passed_on { is_in_place(&whole, version.digest) } else { whole.is_dir() };
    let new = if is_there { whole.clone() } else { top.join(format!(".{name}.new")) };
    // Others may be able to write into the destination.
    [&top, &whole, &new]
        .into_iter()
        .filter(|path| *path != destination)
        .try_for_each(|path| check_own_dir(path))
        .map_err(refused)?;
    let (bytes, entries) = manifest(connector, options, version, cancel)?;
    let before = std::fs::read_link(destination.join(CURRENT)).ok();
    let seed = before.as_ref().and_then(|before| Some((destination.join(before), source_of(of, before)?)));
    let mut inner = options.clone();
    inner.source = Source::Path(tree.clone());
    inner.destination = if is_passed_on { new.join(TREE) } else { new.clone() };
    (inner.once, inner.mirror, inner.max_delete) = (true, true, Some(u64::MAX));
    (inner.relay, inner.trash, inner.exclude) = (None, None, Excludes::default());
    inner.frozen = Some(Frozen::new(version.digest, entries, seed, work.fetches_for.clone()));
    let quiet = &mut |event: FollowEvent| match event {
        FollowEvent::Failed { .. } | FollowEvent::Interrupted { .. } | FollowEvent::Warning(_) => on_event(event),
        _ => Ok(()),
    };
    let end = Driver::run(connector, &inner, account, quiet, cancel, &mut false)?;
    if end != FollowEnd::UpToDate {
        return Ok(end);
    }
    if is_passed_on && !is_there {
        passed_versions::put(&new, &whole, &bytes, version.published, options.durable).map_err(refused)?;
    } else if !is_there {
        std::fs::rename(&new, &whole).map_err(refused)?;
    }
    let target = PathBuf::from(if is_passed_on { tree.as_os_str() } else { OsStr::new(&name) });
    let is_switched = before.as_deref() != Some(&target);
    if is_switched {
        let link = destination.join(format!(".{CURRENT}.new"));
        match std::fs::remove_file(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(refused(error)),
            _ => {}
        }
        std::os::unix::fs::symlink(&target, &link).map_err(refused)?;
        std::fs::rename(&link, destination.join(CURRENT)).map_err(refused)?;
    }
    if options.durable {
        std::fs::File::open(destination).and_then(|dir| dir.sync_all()).map_err(refused)?;
    }
    if is_passed_on {
        let kept = [Some(label), before.as_deref().and_then(label_of)];
        // Where it was in place already, the one before isn't known: it stays.
        let kept = (!is_there).then_some(&kept);
        // Removed versions aren't announced any more.
        passing.pass_on(kept)?;
        kept.iter().for_each(|kept| passed_versions::remove_old(&top, *kept));
    } else if is_switched {
        remove_old(destination, of, &[Some(Path::new(&name)), before.as_deref()]);
    }
    Ok(end)
}

/// The source that was followed to get the version of a path in a directory of this name.
fn source_of(of: &RelPath, name: &Path) -> Option<Source> {
    let name = VersionName { of: of.clone(), label: label_of(name)?.to_owned() };
    name.tree().ok().map(Source::Path)
}

/// The label of the version in a directory of this name.
fn label_of(name: &Path) -> Option<&str> {
    let name = name.to_str()?;
    if let Some(rest) = name.strip_prefix(VERSIONS) {
        let rest = rest.strip_suffix(TREE)?.strip_suffix('/')?;
        return rest.rsplit('/').next().filter(|label| is_label(label));
    }
    let (label, digits) = name.strip_suffix(".new").unwrap_or(name).rsplit_once('.')?;
    let is_hex = digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| label.strip_prefix('.').unwrap_or(label))
}

/// Gets and checks the manifest of a version, and its entries, whose paths are those on the server.
fn manifest(
    connector: &Connector,
    options: &FollowOptions,
    version: &Version,
    cancel: &CancelToken,
) -> Result<(Vec<u8>, Vec<Change>), Error> {
    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);
    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let wrong = |why: String| Error::Protocol(format!("version {}: {why}", version.name.label));
    if version.manifest_bytes > MANIFEST_BYTES_MAX {
        return Err(wrong(format!("a manifest of more than {MANIFEST_BYTES_MAX} bytes")));
    }
    let buffer = Buffer::default();
    let path = version.name.manifest().map_err(|error| wrong(error.to_string()))?;
    let mut fetch = GetOptions::new(Source::Path(path));
    fetch.destination = Destination::Writer(Box::new(buffer.clone()));
    fetch.bytes_per_second = options.bytes_per_second;
    fetch.max_bytes = Some(version.manifest_bytes);
    get(connector, fetch, &mut |_| {}, cancel)?;
    let bytes = std::mem::take(&mut *buffer.0.lock().unwrap_or_else(PoisonError::into_inner));
    if Digest::of(&bytes) != version.digest {
        return Err(wrong("its manifest has another digest".to_owned()));
    }
    let base = version.name.tree().map_err(|error| wrong(error.to_string()))?;
    let mut entries = decode(&bytes).map_err(|error| wrong(error.to_string()))?;
    for entry in &mut entries {
        let path = [base.as_bytes(), b"/", entry.path.as_bytes()].concat();
        let path = RelPath::new(path).map_err(|error| wrong(error.to_string()))?;
        entry.path = (&path).into();
    }
    Ok((bytes, entries))
}

/// Removes versions that were put in place before, as far as their records show that they were.
fn remove_old(destination: &Path, of: &RelPath, kept: &[Option<&Path>]) {
    for entry in std::fs::read_dir(destination).into_iter().flatten().flatten() {
        let name = PathBuf::from(entry.file_name());
        let Some(source) = source_of(of, &name).filter(|_| !kept.contains(&Some(&*name))) else { continue };
        let path = entry.path();
        if !path.join(OsStr::from_bytes(&follow_name(&source, &Excludes::default()))).is_file() {
            continue;
        }
        if let Err(error) = std::fs::remove_dir_all(&path) {
            tracing::warn!(path = %path.display(), %error, "an old version can't be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_versions_are_taken_for_such() {
        let label = |name: &str| match source_of(&RelPath::root(), Path::new(name)) {
            Some(Source::Path(path)) => Some(path.to_string()),
            _ => None,
        };
        assert_eq!(label("v1.0.0123456789ab").as_deref(), Some(".tow-versions/v1.0/tree"));
        assert_eq!(label(".v1.0123456789ab.new").as_deref(), Some(".tow-versions/v1/tree"));
        assert_eq!(label(".tow-versions/v1/tree").as_deref(), Some(".tow-versions/v1/tree"));
        for other in ["v1", "current", "v1.0123456789", "v1.0123456789zz", "0123456789ab", ".tow-versions/../tree"] {
            assert_eq!(label(other), None, "{other}");
        }
    }
}
