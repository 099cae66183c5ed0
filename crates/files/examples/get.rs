//! Gets a file or a directory, or resumes it:
//! `cargo run -p towpath-files --example get -- tcp://127.0.0.1:5571 PATH DESTINATION`

use std::error::Error;
use towpath_files::client::{ConnectOptions, Destination, FileClient, GetOptions, Source};
use towpath_files::path::RelPath;

fn main() -> Result<(), Box<dyn Error>> {
    let [_, endpoint, path, destination] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: get ENDPOINT PATH DESTINATION".into());
    };
    let client = FileClient::connect(ConnectOptions::new(endpoint.parse()?))?;
    let mut options = GetOptions::new(Source::Path(RelPath::new(path.as_str())?));
    options.destination = Destination::Path(Some(destination.into()));
    let summary = client.get(options, &mut |progress| {
        eprint!("\r{} of {} bytes", progress.bytes_done, progress.bytes_total);
    })?;
    eprintln!();
    for failure in &summary.failures {
        eprintln!("{}: {}", failure.path, failure.reason);
    }
    let (verified, skipped) = (summary.verified_files, summary.skipped);
    println!("{} files, {} bytes; {verified} verified, {skipped} already there", summary.files, summary.bytes);
    if summary.failed > 0 { Err("some files failed".into()) } else { Ok(()) }
}
