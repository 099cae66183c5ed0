//! Common parts of clients and workers.

use crate::history::{History, Key};
use crate::link::Frames;
use crate::rng::Rng;
use bytes::Bytes;
use towpath_broker::core::Millis;
use towpath_requests::Body;
use towpath_requests::numbered::Block;

pub const SERVICES: [&str; 2] = ["echo", "other"];

/// The world as an end sees it.
pub struct Io<'a> {
    pub now: Millis,
    pub rng: &'a mut Rng,
    pub history: &'a mut History,
    /// The bad time is over: nothing new is asked, and what is held is finished.
    pub calm: bool,
    /// How many of a hundred bodies are large.
    pub large_percent: u64,
    /// Its connection takes more.
    pub has_space: bool,
    pub out: Vec<Frames>,
    /// Whether it closes its connection.
    pub close: bool,
}

impl Io<'_> {
    /// Sends records.
    pub fn send(&mut self, header: &'static [u8], block: &mut Block) {
        for message in block.drain() {
            let frames = [Bytes::from_static(header), message.block].into_iter();
            let attached = message.attached.iter().flat_map(crate::node::frames_of);
            self.out.push(frames.chain(attached).collect());
        }
    }
}

/// A client or a worker, without its connection.
pub trait End {
    fn connected(&mut self, io: &mut Io);
    fn disconnected(&mut self, io: &mut Io);
    fn receive(&mut self, io: &mut Io, frames: &[Bytes]);
    /// Does what is due, and says when it wants to be called again.
    fn wake(&mut self, io: &mut Io) -> Millis;
    /// Its process dies, and another one takes its place; the connection goes first.
    fn restart(&mut self, io: &mut Io);
    /// Whether it waits for nothing.
    fn is_done(&self) -> bool;
}

/// The attached body of a message, if it has one.
pub fn attached(frames: &[Bytes]) -> Option<Body> {
    frames.get(2).map(|frame| Body::from(frame.clone()))
}

/// A body that names its request, of any size and number of frames.
pub fn request_body(io: &mut Io, of: &str, client: usize, number: u64) -> Body {
    let (rng, name) = (&mut *io.rng, format!("{of} {client} {number}"));
    let is_large = rng.percent(io.large_percent);
    let padding = ".".repeat(if is_large { rng.between(3_000, 6_000) } else { rng.below(120) } as usize);
    match rng.below(10) {
        // What is one large frame goes to the disk.
        _ if is_large && rng.percent(60) => Body::from(Bytes::from(format!("{name} {padding}"))),
        0..6 if !is_large => Body::from(name.as_str()),
        _ => Body::of_frames([Bytes::from(name), Bytes::from(padding)]),
    }
}

/// Which request of a numbered client a body names.
pub fn key_of(body: &Body) -> Option<Key> {
    let name = String::from_utf8_lossy(body.frames()?.next()?).into_owned();
    let mut words = name.strip_prefix("request ")?.split(' ');
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}
