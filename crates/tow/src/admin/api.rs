//! From a request to its reply: docs/protocol/admin.md.

use super::view::{List, Refusal, View, extend};
use super::{Running, Shared, State, figures, metrics};
use crate::cli::escape::Json;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::fmt::Display;
use towpath_broker::add_name;
use towpath_broker::core::LetterAction;
use towpath_files::path::Escaped;
use towpath_requests::limits::SERVICE_BYTES_MAX;
use towpath_sockets::{PAGE_MAX, Page, PeerId};

/// Entries of a list in one reply, by default and at most.
const LIMIT_DEFAULT: usize = 200;
const LIMIT_MAX: usize = 1000;

/// Entries that are looked at for one reply: a rare service may be behind many others.
const ENTRIES_MAX: usize = 100_000;
const PAGES_MAX: usize = ENTRIES_MAX.div_ceil(PAGE_MAX);

/// Bytes of the reason that a peer is given.
const REASON_BYTES_MAX: usize = 200;

/// Paths beside those of lists and actions.
const GET_PATHS: [&str; 7] =
    ["/api/v1/status", "/api/v1/problems", "/api/v1/audit", "/api/v1/journal", "/metrics", "/healthz", "/readyz"];

const NO_ANSWER: &str = "the event loop doesn't answer: it hangs, or the server has ended";

/// A reply.
pub struct Reply {
    pub status: StatusCode,
    pub content_type: &'static str,
    pub body: String,
}

