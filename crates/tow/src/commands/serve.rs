//! `tow serve`: a directory or a file for everybody who asks.

#![allow(rustdoc::broken_intra_doc_links, reason = "brackets in the help of arguments are no links")]

use crate::cli::auth_args::Passwords;
use crate::cli::connect_args::seconds;
use crate::cli::exit::Failure;
use crate::cli::location::to_listen_on;
use crate::cli::units::positive;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use towpath_files::server::{Admit, Server, ServerOptions};
use towpath_sockets::{Congestion, Endpoint, Heartbeat, MechanismConfig};

/// A client is gone when it was silent for so many heartbeats. That is generous: libzmq does not even read while its application has not
/// taken what is there.
const HEARTBEATS_MISSED_MAX: u32 = 4;

/// What `tow serve` is told.
#[derive(clap::Args)]
pub struct Arguments {
    /// A directory, or one file. It may be replaced, or be a link that is switched: requests that begin then get the new one, those that
    /// are under way go on with the old. Whoever may replace it says what is served.
    path: PathBuf,
    /// Where to listen: tcp://IP:PORT, tcp://[IPV6]:PORT or ipc://PATH; port 0 picks one. May be given several times.
    #[arg(long = "bind", value_name = "ENDPOINT", value_parser = to_listen_on, default_value = "tcp://127.0.0.1:5571")]
    endpoints: Vec<Endpoint>,
    /// Lets in only users named in this file, one USER:PASSWORD a line, by ZMTP's PLAIN. The wire is not encrypted.
    #[arg(long, value_name = "FILE")]
    plain_passwords: Option<PathBuf>,
    /// Remembers digests in this file across restarts; without it they are remembered as long as the server runs.
    #[arg(long, value_name = "FILE")]
    digest_file: Option<PathBuf>,
    /// Seconds between two heartbeats of clients that announce ZMTP 3.1; one that is silent for four times as long is gone. Shorter than
    /// whatever forgets idle connections on the way, such as a firewall.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, allow_negative_numbers = true)]
    heartbeat: f64,
    /// TCP congestion control: auto (cubic for peers on this machine, else the system's), system, or a name.
    #[arg(long, default_value = "auto")]
    congestion: Congestion,
    /// Connections in all.
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = positive::<usize>, allow_negative_numbers = true)]
    max_clients: usize,
    /// Connections from one IP address.
    #[arg(long, value_name = "N", default_value_t = 8_192, value_parser = positive::<usize>, allow_negative_numbers = true)]
    max_clients_per_address: usize,
}

/// Serves until a signal ends it.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let mut options = ServerOptions::new(&arguments.path);
    options.endpoints = arguments.endpoints;
    options.digest_file = arguments.digest_file;
    let interval = seconds("heartbeat", arguments.heartbeat)?;
    let timeout = interval * HEARTBEATS_MISSED_MAX;
    // Clients that heed it needn't wait for longer than this side does.
    let ttl = interval.saturating_add(timeout);
    options.hub.heartbeat = Some(Heartbeat { interval, timeout, ttl });
    options.hub.congestion = arguments.congestion;
    options.hub.max_peers = arguments.max_clients;
    options.hub.max_peers_per_address = arguments.max_clients_per_address;
    if let Some(path) = &arguments.plain_passwords {
        let passwords = Passwords::read(path)?;
        options.hub.mechanism = MechanismConfig::PlainServer;
        options.admit = Some(Admit::by(move |user, password| passwords.admit(user, password)));
    }
    let server = Server::bind(options).map_err(Failure::failed)?;
    let handle = server.shutdown_handle();
    crate::runtime::signals::on_end(move || handle.shut_down())?;
    let mut output = std::io::stdout().lock();
    for endpoint in server.endpoints() {
        // Whoever started us may have closed our output; that is no reason not to serve.
        let _ = writeln!(output, "serving {} on {endpoint}", arguments.path.display());
    }
    let _ = output.flush();
    drop(output);
    server.run().map_err(Failure::failed)?;
    tracing::info!("ended");
    Ok(ExitCode::SUCCESS)
}
