//! Locations: `tcp://HOST:PORT/PATH`, `ipc://SOCKET:/PATH`, or as in scp and rsync `HOST:/PATH` and `HOST:PORT/PATH`.
//!
//! The path is taken byte by byte; behind a scheme, `%20` and its kind are the bytes that they stand for. In a path with wildcards, `\`
//! takes the next byte literally.

use crate::cli::endpoint::{FILES_PORT, connect_endpoint};
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
                Some(at) => (&bytes[..scheme + at], unescape(&bytes[scheme + at + 2..])),
                None => (bytes, Vec::new()),
            }
        } else if let Some(scheme) = bytes.windows(3).position(|three| three == b"://") {
            match bytes[scheme + 3..].iter().position(|byte| *byte == b'/') {
                Some(at) => (&bytes[..scheme + 3 + at], unescape(&bytes[scheme + 3 + at + 1..])),
                None => (bytes, Vec::new()),
            }
        } else {
            let slash = bytes.iter().position(|byte| *byte == b'/').unwrap_or(bytes.len());
            let (server, path) = (&bytes[..slash], &bytes[slash..]);
            if !server.contains(&b':') {
                let path = if path.is_empty() { "/".into() } else { String::from_utf8_lossy(path) };
                let meant = format!("{}:{path}", String::from_utf8_lossy(server));
                let meant = if server.is_empty() { String::new() } else { format!(" (is it {meant}?)") };
                return Err(wrong(&format!("use HOST:/PATH, HOST:PORT/PATH or tcp://HOST:PORT/PATH{meant}")));
            }
            (server.strip_suffix(b":").unwrap_or(server), path.to_vec())
        };
        let endpoint = std::str::from_utf8(endpoint).map_err(|_| wrong("the endpoint is not UTF-8"))?;
        if let Some((user, server)) = endpoint.split_once('@').filter(|_| !endpoint.starts_with("ipc://")) {
            let user = user.rsplit('/').next().unwrap_or_default();
            return Err(wrong(&format!("a user is named by an option: --user {user}, and then {server} without @")));
        }
        let endpoint = connect_endpoint(endpoint, FILES_PORT).map_err(|why| wrong(&format!("{why}{}", meant(text))))?;
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

/// A hint for `HOST:PATH` and `HOST::PATH`, which rsync and scp take.
fn meant(text: &OsStr) -> String {
    let text = text.to_string_lossy();
    let path = text.split_once(':').map(|(host, path)| (host, path.trim_start_matches(':')));
    match path.filter(|(_, path)| path.starts_with(|first: char| first.is_alphabetic())) {
        Some((host, path)) => format!(" (is it {host}:/{path}?)"),
        None => String::new(),
    }
}

/// The bytes that a URL's path stands for. An escaped wildcard is no wildcard; a `%` without two digits is itself.
fn unescape(path: &[u8]) -> Vec<u8> {
    let (mut decoded, mut rest) = (Vec::with_capacity(path.len()), path);
    while let [first, tail @ ..] = rest {
        let escaped = (*first == b'%').then(|| digits(tail)).flatten();
        decoded.push((escaped.unwrap_or(*first), escaped.is_some()));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    let has_wildcards = decoded.iter().any(|(byte, _)| WILDCARDS.contains(byte));
    let is_literal = |byte| has_wildcards && (byte == b'\\' || WILDCARDS.contains(&byte));
    let quoted = decoded.into_iter().flat_map(|(byte, is_escaped)| {
        let quote = (is_escaped && is_literal(byte)).then_some(b'\\');
        quote.into_iter().chain([byte])
    });
    quoted.collect()
}

/// The byte that two hexadecimal digits stand for.
fn digits(text: &[u8]) -> Option<u8> {
    let digits = std::str::from_utf8(text.get(..2)?).ok()?;
    u8::from_str_radix(digits, 16).ok().filter(|_| !digits.starts_with('+'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::exit::Status;

    #[test]
    fn percent_escapes_are_decoded_behind_a_scheme() {
        for (text, literal) in [
            ("tcp://a/a%20b", Some("a b")),
            ("tcp://a/100%", Some("100%")),
            ("tcp://a/100%25%zz%+1", Some("100%%zz%+1")),
            ("tcp://a/%2A%5b", Some("*[")),
            ("tcp://a/%2A*", None),
            (r"tcp://a/%2A%5Cb", Some(r"*\b")),
            (r"tcp://a/a%5Cb", Some(r"a\b")),
            ("ipc://s:/a%20b", Some("a b")),
            ("a:/a%20b", Some("a%20b")),
        ] {
            let location = Location::parse(OsStr::new(text)).unwrap();
            assert_eq!(location.literal().as_deref(), literal.map(str::as_bytes), "{text}");
        }
    }

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
            ("tcp://a/b", "tcp://a:5571", "b"),
            ("a:/b/c", "tcp://a:5571", "b/c"),
            ("a:", "tcp://a:5571", ""),
            ("a:1/b:2", "tcp://a:1", "b:2"),
            (":1/b", "tcp://127.0.0.1:1", "b"),
            ("[::1]:/b", "tcp://[::1]:5571", "b"),
            ("[::1]:1/b", "tcp://[::1]:1", "b"),
            ("ipc:///tmp/s", "ipc:///tmp/s", ""),
            ("ipc:///tmp/s:/a/b", "ipc:///tmp/s", "a/b"),
            ("ipc://s:/", "ipc://s", ""),
        ] {
            let location = Location::parse(OsStr::new(text)).unwrap();
            assert_eq!(location.endpoint.to_string(), endpoint);
            assert_eq!(location.path, path.as_bytes());
        }
        assert!(Location::parse(OsStr::new("tcp://a:1/*.bin")).unwrap().is_glob());
        for text in ["a/b", "/a/b", "./a", "a", "a:b/c", "tcp://a:0/b", "tcp:///b", "inproc://x"] {
            assert!(matches!(Location::parse(OsStr::new(text)), Err(Failure { status: Status::Usage, .. })), "{text}");
        }
    }
}
