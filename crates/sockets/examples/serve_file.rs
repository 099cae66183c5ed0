//! The smallest file server: every message of two frames, offset and size, is answered with that piece of one file.
//!
//! `cargo run --release -p towpath-sockets --example serve_file -- FILE tcp://127.0.0.1:5571`

use std::sync::Arc;
use towpath_sockets::{Event, FileRange, Hub, HubOptions, Message, SendError, SocketType};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(path), Some(endpoint)) = (arguments.next(), arguments.next()) else {
        return Err("usage: serve_file FILE ENDPOINT".into());
    };
    let file = Arc::new(std::fs::File::open(path)?);
    let size = file.metadata()?.len();
    let mut hub = Hub::new(HubOptions::new(SocketType::Router))?;
    println!("serving on {}", hub.bind(&endpoint.parse()?)?);
    loop {
        hub.poll(None)?;
        while let Some(event) = hub.next_event() {
            let Event::Message { peer, frames, .. } = event else { continue };
            let number = |index: usize| std::str::from_utf8(frames.get(index)?).ok()?.parse::<u64>().ok();
            let (Some(offset), Some(length)) = (number(0), number(1)) else {
                hub.disconnect(peer, "send an offset and a size");
                continue;
            };
            let length = length.min(size.saturating_sub(offset));
            let piece = Message::new().with(FileRange::new(file.clone(), offset, length).close_if_short());
            match hub.send(peer, piece) {
                Ok(()) | Err(SendError::Gone(_)) => {}
                Err(SendError::Full(_)) => hub.disconnect(peer, "too many requests ahead"),
            }
        }
    }
}
