//! An operator who looks at a server meanwhile, over its admin socket: scrapes of the metrics, and the lists that a page shows.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// Between two scrapes.
const SCRAPE: Duration = Duration::from_millis(100);
/// Between two refreshes of a page.
const REFRESH: Duration = Duration::from_secs(2);
/// Between two pages of the list of peers: so that reading them takes little of the processor itself.
const NEXT_PAGE: Duration = Duration::from_millis(20);
/// Longest time for a reply.
const REPLY_LIMIT: Duration = Duration::from_secs(30);

/// A view that an operator has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// 10 scrapes a second, and a page with these lists.
    Page(&'static [&'static str]),
    /// All peers, again and again.
    Peers,
}

impl Look {
    /// Lists of a page about a broker.
    pub const BROKER: Look = Look::Page(&["status", "peers", "services", "workers"]);
    /// Lists of a page about a file server.
    pub const FILES: Look = Look::Page(&["status", "peers", "transfers"]);
}

/// The operator, on a thread of its own.
pub struct Operator {
    /// Ends the thread when dropped.
    going: mpsc::Sender<()>,
    thread: JoinHandle<Result<u64>>,
}

impl Operator {
    /// Begins to look.
    pub fn start(socket: &Path, look: Look) -> Self {
        let (going, ended) = mpsc::channel();
        let socket = socket.to_owned();
        let thread = thread::spawn(move || match look {
            Look::Page(lists) => page(&socket, lists, &ended),
            Look::Peers => peers(&socket, &ended),
        });
        Self { going, thread }
    }

    /// Ends, and says how many replies there were.
    pub fn stop(self) -> Result<u64> {
        drop(self.going);
        match self.thread.join() {
            Ok(replies) => replies.context("looking at the server"),
            Err(_) => bail!("the thread that looks has panicked"),
        }
    }
}

/// Waits, and says whether to go on.
fn pause(ended: &mpsc::Receiver<()>, time: Duration) -> bool {
    matches!(ended.recv_timeout(time), Err(RecvTimeoutError::Timeout))
}

fn page(socket: &Path, lists: &[&str], ended: &mpsc::Receiver<()>) -> Result<u64> {
    let mut replies = 0;
    let (mut next_scrape, mut next_refresh) = (Instant::now(), Instant::now());
    loop {
        get(socket, "/metrics")?;
        replies += 1;
        if Instant::now() >= next_refresh {
            next_refresh += REFRESH;
            for list in lists {
                get(socket, &format!("/api/v1/{list}"))?;
                replies += 1;
            }
        }
        next_scrape += SCRAPE;
        if !pause(ended, next_scrape.saturating_duration_since(Instant::now())) {
            return Ok(replies);
        }
    }
}

fn peers(socket: &Path, ended: &mpsc::Receiver<()>) -> Result<u64> {
    let (mut replies, mut after) = (0, 0);
    loop {
        let page: Value = serde_json::from_str(&get(socket, &format!("/api/v1/peers?limit=1000&after={after}"))?)?;
        ensure!(page["peers"].is_array(), "no list of peers");
        after = page["next"].as_u64().unwrap_or(0);
        replies += 1;
        if !pause(ended, NEXT_PAGE) {
            return Ok(replies);
        }
    }
}

/// The value of a metric.
pub fn metric(socket: &Path, name: &str) -> Result<u64> {
    let metrics = get(socket, "/metrics")?;
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.and_then(|value| value.parse().ok()).with_context(|| format!("no metric {name}"))
}

/// Where a server listens for an operator, in a folder.
pub fn socket_in(folder: &Path) -> PathBuf {
    folder.join("admin.sock")
}

fn get(socket: &Path, path: &str) -> Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(REPLY_LIMIT))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    match reply.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.to_owned()),
        _ => bail!("GET {path}: {}", reply.lines().next().unwrap_or("no reply")),
    }
}
