//! Makes text upper case, four requests at a time: `cargo run -p towpath-client --example worker -- tcp://127.0.0.1:5555 upper`

use towpath_client::Body;
use towpath_client::worker::{Worker, WorkerOptions};

/// Bytes of a text that there is memory for, four times over.
const TEXT_BYTES_MAX: usize = 64 * 1024 * 1024;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let [_, endpoint, service] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: worker ENDPOINT SERVICE".into());
    };
    let options = WorkerOptions { credit: 4, ..WorkerOptions::default() };
    let worker = Worker::connect(&[endpoint.parse()?], service, options)?;
    worker
        .run(|request| async move {
            let body = request.body().clone();
            // A large one is in a file, which is for a thread that may wait for the disk.
            let work = move || body.to_vec_limited(TEXT_BYTES_MAX).map(|text| Body::from(text.to_ascii_uppercase()));
            let worked = tokio::task::spawn_blocking(work).await.map_err(|error| error.to_string())?;
            worked.map_err(|error| error.to_string())
        })
        .await;
    Ok(())
}
