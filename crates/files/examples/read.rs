//! Reads a part of a file, verified, and fetches little more than that:
//! `cargo run -p towpath-files --example read -- tcp://127.0.0.1:5571 PATH OFFSET COUNT`

use std::error::Error;
use std::io::{Read, Seek, SeekFrom};
use towpath_files::client::{ConnectOptions, FileClient};
use towpath_files::path::RelPath;

fn main() -> Result<(), Box<dyn Error>> {
    let [_, endpoint, path, offset, count] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: read ENDPOINT PATH OFFSET COUNT".into());
    };
    let client = FileClient::connect(ConnectOptions::new(endpoint.parse()?))?;
    let mut file = client.open(&RelPath::new(path.as_str())?)?;
    eprintln!("{} bytes, {}", file.len(), file.digest());
    file.seek(SeekFrom::Start(offset.parse()?))?;
    std::io::copy(&mut file.take(count.parse()?), &mut std::io::stdout())?;
    Ok(())
}
