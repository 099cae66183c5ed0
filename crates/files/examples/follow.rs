//! Keeps a copy of a directory up to date, until it is killed; with --once only until it is:
//! `cargo run -p towpath-files --example follow -- tcp://127.0.0.1:5571 PATH DESTINATION [--once]`

use std::error::Error;
use towpath_files::client::follow::{FollowEvent, FollowOptions};
use towpath_files::client::{ConnectOptions, FileClient, Source};
use towpath_files::path::RelPath;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = std::env::args().collect::<Vec<_>>();
    let [_, endpoint, path, destination, once @ ..] = &arguments[..] else {
        return Err("usage: follow ENDPOINT PATH DESTINATION [--once]".into());
    };
    let client = FileClient::connect(ConnectOptions::new(endpoint.parse()?))?;
    let mut options = FollowOptions::new(Source::Path(RelPath::new(path.as_str())?), destination.into());
    options.once = !once.is_empty();
    options.mirror = true;
    for event in client.follow(options)? {
        match event? {
            FollowEvent::Put { path, is_new: true, .. } => println!("new {path}"),
            FollowEvent::Put { path, .. } => println!("changed {path}"),
            FollowEvent::Gone { path, .. } => println!("gone {path}"),
            FollowEvent::Renamed { from, to, .. } => println!("renamed {from} to {to}"),
            FollowEvent::UpToDate { seq } => println!("up to date at {seq}"),
            other => eprintln!("{other:?}"),
        }
    }
    Ok(())
}
