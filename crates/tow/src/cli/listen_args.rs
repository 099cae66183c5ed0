//! Options of commands that listen: where, for whom, and for how many.

use crate::cli::admission::{Admission, Sources};
use crate::cli::audit::Audit;
use crate::cli::exit::Failure;
use crate::cli::key_args::{ServerKeyArgs, aes};
use crate::cli::units::{duration, positive};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use towpath_sockets::{Authenticator, Endpoint, MechanismConfig, SocketError, check_openness, system_random};

/// Options of `tow serve` and `tow broker`. Each command sets its own defaults for those without one here.
#[derive(clap::Args)]
#[command(next_help_heading = "Connections")]
pub struct ListenArgs {
    /// HOST:PORT, :PORT or ipc://PATH to listen on; port 0 picks one. Repeatable.
    #[arg(long = "bind", value_name = "ENDPOINT", value_delimiter = ' ', required = false)]
    pub endpoints: Vec<Endpoint>,
    /// Admit only users in this file, made by `tow password`; unencrypted.
    #[arg(long, value_name = "FILE")]
    plain_passwords: Option<PathBuf>,
    #[command(flatten)]
    keys: ServerKeyArgs,
    /// Admit every client, from other machines too, unencrypted.
    #[arg(long, conflicts_with_all = ["plain_passwords", "keys"])]
    open_to_all: bool,
    /// Allow only what the rules in this file allow; see `tow rules`.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Append logins and refusals to this file as JSON lines.
    #[arg(long, value_name = "FILE")]
    audit: Option<PathBuf>,
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
    /// Options of a relay: it serves everybody, unless something restricts access.
    pub fn of_relay(
        endpoints: Vec<Endpoint>,
        keys: ServerKeyArgs,
        plain_passwords: Option<PathBuf>,
        rules: Option<PathBuf>,
        audit: Option<PathBuf>,
    ) -> ListenArgs {
        ListenArgs {
            endpoints,
            plain_passwords,
            keys,
            open_to_all: true,
            rules,
            audit,
            heartbeat: Duration::ZERO,
            max_peers: 0,
            max_peers_per_address: None,
        }
    }

    /// The first endpoint that other machines reach.
    pub fn open_endpoint(&self) -> Option<&Endpoint> {
        self.endpoints.iter().find(|endpoint| !endpoint.is_local())
    }

    /// Maximum connections from one address.
    pub fn max_peers_per_address(&self) -> usize {
        self.max_peers_per_address.unwrap_or((self.max_peers / 16).max(64))
    }

    /// The first file with this side's secret key.
    pub fn key_file(&self) -> Option<&Path> {
        self.keys.files().next().map(PathBuf::as_path)
    }

    /// Files that aren't for clients.
    pub fn secret_files(&self) -> impl Iterator<Item = &Path> {
        let single = [&self.plain_passwords, &self.keys.authorized_keys, &self.rules, &self.audit];
        self.keys.files().chain(single.into_iter().flatten()).map(PathBuf::as_path)
    }

    /// Mechanism and admission.
    pub fn security(&self) -> Result<Security, Failure> {
        let sources = Sources {
            rules: self.rules.clone(),
            authorized_keys: self.keys.authorized_keys.clone(),
            passwords: self.plain_passwords.clone(),
            anyone: self.keys.anyone,
        };
        let keys = self.keys.secrets()?;
        if keys.is_empty() && sources.passwords.is_none() && sources.rules.is_none() && self.audit.is_none() {
            self.check_openness()?;
            return Ok(Security { mechanism: MechanismConfig::Null, open_to_all: self.open_to_all, admission: None });
        }
        let audit = self.audit.as_deref().map(Audit::open).transpose()?;
        let admission = Admission::new(sources, audit)?;
        let Sources { authorized_keys, passwords, anyone, .. } = admission.sources();
        let mechanism = match keys.is_empty() {
            true if admission.has_keys() => {
                return Err(Failure::usage("--rules has keys, which nobody can show without --key FILE"));
            }
            true if passwords.is_some() => MechanismConfig::PlainServer,
            true => {
                if self.rules.is_none() {
                    self.check_openness()?;
                }
                MechanismConfig::Null
            }
            false if authorized_keys.is_none() && !anyone && !admission.has_keys() => {
                let needs =
                    "--key needs --rules or --authorized-keys with the keys of clients, or --anyone to admit everybody";
                return Err(Failure::usage(needs));
            }
            false => MechanismConfig::CurveServer { keys: keys.into(), random: system_random(), aes: aes() },
        };
        // Rules decide about anonymous peers.
        let open_to_all = self.open_to_all || self.rules.is_some();
        Ok(Security { mechanism, open_to_all, admission: Some(Arc::new(admission)) })
    }

    /// Refuses to listen for other machines unless the options say who may connect.
    fn check_openness(&self) -> Result<(), Failure> {
        match check_openness(&self.endpoints, &MechanismConfig::Null, self.open_to_all) {
            Err(SocketError::Open { endpoint }) => Err(Failure::usage(format!(
                "--bind {endpoint} is for other machines too, and nothing says who may come; add one of:\n  \
                 --key FILE --authorized-keys FILE  known keys, encrypted (make one with `tow key new`)\n  \
                 --key FILE --anyone                everybody, encrypted\n  \
                 --plain-passwords FILE             users with a password, unencrypted\n  \
                 --rules FILE                       what rules allow (with --key, encrypted)\n  \
                 --open-to-all                      everybody, unencrypted"
            ))),
            other => other.map_err(Failure::failed),
        }
    }
}

/// Mechanism and admission of a server.
pub struct Security {
    /// The mechanism.
    pub mechanism: MechanismConfig,
    /// Whether other machines may connect without one.
    pub open_to_all: bool,
    /// The decisions; `None`: everybody may do everything.
    pub admission: Option<Arc<Admission>>,
}

impl Security {
    /// The decision for the server.
    pub fn authenticator(&self) -> Option<Authenticator> {
        self.admission.as_ref().map(Admission::authenticator)
    }
}
