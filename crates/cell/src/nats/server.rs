//! Requests to NATS: one connection, and the stream of one cell.

use super::{NatsError, NatsOptions};
use crate::block::{MESSAGE_BYTES_MAX, MESSAGE_BYTES_MIN};
use crate::figures::StreamState;
use crate::member::Published;
use async_nats::{Client, ConnectOptions, Event, HeaderMap, Request, ServerAddr, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::time::Duration;

/// The oldest NATS with which cells work.
const NATS_MIN: (u32, u32) = (2, 14);
/// Time for the first connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which an answer is taken for lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two attempts to connect again.
const RECONNECT: Duration = Duration::from_millis(250);
/// Headers of a message, which count towards its size.
const HEADERS_BYTES: usize = 1024;
/// Messages and bytes that one read asks for.
const READ_MESSAGES: usize = 256;
const READ_BYTES: usize = 4 * 1024 * 1024;

/// Codes of JetStream: the expected sequence number isn't the last one; the same without the number, which needn't be so.
const WRONG_LAST: u64 = 10071;
const WRONG_LAST_PERHAPS: u64 = 10164;
const NO_STREAM: u64 = 10059;

/// A connection, and the names of the cell.
pub(super) struct Server {
    client: Client,
    subject: String,
    stream: String,
    /// Where answers to reads arrive.
    inbox: String,
    answers: Subscriber,
    reads: u64,
    /// Messages behind the last one that was read.
    behind: u64,
}

impl Server {
    /// Connects, and checks that this NATS can have a cell's log.
    pub async fn connect(options: &NatsOptions) -> Result<Server, NatsError> {
        let servers: Vec<ServerAddr> = options
            .servers
            .iter()
            .map(|server| server.parse())
            .collect::<Result<_, _>>()
            .map_err(|error: std::io::Error| NatsError::Address(error.to_string()))?;
        let mut connecting = ConnectOptions::new().name(format!("tow cell {}", options.cell));
        connecting = connecting.connection_timeout(CONNECT_TIMEOUT).reconnect_delay_callback(|_| RECONNECT);
        // The library leaves that to its user. It is the same for all servers.
        match servers.iter().find_map(|server| Some((server.username()?, server.password()))) {
            Some((user, Some(password))) => {
                connecting = connecting.user_and_password(user.to_owned(), password.to_owned());
            }
            Some((token, None)) => connecting = connecting.token(token.to_owned()),
            None => {}
        }
        if let Some(path) = &options.credentials {
            let error = |error| NatsError::File { path: path.clone(), error };
            connecting = connecting.credentials_file(path).await.map_err(error)?;
        }
        if let Some(path) = &options.ca {
            connecting = connecting.add_root_certificates(path.clone()).require_tls(true);
        }
        if let Some((certificate, key)) = &options.certificate {
            connecting = connecting.add_client_certificate(certificate.clone(), key.clone()).require_tls(true);
        }
        let at = options.addresses();
        let shown = at.clone();
        let connecting = connecting.event_callback(move |event| {
            match event {
                Event::Disconnected => tracing::warn!(at = shown, "the connection to NATS is lost; connecting again"),
                Event::Connected => tracing::info!(at = shown, "connected to NATS"),
                event => tracing::warn!(at = shown, "NATS: {event}"),
            }
            std::future::ready(())
        });
        let connected = tokio::time::timeout(2 * CONNECT_TIMEOUT, connecting.connect(servers)).await;
        let client = match connected {
            Err(_) => return Err(NatsError::Connect { at, why: "no answer".to_owned() }),
            Ok(Err(error)) => return Err(NatsError::Connect { at, why: error.to_string() }),
            Ok(Ok(client)) => client,
        };
        let info = client.server_info();
        if version(&info.version).is_none_or(|found| found < NATS_MIN) {
            return Err(NatsError::TooOld(info.version));
        }
        if info.max_payload < MESSAGE_BYTES_MIN + HEADERS_BYTES {
            return Err(NatsError::SmallPayload(info.max_payload));
        }
        let inbox = client.new_inbox();
        let answers = client.subscribe(format!("{inbox}.*")).await;
        let answers = answers.map_err(|error| NatsError::Connect { at, why: error.to_string() })?;
        let (subject, stream) = (format!("tow.cell.{}", options.cell), format!("TOW_{}", options.cell));
        Ok(Server { client, subject, stream, inbox, answers, reads: 0, behind: 0 })
    }

    /// The connection.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Accounts of the cell's members.
    pub async fn accounts(&self, cell: &str) -> Result<Subscriber, NatsError> {
        let accounts = self.client.subscribe(super::beside::subject(cell)).await;
        accounts.map_err(|error| NatsError::NoAnswer(error.to_string()))
    }

    /// Messages behind the last one that was read, as they were then.
    pub fn behind(&self) -> u64 {
        self.behind
    }

    /// Largest message of the log.
    pub fn message_bytes_max(&self) -> usize {
        (self.client.server_info().max_payload - HEADERS_BYTES).min(MESSAGE_BYTES_MAX)
    }

    /// Appends a message if `expected` is the sequence number of the last one.
    pub async fn publish(&self, message: Bytes, expected: u64) -> Published {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Expected-Last-Subject-Sequence", expected.to_string().as_str());
        headers.insert("Nats-Expected-Stream", self.stream.as_str());
        let request = Request::new().headers(headers).payload(message).timeout(Some(ANSWER_TIMEOUT));
        let answer = match self.client.send_request(self.subject.clone(), request).await {
            Ok(answer) => serde_json::from_slice::<Value>(&answer.payload).unwrap_or_default(),
            Err(error) => return Published::Unknown(format!("NATS: {error}")),
        };
        if let Some(error) = answer.get("error") {
            let description = error["description"].as_str().unwrap_or("an error without a name");
            return match error["err_code"].as_u64() {
                Some(WRONG_LAST) => {
                    Published::Refused(description.rsplit(' ').next().and_then(|last| last.parse().ok()))
                }
                Some(WRONG_LAST_PERHAPS) => Published::Refused(None),
                _ => Published::Unknown(format!("NATS: {}", printable(description))),
            };
        }
        match (answer["stream"].as_str(), answer["seq"].as_u64()) {
            (Some(stream), Some(sequence)) if stream == self.stream => Published::Taken(sequence),
            _ => Published::Unknown("NATS: an answer that can't be understood".to_owned()),
        }
    }

    /// Reads the first messages behind this sequence number.
    pub async fn read(&mut self, after: u64) -> Result<Vec<(u64, Bytes)>, String> {
        self.reads += 1;
        let reply = format!("{}.{}", self.inbox, self.reads);
        let request = json!({
            "seq": after + 1, "next_by_subj": self.subject, "batch": READ_MESSAGES, "max_bytes": READ_BYTES,
        });
        let subject = format!("$JS.API.DIRECT.GET.{}", self.stream);
        let sent = self.client.publish_with_reply(subject, reply.clone(), request.to_string().into()).await;
        sent.map_err(|error| format!("NATS: {error}"))?;
        let mut messages = Vec::new();
        let deadline = tokio::time::Instant::now() + ANSWER_TIMEOUT;
        loop {
            let answer = match tokio::time::timeout_at(deadline, self.answers.next()).await {
                Ok(Some(answer)) => answer,
                Ok(None) => return Err("NATS: the connection is closed".to_owned()),
                // What has come is the beginning of what was asked for.
                Err(_) if !messages.is_empty() => return Ok(messages),
                Err(_) => return Err("NATS doesn't answer".to_owned()),
            };
            if answer.subject.as_str() != reply {
                continue;
            }
            match answer.status.map(|status| status.as_u16()) {
                None | Some(200) => {}
                Some(204 | 404) => {
                    if messages.is_empty() {
                        self.behind = 0;
                    }
                    return Ok(messages);
                }
                Some(503) => return Err("NATS: nobody has the stream, or it has no quorum".to_owned()),
                Some(status) => {
                    let description = answer.description.as_deref().unwrap_or_default();
                    return Err(format!("NATS: {status} {}", printable(description)));
                }
            }
            let header = |name: &str| answer.headers.as_ref().and_then(|headers| headers.get(name));
            let sequence = header("Nats-Sequence").and_then(|value| value.as_str().parse().ok());
            let Some(sequence) = sequence else { return Err("NATS: a message without its number".to_owned()) };
            self.behind = header("Nats-Num-Pending").and_then(|value| value.as_str().parse().ok()).unwrap_or(0);
            messages.push((sequence, answer.payload));
            if messages.len() > READ_MESSAGES {
                return Err("NATS: more messages than were asked for".to_owned());
            }
        }
    }

    /// Removes messages below this sequence number.
    pub async fn purge_below(&self, sequence: u64) -> Result<(), String> {
        let answer = self.api("STREAM.PURGE", &json!({ "seq": sequence })).await.map_err(|error| error.to_string())?;
        if answer["success"].as_bool() == Some(true) { Ok(()) } else { Err("NATS: the purge wasn't done".to_owned()) }
    }

    /// The stream's state. `None`: there is none.
    pub async fn state(&self, replicas: u64) -> Result<Option<StreamState>, NatsError> {
        match self.api("STREAM.INFO", &json!({})).await {
            Ok(info) => Ok(Some(state_of(&self.stream, &self.subject, &info, replicas))),
            Err(NatsError::Refused { code: NO_STREAM, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes the stream.
    pub async fn create(&self, replicas: u64, bytes_max: u64) -> Result<(), NatsError> {
        let config = json!({
            "name": self.stream, "subjects": [self.subject], "description": "log of a cell of Towpath brokers",
            "storage": "file", "num_replicas": replicas, "retention": "limits", "discard": "new",
            "max_bytes": bytes_max, "max_msgs": -1, "max_msgs_per_subject": -1, "max_age": 0, "max_msg_size": -1,
            "max_consumers": -1, "allow_direct": true, "deny_delete": true, "deny_purge": false,
        });
        self.api("STREAM.CREATE", &config).await.map(|_| ())
    }

    async fn api(&self, verb: &str, body: &Value) -> Result<Value, NatsError> {
        let request = Request::new().payload(body.to_string().into()).timeout(Some(2 * ANSWER_TIMEOUT));
        let subject = format!("$JS.API.{verb}.{}", self.stream);
        let answer = match self.client.send_request(subject, request).await {
            Ok(answer) => answer,
            Err(error) => return Err(NatsError::NoAnswer(error.to_string())),
        };
        let answer: Value = serde_json::from_slice(&answer.payload).unwrap_or_default();
        match answer.get("error") {
            None if answer.is_object() => Ok(answer),
            None => Err(NatsError::NoAnswer("an answer that can't be understood".to_owned())),
            Some(error) => Err(NatsError::Refused {
                code: error["err_code"].as_u64().unwrap_or_default(),
                description: printable(error["description"].as_str().unwrap_or("an error without a name")),
            }),
        }
    }
}

/// Major and minor number.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Text of a server for a log: of a limited length, without control characters.
fn printable(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

fn state_of(stream: &str, subject: &str, info: &Value, replicas: u64) -> StreamState {
    let (config, state, cluster) = (&info["config"], &info["state"], &info["cluster"]);
    let number = |value: &Value| value.as_u64().unwrap_or_default();
    let follower = |peer: &Value| {
        let why = match (peer["offline"].as_bool(), peer["current"].as_bool()) {
            (Some(true), _) => Some("offline"),
            (_, Some(true)) => None,
            _ => Some("behind"),
        };
        (printable(peer["name"].as_str().unwrap_or("?")), why)
    };
    StreamState {
        bytes: number(&state["bytes"]),
        bytes_max: number(&config["max_bytes"]),
        messages: number(&state["messages"]),
        last: number(&state["last_seq"]),
        replicas: number(&config["num_replicas"]),
        leader: cluster["leader"].as_str().map(printable),
        followers: cluster["replicas"]
            .as_array()
            .map_or_else(Vec::new, |all| all.iter().take(16).map(follower).collect()),
        wrong: wrong_settings(stream, subject, config, replicas),
    }
}

/// Settings with which what was accepted may be lost, or nothing works.
fn wrong_settings(stream: &str, subject: &str, config: &Value, replicas: u64) -> Vec<String> {
    let anew = format!(
        "can't be changed: delete the stream when nothing in it is needed (nats stream rm {stream}), then tow queue init"
    );
    let edit = |options: &str| format!("nats stream edit {stream} {options}");
    let found = |name: &str| config.get(name).map_or("missing".to_owned(), |value| printable(&value.to_string()));
    let has = config["num_replicas"].as_u64().unwrap_or_default();
    let rules = [
        (config["storage"] == "file", "storage", "a restart of NATS loses all", anew.clone()),
        (config["retention"] == "limits", "retention", "other consumers would remove blocks", anew.clone()),
        (
            config["subjects"] == json!([subject]),
            "subjects",
            "other messages would be in the log",
            edit(&format!("--subjects {subject}")),
        ),
        (config["discard"] == "new", "discard", "a full log would drop what was accepted", edit("--discard new")),
        (
            has >= replicas,
            "num_replicas",
            "what was accepted is lost with a node's disk; --queue-replicas says how many are wanted",
            edit(&format!("--replicas {replicas}")),
        ),
        (
            config["max_age"].as_u64().unwrap_or(0) == 0,
            "max_age",
            "what was accepted would be dropped by its age",
            edit("--max-age 0"),
        ),
        (unlimited(&config["max_msgs"]), "max_msgs", "the log would be full by its messages", edit("--max-msgs=-1")),
        (
            unlimited(&config["max_msgs_per_subject"]),
            "max_msgs_per_subject",
            "what was accepted would be dropped",
            edit("--max-msgs-per-subject=-1"),
        ),
        (
            config["max_bytes"].as_i64().is_some_and(|bytes| bytes >= 1 << 20),
            "max_bytes",
            "the log would fill the disks of NATS; it is at least 1 MiB",
            edit("--max-bytes 1G"),
        ),
        (config["allow_direct"] == true, "allow_direct", "standbys can't read the log", edit("--allow-direct")),
        (config["deny_purge"] != true, "deny_purge", "the log can't be trimmed", anew.clone()),
        (config["deny_delete"] == true, "deny_delete", "single blocks could be deleted", anew.clone()),
        (
            config.get("persist_mode").is_none_or(|mode| mode == "default"),
            "persist_mode",
            "NATS would acknowledge what isn't on any disk",
            anew.clone(),
        ),
        (
            config.get("mirror").is_none_or(Value::is_null) && config.get("sources").is_none_or(Value::is_null),
            "sources",
            "the stream has messages of others",
            anew,
        ),
        (config["sealed"] != true, "sealed", "nothing can be appended", "it was sealed by somebody".to_owned()),
    ];
    let wrong = rules.into_iter().filter(|(is_right, ..)| !is_right);
    wrong.map(|(_, name, why, cure)| format!("{name} is {}: {why}; {cure}", found(name))).collect()
}

fn unlimited(value: &Value) -> bool {
    value.as_i64().is_none_or(|most| most <= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Value {
        json!({
            "name": "TOW_a", "subjects": ["tow.cell.a"], "storage": "file", "num_replicas": 3, "retention": "limits", "discard": "new",
            "max_bytes": 1 << 30, "max_msgs": -1, "max_msgs_per_subject": -1, "max_age": 0, "allow_direct": true,
            "deny_delete": true, "deny_purge": false,
        })
    }

    #[test]
    fn each_wrong_setting_is_named_with_its_cure() {
        let wrong = |config: &Value| wrong_settings("TOW_a", "tow.cell.a", config, 3);
        assert_eq!(wrong(&good()), Vec::<String>::new());
        let changes = [
            ("storage", json!("memory")),
            ("retention", json!("workqueue")),
            ("subjects", json!(["tow.>"])),
            ("discard", json!("old")),
            ("num_replicas", json!(1)),
            ("max_age", json!(1_000_000_000_u64)),
            ("max_msgs", json!(5)),
            ("max_msgs_per_subject", json!(1)),
            ("max_bytes", json!(-1)),
            ("allow_direct", json!(false)),
            ("deny_purge", json!(true)),
            ("deny_delete", json!(false)),
            ("persist_mode", json!("async")),
            ("sources", json!([{ "name": "b" }])),
            ("sealed", json!(true)),
        ];
        for (name, value) in changes {
            let mut config = good();
            config[name] = value;
            let found = wrong(&config);
            assert!(found.len() == 1 && found[0].starts_with(name), "{name}: {found:?}");
        }
    }

    #[test]
    fn versions_are_compared_by_number() {
        assert_eq!(version("2.14.0-RC.1"), Some((2, 14)));
        assert!(version("2.9.25") < Some(NATS_MIN) && version("3.0.0") > Some(NATS_MIN));
        assert_eq!(version("new"), None);
    }
}
