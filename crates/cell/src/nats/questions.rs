//! The road of operators' questions from a standby to the leader: requests on a subject of the cell, which all members get and the leader answers.

use super::shared::Shared;
use crate::questions::Handler;
use async_nats::{Client, Message, Request};
use bytes::Bytes;
use futures_util::StreamExt;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc};

/// Time for an answer. An operator's command waits longer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Between two looks whether the leader is still there.
const LOOK: Duration = Duration::from_millis(200);
/// Questions of this broker that wait to be sent.
const ASKS_MAX: usize = 16;
/// Questions of others that are answered at a time, and that wait for that.
const ANSWERS_MAX: usize = 4;
const WAITING_MAX: usize = 32;

/// Asks the leader, and answers while this broker leads.
#[derive(Clone)]
pub struct Questions(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    asks: mpsc::Sender<Ask>,
    handler: OnceLock<Handler>,
}

/// A question on its way.
pub(super) struct Ask {
    question: Bytes,
    done: SyncSender<Result<Vec<u8>, String>>,
}

impl std::fmt::Debug for Questions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Questions").finish_non_exhaustive()
    }
}

impl Questions {
    pub(super) fn new(shared: Arc<Shared>) -> (Questions, mpsc::Receiver<Ask>) {
        let (asks, receiver) = mpsc::channel(ASKS_MAX);
        (Questions(Arc::new(Inner { shared, asks, handler: OnceLock::new() })), receiver)
    }

    /// Whether this broker leads.
    pub fn leads(&self) -> bool {
        self.0.shared.leads()
    }

    /// Answers so while this broker leads. Only the first call counts.
    pub fn answer_with(&self, handler: Handler) {
        let _ = self.0.handler.set(handler);
    }

    /// Asks the leader, and waits. The error says why there is no answer, and whether something may have been done.
    pub fn ask(&self, question: Vec<u8>) -> Result<Vec<u8>, String> {
        let leader =
            || self.0.shared.figures().leading().map(|member| (member.broker.clone(), member.endpoint.clone()));
        let Some(first) = leader() else { return Err("nobody leads the cell now: nothing was done".to_owned()) };
        let (done, answer) = sync_channel(1);
        let ask = Ask { question: question.into(), done };
        self.0.asks.try_send(ask).map_err(|_| "too much waits for the leader: nothing was done".to_owned())?;
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        loop {
            match answer.recv_timeout(LOOK) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline => {
                    return Err(format!(
                        "{}, which leads the cell, doesn't answer; it may be done all the same",
                        first.1
                    ));
                }
                Err(RecvTimeoutError::Timeout) if leader().is_some_and(|now| now.0 == first.0) => {}
                Err(_) => {
                    return Err(format!(
                        "{} leads the cell no more, and hasn't answered; it may be done all the same",
                        first.1
                    ));
                }
            }
        }
    }
}

/// Asks and answers, for as long as the connection is there.
pub(super) async fn run(client: Client, cell: String, questions: Questions, mut asks: mpsc::Receiver<Ask>) {
    let subject = format!("tow.cell.{cell}.operator");
    let Ok(mut asked) = client.subscribe(subject.clone()).await else { return };
    let (turns, waiting) = (Arc::new(Semaphore::new(ANSWERS_MAX)), Arc::new(Semaphore::new(WAITING_MAX)));
    loop {
        tokio::select! {
            question = asked.next() => {
                let Some(question) = question else { return };
                if !questions.leads() {
                    continue;
                }
                // Who gets no answer asks again.
                let Ok(waits) = waiting.clone().try_acquire_owned() else { continue };
                let answer = answer(client.clone(), questions.clone(), turns.clone(), question);
                tokio::spawn(async move {
                    let _waits = waits;
                    answer.await;
                });
            }
            ask = asks.recv() => {
                let Some(Ask { question, done }) = ask else { return };
                let (client, subject) = (client.clone(), subject.clone());
                tokio::spawn(async move {
                    // The caller may have given up.
                    let _ = done.send(send(&client, subject, question).await);
                });
            }
        }
    }
}

async fn send(client: &Client, subject: String, question: Bytes) -> Result<Vec<u8>, String> {
    let most = client.server_info().max_payload;
    if question.len() > most {
        return Err(format!("the question has over {most} bytes, more than NATS takes: nothing was done"));
    }
    let request = Request::new().payload(question).timeout(Some(ANSWER_TIMEOUT));
    let answer = client.send_request(subject, request).await;
    let answer = answer.map_err(|error| format!("no answer of the leader: {error}; it may be done all the same"))?;
    // The leader's way to say that.
    match answer.payload.is_empty() {
        true => Err(format!(
            "the leader's answer has over {most} bytes, more than NATS takes; use limit, or ask the leader"
        )),
        false => Ok(answer.payload.to_vec()),
    }
}

async fn answer(client: Client, questions: Questions, turns: Arc<Semaphore>, question: Message) {
    let (Some(reply), Some(handler)) = (question.reply, questions.0.handler.get()) else { return };
    let Ok(_turn) = turns.acquire_owned().await else { return };
    let answer = handler(question.payload.to_vec()).await;
    let fits = answer.len() <= client.server_info().max_payload;
    let _ = client.publish(reply, if fits { answer.into() } else { Bytes::new() }).await;
}
