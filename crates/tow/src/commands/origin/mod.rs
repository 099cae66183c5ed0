//! A file server that gets its files from another one, and keeps pieces of them on its disk.

mod directories;
mod known;
mod source;

use super::cache_args::CacheArgs;
use super::get::{failure_at, source_of};
use crate::cli::connect_args::{ConnectArgs, FileServerArgs};
use crate::cli::exit::Failure;
use crate::cli::key_args::ClientKeyArgs;
use crate::cli::location::Location;
use source::OriginSource;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use towpath_files::client::{CancelToken, FileClient, Source as Wanted};
use towpath_files::relay::Via;
use towpath_files::server::source::Source;

/// How long the other server is tried before it is away.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may do nothing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Options for the server that files come from.
#[derive(clap::Args, Default)]
#[command(next_help_heading = "Origin")]
pub struct OriginArgs {
    /// Public key of the tcp:// server, or a file with it [default: the key in `tow trust`]
    #[arg(long, value_name = "KEY", allow_hyphen_values = true, conflicts_with = "user")]
    server_key: Option<String>,
    /// Log in to the tcp:// server with PLAIN and the password in TOW_PASSWORD.
    #[arg(long)]
    user: Option<String>,
    /// Read that password from the first line of this file, which only its owner may read.
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
}

/// Whether a path is an address of a server.
pub fn is_origin(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    bytes.starts_with(b"tcp://") || bytes.starts_with(b"ipc://")
}

impl OriginArgs {
    /// An option that is for another server alone, if one was given.
    pub fn given(&self) -> Option<&'static str> {
        let given = [("--server-key", self.server_key.is_some()), ("--user", self.user.is_some())];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }

    /// The files of a server, which is asked as whom the key file says, until this is cancelled.
    pub fn open(
        self,
        path: &Path,
        cache: &CacheArgs,
        key: Option<&Path>,
        cancel: &CancelToken,
    ) -> Result<Arc<dyn Source>, Failure> {
        let named = path.as_os_str();
        let location = Location::parse(named)?;
        let Wanted::Path(top) = source_of(&location)? else {
            return Err(Failure::usage(format!("{}: a pattern can't be served; name a directory", path.display())));
        };
        let Some(cache) = cache.open()? else {
            return Err(Failure::usage(
                "a server's files are served through a cache: add --cache DIR. To keep all of them, use `tow follow --serve`",
            ));
        };
        let key = key.filter(|_| self.user.is_none()).map(Path::to_owned);
        let connect = ConnectArgs::new(self.user, self.password_file, ClientKeyArgs::new(self.server_key, key));
        let server = FileServerArgs::new(connect, CONNECT_TIMEOUT, IDLE_TIMEOUT);
        // It may be this side's for its own clients alone.
        server.serve_with_key();
        let mut options = server.options(location.endpoint)?;
        options.on_wait = None;
        options.via = Some(Arc::new(Via::drawn()));
        options.cancel = cancel.clone();
        let source = OriginSource::open(FileClient::new(options), top, cache);
        source.map(|source| Arc::new(source) as Arc<dyn Source>).map_err(|error| failure_at(named, &error, &server))
    }
}
