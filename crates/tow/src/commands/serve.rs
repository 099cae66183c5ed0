//! `tow serve`: a server of a directory or a file.

use super::cache_args::CacheArgs;
use super::origin::{OriginArgs, is_origin};
use super::serve_bucket::{BucketArgs, ServedBucket, is_bucket};
use crate::admin::{About, Admin, AdminArgs, Blocks, FilesView};
use crate::cli::certificate::config_folder;
use crate::cli::endpoint::{FILES_PORT, bind_endpoint};
use crate::cli::escape::Line;
use crate::cli::exit::{Failure, Status};
use crate::cli::listen_args::ListenArgs;
use crate::cli::output::announce;
use crate::cli::units::{bytes_per_second, duration, size};
use crate::runtime::reload::{self, Reloaded};
use crate::runtime::signals::on_signals;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use towpath_files::client::CancelToken;
use towpath_files::limits::FOLLOWERS_KEPT_MAX;
use towpath_files::path::RelPath;
use towpath_files::protocol::control::HolderName;
use towpath_files::protocol::follow::ServerId;
use towpath_files::root::RootError;
use towpath_files::server::source::Source;
use towpath_files::server::{PushOptions, ServeError, Server, ServerOptions, WatchOptions};
use towpath_sockets::{Congestion, Heartbeat};

/// Heartbeat intervals without a word after which a client is disconnected. Generous, since libzmq doesn't read while its application
/// leaves messages in the queue.
const HEARTBEATS_MISSED_MAX: u32 = 4;

/// Time between listings of a bucket that is followed.
const RESCAN_BUCKET: Duration = Duration::from_secs(60);

/// Bytes of a file of names of followers.
const FOLLOWERS_BYTES_MAX: u64 = 1 << 20;

/// Arguments of `tow serve`.
#[derive(clap::Args)]
#[command(
    mut_arg("endpoints", |arg| arg.value_parser(bind_endpoint::<FILES_PORT>).default_value("tcp://127.0.0.1:5571")),
    mut_arg("heartbeat", |arg| arg.default_value("30s")),
)]
pub struct Arguments {
    /// Directory or file, which may be replaced meanwhile; s3://BUCKET/PREFIX; tcp://HOST:PORT/PATH.
    path: PathBuf,
    /// Remember digests of files in this file across restarts.
    #[arg(long, value_name = "FILE")]
    digest_file: Option<PathBuf>,
    /// Watch the directory, so that clients can follow it.
    #[arg(long)]
    watch: bool,
    /// Keep what outlasts a restart here: blocked peers, and with --watch sequence numbers and the server's ID.
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Names of followers that are to be there, one a line, instead of all seen within seven days.
    #[arg(long, value_name = "FILE", requires = "watch")]
    followers: Option<PathBuf>,
    /// The server's ID, 32 hex digits, to restore after --state was lost.
    #[arg(long, value_name = "ID", requires = "watch")]
    server_id: Option<ServerId>,
    /// Publish a file that may still be open for writing once it is unchanged for this long.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration, requires = "watch")]
    settle: Duration,
    /// Rescan the whole tree at this interval, in case an event was missed [default: 1h; of a bucket 1min]
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "watch")]
    rescan: Option<Duration>,
    /// Hold deletions back if more than N and a tenth of all paths are due. SIGUSR1 releases them.
    #[arg(long, value_name = "N", default_value_t = 1000, requires = "watch")]
    max_delete: u64,
    /// Watch at most N directories; if there are more, scan everything every 30 s.
    #[arg(long, value_name = "N", requires = "watch", hide = true)]
    max_watches: Option<usize>,
    /// Accept pushed files below this subdirectory; . for all. Of a bucket, with --cache.
    #[arg(long, value_name = "SUBDIR")]
    accept_push: Option<PathBuf>,
    /// Refuse pushes once the files there have this many bytes.
    #[arg(long, value_name = "SIZE", value_parser = size, requires = "accept_push")]
    push_max_bytes: Option<u64>,
    /// Refuse pushes once this many files and directories are there.
    #[arg(long, value_name = "COUNT", requires = "accept_push")]
    push_max_files: Option<u64>,
    /// Let every client publish versions, not only authenticated ones and this user over ipc.
    #[arg(long, requires_all = ["watch", "state"])]
    accept_publish: bool,
    /// Send at most this many bytes per second, to all clients together.
    #[arg(long, value_name = "SIZE", value_parser = bytes_per_second)]
    bwlimit: Option<u64>,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    bucket: BucketArgs,
    #[command(flatten)]
    origin: OriginArgs,
    #[command(flatten)]
    listen: ListenArgs,
    /// TCP congestion control: system, a name, or auto (cubic for peers on this machine).
    #[arg(long, value_name = "NAME", default_value = "auto", help_heading = "Connections")]
    congestion: Congestion,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Serves until a signal ends it.
