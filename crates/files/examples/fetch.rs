//! Fetches a file or a directory, or resumes it:
//! `cargo run -p towpath-files --example fetch -- tcp://127.0.0.1:5571 PATH DESTINATION`

use std::error::Error;
use towpath_files::client::{CancelToken, Destination, GetOptions, Source, get};
use towpath_files::path::RelPath;

fn main() -> Result<(), Box<dyn Error>> {
    let [_, endpoint, path, destination] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: fetch ENDPOINT PATH DESTINATION".into());
    };
    let mut options = GetOptions::new(endpoint.parse()?, Source::Path(RelPath::new(path.as_str())?));
    options.destination = Destination::Path(Some(destination.into()));
    let summary = get(
        options,
        &mut |progress| {
            eprint!("\r{} of {} bytes", progress.bytes_done, progress.bytes_total);
        },
        &CancelToken::new(),
    )?;
    eprintln!();
    for failure in &summary.failures {
        eprintln!("{}: {}", failure.path, failure.reason);
    }
    let (verified, skipped) = (summary.verified_files, summary.skipped);
    println!("{} files, {} bytes; {verified} verified, {skipped} already there", summary.files, summary.bytes);
    if summary.failed > 0 { Err("some files failed".into()) } else { Ok(()) }
}
