//! A link between two network namespaces, as far, as slow and as lossy as a test or a benchmark wants it. Needs root.
//!
//! Each end has a TUN device, whose packets this process holds for as long as they take. It is there because many kernels come without netem.

mod tun;

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The address of the near end.
pub const NEAR: &str = "10.77.0.1";
/// The address of the far end.
pub const FAR: &str = "10.77.0.2";

/// Bytes of a packet that carries several segments, with the header of the device.
const PACKET_MAX: usize = 70_000;
/// Longest wait for a packet, after which it is looked whether the link is to end.
const LOOK: Duration = Duration::from_millis(50);
/// Bytes of headers of each segment on an Ethernet, without those that are in the packet.
const FRAME_BYTES: u64 = 38;

/// Properties of a link. Both directions are the same.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Time there and back.
    pub round_trip: Duration,
    /// Rate of each direction.
    pub bits_per_second: u64,
    /// Of so many packets one is lost; 0: none.
    pub loses_one_of: u64,
    /// Largest TCP buffers that the ends may have, to send and to receive, in bytes.
    pub buffers_max: (u64, u64),
}

impl Default for Link {
    fn default() -> Link {
        let buffers_max = (128 << 20, 128 << 20);
        Link { round_trip: Duration::from_millis(100), bits_per_second: 100_000_000, loses_one_of: 0, buffers_max }
    }
}

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The one at [`NEAR`].
    Near,
    /// The one at [`FAR`].
    Far,
}

/// A link, until it is dropped.
pub struct FarLink {
    namespaces: [String; 2],
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
}

impl FarLink {
    /// Makes it.
    pub fn start(link: Link) -> io::Result<FarLink> {
        let shared = Arc::new(Shared::default());
        let (mut threads, mut devices, mut namespaces) = (Vec::new(), Vec::new(), Vec::new());
        for address in [NEAR, FAR] {
            let (thread, made) = namespace(address, link, Arc::clone(&shared))?;
            threads.push(thread);
            let (namespace, device) = made.recv().map_err(io::Error::other)??;
            namespaces.push(namespace);
            devices.push(device);
        }
        let namespaces = namespaces.try_into().map_err(|_| io::Error::other("there are two ends"))?;
        let mut made = FarLink { namespaces, shared, threads };
        let [near, far] = devices.as_slice() else { return Err(io::Error::other("there are two ends")) };
        for (from, to) in [(near, far), (far, near)] {
            made.forward(from.try_clone()?, to.try_clone()?, link);
        }
        Ok(made)
    }

    /// A command that runs a program at an end.
    pub fn command(&self, end: End, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        let namespace = match end {
            End::Near => &self.namespaces[0],
            End::Far => &self.namespaces[1],
        };
        command.arg(format!("--net={namespace}")).arg("--").arg(program);
        command
    }

    /// Starts the threads that take packets of one device, and give them to the other.
    fn forward(&mut self, from: File, to: File, link: Link) {
        let wire = Arc::new(Wire::default());
        let (shared, taken) = (Arc::clone(&self.shared), Arc::clone(&wire));
        self.threads.push(std::thread::spawn(move || take(&shared, &from, &taken, link)));
        let shared = Arc::clone(&self.shared);
        self.threads.push(std::thread::spawn(move || give(&shared, &to, &wire)));
    }
}

impl Drop for FarLink {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic of it has been printed.
            let _ = thread.join();
        }
    }
}

type Made = io::Result<(String, File)>;

/// Starts a thread with a network namespace of its own, which lasts as long as the link, and a device in it.
fn namespace(address: &'static str, link: Link, shared: Arc<Shared>) -> io::Result<(JoinHandle<()>, Receiver<Made>)> {
    let (sender, made): (Sender<Made>, _) = channel();
    let thread = std::thread::Builder::new().name("far-link".to_owned()).spawn(move || {
        let _ = sender.send(make(address, link));
        while !shared.is_over.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
        }
    })?;
    Ok((thread, made))
}

