//! How NATS servers sync, which they show to nobody but those who ask their monitoring port.

use super::NatsError;
use super::shared::Shared;
use crate::figures::{Monitored, Sync};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Port, unless the URL has another one.
const PORT: u16 = 8222;
/// Between two looks.
const EVERY: Duration = Duration::from_secs(10);
/// Time for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest answer.
const ANSWER_BYTES_MAX: u64 = 256 * 1024;

/// Host and port of a URL, such as `http://a:8222`. The path doesn't matter.
pub fn address(url: &str) -> Result<String, NatsError> {
    let rest = url.strip_prefix("http://");
    let host = rest.and_then(|rest| rest.split(['/', '?']).next()).filter(|host| !host.is_empty());
    let is_good = |host: &&str| !host.contains(['@', ' ', '\r', '\n']);
    let host = host.filter(is_good).ok_or_else(|| NatsError::Monitor(url.to_owned()))?;
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    Ok(if has_port { host.to_owned() } else { format!("{host}:{PORT}") })
}

/// Looks at all of them again and again.
pub(super) async fn run(monitors: Vec<String>, shared: Arc<Shared>) {
    loop {
        let found = look(&monitors).await;
        shared.update(|figures| figures.nats.monitored = found);
        tokio::time::sleep(EVERY).await;
    }
}

/// All of them, once. The addresses were checked.
pub(super) async fn look(monitors: &[String]) -> Vec<Monitored> {
    let mut found = Vec::new();
    for url in monitors {
        found.push(one(url).await);
    }
    found
}

async fn one(url: &str) -> Monitored {
    let answer = async { sync_of(&ask(&address(url).map_err(|error| error.to_string())?).await?) };
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, answer).await;
    let (server, sync) = match answer.unwrap_or_else(|_| Err("no answer".to_owned())) {
        Ok((server, sync)) => (server, sync),
        Err(why) => (String::new(), Sync::Unknown(why)),
    };
    Monitored { url: url.to_owned(), server, sync }
}

async fn ask(address: &str) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect(address).await.map_err(failed)?;
    // HTTP 1.0: the answer ends with the connection, and isn't in chunks.
    let request = format!("GET /varz HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(failed)?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await.map_err(failed)?;
    Ok(answer)
}

/// The server's name, and how it syncs.
fn sync_of(answer: &[u8]) -> Result<(String, Sync), String> {
    let head = answer.windows(4).position(|end| end == b"\r\n\r\n").ok_or("no answer of HTTP")?;
    let status = answer.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    if status != b"200" {
        return Err(format!("HTTP status {}", String::from_utf8_lossy(&status[..status.len().min(3)])));
    }
    let varz: Value = serde_json::from_slice(&answer[head + 4..]).map_err(|_| "not the answer of a NATS server")?;
    let name = varz["server_name"].as_str().ok_or("not the answer of a NATS server")?;
    let name = name.chars().filter(|c| !c.is_control()).take(100).collect();
    let config = &varz["jetstream"]["config"];
    let sync = match (config["sync_always"] == true, config["sync_interval"].as_u64()) {
        (true, _) => Sync::Always,
        (false, Some(interval)) => Sync::Every(Duration::from_nanos(interval)),
        (false, None) => Sync::Unknown("it has no JetStream".to_owned()),
    };
    Ok((name, sync))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn urls_have_a_host_and_perhaps_a_port() {
        for (url, expected) in [
            ("http://a", "a:8222"),
            ("http://a:9000/jsz?config=1", "a:9000"),
            ("http://[::1]", "[::1]:8222"),
            ("http://10.0.0.1:8222/", "10.0.0.1:8222"),
        ] {
            assert_eq!(address(url).unwrap(), expected);
        }
        for url in ["a:8222", "https://a", "http://", "http:///varz", "http://u:p@a", "http://a b", "http://a\r\nX"] {
            assert!(address(url).is_err(), "{url:?}");
        }
    }

    #[test]
    fn only_a_server_that_always_syncs_is_said_to() {
        let answer = |config: &str| {
            sync_of(format!("HTTP/1.0 200 OK\r\nX: y\r\n\r\n{{\"server_name\":\"a\",{config}}}").as_bytes())
        };
        let of = |config: &str| answer(config).unwrap().1;
        let always = r#""jetstream":{"config":{"sync_interval":120000000000,"sync_always":true}}"#;
        assert_eq!(of(always), Sync::Always);
        let rarely = r#""jetstream":{"config":{"sync_interval":120000000000}}"#;
        assert_eq!(of(rarely), Sync::Every(Duration::from_secs(120)));
        assert!(matches!(of(r#""jetstream":{}"#), Sync::Unknown(_)));
        for bad in [
            "",
            "HTTP/1.0 200 OK\r\n",
            "HTTP/1.0 404 Not Found\r\n\r\n{}",
            "HTTP/1.0 200 OK\r\n\r\n{",
            "HTTP/1.0 200 OK\r\n\r\n{}",
        ] {
            assert!(sync_of(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }
}
