//! The other side: finds the server that is meant, and asks it on its socket or address.

use super::args::{TOKEN_FILE, address};
use super::place::{sockets, state_directory, user_directory};
use super::server::Stream;
use super::token::Token;
use crate::cli::escape::Printable;
use crate::cli::exit::{Failure, Status};
use crate::cli::output::eprint_line;
use crate::cli::service_name::ServiceName;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};

/// Longest wait for a reply. The server gives up sooner.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest wait for a server that may not be the one that is meant.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Bytes of a reply.
const REPLY_BYTES_MAX: usize = 64 << 20;

/// Pages of a list.
const PAGES_MAX: usize = 1000;

/// Entries that are asked for at a time.
const LIMIT: usize = 1000;

/// Which server is meant.
#[derive(Clone, clap::Args)]
pub struct ServerArgs {
    /// The server: serve, broker, a process id, its socket, or http://127.0.0.1:PORT [default: the only one]
    #[arg(long, value_name = "SERVER")]
    admin: Option<String>,
    /// File with the token that the server demands over http.
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
}

/// Address of a server's admin interface.
pub enum Client {
    /// On this socket.
    Socket(PathBuf),
    /// This address, with the token.
    Http(SocketAddr, Token),
}

impl Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Client::Socket(path) => write!(f, "{}", path.display()),
            Client::Http(address, _) => write!(f, "http://{address}"),
        }
    }
}

impl ServerArgs {
    /// The same, or the server that is named by this.
    pub fn or(&self, named: Option<&str>) -> ServerArgs {
        ServerArgs { admin: self.admin.clone().or(named.map(str::to_owned)), ..self.clone() }
    }

    /// The server's place, if it is named by that.
    fn place(&self) -> Result<Option<Client>, Failure> {
        let Some(wanted) = self.admin.as_deref() else { return Ok(None) };
        let url = wanted.strip_prefix("http://");
        if wanted.contains('#') {
            let why = "--admin: leave out the # and the token, which others see in the list of processes; --admin-token-file has it";
            return Err(Failure::usage(why));
        }
        if url.is_some() || address(wanted).is_ok() {
            let address = address(url.map_or(wanted, |url| url.strip_suffix('/').unwrap_or(url)));
            let address = address.ok().filter(|address| address.ip().to_canonical().is_loopback());
            let address = address.ok_or_else(|| not_here(wanted))?;
            return Ok(Some(Client::Http(address, self.token()?)));
        }
        if wanted.contains("://") {
            return Err(not_here(wanted));
        }
        let is_socket = wanted.contains('/') || wanted.ends_with(".sock");
        Ok(is_socket.then(|| Client::Socket(wanted.into())))
    }

    fn token(&self) -> Result<Token, Failure> {
        if let Some(file) = &self.admin_token_file {
            return Token::read(file);
        }
        let mut files = state_directory().into_iter().chain([user_directory()]).map(|folder| folder.join(TOKEN_FILE));
        let needs = "--admin http://... needs --admin-token-file; the server's log says where it is";
        files.find(|file| file.exists()).map_or_else(|| Err(Failure::usage(needs)), |file| Token::read(&file))
    }
}

/// A token isn't sent where others could read it.
fn not_here(wanted: &str) -> Failure {
    Failure::usage(format!(
        "--admin {wanted}: use http://127.0.0.1:PORT; to another machine: ssh -L PORT:127.0.0.1:PORT HOST"
    ))
}

/// A server that was found, and its status.
pub struct Found {
    /// Its address.
    pub client: Client,
    /// Its answer.
    pub status: Value,
}

impl Found {
    fn is(&self, wanted: &str) -> bool {
        self.status["program"] == wanted || self.status["pid"].as_u64().is_some_and(|pid| pid.to_string() == wanted)
    }
}

