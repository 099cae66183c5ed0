//! Three NATS servers, and brokers that have their queue in them.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::Bench;
use crate::brokers::emptied;
use crate::exchange::SETTLE;
use crate::process::{Life, Ready, Server, ServerSpec, run};

/// How long NATS may take to choose a leader.
const LEADER_LIMIT: Duration = Duration::from_secs(30);

/// Three NATS servers of one JetStream, each synced at each write.
pub struct Nats {
    pub servers: Vec<Server>,
    pub url: String,
}

impl Nats {
    pub fn start(bench: &Bench) -> Result<Nats> {
        let state = emptied(bench.folder.path(), "cell")?;
        // All at once: a free port that is asked for again may be given again.
        let listeners = (0..6).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>()?;
        let ports = listeners.iter().map(|l| Ok(l.local_addr()?.port())).collect::<Result<Vec<u16>>>()?;
        drop(listeners);
        let (clients, routes) = ports.split_at(3);
        let all: Vec<String> = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        let mut servers = Vec::new();
        for (node, (client, route)) in clients.iter().zip(routes).enumerate() {
            let store = state.join(node.to_string());
            let config = state.join(format!("{node}.conf"));
            let text = format!(
                "server_name: n{node}\nlisten: 127.0.0.1:{client}\n\
                 jetstream {{ store_dir: \"{}\", sync_interval: always }}\n\
                 cluster {{ name: c, listen: 127.0.0.1:{route}, routes: [{}] }}\n",
                store.display(),
                all.join(", ")
            );
            fs::write(&config, text)?;
            let mut command = bench.programs.command("nats-server")?;
            command.arg("--config").arg(config);
            let spec = ServerSpec { command, ready: Ready::Port(*client), life: Life::Long };
            servers.push(Server::start(spec, bench.folder.path())?);
        }
        let urls: Vec<String> = clients.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
        Ok(Nats { servers, url: urls.join(",") })
    }

    /// Runs a command until it succeeds: a cluster needs a while until it has a leader.
    pub fn make(&self, command: impl Fn() -> Result<Command>, logs: &Path) -> Result<()> {
        let until = Instant::now() + LEADER_LIMIT;
        loop {
            match run(command()?, logs) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > until => return Err(error),
                Err(_) => thread::sleep(SETTLE),
            }
        }
    }
}

/// The log of a cell.
pub struct Cell {
    pub nats: Nats,
}

impl Cell {
    pub fn start(bench: &Bench) -> Result<Cell> {
        let cell = Cell { nats: Nats::start(bench)? };
        let init = || {
            let mut command = bench.programs.command("tow-as-packaged")?;
            command.args(["queue", "init", "--queue-size", "512M"]);
            cell.belongs(&mut command);
            Ok(command)
        };
        cell.nats.make(init, bench.folder.path())?;
        Ok(cell)
    }

    fn belongs(&self, command: &mut Command) {
        command.args(["--queue", &self.nats.url, "--cell", "bench"]);
    }

    /// A broker of the cell.
    pub fn broker(&self, bench: &Bench, port: u16) -> Result<ServerSpec> {
        let mut command = bench.programs.command("tow-as-packaged")?;
        command.args(["broker", "--bind", &format!("tcp://127.0.0.1:{port}")]);
        self.belongs(&mut command);
        Ok(ServerSpec { command, ready: Ready::Line, life: Life::Long })
    }

    /// Starts the first broker, and waits until it leads.
    pub fn leader(&self, bench: &Bench, port: u16) -> Result<Server> {
        let leader = Server::start(self.broker(bench, port)?, bench.folder.path())?;
        let until = Instant::now() + LEADER_LIMIT;
        while !leader.log_tail().contains("this broker leads the cell") {
            ensure!(Instant::now() < until, "it doesn't lead: {}", leader.log_tail());
            thread::sleep(SETTLE);
        }
        Ok(leader)
    }
}
