//! `tow follow --serve`: a server that passes on what a follower brings.

use crate::cli::exit::Failure;
use crate::cli::output::eprint_line;
use std::thread::JoinHandle;
use towpath_files::client::Source;
use towpath_files::client::follow::FollowOptions;
use towpath_files::protocol::manifest::VERSIONS;
use towpath_files::server::{Handle, ServeError, Server, ServerOptions};
use towpath_sockets::{Endpoint, MechanismConfig};

/// The server, until this is dropped.
pub struct Serving {
    handle: Handle,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

/// Starts it, if there is an endpoint. It may pass on only versions.
pub fn start(
    endpoints: &[Endpoint],
    only_versions: bool,
    options: &mut FollowOptions,
) -> Result<Option<Serving>, Failure> {
    if endpoints.is_empty() {
        return Ok(None);
    }
    match &options.source {
        Source::Path(path) if path.is_root() || only_versions => {}
        _ => {
            return Err(Failure::usage("--serve passes on everything that a server has: follow HOST:/ without a path"));
        }
    }
    let is_open = |endpoint: &&Endpoint| !is_local(endpoint);
    if let Some(open) = endpoints.iter().find(is_open)
        && !matches!(options.connect.mechanism, MechanismConfig::Null)
    {
        return Err(Failure::usage(format!(
            "--serve {open}: what needs a login isn't passed on to everybody; use a loopback address or ipc://PATH"
        )));
    }
    let versions = options.destination.join(VERSIONS);
    let made = if only_versions { &versions } else { &options.destination };
    std::fs::create_dir_all(made).map_err(|error| Failure::failed(format!("{}: {error}", made.display())))?;
    let mut server = ServerOptions::new(&options.destination);
    server.is_relay = true;
    server.relayed_versions = only_versions.then_some(versions);
    server.endpoints = endpoints.to_vec();
    let server = Server::bind(server).map_err(Failure::failed)?;
    options.relay = server.relay();
    let shown = options.destination.display();
    // Standard output has what happens.
    server.endpoints().iter().for_each(|endpoint| eprint_line(format_args!("tow: serving {shown} on {endpoint}")));
    let handle = server.handle();
    let thread = std::thread::Builder::new().name("tow-serve".to_owned()).spawn(move || server.run());
    Ok(Some(Serving { handle, thread: Some(thread.map_err(Failure::failed)?) }))
}

/// Whether only programs on this machine reach it.
fn is_local(endpoint: &Endpoint) -> bool {
    match endpoint {
        Endpoint::Tcp { host, .. } => {
            host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
        }
        _ => true,
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.handle.shutdown();
        if let Some(Ok(Err(error))) = self.thread.take().map(JoinHandle::join) {
            tracing::error!(%error, "passing on ended");
        }
    }
}