/// A server in a line.
pub fn describe(status: &Value, client: &Client) -> String {
    let endpoints: Vec<_> = status["endpoints"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let (program, pid) = (status["program"].as_str().unwrap_or("?"), &status["pid"]);
    let state = status["state"].as_str().unwrap_or("?");
    format!("{program} (pid {pid}, {state}) on {}: {client}", endpoints.join(", "))
}

/// Servers that answer, of the kind that is wanted, or the one that is named by its place. Those that don't answer are named on standard error.
fn find(server: &ServerArgs, program: Option<&str>) -> Result<Vec<Found>, Failure> {
    let (found, hung) = search(server, program)?;
    if let Some(failure) = hung {
        eprint_line(format_args!("tow: {}", Printable(&failure.to_string())));
    }
    Ok(found)
}

/// The same, with why the last of those that don't answer doesn't.
pub fn search(server: &ServerArgs, program: Option<&str>) -> Result<(Vec<Found>, Option<Failure>), Failure> {
    if let Some(client) = server.place()? {
        let status = client.get("/api/v1/status")?;
        return Ok((vec![Found { client, status }], None));
    }
    let wanted = server.admin.as_deref();
    let (mut found, mut denied, mut hung) = (Vec::new(), None, None);
    for socket in sockets().into_iter().filter(|socket| may_be(socket, wanted, program)) {
        let client = Client::Socket(socket);
        match client.ask(Method::GET, "/api/v1/status", String::new(), PROBE_TIMEOUT) {
            Ok(status) => found.push(Found { client, status }),
            Err(failure) if failure.status == Status::NoServer => tracing::debug!(%failure, "no server there"),
            Err(failure) if failure.status == Status::Refused => denied = Some(failure),
            Err(failure) => {
                if let Some(before) = hung.replace(failure) {
                    eprint_line(format_args!("tow: {}", Printable(&before.to_string())));
                }
            }
        }
    }
    let is_wanted = |found: &Found| wanted.is_none_or(|wanted| found.is(wanted));
    let of_kind = |found: &Found| program.is_none_or(|program| found.is(program));
    found.retain(|found| is_wanted(found) && of_kind(found));
    match (found.is_empty(), hung.or(denied)) {
        (false, failure) => Ok((found, failure.filter(|failure| failure.status != Status::Refused))),
        (true, Some(failure)) => Err(failure),
        (true, None) => {
            let what = program.map_or("server or broker".to_owned(), |program| format!("tow {program}"));
            let which = wanted.map(|wanted| format!(" that is {wanted}")).unwrap_or_default();
            let hint = "it has to run as this user; --admin names another socket";
            Err(Failure::new(Status::NoServer, format!("no {what}{which} runs here ({hint})")))
        }
    }
}

/// Whether a socket may be that of a program and process that are wanted. Names of those in directories of services don't show it.
fn may_be(socket: &Path, wanted: Option<&str>, program: Option<&str>) -> bool {
    let stem = socket.file_stem().and_then(OsStr::to_str).unwrap_or_default();
    let Some((name, pid)) = stem.rsplit_once('-').filter(|(name, _)| matches!(*name, "serve" | "broker")) else {
        return true;
    };
    program.is_none_or(|program| program == name) && wanted.is_none_or(|wanted| wanted == name || wanted == pid)
}

/// The one server that is meant.
pub fn find_one(server: &ServerArgs, program: Option<&str>) -> Result<Client, Failure> {
    let mut found = find(server, program)?;
    match found.pop() {
        Some(only) if found.is_empty() => Ok(only.client),
        last => {
            let all: Vec<_> =
                found.iter().chain(&last).map(|Found { client, status }| describe(status, client)).collect();
            let why = "several servers run here; name one with --admin: serve, broker, a process id or the socket";
            Err(Failure::usage(format!("{why}\n{}", all.join("\n"))))
        }
    }
}

impl Client {
    /// The entries of a list, all pages of it.
    pub fn list(&self, path: &str, name: &str, service: Option<&ServiceName>) -> Result<Vec<Value>, Failure> {
        self.search(path, name, service, None)
    }

    /// The same, but only those that have a text, if there is one.
    pub fn search(
        &self,
        path: &str,
        name: &str,
        service: Option<&ServiceName>,
        search: Option<&str>,
    ) -> Result<Vec<Value>, Failure> {
        let mut entries = Vec::new();
        let mut after = Some(0);
        for _ in 0..PAGES_MAX {
            let Some(from) = after else { break };
            let mut query = form_urlencoded::Serializer::new(String::new());
            query.append_pair("limit", &LIMIT.to_string()).append_pair("after", &u64::to_string(&from));
            if let Some(service) = service {
                query.append_pair("service_b64", &service.base64());
            }
            if let Some(search) = search {
                query.append_pair("search", search);
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
        self.ask(Method::GET, path, String::new(), REPLY_TIMEOUT)
    }

    /// Asks for an action.
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.ask(Method::POST, path, body.to_string(), REPLY_TIMEOUT)
    }

    fn ask(&self, method: Method, path: &str, body: String, timeout: Duration) -> Result<Value, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::failed)?;
        let asked = runtime.block_on(async {
            let asked = tokio::time::timeout(timeout, self.exchange(method, path, body));
            let late = || {
                Failure::failed(format_args!(
                    "{self}: no reply in {timeout:?}; its process is stopped, hangs or is very busy"
                ))
            };
            asked.await.unwrap_or_else(|_| Err(late()))
        });
        let (status, body) = asked?;
        let reply: Value = serde_json::from_slice(&body)
            .map_err(|error| self.no_answer(format_args!("not what tow answers: {error}")))?;
        let reason = || reply["error"].as_str().unwrap_or("no reason is given").to_owned();
        match status {
            200 => Ok(reply),
            404 => Err(Failure::new(Status::NotFound, reason())),
            400 | 401 | 403 | 409 | 413 | 421 => Err(Failure::new(Status::Refused, reason())),
            _ => Err(Failure::failed(format_args!("{self}: {}", reason()))),
        }
    }

    async fn exchange(&self, method: Method, path: &str, body: String) -> Result<(u16, Bytes), Failure> {
        let mut request = Request::builder().method(method).uri(path).header(CONTENT_TYPE, "application/json");
        let stream: Box<dyn Stream> = match self {
            Client::Socket(socket) => {
                request = request.header(HOST, "localhost");
                Box::new(self.connected(UnixStream::connect(socket).await)?)
            }
            Client::Http(address, token) => {
                request = request.header(HOST, address.to_string());
                request = request.header(AUTHORIZATION, format!("Bearer {}", token.as_str()));
                Box::new(self.connected(TcpStream::connect(address).await)?)
            }
        };
        let failed = |error: hyper::Error| self.no_answer(error);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
        tokio::spawn(connection);
        let request = request.body(Full::new(Bytes::from(body))).map_err(Failure::failed)?;
        let response = sender.send_request(request).await.map_err(failed)?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), REPLY_BYTES_MAX).collect().await;
        let body = body.map_err(|error| self.no_answer(error))?;
        Ok((status, body.to_bytes()))
    }

    fn connected<S>(&self, connected: io::Result<S>) -> Result<S, Failure> {
        connected.map_err(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => {
                Failure::new(Status::Refused, format_args!("{self}: another user's: {error}"))
            }
            _ => self.no_answer(error),
        })
    }

    fn no_answer(&self, error: impl Display) -> Failure {
        Failure::new(Status::NoServer, format_args!("{self}: {error}"))
    }
}
