//! Endpoints: `tcp://HOST:PORT`, `ipc://PATH`, `inproc://NAME`.

use crate::error::SocketError;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use towpath_zmtp::MechanismConfig;

/// An address to listen on or connect to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// TCP over IPv4 or IPv6.
    Tcp {
        /// An address, a name, or `*` (all interfaces, to listen).
        host: String,
        /// The port; 0 to listen on one that the system picks.
        port: u16,
    },
    /// A Unix domain socket.
    Ipc(PathBuf),
    /// Within this process.
    Inproc(String),
}

/// The longest path of a Unix domain socket (sun_path less its NUL).
const IPC_PATH_BYTES_MAX: usize = 107;

impl Endpoint {
    /// Whether only this machine reaches it. The one name that is taken for local is localhost.
    pub fn is_local(&self) -> bool {
        match self {
            Endpoint::Tcp { host, .. } => {
                let address = host.parse::<IpAddr>().map(|address| address.to_canonical());
                address.map_or_else(|_| host == "localhost", |address| address.is_loopback())
            }
            Endpoint::Ipc(_) | Endpoint::Inproc(_) => true,
        }
    }
}

/// For servers: refuses to listen for other machines if the mechanism lets everybody in, unless that was decided (`open_to_all`).
///
/// # Errors
/// [`SocketError::Open`] with the first endpoint that isn't local.
pub fn check_openness(
    endpoints: &[Endpoint],
    mechanism: &MechanismConfig,
    open_to_all: bool,
) -> Result<(), SocketError> {
    match endpoints.iter().find(|endpoint| !endpoint.is_local()) {
        Some(endpoint) if matches!(mechanism, MechanismConfig::Null) && !open_to_all => {
            Err(SocketError::Open { endpoint: endpoint.to_string() })
        }
        _ => Ok(()),
    }
}

impl FromStr for Endpoint {
    type Err = SocketError;

    fn from_str(text: &str) -> Result<Endpoint, SocketError> {
        let wrong = |why: &str| SocketError::Endpoint { endpoint: text.to_owned(), why: why.to_owned() };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("use tcp://HOST:PORT or ipc://PATH"))?;
        match scheme {
            "tcp" => {
                let (host, port) = rest.rsplit_once(':').ok_or_else(|| wrong("the port is missing"))?;
                let port = if port == "*" { Ok(0) } else { port.parse() };
                let port = port.map_err(|_| wrong("the port is not a number from 0 to 65535"))?;
                let host = match host.strip_prefix('[') {
                    Some(inner) => inner.strip_suffix(']').ok_or_else(|| wrong("a ] is missing"))?,
                    None if host.contains(':') => {
                        return Err(wrong("an IPv6 address goes in brackets: tcp://[::1]:5571"));
                    }
                    None => host,
                };
                if host.is_empty() {
                    return Err(wrong("the host is missing"));
                }
                Ok(Endpoint::Tcp { host: host.to_owned(), port })
            }
            "ipc" if rest.is_empty() => Err(wrong("the path is missing")),
            "ipc" if rest.len() > IPC_PATH_BYTES_MAX => Err(wrong("a socket's path has at most 107 bytes")),
            "ipc" => Ok(Endpoint::Ipc(rest.into())),
            "inproc" if rest.is_empty() => Err(wrong("the name is missing")),
            "inproc" => Ok(Endpoint::Inproc(rest.to_owned())),
            _ => Err(wrong("only tcp, ipc and inproc are known")),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Endpoint::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Endpoint::Ipc(path) => write!(f, "ipc://{}", path.display()),
            Endpoint::Inproc(name) => write!(f, "inproc://{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_parse_as_they_are_displayed() {
        for text in ["tcp://127.0.0.1:5571", "tcp://[::1]:0", "tcp://host.example:80", "ipc:///tmp/a b", "inproc://x"] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), text);
        }
        assert_eq!("tcp://*:*".parse::<Endpoint>().unwrap(), Endpoint::Tcp { host: "*".into(), port: 0 });
    }

    #[test]
    fn errors_say_what_is_wrong_with_an_endpoint() {
        for (text, why) in [
            ("127.0.0.1:1", "use tcp"),
            ("tcp://127.0.0.1", "port is missing"),
            ("tcp://a:70000", "not a number"),
            ("tcp://::1:5", "brackets"),
            ("tcp://:5", "host is missing"),
            ("udp://a:1", "only tcp"),
            ("ipc://", "path is missing"),
        ] {
            let message = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(message.contains(why), "{text}: {message}");
        }
    }

    #[test]
    fn endpoints_that_other_machines_reach_need_a_decision() {
        for (endpoint, local) in [
            ("tcp://127.0.0.1:0", true),
            ("tcp://127.8.9.1:0", true),
            ("tcp://[::1]:0", true),
            ("tcp://[::ffff:127.0.0.1]:0", true),
            ("tcp://localhost:0", true),
            ("ipc:///tmp/s", true),
            ("tcp://*:0", false),
            ("tcp://0.0.0.0:0", false),
            ("tcp://[::]:0", false),
            ("tcp://[::ffff:0.0.0.0]:0", false),
            ("tcp://192.0.2.1:0", false),
            ("tcp://host.example:0", false),
        ] {
            let endpoint: Endpoint = endpoint.parse().unwrap();
            assert_eq!(endpoint.is_local(), local, "{endpoint}");
            let is_refused =
                |mechanism, open| check_openness(std::slice::from_ref(&endpoint), &mechanism, open).is_err();
            assert_eq!(is_refused(MechanismConfig::Null, false), !local, "{endpoint}");
            assert!(!is_refused(MechanismConfig::Null, true) && !is_refused(MechanismConfig::PlainServer, false));
        }
    }
}