/// Moves this thread to a namespace of its own, with a device.
fn make(address: &str, link: Link) -> Made {
    tun::own_network()?;
    let device = tun::open("far0")?;
    let (send, receive) = link.buffers_max;
    let script = format!(
        "ip link set lo up && ip address add {address}/24 dev far0 && ip link set far0 mtu 1500 txqueuelen 10000 up &&
        sysctl -qw net.ipv4.tcp_wmem='4096 16384 {send}' net.ipv4.tcp_rmem='4096 131072 {receive}' net.ipv4.tcp_no_metrics_save=1"
    );
    let done = Command::new("sh").args(["-c", &script]).output()?;
    if !done.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&done.stderr).into_owned()));
    }
    let thread = rustix::thread::gettid().as_raw_nonzero();
    Ok((format!("/proc/{}/task/{thread}/ns/net", std::process::id()), device))
}

/// Packets on their way, each with the time when it is there.
#[derive(Default)]
struct Wire {
    packets: Mutex<VecDeque<(Instant, Box<[u8]>)>>,
    changed: Condvar,
}

impl Wire {
    fn packets(&self) -> MutexGuard<'_, VecDeque<(Instant, Box<[u8]>)>> {
        self.packets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes packets from a device, until the link is over. What doesn't fit into the queue, of one round trip, is dropped.
fn take(shared: &Shared, mut from: &File, wire: &Wire, link: Link) {
    let mut packet = vec![0; PACKET_MAX];
    let (mut free_at, mut count) = (Instant::now(), 0_u64);
    let queue = link.round_trip.max(Duration::from_millis(20));
    while !shared.is_over.load(Ordering::Relaxed) {
        if !tun::is_readable(from, LOOK) {
            continue;
        }
        let Ok(bytes) = from.read(&mut packet) else { continue };
        let packet = &packet[..bytes];
        let now = Instant::now();
        free_at = free_at.max(now);
        count += 1;
        let is_lost = link.loses_one_of > 0 && count.is_multiple_of(link.loses_one_of);
        if is_lost || free_at - now > queue {
            continue;
        }
        free_at += Duration::from_secs_f64(wire_bytes(packet) as f64 * 8.0 / link.bits_per_second as f64);
        wire.packets().push_back((free_at + link.round_trip / 2, packet.into()));
        wire.changed.notify_one();
    }
}

/// Bytes that a packet takes on an Ethernet, where it is cut into segments.
fn wire_bytes(packet: &[u8]) -> u64 {
    let segments = tun::segments(packet) as u64;
    (packet.len() - tun::HEADER_BYTES.min(packet.len())) as u64 + segments * FRAME_BYTES + (segments - 1) * 52
}

/// Gives packets to a device when they are there.
fn give(shared: &Shared, mut to: &File, wire: &Wire) {
    while !shared.is_over.load(Ordering::Relaxed) {
        let packets = wire.packets();
        let Some((at, _)) = packets.front() else {
            drop(wire.changed.wait_timeout(packets, LOOK));
            continue;
        };
        let left = at.saturating_duration_since(Instant::now());
        drop(packets);
        if !left.is_zero() {
            std::thread::sleep(left.min(LOOK));
            continue;
        }
        let packet = wire.packets().pop_front();
        if let Some((_, packet)) = packet {
            // A device that is full drops it, as a real one does.
            let _ = to.write(&packet);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_ping_takes_a_round_trip() {
        let round_trip = Duration::from_millis(120);
        let link = match FarLink::start(Link { round_trip, ..Link::default() }) {
            Ok(link) => link,
            Err(error) => return println!("skipped: no link can be made here: {error}"),
        };
        let script = format!(
            "import socket,sys,time\ns=socket.create_server(('{FAR}',77))\nprint(flush=True)\nc,_=s.accept()\nn=0\nwhile n<1<<20: n+=len(c.recv(1<<16))\nc.send(b'x')"
        );
        let mut server = link.command(End::Far, "python3");
        let mut server = server.args(["-c", &script]).stdout(std::process::Stdio::piped()).spawn().unwrap();
        server.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let script = format!(
            "import socket,time\nt=time.time()\ns=socket.create_connection(('{FAR}',77))\na=time.time()-t\ns.sendall(bytes(1<<20))\ns.recv(1)\nprint(a,time.time()-t)"
        );
        let output = link.command(End::Near, "python3").args(["-c", &script]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let times: Vec<f64> = text.split_whitespace().map(|time| time.parse().unwrap()).collect();
        // Slow start needs some round trips; a MiB takes 84 ms at 100 Mbit/s.
        assert!(times[0] >= 0.12 && times[1] >= 0.12 * 2.0 + 0.08, "{times:?}");
        server.wait().unwrap();
    }
}