pub fn run(mut arguments: Arguments) -> Result<ExitCode, Failure> {
    check_push(&arguments)?;
    // Of what a source waits for.
    let cancel = CancelToken::new();
    let (mut options, staging) = match source(&mut arguments, &cancel)? {
        Some((source, staging)) => (ServerOptions::from_source(source), staging),
        None => (ServerOptions::new(&arguments.path), None),
    };
    options.digest_file = arguments.digest_file;
    if arguments.watch {
        let rescan = if options.source.is_some() { RESCAN_BUCKET } else { WatchOptions::default().rescan };
        let rescan = arguments.rescan.unwrap_or(rescan);
        let mut watch = WatchOptions { settle: arguments.settle, rescan, ..WatchOptions::default() };
        watch.max_delete = arguments.max_delete;
        watch.watches_max = arguments.max_watches.unwrap_or(watch.watches_max);
        signal_hook::flag::register(Signal::USR1.as_raw(), Arc::clone(&watch.release_deletions))
            .map_err(|error| Failure::failed(format!("cannot listen for SIGUSR1: {error}")))?;
        options.watch = Some(watch);
    }
    let keeps_state = arguments.state.is_some();
    options.state_directory = arguments.state;
    options.server_id = arguments.server_id;
    options.followers = arguments.followers.as_deref().map(follower_names).transpose()?;
    options.push = arguments.accept_push.as_deref().map(push_directory).transpose()?.map(PushOptions::new);
    if let Some(push) = &mut options.push {
        (push.max_bytes, push.max_files) = (arguments.push_max_bytes, arguments.push_max_files);
        push.staging = staging;
    }
    options.accept_publish = arguments.accept_publish;
    options.bytes_per_second = arguments.bwlimit;
    let interval = arguments.listen.heartbeat;
    let timeout = interval * HEARTBEATS_MISSED_MAX;
    // The library of a client of the plain dialect would end the connection by itself, and lose its requests.
    options.hub.heartbeat = Some(Heartbeat { interval, timeout, ttl: Duration::ZERO });
    options.hub.congestion = arguments.congestion;
    options.hub.max_peers = arguments.listen.max_peers;
    options.hub.max_peers_per_address = arguments.listen.max_peers_per_address();
    options.secrets = arguments.listen.secret_files().map(Path::to_owned).collect();
    // Before there is an audit file.
    options.check_secrets().map_err(Failure::usage)?;
    options.unserved.extend(config_folder());
    options.unserved.extend(arguments.admin.token_file().map(Path::to_owned));
    let security = arguments.listen.security()?;
    options.authenticator = security.authenticator();
    options.hub.mechanism = security.mechanism;
    options.open_to_all = security.open_to_all;
    options.endpoints = arguments.listen.endpoints;
    let served = options.source.is_none().then_some(&*arguments.path);
    let blocks = Blocks::open(options.state_directory.as_deref(), served)?;
    options.gate = Some(blocks.gate());
    options.unserved.extend(blocks.file().map(Path::to_owned));
    let about = About {
        program: "serve",
        state: options.state_directory.as_deref(),
        served,
        audit: security.admission.as_ref().and_then(|admission| admission.audit()),
        blocks: &blocks,
    };
    let admin = Admin::start(arguments.admin, &about)?;
    let server = Server::bind(options).map_err(|error| match error {
        ServeError::Root { source: RootError::NotFound, .. } => Failure::new(Status::NotFound, error),
        error => Failure::failed(error),
    })?;
    let (handle, stopping) = (server.handle(), admin.stopping());
    let rules = security.admission.as_ref().and_then(|admission| Reloaded::admission(admission, handle.clone()));
    let followers = arguments.followers.zip(server.catalogue()).map(|(path, catalogue)| {
        Reloaded::file(path.clone(), move || {
            catalogue.expect_followers(follower_names(&path)?);
            Ok("the names of followers".to_owned())
        })
    });
    let reload = reload::watch(security.admission, rules.into_iter().chain(followers))?;
    let stop = move || {
        stopping.begin();
        cancel.cancel();
        handle.shutdown();
    };
    on_signals(stop, reload)?;
    let root = arguments.path.display().to_string();
    let view = FilesView { handle: server.handle(), root, catalogue: server.catalogue(), keeps_state };
    admin.ready(view, server.endpoints());
    let served = arguments.path.display().to_string();
    announce(server.endpoints().iter().map(|endpoint| format!("serving {} on {endpoint}", Line(&served))));
    server.run().map_err(Failure::failed)?;
    tracing::info!("ended");
    Ok(ExitCode::SUCCESS)
}

