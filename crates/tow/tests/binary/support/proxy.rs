//! TCP proxy in front of a server: throttles its bytes, holds them at a given byte, or cuts the connection
//! there, so that a test can act in the middle of a transfer.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use super::process::Process;
use super::{DEADLINE, wait_until};

/// Rules for bytes from the server to the client, unless they say otherwise.
struct Rules {
    upstream_port: u16,
    /// Most bytes that may pass, over all connections.
    hold_at: u64,
    passed: u64,
    /// Bytes that passed from clients to the server.
    sent: u64,
    /// Bytes after which each next connection is cut.
    cuts: VecDeque<u64>,
    bytes_per_second: Option<u64>,
    /// From clients to the server.
    sent_per_second: Option<u64>,
    /// The next chunk that consists of this byte gets one other byte.
    corrupt: Option<u8>,
    connections: u64,
    open: Vec<TcpStream>,
    stopped: bool,
}

struct Shared {
    rules: Mutex<Rules>,
    changed: Condvar,
}

impl Shared {
    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().expect("no panic holds it")
    }

    /// Waits until some of `wanted` bytes may pass; returns how many. `None` when the proxy stops.
    fn permit(&self, wanted: u64) -> Option<u64> {
        let holding = |rules: &mut Rules| !rules.stopped && rules.passed >= rules.hold_at;
        let mut rules = self.changed.wait_while(self.rules(), holding).expect("no panic holds it");
        if rules.stopped {
            return None;
        }
        let granted = wanted.min(rules.hold_at - rules.passed);
        rules.passed += granted;
        Some(granted)
    }

    fn corrupt(&self, piece: &mut [u8]) {
        let mut rules = self.rules();
        if let Some(byte) = rules.corrupt
            && piece.len() > 4096
            && piece.iter().all(|one| *one == byte)
        {
            piece[2048] ^= 1;
            rules.corrupt = None;
        }
    }
}

/// Proxy on a port of its own, stopped on drop.
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
}

