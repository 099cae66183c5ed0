//! Starts `nats-server`, and speaks its protocol where a test needs what `tow` has no command for.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::network::Network;
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
    hosts: Vec<String>,
    ports: Vec<u16>,
    /// A namespace for each, in which it has a network of its own.
    network: Option<Network>,
    nodes: Vec<Option<Process>>,
}

impl Nats {
    /// So many servers. `None`: there is no program.
    pub fn start(count: usize) -> Option<Nats> {
        Nats::start_with(count, "")
    }

    /// The same with more lines in their configuration.
    pub fn start_with(count: usize, more: &str) -> Option<Nats> {
        Nats::start_in(count, more, None)
    }

    /// The same, each in a network namespace.
    pub fn start_in(count: usize, more: &str, network: Option<Network>) -> Option<Nats> {
        let program = program()?;
        let host = |node| network.as_ref().map_or("127.0.0.1".to_owned(), |network| network.address(node));
        let hosts: Vec<String> = (0..count).map(host).collect();
        // They are free a moment later, and the next ones that the system gives are others.
        let listeners: Vec<_> =
            (0..2 * count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
        let ports: Vec<u16> = listeners.iter().map(|l| l.local_addr().expect("an address").port()).collect();
        drop(listeners);
        let folder = tempfile::tempdir().expect("a folder");
        for node in 0..count {
            let mut config = format!(
                "server_name: n{node}\nlisten: {}:{}\njetstream {{ store_dir: \"{}\", sync_interval: always }}\n{more}\n",
                hosts[node],
                ports[node],
                folder.path().join(format!("store{node}")).display()
            );
            if count > 1 {
                let routes: Vec<_> =
                    hosts.iter().zip(&ports[count..]).map(|(host, port)| format!("nats://{host}:{port}")).collect();
                config += &format!(
                    "cluster {{ name: c, listen: {}:{}, routes: [{}] }}\n",
                    hosts[node],
                    ports[count + node],
                    routes.join(", ")
                );
            }
            std::fs::write(folder.path().join(format!("n{node}.conf")), config).expect("write");
        }
        let mut nats = Nats { folder, program, hosts, ports, network, nodes: (0..count).map(|_| None).collect() };
        (0..count).for_each(|node| nats.start_node(node));
        Some(nats)
    }

    pub fn start_node(&mut self, node: usize) {
        let config = self.folder.path().join(format!("n{node}.conf"));
        let mut command = match &self.network {
            Some(network) => network.inside(node, &self.program),
            None => Command::new(&self.program),
        };
        let process = Process::start(command.arg("-c").arg(config));
        let address = (self.hosts[node].as_str(), self.ports[node]);
        wait_until("nats-server listens", || TcpStream::connect(address).is_ok());
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

    /// Interpreter of Python with pyzmq, if there is one: beside the program in CI.
    pub fn python(&self) -> Option<PathBuf> {
        let has_zmq = |python: &PathBuf| {
            let ran = Command::new(python).args(["-c", "import zmq"]).stderr(std::process::Stdio::null()).status();
            ran.is_ok_and(|status| status.success())
        };
        [self.program.with_file_name("python"), "python3".into()].into_iter().find(has_zmq)
    }

    /// Cuts a server off from all others, or joins it to them again. Does nothing without namespaces.
    pub fn cut(&self, node: usize, is_cut: bool) {
        if let Some(network) = &self.network {
            network.cut(node, is_cut);
        }
    }

    /// For `--queue`.
    pub fn url(&self) -> String {
        let urls: Vec<_> =
            self.hosts.iter().zip(&self.ports).map(|(host, port)| format!("nats://{host}:{port}")).collect();
        urls.join(",")
    }

    /// Publishes a message.
    pub fn publish(&self, subject: &str, body: &str) {
        let stream = TcpStream::connect((self.hosts[0].as_str(), self.ports[0])).expect("connect");
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

    /// A request to JetStream, and its answer, of the first server that gives one; nothing if none does.
    pub fn request(&self, subject: &str, body: &str) -> String {
        let answer = |node| self.ask(node, subject, body).ok().filter(|answer| !answer.is_empty());
        (0..self.hosts.len()).find_map(answer).unwrap_or_default()
    }

    fn ask(&self, node: usize, subject: &str, body: &str) -> std::io::Result<String> {
        let address = (self.hosts[node].as_str(), self.ports[node]).to_socket_addrs()?.next().expect("an address");
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(3)))?;
        let mut lines = BufReader::new(stream.try_clone()?);
        let length = body.len();
        let sent =
            format!("CONNECT {{\"verbose\":false}}\r\nSUB answer 1\r\nPUB {subject} answer {length}\r\n{body}\r\n");
        (&stream).write_all(sent.as_bytes())?;
        let mut line = String::new();
        while !line.starts_with("MSG") {
            line.clear();
            if lines.read_line(&mut line)? == 0 {
                return Ok(String::new());
            }
        }
        line.clear();
        lines.read_line(&mut line)?;
        Ok(line)
    }
}
