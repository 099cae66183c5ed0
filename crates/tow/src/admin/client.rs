//! The other side of the socket: finds the server that is meant, and asks it.

use super::{known_sockets, no_answer};
use crate::cli::exit::{Failure, Status};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::HOST;
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

/// Longest wait for a reply. The server gives up sooner.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes of a reply.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// Pages of a list.
const PAGES_MAX: usize = 1000;

/// Entries that are asked for at a time.
const LIMIT: usize = 1000;

/// The server behind a socket.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
}

/// A server that was found, and its status.
pub struct Found {
    /// How to ask it.
    pub client: Client,
    /// As it tells.
    pub status: Value,
}

impl Found {
    fn is(&self, wanted: &str) -> bool {
        self.status["program"] == wanted || self.status["pid"].as_u64().is_some_and(|pid| pid.to_string() == wanted)
    }

    /// The server in a line.
    pub fn describe(&self) -> String {
        let endpoints: Vec<_> =
            self.status["endpoints"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let (program, pid) = (self.status["program"].as_str().unwrap_or("?"), &self.status["pid"]);
        let state = self.status["state"].as_str().unwrap_or("?");
        format!("{program} (pid {pid}, {state}) on {}: {}", endpoints.join(", "), self.client.socket.display())
    }
}

/// Servers that answer, of the kind that is wanted, or the one behind a socket.
pub fn find(wanted: Option<&str>, program: Option<&str>) -> Result<Vec<Found>, Failure> {
    if let Some(socket) = wanted.filter(|wanted| wanted.contains('/') || wanted.ends_with(".sock")) {
        let client = Client { socket: socket.into() };
        let status = client.get("/api/v1/status")?;
        return Ok(vec![Found { client, status }]);
    }
    let (mut found, mut denied, mut hung) = (Vec::new(), None, None);
    for socket in known_sockets() {
        let client = Client { socket };
        match client.get("/api/v1/status") {
            Ok(status) => found.push(Found { client, status }),
            Err(failure) if failure.status == Status::NoServer => tracing::debug!(%failure, "no server there"),
            Err(failure) if failure.status == Status::Refused => denied = Some(failure),
            Err(failure) => hung = Some(failure),
        }
    }
    let is_wanted = |found: &Found| wanted.is_none_or(|wanted| found.is(wanted));
    let of_kind = |found: &Found| program.is_none_or(|program| found.is(program));
    found.retain(|found| is_wanted(found) && of_kind(found));
    match (found.is_empty(), hung.or(denied)) {
        (false, failure) => {
            if let Some(failure) = failure.filter(|failure| failure.status != Status::Refused) {
                tracing::error!(reason = %failure, "another server doesn't answer");
            }
            Ok(found)
        }
        (true, Some(failure)) => Err(failure),
        (true, None) => {
            let what = program.map_or("server or broker".to_owned(), |program| format!("tow {program}"));
            let which = wanted.map(|wanted| format!(" that is {wanted}")).unwrap_or_default();
            let hint = "it has to run as this user; --admin names another socket";
            Err(Failure::new(Status::NoServer, format!("no {what}{which} runs here ({hint})")))
        }
    }
}

/// The one server that is meant.
pub fn find_one(wanted: Option<&str>, program: Option<&str>) -> Result<Client, Failure> {
    let mut found = find(wanted, program)?;
    match found.pop() {
        Some(only) if found.is_empty() => Ok(only.client),
        last => {
            let all: Vec<_> = found.iter().chain(&last).map(Found::describe).collect();
            let why = "several servers run here; name one with --admin: serve, broker, a process id or the socket";
            Err(Failure::usage(format!("{why}\n{}", all.join("\n"))))
        }
    }
}

impl Client {
    /// The entries of a list, all pages of it.
    pub fn list(&self, path: &str, name: &str, service: Option<&str>) -> Result<Vec<Value>, Failure> {
        let mut entries = Vec::new();
        let mut after = Some(0);
        for _ in 0..PAGES_MAX {
            let Some(from) = after else { break };
            let mut query = form_urlencoded::Serializer::new(String::new());
            query.append_pair("limit", &LIMIT.to_string()).append_pair("after", &u64::to_string(&from));
            if let Some(service) = service {
                query.append_pair("service", service);
            }
            let mut reply = self.get(&format!("{path}?{}", query.finish()))?;
            after = reply["next"].as_u64();
            if let Value::Array(page) = reply[name].take() {
                entries.extend(page);
            }
        }
        Ok(entries)
    }

    /// Asks for a resource.
    pub fn get(&self, path: &str) -> Result<Value, Failure> {
        self.ask(Method::GET, path, String::new())
    }

    /// Asks for an action.
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.ask(Method::POST, path, body.to_string())
    }

    fn ask(&self, method: Method, path: &str, body: String) -> Result<Value, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
        let asked = runtime.block_on(async {
            let asked = tokio::time::timeout(REPLY_TIMEOUT, exchange(&self.socket, method, path, body));
            let late = || Failure::failed(format_args!("{}: no reply in {REPLY_TIMEOUT:?}", self.socket.display()));
            asked.await.unwrap_or_else(|_| Err(late()))
        });
        let (status, body) = asked?;
        let reply: Value = serde_json::from_slice(&body)
            .map_err(|error| no_answer(&self.socket, format_args!("not what tow answers: {error}")))?;
        let reason = || reply["error"].as_str().unwrap_or("no reason is given").to_owned();
        match status {
            200 => Ok(reply),
            404 => Err(Failure::new(Status::NotFound, reason())),
            400 | 403 | 409 | 413 => Err(Failure::new(Status::Refused, reason())),
            _ => Err(Failure::failed(format_args!("{}: {}", self.socket.display(), reason()))),
        }
    }
}

async fn exchange(socket: &Path, method: Method, path: &str, body: String) -> Result<(u16, Bytes), Failure> {
    let stream = UnixStream::connect(socket).await.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            Failure::new(Status::Refused, format!("{}: another user's: {error}", socket.display()))
        }
        _ => no_answer(socket, error),
    })?;
    let failed = |error: hyper::Error| no_answer(socket, error);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    tokio::spawn(connection);
    let request = Request::builder().method(method).uri(path).header(HOST, "localhost");
    let request = request.body(Full::new(Bytes::from(body))).map_err(Failure::failed)?;
    let response = sender.send_request(request).await.map_err(failed)?;
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), REPLY_BYTES_MAX).collect().await;
    let body = body.map_err(|error| no_answer(socket, error))?;
    Ok((status, body.to_bytes()))
}
