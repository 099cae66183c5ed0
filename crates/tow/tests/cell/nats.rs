//! Starts `nats-server`, and speaks its protocol where a test needs what `tow` has no command for.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::support::process::Process;
use crate::support::wait_until;

/// Program, if there is one: `NATS_SERVER`, or on the PATH.
fn program() -> Option<PathBuf> {
    let on_path = || {
        let folders = std::env::var_os("PATH")?;
        std::env::split_paths(&folders).map(|folder| folder.join("nats-server")).find(|path| path.exists())
    };
    std::env::var_os("NATS_SERVER").map(PathBuf::from).or_else(on_path)
}

/// Servers of one JetStream, each synced always.
pub struct Nats {
    folder: TempDir,
    program: PathBuf,
    ports: Vec<u16>,
    nodes: Vec<Option<Process>>,
}

impl Nats {
    /// So many servers. `None`: there is no program.
    pub fn start(count: usize) -> Option<Nats> {
        Nats::start_with(count, "")
    }

    /// The same with more lines in their configuration.
    pub fn start_with(count: usize, more: &str) -> Option<Nats> {
        let program = program()?;
        // They are free a moment later, and the next ones that the system gives are others.
        let listeners: Vec<_> =
            (0..2 * count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
        let ports: Vec<u16> = listeners.iter().map(|l| l.local_addr().expect("an address").port()).collect();
        drop(listeners);
        let folder = tempfile::tempdir().expect("a folder");
        for node in 0..count {
            let mut config = format!(
                "server_name: n{node}\nlisten: 127.0.0.1:{}\njetstream {{ store_dir: \"{}\", sync_interval: always }}\n{more}\n",
                ports[node],
                folder.path().join(format!("store{node}")).display()
            );
            if count > 1 {
                let routes: Vec<_> = ports[count..].iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
                config += &format!(
                    "cluster {{ name: c, listen: 127.0.0.1:{}, routes: [{}] }}\n",
                    ports[count + node],
                    routes.join(", ")
                );
            }
            std::fs::write(folder.path().join(format!("n{node}.conf")), config).expect("write");
        }
        let mut nats = Nats { folder, program, ports, nodes: (0..count).map(|_| None).collect() };
        (0..count).for_each(|node| nats.start_node(node));
        Some(nats)
    }

    pub fn start_node(&mut self, node: usize) {
        let config = self.folder.path().join(format!("n{node}.conf"));
        let process = Process::start(Command::new(&self.program).arg("-c").arg(config));
        let port = self.ports[node];
        wait_until("nats-server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        self.nodes[node] = Some(process);
    }

    pub fn kill_node(&mut self, node: usize) {
        // Dropping kills it.
        self.nodes[node] = None;
    }

    pub fn signal(&self, node: usize, signal: Signal) {
        if let Some(process) = &self.nodes[node] {
            process.signal(signal);
        }
    }

    /// For `--queue`.
    pub fn url(&self) -> String {
        let urls: Vec<_> =
            self.ports[..self.nodes.len()].iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        urls.join(",")
    }

    /// Publishes a message.
    pub fn publish(&self, subject: &str, body: &str) {
        let stream = TcpStream::connect(("127.0.0.1", self.ports[0])).expect("connect");
        let mut lines = BufReader::new(stream.try_clone().expect("a clone"));
        let length = body.len();
        let sent = format!("CONNECT {{\"verbose\":false}}\r\nPUB {subject} {length}\r\n{body}\r\nPING\r\n");
        (&stream).write_all(sent.as_bytes()).expect("write");
        let mut line = String::new();
        while !line.starts_with("PONG") {
            line.clear();
            assert!(lines.read_line(&mut line).expect("read") > 0, "NATS ended the connection");
        }
    }

    /// A request to JetStream, and its answer.
    pub fn request(&self, subject: &str, body: &str) -> String {
        let stream = TcpStream::connect(("127.0.0.1", self.ports[0])).expect("connect");
        let mut lines = BufReader::new(stream.try_clone().expect("a clone"));
        let length = body.len();
        let sent =
            format!("CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB {subject} answer {length}\r\n{body}\r\n");
        (&stream).write_all(sent.as_bytes()).expect("write");
        let mut line = String::new();
        while !line.starts_with("MSG") {
            line.clear();
            assert!(lines.read_line(&mut line).expect("read") > 0, "NATS ended the connection");
        }
        line.clear();
        lines.read_line(&mut line).expect("read");
        line
    }
}
