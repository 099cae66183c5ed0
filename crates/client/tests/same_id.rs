//! Two clients that say they are the same one, as where a program with its state was copied.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test says what it expects by unwrapping")]

use std::time::{Duration, Instant};

use towpath_broker::server::{Broker, BrokerOptions};
use towpath_client::client::{CallOptions, Client, ClientOptions};
use towpath_requests::numbered::ClientId;

/// How often either may end the other one's connection until it is seen how often they do.
const TAKEN_OVER: u64 = 12;

/// One of them has come back for the sixth time then, after waits of 20 ms and twice as long each time, or half of that.
const AT_LEAST: Duration = Duration::from_millis(10 * (1 + 2 + 4 + 8 + 16 + 32));

#[test]
fn clients_of_one_id_come_back_more_and_more_slowly() {
    let broker = Broker::bind(BrokerOptions::new(vec!["tcp://127.0.0.1:0".parse().unwrap()])).unwrap();
    let (endpoint, stop) = (broker.endpoints()[0].clone(), broker.handle());
    let thread = std::thread::spawn(move || broker.run().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let start = Instant::now();
        let clients = [1, 2].map(|_| {
            let client =
                Client::connect_as(ClientId([7; 16]), std::slice::from_ref(&endpoint), ClientOptions::default())
                    .unwrap();
            // Sent again on each connection.
            client.try_send("nobody", "waits", CallOptions::default()).unwrap();
            client
        });
        while clients.iter().map(|client| client.status().counters.resent).sum::<u64>() < TAKEN_OVER {
            assert!(start.elapsed() < Duration::from_secs(60), "{:?}", clients.map(|client| client.status()));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(start.elapsed() >= AT_LEAST, "{:?}", start.elapsed());
    });
    stop.shutdown_now();
    thread.join().unwrap();
}
