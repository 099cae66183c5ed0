//! Endpoints as people type them: `tcp://HOST:PORT`, `ipc://PATH`, and the short forms `HOST`, `HOST:PORT` and `:PORT`.

use std::net::IpAddr;
use towpath_sockets::Endpoint;

/// Port of `tow serve`, where none is given.
pub const FILES_PORT: u16 = 5571;

/// Port of `tow broker`, where none is given.
pub const REQUESTS_PORT: u16 = 5555;

/// Endpoint to listen on. The host may be the name of a network interface, and no host is all addresses.
pub fn bind_endpoint<const PORT: u16>(text: &str) -> Result<Endpoint, String> {
    match parse(text, PORT, "*")? {
        Endpoint::Tcp { host, port } => Ok(Endpoint::Tcp { host: interface_address(&host).unwrap_or(host), port }),
        endpoint => Ok(endpoint),
    }
}

/// Endpoint to connect to. No host is this machine.
pub fn connect_endpoint(text: &str, default_port: u16) -> Result<Endpoint, String> {
    match parse(text, default_port, "127.0.0.1")? {
        Endpoint::Tcp { port: 0, .. } => Err("cannot connect to port 0; use the server's port".to_owned()),
        endpoint => Ok(endpoint),
    }
}

/// A broker's endpoint, as `--connect` takes it.
pub fn broker_endpoint(text: &str) -> Result<Endpoint, String> {
    connect_endpoint(text, REQUESTS_PORT)
}

fn parse(text: &str, default_port: u16, default_host: &str) -> Result<Endpoint, String> {
    if text.contains(',') && text.matches("://").count() != 1 {
        return Err("use one endpoint; repeat the option for more".to_owned());
    }
    let address = match text.split_once("://") {
        None => text,
        Some(("tcp", address)) => address,
        // A socket's path may have anything in it.
        Some(_) => {
            return match text.parse().map_err(why)? {
                Endpoint::Inproc(_) => Err("inproc works only within a process; use tcp or ipc".to_owned()),
                endpoint => Ok(endpoint),
            };
        }
    };
    if address.starts_with(['/', '.']) {
        return Err("use tcp://HOST:PORT, or ipc://PATH for a socket's path".to_owned());
    }
    if address.is_empty() {
        return Err("the host is missing".to_owned());
    }
    let has_port = address.rsplit_once(':').is_some_and(|(host, _)| !host.starts_with('[') || host.ends_with(']'));
    let address = if has_port { address.to_owned() } else { format!("{address}:{default_port}") };
    let host = if address.starts_with(':') { default_host } else { "" };
    format!("tcp://{host}{address}").parse().map_err(why)
}

/// The mistake, without the endpoint, which the message of the command line names already.
fn why(error: towpath_sockets::SocketError) -> String {
    match error {
        towpath_sockets::SocketError::Endpoint { why, .. } => why,
        error => error.to_string(),
    }
}

/// First address of a network interface of this name, IPv4 if it has one.
fn interface_address(name: &str) -> Option<String> {
    let interfaces = if_addrs::get_if_addrs().ok()?;
    let addresses = interfaces.iter().filter(|interface| interface.name == name).map(|interface| interface.ip());
    addresses.min_by_key(IpAddr::is_ipv6).map(|address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_forms_are_completed() {
        for (text, endpoint) in [
            ("tcp://a", "tcp://a:5555"),
            ("tcp://a:1", "tcp://a:1"),
            ("a", "tcp://a:5555"),
            ("a:1", "tcp://a:1"),
            (":1", "tcp://127.0.0.1:1"),
            ("[::1]", "tcp://[::1]:5555"),
            ("[::1]:1", "tcp://[::1]:1"),
            ("tcp://[::1]", "tcp://[::1]:5555"),
            ("ipc:///tmp/a,b", "ipc:///tmp/a,b"),
        ] {
            assert_eq!(broker_endpoint(text).unwrap().to_string(), endpoint, "{text}");
        }
        assert_eq!(bind_endpoint::<5571>(":0").unwrap().to_string(), "tcp://*:0");
        assert_eq!(bind_endpoint::<5571>("*").unwrap().to_string(), "tcp://*:5571");
        assert_eq!(bind_endpoint::<5571>("lo").unwrap().to_string(), "tcp://127.0.0.1:5571");
        assert_eq!(bind_endpoint::<5571>("lo:7").unwrap().to_string(), "tcp://127.0.0.1:7");
    }

    #[test]
    fn errors_say_what_to_type() {
        for (text, why) in [
            ("tcp://a:1,tcp://b:1", "repeat the option"),
            ("a,b", "repeat the option"),
            ("tcp://a:0", "port 0"),
            ("a:x", "not a number"),
            ("::1", "in brackets"),
            ("inproc://x", "only within a process"),
            ("/tmp/socket", "ipc://PATH"),
            ("http://a", "only tcp"),
            ("", "host is missing"),
        ] {
            let error = broker_endpoint(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
