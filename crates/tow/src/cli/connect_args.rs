//! How clients and workers reach their brokers, as they are told on the command line.

use crate::cli::auth_args::mechanism_as;
use crate::cli::exit::Failure;
use std::path::PathBuf;
use std::time::Duration;
use towpath_client::client::{Dialect, LinkOptions};
use towpath_sockets::Endpoint;

/// Brokers, and what to speak with them.
#[derive(clap::Args)]
pub struct BrokerArguments {
    /// A broker. May be given several times: a client uses the next one when one fails, a worker is there for all of them.
    #[arg(long = "connect", value_name = "ENDPOINT", default_value = "tcp://127.0.0.1:5555")]
    pub endpoints: Vec<Endpoint>,
    /// What to speak: numbered requests with a broker that has them and MDP/0.1 with any other, or a dialect of Majordomo.
    /// Majordomo has no failures: of a reply of two frames, the first a number from 400 to 599, tow call takes the second for why the
    /// request failed, as this broker tells clients of Majordomo.
    #[arg(long, value_enum, default_value = "auto")]
    dialect: DialectName,
    /// Log in by PLAIN; the password is taken from the environment variable TOW_PASSWORD.
    #[arg(long)]
    user: Option<String>,
    /// Where bodies of over 1 MiB are while they are here [default: below the system's directory for temporary files].
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
}

/// The names of dialects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DialectName {
    /// Numbered requests, or else MDP/0.1; tow work finds out by itself if it is majortomo's broker.
    Auto,
    /// MDP/0.1.
    Mdp01,
    /// MDP/0.2.
    Mdp02,
    /// MDP/0.2 in the shape of majortomo.
    Majortomo,
}

impl BrokerArguments {
    /// What may be wrong if a broker doesn't let this side in.
    pub fn login_hint(&self) -> &'static str {
        match self.user {
            None => "; does it want a --user?",
            Some(_) => "; does it want no --user, or are it and TOW_PASSWORD wrong?",
        }
    }

    /// What may be wrong if nothing comes from a stock broker.
    pub fn dialect_hint(&self) -> &'static str {
        match self.dialect {
            DialectName::Auto => {
                "nothing has come from the broker, which was asked in MDP/0.1: if it speaks another one, say so by --dialect"
            }
            _ => {
                "nothing has come from the broker: does it speak this --dialect, and does anybody work for the service?"
            }
        }
    }

    /// The options of a connection, if there can be one to each of the endpoints.
    pub fn link(&self) -> Result<LinkOptions, Failure> {
        for endpoint in &self.endpoints {
            let wrong = |why: &str| Err(Failure::usage(format!("{endpoint}: {why}")));
            match endpoint {
                Endpoint::Tcp { port: 0, .. } => return wrong("port 0 can be listened on but not connected to"),
                Endpoint::Inproc(_) => return wrong("inproc does not leave a process; use tcp or ipc"),
                _ => {}
            }
        }
        let dialect = match self.dialect {
            DialectName::Auto => Dialect::Auto,
            DialectName::Mdp01 => Dialect::Mdp01,
            DialectName::Mdp02 => Dialect::Mdp02,
            DialectName::Majortomo => Dialect::Majortomo,
        };
        let mechanism = mechanism_as(self.user.as_ref())?;
        let mut link = LinkOptions { dialect, mechanism, ..LinkOptions::default() };
        if let Some(folder) = &self.spool {
            link.spool_folder.clone_from(folder);
        }
        Ok(link)
    }
}

/// Ten years: the longest that can be asked for.
const DURATION_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Seconds as an argument, with or without a fraction.
pub fn seconds(name: &str, value: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(value)
        .ok()
        .filter(|duration| (Duration::from_millis(1)..=DURATION_MAX).contains(duration))
        .ok_or_else(|| Failure::usage(format!("--{name} {value}: not a number of seconds from 0.001 to ten years")))
}
