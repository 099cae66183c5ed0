//! Options with keys of CURVE: of servers and of clients.

use crate::cli::certificate::Certificate;
use crate::cli::exit::Failure;
use crate::cli::known_servers::KnownServers;
use crate::cli::secrets;
use std::cell::Cell;
use std::path::{Path, PathBuf};
use towpath_sockets::{Endpoint, MechanismConfig, PublicKey, SecretKey, has_aes_instructions, system_random};

/// Options of commands that listen.
#[derive(clap::Args)]
pub struct ServerKeyArgs {
    /// File with this side's secret key: all connections are encrypted. Repeatable, to change keys.
    #[arg(long = "key", value_name = "FILE", conflicts_with = "plain_passwords")]
    pub keys: Vec<PathBuf>,
    /// With --key: admit only the keys in this file of NAME KEY lines.
    #[arg(long, value_name = "FILE", conflicts_with = "anyone", requires = "keys")]
    pub authorized_keys: Option<PathBuf>,
    /// With --key: admit every client.
    #[arg(long, requires = "keys")]
    pub anyone: bool,
}

impl ServerKeyArgs {
    /// The files with secret keys.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.keys.iter()
    }

    /// The secret keys; none without `--key`.
    pub fn secrets(&self) -> Result<Vec<SecretKey>, Failure> {
        let keys = self.keys.iter().map(|path| secret(path)).collect::<Result<Vec<_>, _>>()?;
        for key in &keys {
            let key = key.public_key();
            tracing::info!("connections are encrypted; clients run once: tow trust add HOST:PORT '{key}'");
        }
        Ok(keys)
    }
}

/// Options of commands that connect.
#[derive(clap::Args)]
pub struct ClientKeyArgs {
    /// The server's public key or a file with it; encrypts the connection [default: the key in `tow trust`]
    #[arg(long, value_name = "KEY", conflicts_with = "user", allow_hyphen_values = true)]
    server_key: Option<String>,
    /// File with this side's secret key [default: a new key each time]
    #[arg(long, value_name = "FILE", conflicts_with = "user")]
    key: Option<PathBuf>,
    /// Connect only to servers whose key is known, never unencrypted.
    #[arg(long)]
    require_keys: bool,
    /// The key is for others that this command serves, too.
    #[arg(skip)]
    is_for_serving: Cell<bool>,
    /// The server's key was found among the known ones.
    #[arg(skip)]
    is_known: Cell<bool>,
}

impl ClientKeyArgs {
    /// The same without a command line.
    pub fn new(server_key: Option<String>, key: Option<PathBuf>) -> ClientKeyArgs {
        let [is_for_serving, is_known] = [false; 2].map(Cell::new);
        ClientKeyArgs { server_key, key, require_keys: false, is_for_serving, is_known }
    }

    /// The secret key is for others that this command serves, too: the server may have none.
    pub fn serve_with_key(&self) {
        self.is_for_serving.set(true);
    }

    /// The file with the secret key.
    pub fn file(&self) -> Option<&Path> {
        self.key.as_deref()
    }

    /// Advice for a connection that was to be encrypted and was refused; `None`: it was not.
    pub fn hint(&self) -> Option<&'static str> {
        match (self.server_key.is_some(), self.is_known.get(), self.key.is_some()) {
            (false, false, _) => None,
            (true, _, true) => Some(
                "either it has another key than --server-key says, or none, or it doesn't admit this one; its log names keys that it refuses",
            ),
            (true, _, false) => Some(
                "without --key, this side's key is a new one, which only --anyone admits; or the server has another key than --server-key says, or none",
            ),
            (false, true, true) => Some(
                "either it has another key than `tow trust list` says (if it has a new one: `tow trust remove`, then `tow trust add`), or none, \
                 or it doesn't admit this one; its log names keys that it refuses",
            ),
            (false, true, false) => Some(
                "without --key, this side's key is a new one, which only --anyone admits; or the server has another key than `tow trust list` says \
                 (if it has a new one: `tow trust remove`, then `tow trust add`), or none",
            ),
        }
    }

    /// Mechanism for connections to these servers; `None`: neither is there a `--server-key`, nor are they known.
    pub fn mechanism(&self, endpoints: &[Endpoint], user: Option<&String>) -> Result<Option<MechanismConfig>, Failure> {
        let server = match &self.server_key {
            Some(server) => Some(public_key("--server-key", server)?),
            None => self.known(endpoints)?,
        };
        self.is_known.set(self.server_key.is_none() && server.is_some());
        let Some(server) = server else {
            return match &self.key {
                _ if self.require_keys => {
                    let unknown: Vec<_> = endpoints.iter().map(ToString::to_string).collect();
                    Err(Failure::usage(format!(
                        "--require-keys: no key is known of {}; `tow trust add` it, or use --server-key KEY",
                        unknown.join(" ")
                    )))
                }
                Some(_) if !self.is_for_serving.get() => {
                    Err(Failure::usage("--key needs the server's key: --server-key KEY, or `tow trust add`"))
                }
                _ => Ok(None),
            };
        };
        if user.is_some() {
            return Err(Failure::usage(
                "`tow trust list` has this server, which is reached encrypted only; --user would send the password in the clear",
            ));
        }
        let random = system_random();
        let key = match &self.key {
            Some(path) => secret(path)?,
            None => {
                secrets::protect();
                SecretKey::generate(&random).map_err(Failure::failed)?
            }
        };
        Ok(Some(MechanismConfig::CurveClient { key, server, random, aes: aes() }))
    }

    /// The key that the user knows these servers by. A known one is never reached without.
    fn known(&self, endpoints: &[Endpoint]) -> Result<Option<PublicKey>, Failure> {
        let servers = KnownServers::read()?;
        let keys: Vec<_> = endpoints.iter().map(|endpoint| servers.find(endpoint).map(|server| server.key)).collect();
        let first = keys.first().copied().flatten();
        match keys.iter().zip(endpoints).find(|(key, _)| **key != first) {
            Some((_, endpoint)) => Err(Failure::usage(format!(
                "{} and {endpoint} don't have the same key in `tow trust list`, as servers that stand in for each other need",
                endpoints[0]
            ))),
            None => Ok(first),
        }
    }
}

/// Whether to agree on AES-256-GCM with another `tow`. Tests and benchmarks say no by this variable, and get CURVE's own cipher.
pub fn aes() -> bool {
    has_aes_instructions() && std::env::var_os("TOW_WITHOUT_AES").is_none()
}

/// A public key, or the one in a file.
pub fn public_key(option: &str, text: &str) -> Result<PublicKey, Failure> {
    text.parse::<PublicKey>().or_else(|error| {
        let path = Path::new(text);
        if !path.exists() {
            return Err(Failure::usage(format!("{option} {text}: no such file, and no key: {error}")));
        }
        let certificate = Certificate::read(path).map_err(|error| Failure::failed(format!("{option} {error}")))?;
        Ok(certificate.public)
    })
}

fn secret(path: &Path) -> Result<SecretKey, Failure> {
    Certificate::read_secret(path).map_err(|error| Failure::failed(format!("--key {error}")))
}
