//! From a request to its reply: docs/protocol/admin.md.

use super::lists::{Query, listed, whole};
use super::operator::Operator;
use super::problems::{self, Kind, MUTES_MAX, Mute};
use super::view::{List, Refusal, View, extend};
use super::{Running, Shared, State, figures, metrics, things};
use crate::cli::escape::Json;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Display;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use towpath_blocking::CancelToken;
use towpath_broker::add_name;
use towpath_broker::core::{LetterAction, RequestKey};
use towpath_files::path::Escaped;
use towpath_requests::limits::SERVICE_BYTES_MAX;
use towpath_rules::Who;
use towpath_sockets::PeerId;

/// Bytes of the reason that a peer is given.
const REASON_BYTES_MAX: usize = 200;

/// Bytes of the subject of a problem that is muted.
const SUBJECT_BYTES_MAX: usize = 1024;

/// Paths beside those of lists and actions.
const GET_PATHS: [&str; 11] = [
    "/api/v1/status",
    "/api/v1/problems",
    "/api/v1/blocked",
    "/api/v1/tokens",
    "/api/v1/audit",
    "/api/v1/history",
    "/api/v1/who",
    "/api/v1/journal",
    "/metrics",
    "/healthz",
    "/readyz",
];

const NO_ANSWER: &str = "the event loop doesn't answer: it hangs, or the server has ended";

/// A reply.
pub struct Reply {
    pub status: StatusCode,
    pub content_type: &'static str,
    pub body: String,
}

impl Reply {
    pub fn json(value: &Value) -> Reply {
        Reply { status: StatusCode::OK, content_type: "application/json", body: format!("{}\n", Json(value)) }
    }

    fn text(status: StatusCode, text: &str) -> Reply {
        Reply { status, content_type: "text/plain; charset=utf-8", body: format!("{text}\n") }
    }

