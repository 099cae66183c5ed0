//! The examples do what they say.
#![allow(clippy::unwrap_used, missing_docs, reason = "a test says what it expects by unwrapping")]

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;
use towpath_broker::server::{Broker, BrokerOptions};
use towpath_client::client::{Client, ClientOptions};
use towpath_client::worker::{Worker, WorkerOptions};
use towpath_requests::Body;

/// Cargo puts them beside the tests; it has built them, unless this test alone was asked for.
fn example(name: &str) -> Command {
    let tests = std::env::current_exe().unwrap();
    let path: PathBuf = tests.parent().and_then(|deps| deps.parent()).unwrap().join("examples").join(name);
    if !path.exists() {
        let mut build = Command::new(env!("CARGO"));
        let built = build.args(["build", "--quiet", "--package", "towpath-client", "--examples"]);
        assert!(built.status().unwrap().success());
    }
    Command::new(path)
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_client_and_a_worker_of_a_few_lines() {
    let mut options = BrokerOptions::new(vec!["tcp://127.0.0.1:0".parse().unwrap()]);
    options.grace = Duration::from_millis(100);
    let broker = Broker::bind(options).unwrap();
    let (endpoint, stop) = (broker.endpoints()[0].to_string(), broker.handle());
    let running = std::thread::spawn(move || broker.run().unwrap());
    let _worker = Killed(example("worker").args([&endpoint, "upper"]).spawn().unwrap());
    let output = example("client").args([&endpoint, "upper"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.remove(0), "ONE THING, AND ITS REPLY");
    lines.sort_by_key(|line| line.len());
    assert_eq!(lines.len(), 10);
    assert!(lines.contains(&"11: 200 done: THING 10"), "{lines:?}");
    large_bodies(&endpoint);
    stop.shutdown();
    running.join().unwrap();
}

/// Bodies in files are converted to text like those in memory.
fn large_bodies(endpoint: &str) {
    let large = || vec![b'x'; 2 << 20];
    let here = [endpoint.parse().unwrap()];
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&here, ClientOptions::default()).unwrap();
        let reply = client.call("upper", large()).await.unwrap().body;
        assert!(reply.to_vec_limited(2 << 20).unwrap() == large().to_ascii_uppercase());
    });
    let _entered = runtime.enter();
    let _worker = Worker::at_once(&here, "large", WorkerOptions::default(), move |_| Body::from(large())).unwrap();
    let output = example("client").args([endpoint, "large"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'x').count(), 11 * large().len());
}
