//! `tow trust`: keys of servers that this user knows.

use crate::cli::endpoint::connect_endpoint;
use crate::cli::exit::{Failure, Status};
use crate::cli::key_args::public_key;
use crate::cli::known_servers::{KnownServer, KnownServers};
use crate::cli::output::print_line;
use serde_json::json;
use std::process::ExitCode;
use towpath_sockets::Endpoint;

/// Arguments of `tow trust`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Remember a server's key: it is then reached encrypted only, and with that key only.
    Add {
        /// HOST:PORT or ipc://PATH, as clients are given it.
        #[arg(value_name = "HOST:PORT", value_parser = server_endpoint)]
        server: Endpoint,
        /// The server's public key, or a file with it.
        #[arg(allow_hyphen_values = true)]
        key: String,
        /// A name for the list.
        #[arg(long)]
        name: Option<String>,
    },
    /// Show all servers.
    List {
        /// Print a JSON object for each.
        #[arg(long)]
        json: bool,
    },
    /// Forget a server.
    Remove {
        /// HOST:PORT or ipc://PATH, as it is listed.
        #[arg(value_name = "HOST:PORT", value_parser = server_endpoint)]
        server: Endpoint,
    },
}

/// The port is no matter of course: a host may have a file server and a broker.
fn server_endpoint(text: &str) -> Result<Endpoint, String> {
    connect_endpoint(text, 0)
        .map_err(|why| if why.contains("port 0") { "give the port: HOST:PORT".to_owned() } else { why })
}

/// Changes or shows the list.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let _lock = match arguments.command {
        Command::List { .. } => None,
        Command::Add { .. } | Command::Remove { .. } => KnownServers::lock()?,
    };
    let mut servers = KnownServers::read()?;
    match arguments.command {
        Command::Add { server, key, name } => servers.add(&server, public_key("KEY", &key)?, name.as_deref())?,
        Command::List { json } => {
            for KnownServer { endpoint, key, name } in servers.all() {
                let (endpoint, key) = (endpoint.to_string(), key.to_string());
                match json {
                    true => print_line(json!({"endpoint": endpoint, "key": key, "name": name}))?,
                    false => print_line(format!("{endpoint}  {key}  {name}").trim_end())?,
                }
            }
        }
        Command::Remove { server } => {
            if !servers.remove(&server)? {
                return Err(Failure::new(
                    Status::NotFound,
                    format!("{server} is not on the list; see `tow trust list`"),
                ));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
