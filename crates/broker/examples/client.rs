//! Asks a service ten things at once: `cargo run -p towpath-broker --example client -- tcp://127.0.0.1:5555 upper`

use towpath_broker::client::{CallOptions, Client, ClientOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [_, endpoint, service] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: client ENDPOINT SERVICE".into());
    };
    let client = Client::connect(&[endpoint.parse()?], ClientOptions::default())?;

    let reply = client.call(service, "one thing, and its reply").await?;
    println!("{}", String::from_utf8_lossy(reply.body.single().unwrap_or_default()));

    for n in 1..=10 {
        client.send(service, format!("thing {n}"), CallOptions::default()).await?;
    }
    for _ in 1..=10 {
        let Some(outcome) = client.receive().await else { break };
        let text = String::from_utf8_lossy(outcome.body.single().unwrap_or_default()).into_owned();
        println!("{}: {}: {text}", outcome.number, outcome.status);
    }
    client.close().await;
    Ok(())
}
