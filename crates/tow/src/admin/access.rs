//! Access by the head of a request: docs/protocol/admin.md#access.

use super::api::Reply;
use super::operator::Operator;
use super::page;
use super::token::{OPERATOR, Token};
use super::tokens::Tokens;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method};
use std::net::{IpAddr, SocketAddr};
use towpath_sockets::Address;

/// Paths that answer without a token.
pub const HEALTH_PATHS: [&str; 2] = ["/healthz", "/readyz"];

const METRICS_PATH: &str = "/metrics";

/// Header in which browsers say where a request comes from.
const FETCH_SITE: &str = "sec-fetch-site";

/// Requests that a listener answers.
pub enum Access {
    /// Everything: only the server's user, and root, reach it.
    Local,
    /// The page and health; to clients that have a token, what that allows.
    Token { own: Option<Token>, tokens: Tokens, names: Vec<String> },
    /// Metrics and health.
    Metrics { names: Vec<String> },
}

/// Addresses of both sides of a connection.
pub struct Ends {
    pub remote: Address,
    pub local: Option<SocketAddr>,
}

impl Access {
    /// The operator whose request this is. Refuses a request that may not be answered.
    pub fn check(&self, head: &Parts, ends: &Ends) -> Result<Operator, Reply> {
        let path = head.uri.path();
        let is_health = HEALTH_PATHS.contains(&path);
        match (self, ends.local) {
            (Access::Local, _) => Ok(Operator::of_socket(&ends.remote)),
            (_, None) => Err(Reply::error(500, "the address of this connection is unknown")),
            (Access::Metrics { names }, Some(local)) => {
                // Beyond this machine it is for everybody by any name.
                if local.ip().to_canonical().is_loopback() {
                    check_host(head, local, names)?;
                }
                let is_there = is_health || path == METRICS_PATH;
                let nowhere = || Reply::error(404, "there are /metrics, /healthz and /readyz here");
                is_there.then(Operator::nobody).ok_or_else(nowhere)
            }
            (Access::Token { own, tokens, names }, Some(local)) => {
                check_host(head, local, names)?;
                let changes = head.method != Method::GET;
                if changes {
                    check_site(&head.headers)?;
                }
                let is_public = is_health || page::file(path).is_some();
                if !changes && is_public {
                    return Ok(Operator::nobody());
                }
                let operator = check_token(&head.headers, own.as_ref(), tokens)?;
                if changes && operator.read_only {
                    return Err(Reply::error(403, format_args!("the token of {} may only read", operator.name)));
                }
                if changes {
                    check_type(&head.headers)?;
                }
                Ok(operator)
            }
        }
    }
}

/// Refuses names that this server doesn't have: a web page may have given its own name this address, to be taken for the same site.
fn check_host(head: &Parts, local: SocketAddr, names: &[String]) -> Result<(), Reply> {
    let mut hosts = head.headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().unwrap_or_default(),
        _ => "",
    };
    let of_target = head.uri.authority().map_or(host, |authority| authority.as_str());
    match of_target == host && is_own(host, local, names) {
        true => Ok(()),
        false => Err(Reply::error(421, "this server is not known by this name; --admin-host adds one")),
    }
}

/// Whether a `Host` is the address that was connected to, this machine's own, or one of the names. The port may be that of a tunnel or a proxy.
fn is_own(host: &str, local: SocketAddr, names: &[String]) -> bool {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|digit| digit.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    let address = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(name) => name.parse().map(IpAddr::V6).ok(),
        None => name.parse().map(IpAddr::V4).ok(),
    };
    let is_address = |address: IpAddr| address.is_loopback() || address == local.ip().to_canonical();
    address.map_or_else(
        || name.eq_ignore_ascii_case("localhost") || names.iter().any(|own| own.eq_ignore_ascii_case(name)),
        is_address,
    )
}

/// Refuses what another web site's page asks for.
fn check_site(headers: &HeaderMap) -> Result<(), Reply> {
    let is_own = |site: &[u8]| matches!(site, b"same-origin" | b"none");
    match headers.get_all(FETCH_SITE).iter().all(|site| is_own(site.as_bytes())) {
        true => Ok(()),
        false => Err(Reply::error(403, "another site's page may not do this")),
    }
}

fn check_token(headers: &HeaderMap, own: Option<&Token>, tokens: &Tokens) -> Result<Operator, Reply> {
    match headers.get(AUTHORIZATION).map(|header| header.as_bytes()) {
        Some(header) if own.is_some_and(|own| own.is_in(header)) => Ok(Operator::of_token(OPERATOR, false)),
        Some(header) => tokens.operator(header).ok_or_else(|| Reply::error(401, "the token is wrong")),
        None => Err(Reply::error(401, "a token is needed: Authorization: Bearer TOKEN")),
    }
}

/// Demands JSON: a form of another site's page can't send that.
fn check_type(headers: &HeaderMap) -> Result<(), Reply> {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let content_type = content_type.split(';').next().unwrap_or_default().trim();
    match content_type.eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => Err(Reply::error(415, "Content-Type: application/json is needed")),
    }
}

/// Whether this is a name, or an IPv4 address, without a port.
pub fn is_host(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|one| one.is_ascii_alphanumeric() || matches!(one, b'-' | b'.' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_names_are_hosts() {
        let names = ["tow.example.org".to_owned()];
        let local = "192.0.2.1:5580".parse().unwrap();
        for host in [
            "192.0.2.1:5580",
            "192.0.2.1",
            "127.0.0.1:15580",
            "[::1]:5580",
            "LocalHost:5580",
            "localhost",
            "tow.example.org",
            "TOW.example.org:8443",
        ] {
            assert!(is_own(host, local, &names), "{host}");
        }
        assert!(is_own("192.0.2.2", "[::ffff:192.0.2.2]:80".parse().unwrap(), &[]));
        for host in [
            "",
            "localhost:",
            "localhost:x",
            "localhost:1:2",
            "192.0.2.2:5580",
            "[192.0.2.1]:5580",
            "::1",
            "evil.test:5580",
            "localhost.evil.test:5580",
            "evil.test@localhost:5580",
            "localhost:5580@evil.test",
            "tow.example.org.evil.test",
            "tow.example.org.",
        ] {
            assert!(!is_own(host, local, &names), "{host}");
        }
    }
}
