//! Locations: `tcp://HOST:PORT/PATH` or `ipc://SOCKET:/PATH`.
//!
//! The path is taken byte by byte. In a path with wildcards, `\` takes the next byte literally.

use crate::cli::exit::Failure;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use towpath_sockets::Endpoint;

/// Bytes that make a path a glob.
const WILDCARDS: &[u8] = b"*?[{";

/// Path on a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Server.
    pub endpoint: Endpoint,
    /// Path below the root, without slashes at either end; empty for the root.
    pub path: Vec<u8>,
}

impl Location {
    /// Parses an argument of the command line.
    pub fn parse(text: &OsStr) -> Result<Location, Failure> {
        let bytes = text.as_bytes();
        let wrong = |why: &str| Failure::usage(format!("{}: {why}", text.display()));
        let (endpoint, path) = if bytes.starts_with(b"ipc://") {
            // Skip the scheme, whose colon is followed by a slash too.
            let scheme = b"ipc://".len();
            match bytes[scheme..].windows(2).position(|pair| pair == b":/") {
                Some(at) => (&bytes[..scheme + at], &bytes[scheme + at + 2..]),
                None => (bytes, &b""[..]),
            }
        } else {
            let after_scheme = bytes.windows(3).position(|three| three == b"://").map_or(0, |at| at + 3);
            match bytes[after_scheme..].iter().position(|byte| *byte == b'/') {
                Some(at) => (&bytes[..after_scheme + at], &bytes[after_scheme + at + 1..]),
                None => (bytes, &b""[..]),
            }
        };
        let endpoint = std::str::from_utf8(endpoint).map_err(|_| wrong("the endpoint is not UTF-8"))?;
        let endpoint = endpoint.parse::<Endpoint>().map_err(Failure::usage)?;
        if matches!(endpoint, Endpoint::Tcp { port: 0, .. }) {
            return Err(wrong("cannot connect to port 0; use the server's port"));
        }
        if matches!(endpoint, Endpoint::Inproc(_)) {
            return Err(wrong("inproc works only within a process; use tcp or ipc"));
        }
        let start = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(start, |at| at + 1);
        Ok(Location { endpoint, path: path[start..end].to_vec() })
    }

    /// True if the path is a glob.
    pub fn is_glob(&self) -> bool {
        self.literal().is_none()
    }

    /// The path without its escapes; `None` for a glob, which has a wildcard without a `\` before it.
    pub fn literal(&self) -> Option<Vec<u8>> {
        if !self.path.iter().any(|byte| WILDCARDS.contains(byte)) {
            return Some(self.path.clone());
        }
        let (mut literal, mut bytes) = (Vec::with_capacity(self.path.len()), self.path.iter());
        while let Some(byte) = bytes.next() {
            literal.push(match byte {
                b'\\' => *bytes.next()?,
                byte if WILDCARDS.contains(byte) => return None,
                byte => *byte,
            });
        }
        Some(literal)
    }
}

/// Endpoint that other processes can connect to.
pub fn parse_bind_endpoint(text: &str) -> Result<Endpoint, String> {
    match text.parse::<Endpoint>() {
        Ok(Endpoint::Inproc(_)) => Err("inproc works only within a process; use tcp or ipc".to_owned()),
        parsed => parsed.map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backslash_escapes_wildcards() {
        for (path, literal) in [
            ("a/b c", Some("a/b c")),
            (r"a\b", Some(r"a\b")),
            (r"we\[1]ird\*.txt", Some("we[1]ird*.txt")),
            (r"a\b\{c}\\", Some(r"ab{c}\")),
            (r"we\[1]ird*", None),
            (r"a\\*", None),
            (r"\*\", None),
            ("[1]", None),
        ] {
            let location = Location::parse(OsStr::new(&format!("tcp://a:1/{path}"))).unwrap();
            assert_eq!(location.literal().as_deref(), literal.map(str::as_bytes), "{path}");
            assert_eq!(location.is_glob(), literal.is_none(), "{path}");
        }
    }

    #[test]
    fn locations_are_split_into_endpoint_and_path() {
        for (text, endpoint, path) in [
            ("tcp://127.0.0.1:5571", "tcp://127.0.0.1:5571", ""),
            ("tcp://127.0.0.1:5571/", "tcp://127.0.0.1:5571", ""),
            ("tcp://[::1]:5571/a/b c/", "tcp://[::1]:5571", "a/b c"),
            ("ipc:///tmp/s", "ipc:///tmp/s", ""),
            ("ipc:///tmp/s:/a/b", "ipc:///tmp/s", "a/b"),
            ("ipc://s:/", "ipc://s", ""),
        ] {
            let location = Location::parse(OsStr::new(text)).unwrap();
            assert_eq!(location.endpoint.to_string(), endpoint);
            assert_eq!(location.path, path.as_bytes());
        }
        assert!(Location::parse(OsStr::new("tcp://a:1/*.bin")).unwrap().is_glob());
        for text in ["127.0.0.1:5571/a", "tcp://a/b", "tcp://a:0/b", "inproc://x"] {
            assert!(matches!(Location::parse(OsStr::new(text)), Err(Failure::Usage(_))), "{text}");
        }
    }
}
