//! Options of commands that listen: where, for whom, and for how many.

use crate::cli::auth_args::Passwords;
use crate::cli::exit::Failure;
use crate::cli::location::parse_bind_endpoint;
use crate::cli::units::{duration, positive};
use std::path::PathBuf;
use std::time::Duration;
use towpath_sockets::{Authenticator, Endpoint};

/// Options of `tow serve` and `tow broker`. Each command sets its own defaults for those without one here.
#[derive(clap::Args)]
#[command(next_help_heading = "Connections")]
pub struct ListenArgs {
    /// tcp://IP:PORT or ipc://PATH to listen on; port 0 picks one. Repeatable.
    #[arg(long = "bind", value_name = "ENDPOINT", value_parser = parse_bind_endpoint, required = false)]
    pub endpoints: Vec<Endpoint>,
    /// Admit only users in this file of USER:PASSWORD lines (unencrypted).
    #[arg(long, value_name = "FILE")]
    plain_passwords: Option<PathBuf>,
    /// Time between heartbeats.
    #[arg(long, value_name = "TIME", value_parser = duration, required = false)]
    pub heartbeat: Duration,
    /// Maximum connections in all.
    #[arg(long, alias = "max-clients", value_name = "N", value_parser = positive::<usize>, default_value = "16384")]
    pub max_peers: usize,
    /// Maximum connections from one IP address.
    #[arg(long, alias = "max-clients-per-address", value_name = "N", value_parser = positive::<usize>, required = false)]
    pub max_peers_per_address: usize,
}

impl ListenArgs {
    /// Decision by `--plain-passwords`; `None`: everyone is admitted.
    pub fn authenticator(&self) -> Result<Option<Authenticator>, Failure> {
        let Some(path) = &self.plain_passwords else { return Ok(None) };
        let passwords = Passwords::read(path)?;
        Ok(Some(Authenticator::new(move |credentials| passwords.allow(credentials))))
    }
}
