//! Endpoints: `tcp://HOST:PORT`, `ipc://PATH`, `inproc://NAME`.

use crate::error::SocketError;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

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
}
