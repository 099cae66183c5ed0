//! What an operator asks of a standby and is about the whole cell: the leader answers, and writes it down.

use super::Shared;
use super::api::{self, Reply};
use super::operator::Operator;
use super::server;
use bytes::Bytes;
use hyper::http::request::Parts;
use hyper::{Request, StatusCode};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::{Arc, Weak};
use towpath_blocking::CancelToken;
use towpath_broker::QuestionHandler;

/// Version of questions and answers.
const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Question {
    version: u32,
    method: String,
    path: String,
    body: String,
    /// The operator, by name.
    operator: String,
    /// Where the operator asked.
    address: String,
}

#[derive(Serialize, Deserialize)]
struct Answer<'a> {
    version: u32,
    status: u16,
    content_type: Cow<'a, str>,
    body: Cow<'a, str>,
}

/// The leader's reply, if this broker is a standby and the request is about the cell.
pub async fn ask(shared: &Shared, operator: &Operator, address: &str, head: &Parts, body: &[u8]) -> Option<Reply> {
    let running = shared.running.get()?;
    let questions = running.view.questions().filter(|questions| !questions.leads())?;
    if !api::is_of_cell(&head.method, head.uri.path()) {
        return None;
    }
    let question = Question {
        version: VERSION,
        method: head.method.to_string(),
        path: head.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
        body: String::from_utf8_lossy(body).into_owned(),
        operator: operator.name.clone(),
        address: match running.endpoints.first() {
            Some(endpoint) => format!("{address} at {endpoint}"),
            None => address.to_owned(),
        },
    };
    let question = serde_json::to_vec(&question).unwrap_or_default();
    let answer = tokio::task::spawn_blocking(move || questions.ask(question)).await;
    Some(match answer.unwrap_or_else(|_| Err("this question fails".to_owned())) {
        Ok(answer) => reply_of(&answer),
        Err(why) => Reply::error(503, why),
    })
}

fn reply_of(answer: &[u8]) -> Reply {
    let answer: Result<Answer<'_>, _> = serde_json::from_slice(answer);
    let known = answer.ok().filter(|answer| answer.version == VERSION);
    let status = known.as_ref().and_then(|answer| StatusCode::from_u16(answer.status).ok());
    let (Some(answer), Some(status)) = (known, status) else {
        return Reply::error(502, "the leader is another version of tow: give the command there");
    };
    let content_type = if answer.content_type.starts_with("application/json") {
        "application/json"
    } else {
        "text/plain; charset=utf-8"
    };
    Reply { status, content_type, body: answer.body.into_owned() }
}

/// Answers questions of standbys while this broker leads.
pub fn handler(shared: &Arc<Shared>) -> QuestionHandler {
    let shared = Arc::downgrade(shared);
    Arc::new(move |question| {
        let shared = shared.clone();
        Box::pin(async move {
            let reply = answer(&shared, &question).await;
            let (status, body) = (reply.status.as_u16(), reply.body.into());
            let answer = Answer { version: VERSION, status, content_type: reply.content_type.into(), body };
            serde_json::to_vec(&answer).unwrap_or_default()
        })
    })
}

async fn answer(shared: &Weak<Shared>, question: &[u8]) -> Reply {
    let question: Option<Question> = serde_json::from_slice(question).ok();
    let Some(question) = question.filter(|question| question.version == VERSION) else {
        return Reply::error(400, "the leader is another version of tow: give the command there");
    };
    let head = Request::builder().method(&*question.method).uri(&*question.path).body(());
    let Ok((head, ())) = head.map(Request::into_parts) else { return Reply::error(400, "this isn't a request") };
    let Some(shared) = shared.upgrade() else { return Reply::error(503, "the leader ends") };
    if !api::is_of_cell(&head.method, head.uri.path()) {
        return Reply::error(403, "this isn't about the cell: ask the broker that it is about");
    }
    // The standby has checked what this operator may do.
    let operator = Operator { name: question.operator, read_only: false, is_local: false };
    let body = Bytes::from(question.body);
    server::ask_here(shared, operator, question.address, head, body, CancelToken::new()).await
}
