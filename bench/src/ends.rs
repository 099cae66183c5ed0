//! How workers and clients are started, given the port of what joins them.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::brokers::Broker;
use crate::keys::Keys;
use crate::operator::Look;
use crate::process::{Life, Ready, ServerSpec};
use crate::programs::{Programs, peers_folder, workspace};

/// The implementation of clients and workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// `tow work` and `tow call`, which number their requests and take several at once.
    Tow,
    /// A worker on our library whose work takes exactly as long as it should, with `tow call`.
    Library,
    /// Clients on our library for which a request is over when it is durable, and no worker.
    Durable,
    /// Programs on libzmq, as stock ones are written.
    Libzmq,
    /// One thread with epoll a side, any number of connections: so that the ends don't hide what the broker costs.
    Light,
    /// A client of a store.
    Store,
    /// Programs that speak NATS.
    Nats,
    /// Programs in Python, on this library in this way; see bench/peers/python_ends.py.
    Python(&'static str),
    /// The worker pool with libzmq inside one program, over a transport.
    LibzmqPool(&'static str),
    /// The same on our library.
    OwnPool(&'static str),
    /// The worker pool with plain sockets and threads.
    ThreadPool,
}

/// Who takes part.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub broker: Broker,
    pub worker_ends: Ends,
    pub client_ends: Ends,
    /// Workers, or the requests that one `tow work` may have in flight; 0 leaves that to it.
    pub workers: u64,
    /// Each worker is a process of its own.
    pub apart: bool,
    pub clients: u64,
    pub services: u64,
    /// Time that a worker takes for a request.
    pub work_ms: u64,
    /// The view of our broker that an operator has open meanwhile.
    pub look: Option<Look>,
    /// Connections are encrypted: of our own broker and ends only.
    pub keys: Option<&'static Keys>,
}

impl Setup {
    pub const fn new(broker: Broker, ends: Ends) -> Self {
        Self {
            broker,
            worker_ends: ends,
            client_ends: ends,
            workers: 1,
            apart: false,
            clients: 1,
            services: 1,
            work_ms: 0,
            look: None,
            keys: None,
        }
    }

    pub const fn keys(mut self, keys: &'static Keys) -> Self {
        self.keys = Some(keys);
        self
    }

    /// Other clients than workers.
    pub const fn client_ends(mut self, ends: Ends) -> Self {
        self.client_ends = ends;
        self
    }

    pub const fn workers(mut self, workers: u64) -> Self {
        self.workers = workers;
        self
    }

    pub const fn apart(mut self, apart: bool) -> Self {
        self.apart = apart;
        self
    }

    pub const fn clients(mut self, clients: u64) -> Self {
        self.clients = clients;
        self
    }

    pub const fn services(mut self, services: u64) -> Self {
        self.services = services;
        self
    }

    /// An operator looks meanwhile.
    pub const fn look(mut self, look: Option<Look>) -> Self {
        self.look = look;
        self
    }

    pub const fn work_ms(mut self, work_ms: u64) -> Self {
        self.work_ms = work_ms;
        self
    }
}

/// The requests of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub requests: u64,
    /// Requests that all clients together have in flight; 0: everything at once.
    pub ahead: u64,
    /// Bytes of a body.
    pub size: u64,
}

/// Ports of what joins clients and workers: they differ only for a proxy.
#[derive(Clone, Copy, Debug)]
pub struct Ports {
    pub front: u16,
    pub back: u16,
}

impl Setup {
    /// The broker that joins them, as [`Broker::spec`] starts it.
    pub fn broker(&self, programs: &Programs, state: &Path, back: u16) -> Result<Option<ServerSpec>> {
        let mut spec = self.broker.spec(programs, state, back)?;
        if let (Some(spec), Some(keys)) = (&mut spec, self.keys) {
            spec.command.arg("--key").arg(&keys.secret_file).arg("--anyone");
        }
        Ok(spec)
    }

