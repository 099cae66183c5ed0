//! Lists a directory and all below it:
//! `cargo run -p towpath-files --example list -- tcp://127.0.0.1:5571 PATH`

use std::error::Error;
use towpath_files::client::{ConnectOptions, FileClient, ListOptions, Source};
use towpath_files::path::{Escaped, RelPath};

fn main() -> Result<(), Box<dyn Error>> {
    let [_, endpoint, path] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: list ENDPOINT PATH".into());
    };
    let client = FileClient::connect(ConnectOptions::new(endpoint.parse()?))?;
    let mut options = ListOptions::new(Source::Path(RelPath::new(path.as_str())?));
    options.recursive = true;
    for entry in client.list(options)? {
        let entry = entry?;
        // A server may put anything into a name.
        println!("{:>12} {}", entry.size, Escaped(entry.path.as_bytes()));
    }
    Ok(())
}
