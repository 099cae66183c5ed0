//! `tow follow --serve`: a server that passes on what a follower brings.

use crate::cli::certificate::config_folder;
use crate::cli::endpoint::{FILES_PORT, bind_endpoint};
use crate::cli::escape::Line;
use crate::cli::exit::Failure;
use crate::cli::key_args::ServerKeyArgs;
use crate::cli::listen_args::ListenArgs;
use crate::cli::output::eprint_line;
use crate::runtime::reload::{self, Reloaded};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use towpath_files::client::Source;
use towpath_files::client::follow::FollowOptions;
use towpath_files::protocol::manifest::VERSIONS;
use towpath_files::root::check_own_dir;
use towpath_files::server::{Handle, ServeError, Server, ServerOptions};
use towpath_sockets::{Endpoint, MechanismConfig};

/// Options of a follower that serves.
#[derive(clap::Args)]
pub struct RelayArgs {
    /// Serve the copy to other followers, as a relay. Repeatable.
    #[arg(id = "serve", long = "serve", value_name = "ENDPOINT", value_delimiter = ' ', value_parser = bind_endpoint::<FILES_PORT>)]
    endpoints: Vec<Endpoint>,
    /// With --serve and --key: admit only the keys in this file of NAME KEY lines.
    #[arg(long, value_name = "FILE", conflicts_with = "anyone", requires_all = ["serve", "key"])]
    authorized_keys: Option<PathBuf>,
    /// With --serve and --key: admit every client, encrypted.
    #[arg(long, requires_all = ["serve", "key"])]
    anyone: bool,
    /// With --serve: admit only users in this file of lines by `tow password`; unencrypted.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["authorized_keys", "anyone"], requires = "serve")]
    plain_passwords: Option<PathBuf>,
    /// With --serve: allow only what the rules in this file do; with --key, encrypted.
    #[arg(long, value_name = "FILE", requires = "serve")]
    rules: Option<PathBuf>,
    /// With --serve: append logins and refusals to this file as JSON lines.
    #[arg(long, value_name = "FILE", requires = "serve")]
    audit: Option<PathBuf>,
}

impl RelayArgs {
    /// Whether access is unrestricted.
    fn is_open(&self) -> bool {
        let files = [&self.authorized_keys, &self.plain_passwords, &self.rules];
        !self.anyone && files.iter().all(|file| file.is_none())
    }

    /// Whether the relay's server uses the follower's key, too.
    pub fn is_encrypted(&self) -> bool {
        self.plain_passwords.is_none() && (self.authorized_keys.is_some() || self.anyone || self.rules.is_some())
    }

    /// The same as options of a server, whose secret key is that of the follower.
    fn listen(self, key: Option<&Path>) -> ListenArgs {
        let key = key.filter(|_| self.is_encrypted());
        let keys = ServerKeyArgs {
            keys: key.map(Path::to_owned).into_iter().collect(),
            authorized_keys: self.authorized_keys,
            anyone: self.anyone,
        };
        ListenArgs::of_relay(self.endpoints, keys, self.plain_passwords, self.rules, self.audit)
    }
}

/// The server, until this is dropped.
pub struct Serving {
    handle: Handle,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
    /// Ends the thread that reads rules and keys again.
    _reload: Option<Box<dyn Fn() + Send>>,
}

/// Starts it, if there is an endpoint. `key` and `mechanism` are the follower's own.
pub fn start(
    arguments: RelayArgs,
    key: Option<&Path>,
    mechanism: &MechanismConfig,
    options: &mut FollowOptions,
) -> Result<Option<Serving>, Failure> {
    if arguments.endpoints.is_empty() {
        return Ok(None);
    }
    let only_versions = options.versions;
    match &options.source {
        Source::Path(path) if path.is_root() || only_versions => {}
        _ => {
            return Err(Failure::usage("--serve passes on everything that a server has: follow HOST:/ without a path"));
        }
    }
    let is_open = arguments.is_open();
    let listen = arguments.listen(key);
    let mut server = ServerOptions::new(&options.destination);
    server.secrets = listen.secret_files().chain(key).map(Path::to_owned).collect();
    server.unserved.extend(config_folder());
    // Before there is an audit file.
    server.check_secrets().map_err(Failure::usage)?;
    let security = listen.security()?;
    if let Some(open) = listen.open_endpoint().filter(|_| is_open)
        && !matches!(mechanism, MechanismConfig::Null)
    {
        return Err(Failure::usage(format!(
            "--serve {open}: what needs a login isn't passed on to everybody; use --key with --authorized-keys, --rules, a loopback address or ipc://PATH"
        )));
    }
    let versions = options.destination.join(VERSIONS);
    let made = if only_versions { &versions } else { &options.destination };
    let made = std::fs::create_dir_all(made).and_then(|()| if only_versions { check_own_dir(made) } else { Ok(()) });
    made.map_err(|error| Failure::failed(format!("{}: {error}", options.destination.display())))?;
    server.is_relay = true;
    server.relayed_versions = only_versions.then_some(versions);
    server.authenticator = security.authenticator();
    server.hub.mechanism = security.mechanism;
    server.open_to_all = security.open_to_all;
    server.endpoints = listen.endpoints;
    let server = Server::bind(server).map_err(Failure::failed)?;
    options.relay = server.relay();
    let shown = options.destination.display().to_string();
    let print = |endpoint| eprint_line(format_args!("tow: serving {} on {endpoint}", Line(&shown)));
    // Standard output has what happens.
    server.endpoints().iter().for_each(print);
    let handle = server.handle();
    let files = security.admission.as_ref().and_then(|admission| Reloaded::admission(admission, handle.clone()));
    let reload = reload::watch(security.admission, files)?;
    let thread = std::thread::Builder::new().name("tow-serve".to_owned()).spawn(move || server.run());
    let _reload = reload.map(|reload| Box::new(reload) as Box<dyn Fn() + Send>);
    Ok(Some(Serving { handle, thread: Some(thread.map_err(Failure::failed)?), _reload }))
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.handle.shutdown();
        if let Some(Ok(Err(error))) = self.thread.take().map(JoinHandle::join) {
            tracing::error!(%error, "passing on ended");
        }
    }
}