impl Reply {
    fn json(value: &Value) -> Reply {
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

/// Answers a request.
pub fn reply(shared: &Shared, head: &Parts, body: &[u8]) -> Reply {
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
    let letters = path.strip_prefix("/api/v1/dead-letters/").filter(|name| !name.contains('/'));
    let version = path.strip_prefix("/api/v1/versions/").filter(|name| !name.contains('/'));
    let is_known = action.is_some() || list.is_some() || letters.or(version).is_some() || GET_PATHS.contains(&path);
    let reply = match (action, list, path) {
        _ if is_known && *method != if action.is_some() { Method::POST } else { Method::GET } => {
            Err(Reply::error(405, "this path is for another method"))
        }
        (Some(action), ..) => running(shared).and_then(|running| act(&*running.view, action, body)),
        (_, Some(list), _) => {
            running(shared).and_then(|Running { view, .. }| listed(list.name(), None, |from| view.page(list, from), &query))
        }
        _ if letters.is_some() => running(shared).and_then(|Running { view, .. }| {
            let service = service_name(letters.unwrap_or_default())?;
            listed("letters", None, |from| view.letters(&service, from), &query)
        }),
        _ if version.is_some() => running(shared)
            .and_then(|Running { view, .. }| version_reply(&**view, version.unwrap_or_default(), &query)),
        (.., "/api/v1/journal") => running(shared).and_then(|running| Ok(Reply::json(&running.view.journal()?))),
        (.., "/api/v1/status") => status(shared),
        (.., "/api/v1/problems") => running(shared).and_then(|running| {
            let (problems, now) = shared.problems(running)?;
            Ok(Reply::json(&problems.json(now, shared.figures().started)))
        }),
        (.., "/api/v1/audit") => Ok(Reply::json(&shared.actions.last())),
        (.., "/metrics") => running(shared).and_then(|running| {
            let format = metrics::Format::asked_for(&head.headers);
            Ok(metrics::reply(shared, running, query.per_service, format)?)
        }),
        (.., "/healthz") if is_alive(shared) => Ok(Reply::text(StatusCode::OK, "ok")),
        (.., "/healthz") => Ok(Reply::text(StatusCode::SERVICE_UNAVAILABLE, NO_ANSWER)),
        (.., "/readyz") => Ok(ready(shared)),
        _ => Err(Reply::error(404, "there is nothing at this path")),
    };
    reply.unwrap_or_else(|error| error)
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

fn status(shared: &Shared) -> Result<Reply, Reply> {
    let own = json!({
        "program": shared.program,
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "host": sysinfo::System::host_name().ok(),
        "state": shared.state().name(),
        "uptime_seconds": shared.started.elapsed().as_secs(),
        "endpoints": [],
        "page": shared.http.page,
        "token_file": shared.http.token_file,
        "metrics": shared.http.metrics,
    });
    let mut status = extend(figures::json(figures::SERVER, &shared.figures()), own);
    if let Some(Running { view, endpoints }) = shared.running.get() {
        status = extend(status, view.sums()?);
        status["endpoints"] = json!(endpoints);
    }
    Ok(Reply::json(&status))
}

/// A list, from the number `after` on.
fn listed(
    name: &str,
    of: Option<(&str, Value)>,
    next_page: impl Fn(u32) -> Result<Page<Value>, Refusal>,
    query: &Query,
) -> Result<Reply, Reply> {
    let mut next = Some(query.after);
    let (mut entries, mut last) = (Vec::new(), None);
    for _ in 0..PAGES_MAX {
        let Some(from) = next.filter(|_| entries.len() < query.limit) else { break };
        let page = next_page(from)?;
        let is_wanted = |(_, entry): &(u32, Value)| {
            query.service.as_ref().is_none_or(|name| ["service", "service_b64"].iter().all(|of| entry[of] == name[of]))
        };
        next = page.next;
        for (number, entry) in page.entries.into_iter().filter(is_wanted) {
            // Those of one number stay together.
            if entries.len() >= query.limit && last != Some(number) {
                next = Some(number);
                break;
            }
            entries.push(entry);
            last = Some(number);
        }
    }
    let mut reply = Map::new();
    reply.extend(of.map(|(name, of)| (name.to_owned(), of)));
    reply.insert(name.to_owned(), entries.into());
    reply.insert("next".to_owned(), next.into());
    Ok(Reply::json(&reply.into()))
}

/// A version, and its followers.
fn version_reply(view: &dyn View, encoded: &str, query: &Query) -> Result<Reply, Reply> {
    let wrong = || Reply::error(400, "a version is named by its label or digest in base64 for URLs, without padding");
    let name = URL_SAFE_NO_PAD.decode(encoded).ok().and_then(|name| String::from_utf8(name).ok()).ok_or_else(wrong)?;
    let of = query.path.as_deref();
    let version = view.version(&name, of)?.ok_or_else(|| Reply::error(404, "there is no such version"))?;
    // The same version, though another one may get its label meanwhile.
    let digest = version["version"].as_str().unwrap_or_default().to_owned();
    let path = version["path"].as_str().filter(|_| version["path_b64"].is_null()).map(str::to_owned);
    listed("followers", Some(("version", version)), |from| view.version_followers(&digest, path.as_deref(), from), query)
}

/// An action and its object, as the path names it.
#[derive(Clone, Copy, Debug)]
enum Action<'a> {
    Disconnect(&'a str),
    Pause { service: &'a str, paused: bool },
    Purge(&'a str),
    Letters { service: &'a str, action: LetterAction },
    Drain,
    DropOutcomes,
    Forget(&'a str),
}

impl Action<'_> {
    fn of(path: &str) -> Option<Action<'_>> {
        let path = path.strip_prefix("/api/v1/")?;
        match path {
            "drain" => return Some(Action::Drain),
            "drop-outcomes" => return Some(Action::DropOutcomes),
            _ => {}
        }
        let (kind, rest) = path.split_once('/')?;
        let (object, verb) = rest.split_once('/')?;
        match (kind, verb) {
            ("peers", "disconnect") => Some(Action::Disconnect(object)),
            ("services", "pause" | "resume") => Some(Action::Pause { service: object, paused: verb == "pause" }),
            ("followers", "forget") => Some(Action::Forget(object)),
            ("services", "purge") => Some(Action::Purge(object)),
            ("dead-letters", "requeue") => Some(Action::Letters { service: object, action: LetterAction::Requeue }),
            ("dead-letters", "drop") => Some(Action::Letters { service: object, action: LetterAction::Drop }),
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

fn act(view: &dyn View, action: Action<'_>, body: &[u8]) -> Result<Reply, Reply> {
    match action {
        Action::Disconnect(id) => disconnect(view, id, body),
        Action::Pause { service, paused } => {
            let name = service_name(service)?;
            view.pause(&name, paused)?;
            tracing::warn!(service = %Escaped(&name), paused, "paused or resumed by the operator");
            Ok(done(&name, "paused", paused))
        }
        Action::Purge(service) => {
            let name = service_name(service)?;
            let Purge { expect_waiting } = parsed(body)?;
            let purged = view.purge(&name, expect_waiting)?;
            tracing::warn!(service = %Escaped(&name), purged, "purged by the operator");
            Ok(done(&name, "purged", purged))
        }
        Action::DropOutcomes => {
            let dropped = view.drop_outcomes()?;
            tracing::warn!(dropped, "outcomes of clients that are gone were dropped by the operator");
            Ok(Reply::json(&json!({ "dropped": dropped })))
        }
        Action::Letters { service, action } => {
            let name = service_name(service)?;
            let Letters { expect } = parsed(body)?;
            let count = view.act_on_letters(&name, action, expect)?;
            let verb = if action == LetterAction::Requeue { "requeued" } else { "dropped" };
            tracing::warn!(service = %Escaped(&name), count, "dead letters were {verb} by the operator");
            Ok(done(&name, verb, count))
        }
        Action::Forget(name) => {
            let wrong = || Reply::error(400, "a follower is named in base64 for URLs, without padding");
            let name = URL_SAFE_NO_PAD.decode(name).ok().and_then(|name| String::from_utf8(name).ok());
            let name = name.ok_or_else(wrong)?;
            let forgotten = view.forget(&name)?;
            tracing::warn!(follower = %Escaped(name.as_bytes()), forgotten, "forgotten by the operator");
            Ok(Reply::json(&json!({ "name": name, "forgotten": forgotten })))
        }
        Action::Drain => {
            let Drain { on } = parsed(body)?;
            view.drain(on)?;
            tracing::warn!(on, "drained by the operator, or not any more");
            let status = view.sums()?;
            Ok(Reply::json(&json!({ "draining": status["draining"], "left": status["left"] })))
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

/// The name of a service as a path has it, in base64.
fn service_name(encoded: &str) -> Result<Vec<u8>, Reply> {
    let name = URL_SAFE_NO_PAD.decode(encoded).ok().filter(|name| name.len() <= SERVICE_BYTES_MAX);
    name.ok_or_else(|| Reply::error(400, "a service is named in base64 for URLs, without padding"))
}

fn disconnect(view: &dyn View, id: &str, body: &[u8]) -> Result<Reply, Reply> {
    let peer: PeerId = id.parse().map_err(|_| Reply::error(400, "an id is two numbers, such as 3.0"))?;
    let Disconnect { reason } = match body {
        [] => Disconnect::default(),
        body => parsed(body)?,
    };
    if reason.len() > REASON_BYTES_MAX {
        return Err(Reply::error(400, format_args!("the reason has over {REASON_BYTES_MAX} bytes")));
    }
    let reason = if reason.is_empty() { "ended by the operator" } else { &reason };
    if !view.disconnect(peer, reason) {
        // Or doesn't anybody answer?
        view.sums()?;
        return Err(Reply::error(404, format_args!("there is no peer {peer}")));
    }
    tracing::info!(%peer, reason, "disconnected by the operator");
    Ok(Reply::json(&json!({ "disconnected": peer.to_string() })))
}

/// Parameters of a request.
#[derive(Debug, PartialEq, Eq)]
struct Query {
    limit: usize,
    after: u32,
    /// As the entries have it.
    service: Option<Value>,
    per_service: bool,
    /// Of a version.
    path: Option<String>,
}

impl Query {
    fn parse(query: &str) -> Result<Query, String> {
        let mut parsed = Query { limit: LIMIT_DEFAULT, after: 0, service: None, per_service: false, path: None };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match (&*name, &*value) {
                ("limit", _) => {
                    let limit = value.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
                    parsed.limit = limit.ok_or_else(|| format!("limit: use a number from 1 to {LIMIT_MAX}"))?;
                }
                ("after", _) => {
                    parsed.after = value.parse().map_err(|_| "after: use `next` of the previous reply".to_owned())?;
                }
                ("service", _) => parsed.service = Some(named(value.as_bytes())),
                ("service_b64", _) => {
                    let name =
                        STANDARD.decode(&*value).map_err(|_| "service_b64: use base64 with padding".to_owned())?;
                    parsed.service = Some(named(&name));
                }
                ("path", _) => parsed.path = Some(value.into_owned()),
                ("per", "service") => parsed.per_service = true,
                _ => return Err(format!("there is no parameter {name}={value}")),
            }
        }
        Ok(parsed)
    }
}

fn named(service: &[u8]) -> Value {
    let mut entry = json!({});
    add_name(&mut entry, "service", service);
    entry
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::figures::Snapshot;
    use crate::admin::problems::Found;
    use std::cell::Cell;

    /// A list of as many entries as there are numbers below 600, two of each.
    struct Numbered;

    impl View for Numbered {
        fn sums(&self) -> Result<Value, Refusal> {
            Ok(json!({}))
        }

        fn trouble(&self) -> Result<Option<&'static str>, Refusal> {
            Ok(None)
        }

        fn page(&self, _: List, from: u32) -> Result<Page<Value>, Refusal> {
            let numbers = from..600.min(from + PAGE_MAX as u32);
            let next = Some(numbers.end).filter(|end| *end < 600);
            let entry =
                |number: u32| [0, 1].map(|half| (number, json!({ "service": (number % 2).to_string(), "half": half })));
            Ok(Page { entries: numbers.flat_map(entry).collect(), next })
        }

        fn figures(&self, _: &mut Snapshot, _: bool) -> Result<(), Refusal> {
            Err(Refusal::NoAnswer)
        }

        fn problems(&self) -> Result<Vec<Found>, Refusal> {
            Err(Refusal::NoAnswer)
        }

        fn disconnect(&self, _: PeerId, _: &str) -> bool {
            false
        }
    }

    fn list(query: &str) -> Value {
        let query = Query::parse(query).unwrap();
        let reply = listed("workers", None, |from| Numbered.page(List::Workers, from), &query)
            .unwrap_or_else(|error| panic!("{}", error.body));
        serde_json::from_str(&reply.body).unwrap()
    }

    #[test]
    fn lists_come_in_pages_without_gaps() {
        let (seen, next) = (Cell::new(0), Cell::new(Some(0)));
        while let Some(after) = next.get() {
            let page = list(&format!("limit=300&after={after}"));
            let count = page["workers"].as_array().unwrap().len();
            assert!(count <= 301 && seen.get() <= 1200, "{count}");
            seen.set(seen.get() + count);
            next.set(page["next"].as_u64());
        }
        assert_eq!(seen.get(), 1200);
        assert_eq!(list("limit=1000&service=1")["workers"].as_array().unwrap().len(), 600);
    }

    #[test]
    fn parameters_are_checked() {
        for wrong in ["limit=0", "limit=1001", "limit=x", "after=-1", "per=peer", "color=red"] {
            assert!(Query::parse(wrong).is_err(), "{wrong}");
        }
        let parsed = Query::parse("service=a%20b&per=service&limit=7&after=9&path=c/d").unwrap();
        let expected =
            Query { limit: 7, after: 9, service: Some(named(b"a b")), per_service: true, path: Some("c/d".to_owned()) };
        assert_eq!(parsed, expected);
    }
}