/// A source, and the directory in which files arrive that are pushed to it, if they can be.
type Elsewhere = (Arc<dyn Source>, Option<PathBuf>);

/// The files to serve, if they aren't this machine's.
fn source(arguments: &mut Arguments, cancel: &CancelToken) -> Result<Option<Elsewhere>, Failure> {
    let Arguments { path, cache, bucket, origin, listen, .. } = arguments;
    let (is_bucket, is_origin) = (is_bucket(path), is_origin(path));
    if let Some(option) = bucket.given().filter(|_| !is_bucket) {
        return Err(Failure::usage(format!("{option} is for a bucket: tow serve s3://BUCKET/PREFIX")));
    }
    if let Some(option) = origin.given().filter(|_| !is_origin) {
        return Err(Failure::usage(format!("{option} is for another server: tow serve tcp://HOST:PORT/PATH")));
    }
    if cache.is_given() && !is_bucket && !is_origin {
        let where_to = "tow serve s3://BUCKET/PREFIX, or tcp://HOST:PORT/PATH";
        return Err(Failure::usage(format!("--cache is for what comes from elsewhere: {where_to}")));
    }
    if is_origin && arguments.watch {
        let instead = "to pass on what changes, use `tow follow --serve`";
        return Err(Failure::usage(format!("--watch is for files that are here or in a bucket; {instead}")));
    }
    if is_origin && arguments.accept_push.is_some() {
        return Err(Failure::usage(
            "--accept-push is for a directory of this machine or a bucket: push to the server that has the files",
        ));
    }
    Ok(match (is_bucket, is_origin) {
        (true, _) => {
            let ServedBucket { source, staging } = bucket.open(path, cache)?;
            Some((source, staging))
        }
        (_, true) => Some((std::mem::take(origin).open(path, cache, listen.key_file(), cancel)?, None)),
        _ => None,
    })
}

/// The names in a file of a name a line, with comments that begin with `#`.
fn follower_names(path: &Path) -> Result<BTreeSet<HolderName>, Failure> {
    let failed = |why: String| Failure::usage(format!("--followers {}: {why}", path.display()));
    let mut text = String::new();
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    file.take(FOLLOWERS_BYTES_MAX + 1).read_to_string(&mut text).map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > FOLLOWERS_BYTES_MAX {
        return Err(failed(format!("it has over {FOLLOWERS_BYTES_MAX} bytes")));
    }
    let lines = (1..).zip(text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()));
    let named = lines.filter(|(_, name)| !name.is_empty());
    let name =
        |(number, name): (usize, &str)| HolderName::new(name).map_err(|why| failed(format!("line {number}: {why}")));
    let names = named.map(name).collect::<Result<BTreeSet<_>, _>>()?;
    if names.len() > FOLLOWERS_KEPT_MAX {
        return Err(failed(format!("it has over {FOLLOWERS_KEPT_MAX} names")));
    }
    Ok(names)
}

/// Fails if a bucket can't be pushed to as is wanted.
fn check_push(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.accept_push.is_none() || !is_bucket(&arguments.path) {
        return Ok(());
    }
    if !arguments.cache.is_given() {
        let why =
            "--accept-push with a bucket takes --cache DIR: files arrive there before they are put into the bucket";
        return Err(Failure::usage(why));
    }
    match (arguments.push_max_bytes, arguments.push_max_files) {
        (None, None) => Ok(()),
        _ => Err(Failure::usage(
            "--push-max-bytes and --push-max-files are for a directory: what a bucket has isn't counted. Use a quota of the store",
        )),
    }
}

/// The directory for pushes, below the served one.
fn push_directory(path: &Path) -> Result<RelPath, Failure> {
    let wrong = |why: &str| Failure::usage(format!("--accept-push {}: {why}", path.display()));
    let mut directory = RelPath::root();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::Normal(name) => {
                directory = directory.join(name.as_bytes()).map_err(|error| wrong(&error.to_string()))?;
            }
            _ => return Err(wrong("use a directory below the served one, such as incoming, or . for all of it")),
        }
    }
    Ok(directory)
}