impl Proxy {
    /// In front of a server on this port.
    pub fn start(upstream_port: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
        let port = listener.local_addr().expect("address").port();
        let rules = Rules {
            upstream_port,
            hold_at: u64::MAX,
            passed: 0,
            sent: 0,
            cuts: VecDeque::new(),
            bytes_per_second: None,
            sent_per_second: None,
            corrupt: None,
            connections: 0,
            open: Vec::new(),
            stopped: false,
        };
        let shared = Arc::new(Shared { rules: Mutex::new(rules), changed: Condvar::new() });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if !accept(&accepting, client) {
                    return;
                }
            }
        });
        Self { shared, port }
    }

    /// The URL of a path of the server, through the proxy.
    pub fn url(&self, path: &str) -> String {
        format!("tcp://127.0.0.1:{}/{path}", self.port)
    }

    /// Connections from now on go to this port.
    pub fn lead_to(&self, upstream_port: u16) {
        self.shared.rules().upstream_port = upstream_port;
    }

    /// Limits the bytes per second of each connection.
    pub fn slow_down(&self, bytes_per_second: u64) {
        self.shared.rules().bytes_per_second = Some(bytes_per_second);
    }

    /// Limits the bytes per second that each client sends.
    pub fn slow_down_senders(&self, bytes_per_second: u64) {
        self.shared.rules().sent_per_second = Some(bytes_per_second);
    }

    /// Lets this many more bytes pass, then none.
    pub fn hold_after(&self, bytes: u64) {
        let mut rules = self.shared.rules();
        rules.hold_at = rules.passed + bytes;
        self.shared.changed.notify_all();
    }

    /// Waits until the bytes of [`Self::hold_after`] have passed to this client, which must not end before.
    #[track_caller]
    pub fn wait_held(&self, client: &mut Process) {
        wait_until("the proxy holds", || {
            assert!(!client.ended(), "the client has ended; it said: {}", client.log());
            let rules = self.shared.rules();
            rules.passed >= rules.hold_at
        });
    }

    /// Lets everything pass again.
    pub fn release(&self) {
        self.shared.rules().hold_at = u64::MAX;
        self.shared.changed.notify_all();
    }

    /// Cuts the next connections after these numbers of bytes; later ones aren't cut.
    pub fn cut_after(&self, bytes: impl IntoIterator<Item = u64>) {
        self.shared.rules().cuts.extend(bytes);
    }

    /// Cuts the connections that are there now.
    pub fn cut_now(&self) {
        for stream in self.shared.rules().open.drain(..) {
            // Fails if it is closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Changes one byte in the middle of many that are all `byte`, and so in a body rather than a header.
    pub fn corrupt_among(&self, byte: u8) {
        self.shared.rules().corrupt = Some(byte);
    }

    /// True once [`Self::corrupt_among`] has changed a byte.
    pub fn has_corrupted(&self) -> bool {
        self.shared.rules().corrupt.is_none()
    }

    /// Bytes that passed from the server to the client so far.
    pub fn passed(&self) -> u64 {
        self.shared.rules().passed
    }

    /// Bytes that passed from clients to the server so far.
    pub fn sent(&self) -> u64 {
        self.shared.rules().sent
    }

    /// Connections that were made so far.
    pub fn connections(&self) -> u64 {
        self.shared.rules().connections
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.rules().stopped = true;
        self.cut_now();
        self.shared.changed.notify_all();
        // Wakes the listener's thread, which then ends.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

/// Forwards a connection; returns false if the proxy has stopped.
fn accept(shared: &Arc<Shared>, client: TcpStream) -> bool {
    let (upstream_port, cut) = {
        let mut rules = shared.rules();
        if rules.stopped {
            return false;
        }
        rules.connections += 1;
        (rules.upstream_port, rules.cuts.pop_front())
    };
    // No server: close the client's connection, as if the server had died.
    let Ok(server) = TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, upstream_port).into(), DEADLINE) else {
        return true;
    };
    let (Ok(client_too), Ok(server_too)) = (client.try_clone(), server.try_clone()) else {
        return true;
    };
    shared.rules().open.extend(client.try_clone().into_iter().chain(server.try_clone()));
    let counting = Arc::clone(shared);
    std::thread::spawn(move || {
        forward(&client_too, &server_too, |piece| {
            let mut rules = counting.rules();
            rules.sent += piece.len() as u64;
            let rate = rules.sent_per_second;
            drop(rules);
            sleep_at(rate, piece.len());
            Some(piece.len())
        });
    });
    let shared = Arc::clone(shared);
    let mut until_cut = cut.unwrap_or(u64::MAX);
    std::thread::spawn(move || {
        forward(&server, &client, |piece| {
            shared.corrupt(piece);
            let wanted = (piece.len() as u64).min(until_cut);
            let granted = if wanted == 0 {
                return None;
            } else {
                shared.permit(wanted)?
            };
            until_cut -= granted;
            let rate = shared.rules().bytes_per_second;
            sleep_at(rate, granted as usize);
            Some(granted as usize)
        });
    });
    true
}

/// As long as this many bytes take.
fn sleep_at(rate: Option<u64>, bytes: usize) {
    if let Some(rate) = rate {
        std::thread::sleep(Duration::from_secs_f64(bytes as f64 / rate as f64));
    }
}

/// Copies from one stream to the other as many bytes as `permit` allows, then closes both.
fn forward(mut from: &TcpStream, mut to: &TcpStream, mut permit: impl FnMut(&mut [u8]) -> Option<usize>) {
    let mut buffer = vec![0; 16_384];
    'reading: while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut rest = &mut buffer[..count];
        while !rest.is_empty() {
            let Some(granted) = permit(rest) else {
                break 'reading;
            };
            let (now, later) = rest.split_at_mut(granted);
            if to.write_all(now).is_err() {
                // What this end has sent before is still on its way the other way round, whose end closes both.
                return;
            }
            rest = later;
        }
    }
    // Both fail when they are closed already.
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
