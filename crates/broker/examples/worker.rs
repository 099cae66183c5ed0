//! Makes text upper case, four requests at a time: `cargo run -p towpath-broker --example worker -- tcp://127.0.0.1:5555 upper`

use towpath_broker::Body;
use towpath_broker::worker::{Worker, WorkerOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [_, endpoint, service] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: worker ENDPOINT SERVICE".into());
    };
    let options = WorkerOptions { credit: 4, ..WorkerOptions::default() };
    let worker = Worker::connect(&[endpoint.parse()?], service, options)?;
    worker
        .run(|request| async move {
            let text = request.body().single().ok_or("one frame, please")?;
            Ok(Body::from(text.to_ascii_uppercase()))
        })
        .await;
    Ok(())
}