    /// A failure, and the reason.
    pub fn error(status: u16, reason: impl Display) -> Reply {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Reply { status, ..Reply::json(&json!({ "error": reason.to_string() })) }
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Reply {
        match refusal {
            Refusal::NoAnswer => Reply::error(503, NO_ANSWER),
            Refusal::NoList => Reply::error(404, "this kind of server has no such thing"),
            Refusal::NotFound(reason) => Reply::error(404, reason),
            Refusal::Conflict(reason) => Reply::error(409, reason),
        }
    }
}

/// Whether the event loop runs, or hasn't begun to.
pub fn is_alive(shared: &Shared) -> bool {
    shared.running.get().is_none_or(|running| running.view.sums().is_ok())
}

/// Whether a request is for an action.
pub fn is_action(method: &Method, path: &str) -> bool {
    *method == Method::POST && Action::of(path).is_some()
}

/// Whether a request is about the queue, which all brokers of a cell have in common, and not about one broker.
pub fn is_of_cell(method: &Method, path: &str) -> bool {
    match Action::of(path).filter(|_| *method == Method::POST) {
        Some(
            Action::Pause { .. }
            | Action::Purge(_)
            | Action::EndRequest { .. }
            | Action::Letters { .. }
            | Action::Letter { .. }
            | Action::DropOutcomes,
        ) => true,
        Some(_) => false,
        None => {
            let is_list = matches!(path, "/api/v1/services" | "/api/v1/workers" | "/api/v1/dead-letters");
            let is_one = OfOne::of(path).is_some_and(|one| !matches!(one, OfOne::Version(_)));
            *method == Method::GET && (is_list || is_one)
        }
    }
}

/// Answers a request. Lists aren't made any further once it is cancelled; actions go on.
pub fn reply(shared: &Arc<Shared>, operator: &Operator, head: &Parts, body: &[u8], cancel: &CancelToken) -> Reply {
    let Parts { method, uri, .. } = head;
    let query = match Query::parse(uri.query().unwrap_or_default()) {
        Ok(query) => query,
        Err(reason) => return Reply::error(400, reason),
    };
    let path = uri.path();
    let action = Action::of(path);
    let list = match path {
        "/api/v1/peers" => Some(List::Peers),
        "/api/v1/peers/gone" => Some(List::Gone),
        "/api/v1/transfers" => Some(List::Transfers),
        "/api/v1/followers" => Some(List::Followers),
        "/api/v1/versions" => Some(List::Versions),
        "/api/v1/failures" => Some(List::Failures),
        "/api/v1/services" => Some(List::Services),
        "/api/v1/workers" => Some(List::Workers),
        "/api/v1/dead-letters" => Some(List::DeadLetters),
        _ => None,
    };
    let of_one = OfOne::of(path).filter(|_| action.is_none());
    let is_known = action.is_some() || list.is_some() || of_one.is_some() || GET_PATHS.contains(&path);
    let reply = match (action, list, path) {
        _ if is_known && *method != if action.is_some() { Method::POST } else { Method::GET } => {
            Err(Reply::error(405, "this path is for another method"))
        }
        (Some(action), ..) => act(shared, operator, action, body),
        (_, Some(list), _) => {
            let list_of = |running: &Running| listed(list.name(), |from| running.view.page(list, from), &query, cancel);
            running(shared).and_then(list_of)
        }
        _ if of_one.is_some() => running(shared).and_then(|running| {
            let reply = of_one.map(|what| what.reply(shared, running, &query, cancel));
            reply.unwrap_or_else(|| Err(nothing_there()))
        }),
        (.., "/api/v1/journal") => running(shared).and_then(|running| Ok(Reply::json(&running.view.journal()?))),
        (.., "/api/v1/status") => status(shared, operator),
        (.., "/api/v1/problems") => running(shared).and_then(|running| {
            let (problems, now) = shared.problems(running)?;
            Ok(Reply::json(&problems.json(now, shared.figures().started)))
        }),
        (.., "/api/v1/blocked") => listed("blocked", |from| Ok(shared.blocks.page(from)), &query, cancel),
        (.., "/api/v1/tokens") => listed("tokens", |_| Ok(whole(shared.tokens.list())), &query, cancel),
        (.., "/api/v1/history") => Ok(things::history(shared, &query)),
        (.., "/api/v1/who") => running(shared).and_then(|running| {
            let who = query.who.as_ref().ok_or_else(things::nobody)?;
            things::who(shared, running, who, cancel)
        }),
        (.., "/api/v1/audit") => listed("audit", |_| Ok(whole(shared.actions.last())), &query, cancel),
        (.., "/metrics") => running(shared).and_then(|running| {
            let format = metrics::Format::asked_for(&head.headers);
            Ok(metrics::reply(shared, running, query.per_service, format)?)
        }),
        (.., "/healthz") if is_alive(shared) => Ok(Reply::text(StatusCode::OK, "ok")),
        (.., "/healthz") => Ok(Reply::text(StatusCode::SERVICE_UNAVAILABLE, NO_ANSWER)),
        (.., "/readyz") => Ok(ready(shared)),
        _ => Err(nothing_there()),
    };
    reply.unwrap_or_else(|error| error)
}

fn nothing_there() -> Reply {
    Reply::error(404, "there is nothing at this path")
}

fn running(shared: &Shared) -> Result<&Running, Reply> {
    shared.running.get().ok_or_else(|| Reply::error(503, "the server is starting"))
}

fn ready(shared: &Shared) -> Reply {
    match shared.state() {
        State::Ready => match shared.running.get().map(|running| running.view.trouble()) {
            Some(Ok(None)) => Reply::text(StatusCode::OK, "ready"),
            Some(Ok(Some(trouble))) => Reply::text(StatusCode::SERVICE_UNAVAILABLE, trouble),
            Some(Err(_)) | None => Reply::text(StatusCode::SERVICE_UNAVAILABLE, NO_ANSWER),
        },
        state => Reply::text(StatusCode::SERVICE_UNAVAILABLE, state.name()),
    }
}

fn status(shared: &Shared, operator: &Operator) -> Result<Reply, Reply> {
    let own = json!({
        "program": shared.program,
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "host": sysinfo::System::host_name().ok(),
        "state": shared.state().name(),
        "uptime_seconds": shared.started.elapsed().as_secs(),
        "endpoints": [],
        "page": shared.page(),
        "token_file": shared.http.token_file,
        "metrics": shared.http.metrics,
        "operator": { "name": operator.name, "read_only": operator.read_only },
        "blocked": shared.blocks.count(),
        "blocked_file": shared.blocks.file().map(|file| file.display().to_string()),
    });
    let mut status = extend(figures::json(figures::SERVER, &shared.figures()), own);
    if let Some(Running { view, endpoints }) = shared.running.get() {
        status = extend(status, view.sums()?);
        status["left_never"] = left_never(&**view, &status)?;
        status["endpoints"] = json!(endpoints);
    }
    Ok(Reply::json(&status))
}

/// Work that never ends by itself, of a server with this status; null unless it is drained.
fn left_never(view: &dyn View, status: &Value) -> Result<Value, Refusal> {
    Ok(if status["draining"] == true { view.left_never()?.into() } else { Value::Null })
}

/// A resource about one service or version, as the path names it.
#[derive(Clone, Copy, Debug)]
enum OfOne<'a> {
    Service(&'a str),
    Version(&'a str),
    Requests(&'a str),
    Letters(&'a str),
    Letter { service: &'a str, id: &'a str },
}

impl OfOne<'_> {
    fn of(path: &str) -> Option<OfOne<'_>> {
        let path = path.strip_prefix("/api/v1/")?;
        let (kind, rest) = path.split_once('/')?;
        match (kind, rest.split_once('/')) {
            ("versions", None) => Some(OfOne::Version(rest)),
            ("services", None) => Some(OfOne::Service(rest)),
            ("services", Some((service, "requests"))) => Some(OfOne::Requests(service)),
            ("dead-letters", None) => Some(OfOne::Letters(rest)),
            ("dead-letters", Some((service, id))) if !id.contains('/') => Some(OfOne::Letter { service, id }),
            _ => None,
        }
    }

    fn reply(self, shared: &Shared, running: &Running, query: &Query, cancel: &CancelToken) -> Result<Reply, Reply> {
        let view = &running.view;
        match self {
            OfOne::Service(service) => things::service(shared, running, &service_name(service)?),
            OfOne::Version(version) => things::version(running, &text_of(version)?, query, cancel),
            OfOne::Requests(service) => {
                let service = service_name(service)?;
                listed("requests", |from| view.requests(&service, from), query, cancel)
            }
            OfOne::Letters(service) => {
                let service = service_name(service)?;
                listed("letters", |from| view.letters(&service, from), query, cancel)
            }
            OfOne::Letter { service, id } => {
                Ok(Reply::json(&view.letter_part(&service_name(service)?, letter_id(id)?, query.offset)?))
            }
        }
    }
}

/// An action and its object, as the path names it.
#[derive(Clone, Copy, Debug)]
enum Action<'a> {
    Disconnect(&'a str),
    Pause { service: &'a str, paused: bool },
    Purge(&'a str),
    EndRequest { service: &'a str, request: &'a str },
    Letters { service: &'a str, action: LetterAction },
    Letter { service: &'a str, id: &'a str, action: LetterAction },
    Drain,
    DropOutcomes,
    Forget(&'a str),
    Block { on: bool },
    NewToken,
    RevokeToken,
    Page,
    Mute { on: bool },
}

impl Action<'_> {
    fn of(path: &str) -> Option<Action<'_>> {
        let path = path.strip_prefix("/api/v1/")?;
        match path {
            "drain" => return Some(Action::Drain),
            "drop-outcomes" => return Some(Action::DropOutcomes),
            "block" => return Some(Action::Block { on: true }),
            "page" => return Some(Action::Page),
            "problems/mute" => return Some(Action::Mute { on: true }),
            "problems/unmute" => return Some(Action::Mute { on: false }),
            "new-token" => return Some(Action::NewToken),
            "revoke-token" => return Some(Action::RevokeToken),
            "unblock" => return Some(Action::Block { on: false }),
            _ => {}
        }
        let (kind, rest) = path.split_once('/')?;
        let (object, verb) = rest.split_once('/')?;
        match (kind, verb) {
            ("peers", "disconnect") => Some(Action::Disconnect(object)),
            ("services", "pause" | "resume") => Some(Action::Pause { service: object, paused: verb == "pause" }),
            ("followers", "forget") => Some(Action::Forget(object)),
            ("services", "purge") => Some(Action::Purge(object)),
            ("services", _) => {
                let request = verb.strip_prefix("requests/")?.strip_suffix("/end")?;
                Some(Action::EndRequest { service: object, request }).filter(|_| !request.contains('/'))
            }
            ("dead-letters", _) => {
                let (id, verb) = verb.split_once('/').map_or((None, verb), |(id, verb)| (Some(id), verb));
                let action = match verb {
                    "requeue" => LetterAction::Requeue,
                    "drop" => LetterAction::Drop,
                    _ => return None,
                };
                Some(match id {
                    Some(id) => Action::Letter { service: object, id, action },
                    None => Action::Letters { service: object, action },
                })
            }
            _ => None,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Disconnect {
    #[serde(default)]
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Block {
    who: String,
    #[serde(default)]
    seconds: Option<u64>,
    #[serde(default)]
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unblock {
    who: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewToken {
    name: String,
    #[serde(default)]
    read_only: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PageOf {
    #[serde(default)]
    read_only: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Muted {
    kind: String,
    #[serde(default)]
    subject: Option<String>,
    #[serde(default)]
    seconds: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RevokeToken {
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Empty {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Purge {
    #[serde(default)]
    expect_waiting: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Letters {
    expect: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Drain {
    on: bool,
}

/// Blocks a peer, or ends that. A server that is still starting does it, too.
fn block(shared: &Shared, operator: &Operator, on: bool, body: &[u8]) -> Result<Reply, Reply> {
    let who_of = |who: &str| who.parse::<Who>().map_err(|error| Reply::error(400, error));
    if !on {
        let Unblock { who } = parsed(body)?;
        let who = who_of(&who)?;
        let Some(kept) = shared.blocks.unblock(&who) else {
            return Err(Reply::error(404, format_args!("{who} is not blocked by this name")));
        };
        tracing::warn!(%who, by = operator.name, "unblocked by the operator");
        return Ok(Reply::json(&json!({ "unblocked": who.to_string(), "kept": kept })));
    }
    let Block { who, seconds, reason } = parsed(body)?;
    let who = who_of(&who)?;
    check_reason(&reason)?;
    let time = seconds.map(Duration::from_secs);
    let blocked = shared.blocks.block(who.clone(), time, &operator.name, &reason);
    let (until, kept) = blocked.map_err(|why| Reply::error(409, why))?;
    tracing::warn!(%who, seconds, reason, by = operator.name, "blocked by the operator");
    // Of an event loop that doesn't answer: it ends them as soon as it can.
    let disconnected = shared.running.get().map_or(Some(0), |running| running.view.end_blocked());
    Ok(Reply::json(&json!({ "blocked": who.to_string(), "until": until, "disconnected": disconnected, "kept": kept })))
}

/// Refuses what only this machine's operator may do.
fn check_local(operator: &Operator) -> Result<(), Reply> {
    let refused = || Reply::error(403, "this is done on the machine of the server, over its admin socket");
    operator.is_local.then_some(()).ok_or_else(refused)
}

/// Makes a token. The reply has it, and nothing else ever.
fn new_token(shared: &Shared, operator: &Operator, body: &[u8]) -> Result<Reply, Reply> {
    check_local(operator)?;
    let NewToken { name, read_only } = parsed(body)?;
    let made = shared.tokens.make(&name, read_only);
    let (token, kept) = made.map_err(|(status, why)| Reply::error(status, why))?;
    tracing::warn!(name, read_only, by = operator.name, "a token was made by the operator");
    let reply = json!({ "name": name, "read_only": read_only, "token": token.as_str(), "kept": kept });
    Ok(Reply::json(&extend(reply, json!({ "page": shared.page() }))))
}

/// Mutes problems, or ends that.
fn mute(shared: &Shared, operator: &Operator, on: bool, body: &[u8]) -> Result<Reply, Reply> {
    let Muted { kind: name, subject, seconds } = parsed(body)?;
    let kind = Kind::named(&name).ok_or_else(|| {
        let all: Vec<_> = problems::KINDS.iter().map(|about| about.name).collect();
        Reply::error(400, format_args!("there is no kind {name}; there are {}", all.join(", ")))
    })?;
    if subject.as_ref().is_some_and(|subject| subject.len() > SUBJECT_BYTES_MAX) {
        return Err(Reply::error(400, format_args!("a subject has at most {SUBJECT_BYTES_MAX} bytes")));
    }
    let mut tracker = shared.tracker.lock().unwrap_or_else(PoisonError::into_inner);
    let now = shared.started.elapsed();
    let reply = json!({ "kind": name, "subject": subject });
    if !on {
        return match tracker.unmute(kind, subject.as_deref()) {
            true => Ok(Reply::json(&reply)),
            false => Err(Reply::error(404, "this is not muted; the list of problems has the mutes")),
        };
    }
    let time = Duration::from_secs(seconds.unwrap_or(0));
    if time.is_zero() {
        return Err(Reply::error(400, "seconds: say for how long"));
    }
    let mute = Mute { kind, subject, until: now.saturating_add(time), by: operator.name.clone() };
    let shown = mute.json(now, shared.figures().started);
    match tracker.mute(now, mute) {
        true => Ok(Reply::json(&extend(reply, shown))),
        false => Err(Reply::error(409, format_args!("{MUTES_MAX} are muted already"))),
    }
}

/// Serves the page, and makes a token for it.
fn page(shared: &Arc<Shared>, operator: &Operator, body: &[u8]) -> Result<Reply, Reply> {
    check_local(operator)?;
    let PageOf { read_only } = parsed(body)?;
    let failed = |error| Reply::error(500, format_args!("the page can't be served: {error}"));
    let page = super::server::page(shared).map_err(failed)?;
    let made = shared.tokens.make_for_page(&operator.name, read_only);
    let token = made.map_err(|(status, why)| Reply::error(status, why))?;
    let host = sysinfo::System::host_name().ok();
    Ok(Reply::json(&json!({ "page": page, "token": token.as_str(), "read_only": read_only, "host": host })))
}

fn revoke_token(shared: &Shared, operator: &Operator, body: &[u8]) -> Result<Reply, Reply> {
    check_local(operator)?;
    let RevokeToken { name } = parsed(body)?;
    let kept = shared.tokens.revoke(&name).map_err(|(status, why)| Reply::error(status, why))?;
    tracing::warn!(name, by = operator.name, "a token was revoked by the operator");
    Ok(Reply::json(&json!({ "revoked": name, "kept": kept })))
}

fn check_reason(reason: &str) -> Result<(), Reply> {
    match reason.len() > REASON_BYTES_MAX {
        true => Err(Reply::error(400, format_args!("the reason has over {REASON_BYTES_MAX} bytes"))),
        false => Ok(()),
    }
}

fn act(shared: &Arc<Shared>, operator: &Operator, action: Action<'_>, body: &[u8]) -> Result<Reply, Reply> {
    let view = || running(shared).map(|running| &*running.view);
    match action {
        Action::Block { on } => block(shared, operator, on, body),
        Action::Mute { on } => mute(shared, operator, on, body),
        Action::Page => page(shared, operator, body),
        Action::NewToken => new_token(shared, operator, body),
        Action::RevokeToken => revoke_token(shared, operator, body),
        Action::Disconnect(id) => disconnect(view()?, id, body),
        Action::Pause { service, paused } => {
            let name = service_name(service)?;
            view()?.pause(&name, paused)?;
            tracing::warn!(service = %Escaped(&name), paused, "paused or resumed by the operator");
            Ok(done(&name, "paused", paused))
        }
        Action::Purge(service) => {
            let name = service_name(service)?;
            let Purge { expect_waiting } = parsed(body)?;
            let purged = view()?.purge(&name, expect_waiting)?;
            tracing::warn!(service = %Escaped(&name), purged, "purged by the operator");
            Ok(done(&name, "purged", purged))
        }
        Action::EndRequest { service, request } => {
            let (name, key) = (service_name(service)?, request.parse::<RequestKey>());
            let key = key.map_err(|error| Reply::error(400, error))?;
            let Empty {} = parsed(body)?;
            view()?.end_request(&name, key)?;
            tracing::warn!(service = %Escaped(&name), request, "a request was ended by the operator");
            Ok(done(&name, "ended", key.to_string()))
        }
        Action::DropOutcomes => {
            let dropped = view()?.drop_outcomes()?;
            tracing::warn!(dropped, "outcomes of clients that are gone were dropped by the operator");
            Ok(Reply::json(&json!({ "dropped": dropped })))
        }
        Action::Letters { service, action } => {
            let name = service_name(service)?;
            let Letters { expect } = parsed(body)?;
            let count = view()?.act_on_letters(&name, action, expect)?;
            let verb = if action == LetterAction::Requeue { "requeued" } else { "dropped" };
            tracing::warn!(service = %Escaped(&name), count, "dead letters were {verb} by the operator");
            Ok(done(&name, verb, count))
        }
        Action::Letter { service, id, action } => {
            let (name, id) = (service_name(service)?, letter_id(id)?);
            let Empty {} = parsed(body)?;
            view()?.act_on_letter(&name, id, action)?;
            let verb = if action == LetterAction::Requeue { "requeued" } else { "dropped" };
            tracing::warn!(service = %Escaped(&name), id, "a dead letter was {verb} by the operator");
            Ok(done(&name, verb, id))
        }
        Action::Forget(name) => {
            let name = text_of(name)?;
            let forgotten = view()?.forget(&name)?;
            tracing::warn!(follower = %Escaped(name.as_bytes()), forgotten, "forgotten by the operator");
            Ok(Reply::json(&json!({ "name": name, "forgotten": forgotten })))
        }
        Action::Drain => {
            let Drain { on } = parsed(body)?;
            view()?.drain(on)?;
            tracing::warn!(on, "drained by the operator, or not any more");
            let status = view()?.sums()?;
            let left_never = left_never(view()?, &status)?;
            let reply = json!({ "draining": status["draining"], "left": status["left"], "left_never": left_never });
            Ok(Reply::json(&reply))
        }
    }
}

/// The reply of an action on a service.
fn done(service: &[u8], member: &str, value: impl Into<Value>) -> Reply {
    let mut reply = json!({ member: value.into() });
    add_name(&mut reply, "service", service);
    Reply::json(&reply)
}

/// The body of an action.
fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, Reply> {
    serde_json::from_slice(body).map_err(|error| Reply::error(400, error))
}

/// The name of a version or follower as a path has it, in base64.
fn text_of(encoded: &str) -> Result<String, Reply> {
    let text = URL_SAFE_NO_PAD.decode(encoded).ok().and_then(|text| String::from_utf8(text).ok());
    text.ok_or_else(|| Reply::error(400, "names are in base64 for URLs, without padding"))
}

/// The name of a service as a path has it, in base64.
fn service_name(encoded: &str) -> Result<Vec<u8>, Reply> {
    let name = URL_SAFE_NO_PAD.decode(encoded).ok().filter(|name| name.len() <= SERVICE_BYTES_MAX);
    name.ok_or_else(|| Reply::error(400, "a service is named in base64 for URLs, without padding"))
}

/// The id of a dead letter.
fn letter_id(id: &str) -> Result<u64, Reply> {
    id.parse().map_err(|_| Reply::error(400, "a dead letter's id is a number, such as 17"))
}

fn disconnect(view: &dyn View, id: &str, body: &[u8]) -> Result<Reply, Reply> {
    let peer: PeerId = id.parse().map_err(|_| Reply::error(400, "an id is two numbers, such as 3.0"))?;
    let Disconnect { reason } = match body {
        [] => Disconnect::default(),
        body => parsed(body)?,
    };
    check_reason(&reason)?;
    let reason = if reason.is_empty() { "ended by the operator" } else { &reason };
    if !view.disconnect(peer, reason) {
        // Or doesn't anybody answer?
        view.sums()?;
        return Err(Reply::error(404, format_args!("there is no peer {peer}")));
    }
    tracing::info!(%peer, reason, "disconnected by the operator");
    Ok(Reply::json(&json!({ "disconnected": peer.to_string() })))
}
