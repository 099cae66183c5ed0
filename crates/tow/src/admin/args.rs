//! Options of `tow serve` and `tow broker`, and the addresses that they name.

use super::access::{Access, is_host};
use super::place;
use super::token::Token;
use super::tokens::{TOKENS_FILE, Tokens};
use crate::cli::exit::Failure;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

/// Name of the file with the token, in a directory.
pub const TOKEN_FILE: &str = "admin.token";

/// Option of `tow serve` and `tow broker`.
#[derive(clap::Args)]
#[command(next_help_heading = "Administration")]
pub struct AdminArgs {
    /// Socket for `tow status` and the other operator commands [default: in $RUNTIME_DIRECTORY or $XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH")]
    pub(super) admin_socket: Option<PathBuf>,
    /// Serve the operator's page and API on this address.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    admin: Option<SocketAddr>,
    /// Additional host name of --admin and --metrics. Repeatable.
    #[arg(long, value_name = "NAME", value_delimiter = ' ', value_parser = host)]
    admin_host: Vec<String>,
    /// Trust a proxy in front of --admin to do TLS and logins.
    #[arg(long, requires = "admin")]
    admin_behind_proxy: bool,
    /// The token that --admin demands [default: admin.token beside the state]
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
    /// Serve /metrics, /healthz and /readyz there without a token.
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    metrics: Option<SocketAddr>,
}

/// An address that is listened on for HTTP.
pub struct HttpListener {
    pub listener: TcpListener,
    pub access: Access,
}

/// The page, and the token for it.
pub struct Page {
    pub url: String,
    pub token: Token,
    pub token_file: PathBuf,
}

/// Addresses of HTTP that the options name.
pub struct Http {
    pub listeners: Vec<HttpListener>,
    pub page: Option<Page>,
    /// Tokens by name.
    pub tokens: Tokens,
    /// URL of the metrics that need no token.
    pub metrics: Option<String>,
}

impl AdminArgs {
    /// The file of the token, if one was named.
    pub fn token_file(&self) -> Option<&Path> {
        self.admin_token_file.as_deref()
    }

    /// Listens on the addresses. `state` is the directory of the server's state, if it has one; `served` what everybody may read.
    pub(super) fn http(&self, state: Option<&Path>, served: Option<&Path>) -> Result<Http, Failure> {
        let token_file = self.place_of_token(state)?;
        let beside = token_file.as_ref().map(|file| file.with_file_name(TOKENS_FILE));
        let tokens = Tokens::new(beside.filter(|file| check_not_served(file, served).is_ok()));
        let mut http = Http { listeners: Vec::new(), page: None, tokens: tokens.clone(), metrics: None };
        if let Some((address, token_file)) = self.admin.zip(token_file) {
            if !address.ip().to_canonical().is_loopback() && !self.admin_behind_proxy {
                return Err(Failure::usage(format!(
                    "--admin {address} is for other machines too, and is not encrypted; use one of:\n  \
                     --admin 127.0.0.1:{port}, and from another machine: ssh -L {port}:127.0.0.1:{port} HOST\n  \
                     --admin-behind-proxy, if a proxy with TLS and logins is in front of it, and nobody gets past that",
                    port = address.port()
                )));
            }
            check_not_served(&token_file, served)?;
            let token = Token::read_or_make(&token_file)?;
            // Directories that were made for it may lead elsewhere than they seemed to.
            check_not_served(&token_file, served)?;
            let (listener, address) = bind("--admin", address)?;
            let proxy = self.admin_host.first().filter(|_| self.admin_behind_proxy);
            let url = proxy.map_or_else(|| url(address), |name| format!("https://{name}/"));
            let token_file = std::path::absolute(&token_file).unwrap_or(token_file);
            let access = Access::Token { own: Some(token.clone()), tokens, names: self.admin_host.clone() };
            http.listeners.push(HttpListener { listener, access });
            http.page = Some(Page { url, token, token_file });
        }
        if let Some(address) = self.metrics {
            let (listener, address) = bind("--metrics", address)?;
            http.metrics = Some(format!("{}metrics", url(address)));
            let access = Access::Metrics { names: self.admin_host.clone() };
            http.listeners.push(HttpListener { listener, access });
        }
        Ok(http)
    }

    /// The file of the token. Without `--admin` none is made; it only says where the tokens by name are, if there is a place.
    fn place_of_token(&self, state: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
        Ok(match (&self.admin_token_file, self.admin) {
            (Some(path), _) => Some(path.clone()),
            (None, Some(_)) => Some(default_token_file(state)?),
            (None, None) => {
                state.map(Path::to_owned).or_else(place::state_directory).map(|directory| directory.join(TOKEN_FILE))
            }
        })
    }
}

fn bind(option: &str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let failed = |error| Failure::failed(format_args!("{option} {address}: {error}"));
    let listener = match TcpListener::bind(address) {
        // All addresses, on a machine without IPv6.
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && is_without_ipv6(&error) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port()))
        }
        bound => bound,
    };
    let listener = listener.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

fn is_without_ipv6(error: &std::io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(error);
    matches!(errno, Some(rustix::io::Errno::AFNOSUPPORT | rustix::io::Errno::ADDRNOTAVAIL))
}

/// The file beside the server's state, or else beside its socket.
fn default_token_file(state: Option<&Path>) -> Result<PathBuf, Failure> {
    let directory = match state.map(Path::to_owned).or_else(place::state_directory) {
        Some(directory) => directory,
        None => {
            place::own_directory().map_err(|why| Failure::failed(format!("--admin-token-file is needed: {why}")))?
        }
    };
    Ok(directory.join(TOKEN_FILE))
}

/// Refuses a token that clients could fetch. It may not be there yet.
fn check_not_served(token_file: &Path, served: Option<&Path>) -> Result<(), Failure> {
    let Some(served) = served.filter(|served| is_below(token_file, served)) else { return Ok(()) };
    let (file, served) = (token_file.display(), served.display());
    Err(Failure::usage(format!(
        "{file}: the token of --admin is below {served}, which is served; name a file elsewhere by --admin-token-file"
    )))
}

/// Whether a path leads, or will lead, below a directory.
pub fn is_below(path: &Path, directory: &Path) -> bool {
    let Ok(directory) = directory.canonicalize() else { return false };
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let nearest = absolute.ancestors().find_map(|path| path.canonicalize().ok());
    nearest.is_some_and(|path| path.starts_with(&directory))
}

/// The URL on this machine.
fn url(address: SocketAddr) -> String {
    match address.ip().is_unspecified() {
        true => format!("http://localhost:{}/", address.port()),
        false => format!("http://{address}/"),
    }
}

/// An address with a port; no address is all of IPv4 and IPv6.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let address = match text.split_once(':') {
        Some(("localhost", port)) => format!("127.0.0.1:{port}"),
        Some(("" | "*", port)) => format!("[::]:{port}"),
        _ => text.to_owned(),
    };
    let wrong = || "use an IP address and a port, such as 127.0.0.1:5580; :PORT is all addresses".to_owned();
    address.parse().map_err(|_| wrong())
}

fn host(text: &str) -> Result<String, String> {
    let is_name = is_host(text);
    is_name.then(|| text.to_owned()).ok_or_else(|| "use a name without a port, such as tow.example.org".to_owned())
}
