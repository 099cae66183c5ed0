//! Serves a directory or a file: `cargo run -p towpath-files --example serve -- DIRECTORY tcp://127.0.0.1:5571`

use std::error::Error;
use towpath_files::server::{Server, ServerOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let [_, path, endpoint] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: serve PATH ENDPOINT".into());
    };
    let server = Server::bind(ServerOptions::new(path).listen(endpoint.parse()?))?;
    println!("serving {path} on {}", server.endpoints()[0]);
    // `server.handle().shutdown()` ends `run` from another thread.
    server.run()?;
    Ok(())
}
