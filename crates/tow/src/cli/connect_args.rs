//! Options of commands that connect: to a file server, or to brokers.

use crate::cli::auth_args::mechanism_as;
use crate::cli::endpoint::broker_endpoint;
use crate::cli::escape::Line;
use crate::cli::exit::Failure;
use crate::cli::key_args::ClientKeyArgs;
use crate::cli::output::eprint_line;
use crate::cli::units::duration;
use std::path::{Path, PathBuf};
use std::time::Duration;
use towpath_client::client::{Dialect, LinkOptions};
use towpath_files::client::ConnectOptions;
use towpath_sockets::{Endpoint, MechanismConfig};

/// Options of all commands that connect.
#[derive(clap::Args)]
pub struct ConnectArgs {
    /// Log in with PLAIN and the password in TOW_PASSWORD.
    #[arg(long)]
    user: Option<String>,
    /// Read the password from the first line of this file, which only its owner may read.
    #[arg(long, value_name = "FILE", requires = "user")]
    password_file: Option<PathBuf>,
    #[command(flatten)]
    keys: ClientKeyArgs,
}

impl ConnectArgs {
    /// The same without a command line.
    pub fn new(user: Option<String>, password_file: Option<PathBuf>, keys: ClientKeyArgs) -> ConnectArgs {
        ConnectArgs { user, password_file, keys }
    }

    fn mechanism(&self, endpoints: &[Endpoint]) -> Result<MechanismConfig, Failure> {
        match self.keys.mechanism(endpoints, self.user.as_ref())? {
            Some(mechanism) => Ok(mechanism),
            None => mechanism_as(self.user.as_ref(), self.password_file.as_deref()),
        }
    }

    /// Advice for a login that was refused.
    pub fn login_hint(&self) -> &'static str {
        if let Some(hint) = self.keys.hint() {
            return hint;
        }
        match self.user {
            None => "does it want a --user or a --server-key?",
            Some(_) if self.password_file.is_some() => "does it want no --user, or is its password wrong?",
            Some(_) => "does it want no --user, or are --user and TOW_PASSWORD wrong?",
        }
    }
}

/// Options of commands that connect to a file server.
#[derive(clap::Args)]
pub struct FileServerArgs {
    /// How long to try to connect at first.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    connect_timeout: Duration,
    /// Give up after this long without progress.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    timeout: Duration,
    #[command(flatten)]
    connect: ConnectArgs,
}

impl FileServerArgs {
    /// The same without a command line.
    pub fn new(connect: ConnectArgs, connect_timeout: Duration, timeout: Duration) -> FileServerArgs {
        FileServerArgs { connect_timeout, timeout, connect }
    }

    /// Options of a connection to a server.
    pub fn options(&self, endpoint: Endpoint) -> Result<ConnectOptions, Failure> {
        let mechanism = self.connect.mechanism(std::slice::from_ref(&endpoint))?;
        let mut options = ConnectOptions::new(endpoint);
        options.connect_timeout = self.connect_timeout;
        options.idle_timeout = self.timeout;
        options.mechanism = mechanism;
        options.on_wait = Some(report_wait);
        Ok(options)
    }

    /// The file with this side's secret key.
    pub fn key_file(&self) -> Option<&Path> {
        self.connect.keys.file()
    }

    /// See [`ClientKeyArgs::serve_with_key`].
    pub fn serve_with_key(&self) {
        self.connect.keys.serve_with_key();
    }

    /// Advice for a login that was refused.
    pub fn login_hint(&self) -> &'static str {
        self.connect.login_hint()
    }
}

/// Says on standard error that there is no connection yet, and why.
fn report_wait(endpoint: &Endpoint, reason: &str) {
    let reason = format!("{endpoint}: {reason}");
    eprint_line(format_args!("tow: no connection yet, still trying: {}", Line(&reason)));
}

/// Options of commands that connect to brokers.
#[derive(clap::Args)]
pub struct BrokerArgs {
    /// Broker, HOST:PORT or ipc://PATH. Repeatable: a client fails over to the next, a worker serves all.
    #[arg(long = "connect", value_name = "ENDPOINT", value_delimiter = ' ', default_value = "tcp://127.0.0.1:5555", value_parser = broker_endpoint)]
    pub endpoints: Vec<Endpoint>,
    /// Protocol; auto is numbered requests, or else MDP/0.1.
    #[arg(long, value_enum, default_value = "auto")]
    dialect: DialectName,
    /// Directory for bodies over 1 MiB [default: in the temporary directory]
    #[arg(long, value_name = "DIR")]
    spool: Option<PathBuf>,
    #[command(flatten)]
    connect: ConnectArgs,
}

// No doc comments: each would be a line of the help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DialectName {
    Auto,
    Mdp01,
    Mdp02,
    Majortomo,
}

impl BrokerArgs {
    /// Advice for a login that was refused.
    pub fn login_hint(&self) -> &'static str {
        self.connect.login_hint()
    }

    /// Advice for a stock broker that doesn't answer.
    pub fn dialect_hint(&self) -> &'static str {
        match self.dialect {
            DialectName::Auto => "no answer from the broker in MDP/0.1; if it speaks another dialect, set --dialect",
            _ => "no answer from the broker: does it speak this --dialect, and does the service have a worker?",
        }
    }

    /// Options of the connections.
    pub fn link(&self) -> Result<LinkOptions, Failure> {
        let dialect = match self.dialect {
            DialectName::Auto => Dialect::Auto,
            DialectName::Mdp01 => Dialect::Mdp01,
            DialectName::Mdp02 => Dialect::Mdp02,
            DialectName::Majortomo => Dialect::Majortomo,
        };
        let mut link =
            LinkOptions { dialect, mechanism: self.connect.mechanism(&self.endpoints)?, ..LinkOptions::default() };
        if let Some(folder) = &self.spool {
            link.spool_folder = Some(folder.clone());
        }
        Ok(link)
    }
}
