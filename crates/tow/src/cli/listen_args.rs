//! Options of commands that listen: where, for whom, and for how many.

use crate::cli::auth_args::Passwords;
use crate::cli::exit::Failure;
use crate::cli::key_args::ServerKeyArgs;
use crate::cli::units::{duration, positive};
use std::path::PathBuf;
use std::time::Duration;
use towpath_sockets::{Authenticator, Endpoint, MechanismConfig};

/// Options of `tow serve` and `tow broker`. Each command sets its own defaults for those without one here.
#[derive(clap::Args)]
#[command(next_help_heading = "Connections")]
pub struct ListenArgs {
    /// HOST:PORT, :PORT or ipc://PATH to listen on; port 0 picks one. Repeatable.
    #[arg(long = "bind", value_name = "ENDPOINT", value_delimiter = ' ', required = false)]
    pub endpoints: Vec<Endpoint>,
    /// Admit only users in this file of USER:PASSWORD lines (unencrypted).
    #[arg(long, value_name = "FILE")]
    plain_passwords: Option<PathBuf>,
    #[command(flatten)]
    keys: ServerKeyArgs,
    /// Time between heartbeats.
    #[arg(long, value_name = "TIME", value_parser = duration, required = false)]
    pub heartbeat: Duration,
    /// Maximum connections in all.
    #[arg(long, alias = "max-clients", value_name = "N", value_parser = positive::<usize>, default_value = "16384")]
    pub max_peers: usize,
    /// Maximum from one IPv4 address, IPv6 /64 or local user [default: a sixteenth, 64 at least]
    #[arg(long, alias = "max-clients-per-address", value_name = "N", value_parser = positive::<usize>)]
    max_peers_per_address: Option<usize>,
}

impl ListenArgs {
    /// Maximum connections from one address.
    pub fn max_peers_per_address(&self) -> usize {
        self.max_peers_per_address.unwrap_or((self.max_peers / 16).max(64))
    }

    /// Mechanism, and the decision about who is admitted; `None`: everyone is.
    pub fn security(&self) -> Result<(MechanismConfig, Option<Authenticator>), Failure> {
        if let Some((mechanism, authenticator)) = self.keys.security()? {
            return Ok((mechanism, Some(authenticator)));
        }
        let Some(path) = &self.plain_passwords else { return Ok((MechanismConfig::Null, None)) };
        let passwords = Passwords::read(path)?;
        let authenticator = Authenticator::new(move |credentials| passwords.identify(credentials));
        Ok((MechanismConfig::PlainServer, Some(authenticator)))
    }
}
