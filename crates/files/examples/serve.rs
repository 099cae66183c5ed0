//! Serves a directory to those who list, get and follow it, and takes files that are pushed below its directory `in`, if there is one:
//! `cargo run -p towpath-files --example serve -- DIRECTORY tcp://127.0.0.1:5571`

use std::error::Error;
use std::path::Path;
use towpath_files::path::RelPath;
use towpath_files::server::{PushOptions, Server, ServerOptions, WatchOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let [_, path, endpoint] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: serve DIRECTORY ENDPOINT".into());
    };
    let mut options = ServerOptions::new(path).listen(endpoint.parse()?);
    options.watch = Some(WatchOptions::default());
    if Path::new(path).join("in").is_dir() {
        options.push = Some(PushOptions::new(RelPath::new("in")?));
    }
    let server = Server::bind(options)?;
    println!("serving {path} on {}", server.endpoints()[0]);
    // `server.handle().shutdown()` ends `run` from another thread.
    server.run()?;
    Ok(())
}
