//! A client and a worker of JetStream, a message a request: as many as possible at a time, by its wire protocol.
//!
//! Prints a report as the other clients do. With `--requests 0` only the stream and the consumer are made.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Parser;
use futures_util::StreamExt;

/// Messages that the worker fetches at a time.
const BATCH: usize = 500;
const STREAM: &str = "bench";
const SUBJECT: &str = "bench.requests";

#[derive(Parser)]
struct Options {
    #[arg(long)]
    url: String,
    #[arg(long)]
    requests: usize,
    #[arg(long)]
    ahead: usize,
    #[arg(long)]
    size: usize,
}

async fn api(client: &async_nats::Client, subject: String, body: String) -> Result<()> {
    let answer = client.request(subject, body.into()).await?;
    let answer: serde_json::Value = serde_json::from_slice(&answer.payload)?;
    if answer["error"].is_object() {
        bail!("{}", answer["error"]);
    }
    Ok(())
}

async fn make(client: &async_nats::Client) -> Result<()> {
    let config = r#"{"name":"bench","subjects":["bench.requests"],"storage":"file","num_replicas":3,"retention":"limits","discard":"new","max_bytes":1000000000}"#;
    api(client, format!("$JS.API.STREAM.CREATE.{STREAM}"), config.to_owned()).await?;
    let config =
        r#"{"stream_name":"bench","config":{"durable_name":"worker","ack_policy":"explicit","max_ack_pending":20000}}"#;
    api(client, format!("$JS.API.CONSUMER.CREATE.{STREAM}.worker"), config.to_owned()).await
}

/// Fetches, answers and acknowledges.
async fn work(client: async_nats::Client, requests: usize) -> Result<()> {
    let inbox = client.new_inbox();
    let mut messages = client.subscribe(inbox.clone()).await?;
    let next = format!("$JS.API.CONSUMER.MSG.NEXT.{STREAM}.worker");
    let fetch = || client.publish_with_reply(next.clone(), inbox.clone(), format!("{{\"batch\":{BATCH}}}").into());
    // Two, so that one is there when the other has ended.
    fetch().await?;
    fetch().await?;
    for done in 1..=requests {
        let message = messages.next().await.context("the connection is closed")?;
        let ack = message.reply.context("no acknowledgement is wanted")?;
        client.publish("bench.replies", message.payload).await?;
        client.publish(ack, Bytes::from_static(b"+ACK")).await?;
        if done % BATCH == 0 {
            fetch().await?;
        }
    }
    client.flush().await?;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let options = Options::parse();
    let urls: Vec<&str> = options.url.split(',').collect();
    let client = async_nats::connect(urls.clone()).await?;
    if options.requests == 0 {
        return make(&client).await;
    }
    let worker = tokio::spawn(work(async_nats::connect(urls).await?, options.requests));
    let mut replies = client.subscribe("bench.replies").await?;
    let mut acks = client.subscribe("bench.acks").await?;
    client.flush().await?;
    let begin = Instant::now();
    let mut sent_at = Vec::with_capacity(options.requests);
    let (mut answered, mut confirmed) = (0, 0);
    let mut times = Vec::with_capacity(options.requests);
    while answered < options.requests || confirmed < options.requests {
        while sent_at.len() < options.requests && sent_at.len() - answered.min(confirmed) < options.ahead {
            // All differ, as those of `tow call --count` do.
            let mut random = sent_at.len() as u64 | 1 << 63;
            let mut body = vec![0; options.size.max(8)];
            for word in body.chunks_mut(8) {
                random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ random >> 29;
                word.copy_from_slice(&random.to_le_bytes()[..word.len()]);
            }
            body[..8].copy_from_slice(&(sent_at.len() as u64).to_le_bytes());
            client.publish_with_reply(SUBJECT, "bench.acks", body.into()).await?;
            sent_at.push(Instant::now());
        }
        tokio::select! {
            reply = replies.next() => {
                let reply = reply.context("the connection is closed")?;
                let number = u64::from_le_bytes(*reply.payload.first_chunk().context("a short reply")?);
                times.push(sent_at.get(number as usize).context("a reply to nothing")?.elapsed());
                answered += 1;
            }
            ack = acks.next() => {
                let ack = ack.context("the connection is closed")?;
                if ack.payload.windows(7).any(|word| word == b"\"error\"") {
                    bail!("not stored: {}", String::from_utf8_lossy(&ack.payload));
                }
                confirmed += 1;
            }
            () = tokio::time::sleep(Duration::from_secs(30)) => bail!("nothing comes: {answered} answers"),
        }
    }
    let seconds = begin.elapsed().as_secs_f64();
    worker.await??;
    times.sort_unstable();
    let at = |part: usize| times.get(times.len() * part / 100).map_or(0.0, |time| time.as_secs_f64() * 1e6);
    println!(
        "{{\"requests\":{answered},\"replies\":{answered},\"seconds\":{seconds},\"p50_us\":{},\"p99_us\":{}}}",
        at(50),
        at(99)
    );
    Ok(())
}