    /// The workers; in one process, unless they are apart.
    pub fn worker(&self, programs: &Programs, ports: Ports) -> Result<Option<ServerSpec>> {
        let port = if self.broker == Broker::Proxy { ports.back } else { ports.front };
        let endpoint = format!("tcp://127.0.0.1:{port}");
        let workers = self.workers.to_string();
        let (mut command, ready) = match self.worker_ends {
            Ends::Tow => {
                let mut command = programs.command("tow")?;
                command.args(["work", "echo", "--echo", "--connect", &endpoint]);
                if self.workers > 0 {
                    command.args(["--jobs", &workers]);
                }
                if let Some(keys) = self.keys {
                    command.args(["--server-key", &keys.public]);
                }
                (command, Ready::Said)
            }
            Ends::Library => {
                let mut command = programs.command("tow_ends")?;
                command.args(["work", "--connect", &endpoint, "--jobs", &workers]);
                command.args(["--work-ms", &self.work_ms.to_string()]);
                (command, Ready::Line)
            }
            Ends::Libzmq => {
                let mut command = programs.command("zmq_worker")?;
                command.args(["--endpoint", &endpoint]);
                (command, Ready::Line)
            }
            Ends::Light => {
                let mut command = programs.command("load_worker")?;
                command.args(["--port", &port.to_string()]);
                (command, Ready::Line)
            }
            Ends::Nats => {
                let mut command = programs.command("nats_ends")?;
                command.args(["work", "--port", &port.to_string()]);
                (command, Ready::Line)
            }
            Ends::Python(library) => {
                let mut command = python(programs, "python_ends.py")?;
                command.args(["work", library, "--port", &port.to_string()]);
                (command, Ready::Said)
            }
            Ends::Durable | Ends::Store | Ends::LibzmqPool(_) | Ends::OwnPool(_) | Ends::ThreadPool => return Ok(None),
        };
        if matches!(self.worker_ends, Ends::Libzmq | Ends::Light) {
            let (workers, processes) = if self.apart { ("1", &workers[..]) } else { (&workers[..], "1") };
            command.args(["--dialect", self.broker.dialect(), "--workers", workers]);
            if processes != "1" {
                command.args(["--processes", processes]);
            }
            if self.services > 1 {
                command.args(["--services", &self.services.to_string()]);
            }
            if self.work_ms > 0 {
                command.args(["--work-us", &(self.work_ms * 1000).to_string()]);
            }
        }
        Ok(Some(ServerSpec { command, ready, life: Life::Long }))
    }

    /// The clients, in one process.
    pub fn client(&self, programs: &Programs, ports: Ports, load: Load) -> Result<Command> {
        let Load { requests, ahead, size } = load;
        let endpoint = format!("tcp://127.0.0.1:{}", ports.front);
        let each = (ahead / self.clients).max(1).to_string();
        let (ahead, size, requests) = (ahead.to_string(), size.to_string(), requests.to_string());
        let mut command;
        match self.client_ends {
            Ends::Tow | Ends::Library => {
                command = programs.command("tow")?;
                command.args(["call", "echo", "--connect", &endpoint, "--count", &requests, "--ahead", &each]);
                command.args(["--clients", &self.clients.to_string(), "--size", &size, "--json"]);
                if let Some(keys) = self.keys {
                    command.args(["--server-key", &keys.public]);
                }
            }
            Ends::Durable => {
                command = programs.command("tow_ends")?;
                command.args(["call", "--durable", "--connect", &endpoint, "--requests", &requests, "--ahead", &each]);
                command.args(["--clients", &self.clients.to_string(), "--size", &size]);
            }
            Ends::Libzmq => {
                command = programs.command("zmq_caller")?;
                command.args(["--endpoint", &endpoint, "--dialect", self.broker.dialect()]);
                command.args(["--requests", &requests, "--ahead", &ahead, "--size", &size]);
            }
            Ends::Light => {
                command = programs.command("load_client")?;
                command.args(["--port", &ports.front.to_string(), "--dialect", self.broker.dialect()]);
                command.args(["--requests", &requests, "--ahead", &each, "--size", &size]);
                command.args(["--clients", &self.clients.to_string()]);
            }
            Ends::Nats => {
                command = programs.command("nats_ends")?;
                command.args(["call", "--port", &ports.front.to_string()]);
                command.args(["--requests", &requests, "--ahead", &each, "--size", &size]);
            }
            Ends::Python(library) => {
                command = python(programs, "python_ends.py")?;
                command.args(["call", library, "--port", &ports.front.to_string()]);
                command.args(["--requests", &requests, "--ahead", &ahead, "--size", &size]);
            }
            Ends::Store => {
                command = programs.command("journal_client")?;
                command.args(["--port", &ports.front.to_string(), "--store", self.broker.dialect()]);
                command.args(["--requests", &requests, "--ahead", &each, "--size", &size]);
                command.args(["--clients", &self.clients.to_string()]);
            }
            Ends::LibzmqPool(_) | Ends::OwnPool(_) | Ends::ThreadPool => {
                let name = match self.client_ends {
                    Ends::ThreadPool => "thread_pool",
                    Ends::OwnPool(_) => "tow_pool",
                    _ => "zmq_pool",
                };
                command = programs.command(name)?;
                if let Ends::LibzmqPool(transport) | Ends::OwnPool(transport) = self.client_ends {
                    command.args(["--transport", transport]);
                }
                command.args(["--requests", &requests, "--clients", &self.clients.to_string(), "--size", &size]);
                command.args(["--workers", &self.workers.to_string()]);
                command.args(["--work-us", &(self.work_ms * 1000).to_string()]);
            }
        }
        if self.services > 1 {
            match self.client_ends {
                Ends::Light => command.args(["--services", &self.services.to_string()]),
                _ => bail!("these clients know one service"),
            };
        }
        Ok(command)
    }
}

/// A program in Python, with our package as it is in this workspace.
pub fn python(programs: &Programs, script: &str) -> Result<Command> {
    let mut command = programs.command("python")?;
    command.arg(peers_folder().join(script)).env("PYTHONPATH", workspace().join("python/src"));
    Ok(command)
}
