//! A proxy between two ends that attacks one of their frames.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// An attack on a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    LeaveOut,
    Double,
    /// Delivered behind the next one.
    Delay,
    /// One bit of it is changed.
    Flip,
}

/// Which way a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    Server,
    Client,
}

#[derive(Default)]
struct Shared {
    /// The attack to make, and the number of frames before it.
    armed: Mutex<Option<(To, usize, Deed)>>,
    connections: AtomicUsize,
}

/// The port in the middle.
pub struct Middle {
    shared: Arc<Shared>,
    port: u16,
}

impl Middle {
    /// In front of a server on this port.
    pub fn start(upstream: u16) -> Middle {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Shared::default());
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream)) else { continue };
                accepting.connections.fetch_add(1, Ordering::SeqCst);
                let copies = (client.try_clone().expect("clone"), server.try_clone().expect("clone"));
                for (to, from, into) in [(To::Server, copies.0, server), (To::Client, copies.1, client)] {
                    let shared = Arc::clone(&accepting);
                    std::thread::spawn(move || forward(&shared, to, &from, &into));
                }
            }
        });
        Middle { shared, port }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Does something to one frame that goes this way from now on, behind this many others. Greetings count.
    pub fn arm(&self, to: To, behind: usize, deed: Deed) {
        *self.shared.armed.lock().expect("no panic") = Some((to, behind, deed));
    }

    /// Whether it is done.
    pub fn is_done(&self) -> bool {
        self.shared.armed.lock().expect("no panic").is_none()
    }

    /// Connections that were made so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn next(&self, to: To) -> Option<Deed> {
        let mut armed = self.armed.lock().expect("no panic");
        match &mut *armed {
            Some((way, 0, deed)) if *way == to => {
                let deed = *deed;
                *armed = None;
                Some(deed)
            }
            Some((way, behind, _)) if *way == to => {
                *behind -= 1;
                None
            }
            _ => None,
        }
    }
}

fn forward(shared: &Shared, to: To, mut from: &TcpStream, mut into: &TcpStream) {
    let (mut buffer, mut rest, mut delayed) = (vec![0; 1 << 16], Vec::new(), None);
    let mut is_greeted = false;
    'reading: while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        rest.extend_from_slice(&buffer[..bytes]);
        while let Some(length) = unit_length(&rest, is_greeted) {
            is_greeted = true;
            let mut unit: Vec<u8> = rest.drain(..length).collect();
            let mut out = Vec::new();
            match shared.next(to) {
                Some(Deed::LeaveOut) => {}
                Some(Deed::Delay) => delayed = Some(unit),
                deed => {
                    if deed == Some(Deed::Flip) {
                        let middle = unit.len() / 2;
                        unit[middle] ^= 1;
                    }
                    out.extend_from_slice(&unit);
                    if deed == Some(Deed::Double) {
                        out.extend_from_slice(&unit);
                    }
                    out.extend(delayed.take().unwrap_or_default());
                }
            }
            if into.write_all(&out).is_err() {
                break 'reading;
            }
        }
    }
    // Both fail when they are closed already.
    let _ = from.shutdown(Shutdown::Both);
    let _ = into.shutdown(Shutdown::Both);
}

/// Bytes of the first unit, once all of it is there: the greeting, or a frame.
fn unit_length(bytes: &[u8], is_greeted: bool) -> Option<usize> {
    let length = match bytes {
        _ if !is_greeted => 64,
        [flags, long @ ..] if flags & 2 != 0 => 9 + usize::try_from(u64::from_be_bytes(*long.first_chunk()?)).ok()?,
        [_, short, ..] => 2 + usize::from(*short),
        _ => return None,
    };
    (bytes.len() >= length).then_some(length)
}
