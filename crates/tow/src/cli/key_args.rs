//! Options with keys of CURVE: of servers and of clients.

use crate::cli::authorized_keys::AuthorizedKeys;
use crate::cli::certificate::Certificate;
use crate::cli::exit::Failure;
use std::path::{Path, PathBuf};
use towpath_sockets::{Authenticator, Credentials, MechanismConfig, PublicKey, SecretKey, system_random};

/// Options of commands that listen.
#[derive(clap::Args)]
pub struct ServerKeyArgs {
    /// File with this side's secret key: all connections are encrypted. Repeatable, to change keys.
    #[arg(long = "key", value_name = "FILE", conflicts_with = "plain_passwords")]
    keys: Vec<PathBuf>,
    /// With --key: admit only the keys in this file of NAME KEY lines.
    #[arg(long, value_name = "FILE", conflicts_with = "anyone", requires = "keys")]
    authorized_keys: Option<PathBuf>,
    /// With --key: admit everybody.
    #[arg(long, requires = "keys")]
    anyone: bool,
}

impl ServerKeyArgs {
    /// Mechanism, and who is admitted; `None` without `--key`.
    pub fn security(&self) -> Result<Option<(MechanismConfig, Authenticator)>, Failure> {
        if self.keys.is_empty() {
            return Ok(None);
        }
        let authenticator = match &self.authorized_keys {
            Some(path) => {
                let keys = AuthorizedKeys::read(path)?;
                Authenticator::new(move |credentials| keys.identify(credentials))
            }
            None if self.anyone => Authenticator::new(|credentials| match credentials {
                Credentials::Curve { .. } => Some(credentials.principal()),
                _ => None,
            }),
            None => {
                return Err(Failure::usage("--key needs --authorized-keys FILE, or --anyone to admit everybody"));
            }
        };
        let keys = self.keys.iter().map(|path| secret(path)).collect::<Result<Vec<_>, _>>()?;
        for key in &keys {
            tracing::info!(key = %key.public_key(), "connections are encrypted; clients need --server-key");
        }
        Ok(Some((MechanismConfig::CurveServer { keys: keys.into(), random: system_random() }, authenticator)))
    }
}

/// Options of commands that connect.
#[derive(clap::Args)]
pub struct ClientKeyArgs {
    /// The server's public key, or a file with it: the connection is encrypted.
    #[arg(long, value_name = "KEY", conflicts_with = "user", allow_hyphen_values = true)]
    server_key: Option<String>,
    /// File with this side's secret key [default: a new key each time]
    #[arg(long, value_name = "FILE", requires = "server_key")]
    key: Option<PathBuf>,
}

impl ClientKeyArgs {
    /// Whether the connection is to be encrypted.
    pub fn is_used(&self) -> bool {
        self.server_key.is_some()
    }

    /// Mechanism; `None` without `--server-key`.
    pub fn mechanism(&self) -> Result<Option<MechanismConfig>, Failure> {
        let Some(server) = &self.server_key else { return Ok(None) };
        let server = match server.parse::<PublicKey>() {
            Ok(key) => key,
            Err(error) => {
                let path = Path::new(server);
                if !path.exists() {
                    let server = path.display();
                    return Err(Failure::usage(format!("--server-key {server}: no such file, and no key: {error}")));
                }
                Certificate::read(path).map_err(|error| Failure::failed(format!("--server-key {error}")))?.public
            }
        };
        let random = system_random();
        let key = match &self.key {
            Some(path) => secret(path)?,
            None => SecretKey::generate(&random).map_err(Failure::failed)?,
        };
        Ok(Some(MechanismConfig::CurveClient { key, server, random }))
    }
}

fn secret(path: &Path) -> Result<SecretKey, Failure> {
    Certificate::read_secret(path).map_err(|error| Failure::failed(format!("--key {error}")))
}
