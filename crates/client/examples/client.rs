//! Asks a service ten things at once: `cargo run -p towpath-client --example client -- tcp://127.0.0.1:5555 upper`

use std::error::Error;
use towpath_client::Body;
use towpath_client::client::{CallOptions, Client, ClientOptions};

/// Bytes of a reply that there is memory for.
const REPLY_BYTES_MAX: usize = 64 * 1024 * 1024;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let [_, endpoint, service] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: client ENDPOINT SERVICE".into());
    };
    let client = Client::connect(&[endpoint.parse()?], ClientOptions::default())?;

    let reply = client.call(service, "one thing, and its reply").await?;
    println!("{}", text(reply.body).await?);

    for n in 1..=10 {
        client.send(service, format!("thing {n}"), CallOptions::default()).await?;
    }
    for _ in 1..=10 {
        let Some(outcome) = client.receive().await else { break };
        println!("{}: {}: {}", outcome.number, outcome.status, text(outcome.body).await?);
    }
    client.close().await;
    Ok(())
}

/// A large reply is in a file, which is for a thread that may wait for the disk.
async fn text(body: Body) -> Result<String, Box<dyn Error>> {
    let bytes = tokio::task::spawn_blocking(move || body.to_vec_limited(REPLY_BYTES_MAX)).await??;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
