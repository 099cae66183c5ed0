//! The other side of `serve_file`: asks for pieces of 1 MiB, ten ahead, and takes each as a stream.
//!
//! `cargo run --release -p towpath-sockets --example fetch_file -- ENDPOINT SIZE [FILE]`

use std::io::Write;
use towpath_sockets::{Event, Hub, HubOptions, Message, SocketType};

const PIECE_BYTES: u64 = 1 << 20;
const AHEAD: u64 = 10;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(endpoint), Some(size)) = (arguments.next(), arguments.next()) else {
        return Err("usage: fetch_file ENDPOINT SIZE [FILE]".into());
    };
    let size: u64 = size.parse()?;
    let mut file = arguments.next().map(std::fs::File::create).transpose()?;
    let mut options = HubOptions::new(SocketType::Dealer);
    options.stream_over_bytes = Some(4096);
    let mut hub = Hub::new(options)?;
    hub.connect(&endpoint.parse()?)?;

    let started = std::time::Instant::now();
    let (mut asked, mut received) = (0, 0);
    let mut server = None;
    while received < size {
        hub.poll(None)?;
        while let Some(event) = hub.next_event() {
            match event {
                Event::Ready { peer } => server = Some(peer),
                Event::BodyData { data, .. } => {
                    received += data.len() as u64;
                    file.as_mut().map(|file| file.write_all(&data)).transpose()?;
                }
                Event::Message { frames, .. } => {
                    for frame in frames {
                        received += frame.len() as u64;
                        file.as_mut().map(|file| file.write_all(&frame)).transpose()?;
                    }
                }
                Event::Gone { reason, .. } => return Err(reason.into()),
                _ => {}
            }
        }
        while let Some(peer) = server
            && asked < size.min(received + AHEAD * PIECE_BYTES)
        {
            let request = Message::new().with(asked.to_string()).with(PIECE_BYTES.to_string());
            hub.send(peer, request)?;
            asked += PIECE_BYTES;
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    eprintln!("{received} bytes in {seconds:.3} s, {:.0} MB/s", received as f64 / seconds / 1e6);
    Ok(())
}
