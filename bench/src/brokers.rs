//! How each broker, proxy and store is started. All listen on 127.0.0.1.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::process::{Life, Ready, ServerSpec};
use crate::programs::{Programs, peers_folder};
use crate::servers::free_port;

/// The broker between clients and workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broker {
    /// `tow broker`, and whether it keeps a journal.
    Tow { journal: bool },
    /// Two of `tow broker` in a cell, and whether what connects does so to the one that doesn't lead.
    Cell { standby: bool },
    /// The Majordomo broker in C on libzmq.
    Libzmq,
    /// The least that serves stock ends of Majordomo: no errors, no deadlines, one service.
    RawMajordomo,
    /// majortomo's broker, in Python.
    Majortomo,
    /// libzmq's proxy: no protocol, no knowledge of workers.
    Proxy,
    /// Frames from one connection to another, nothing else.
    Raw,
    /// Redis with a stream that is on the disk before a record is confirmed.
    Redis,
    /// Redis without a store.
    RedisCore,
    /// NATS JetStream, synchronized at each record.
    Nats,
    /// NATS without a store.
    NatsCore,
    /// Clients and workers are in one program, with what joins them.
    None,
}

impl Broker {
    /// The dialect of its clients and workers.
    pub fn dialect(self) -> &'static str {
        match self {
            Self::Tow { .. } | Self::Cell { .. } | Self::Libzmq | Self::RawMajordomo => "0.1",
            Self::Majortomo => "majortomo",
            Self::Proxy => "plain",
            Self::Raw => "raw",
            Self::Redis | Self::RedisCore => "redis",
            Self::Nats | Self::NatsCore => "nats",
            Self::None => "",
        }
    }

    /// How to start it; `back` is a free port for the workers of a proxy. What it stores goes to an empty folder below `state`.
    pub fn spec(self, programs: &Programs, state: &Path, back: u16) -> Result<Option<ServerSpec>> {
        let spec = match self {
            Self::Tow { journal } => tow(programs, state, journal)?,
            Self::Cell { standby } => cell(programs, &emptied(state, "cell")?, standby)?,
            Self::Libzmq => announcing(programs, "mdp_broker", &[])?,
            Self::RawMajordomo => announcing(programs, "raw_majordomo", &[])?,
            Self::Proxy => announcing(programs, "zmq_proxy", &["--workers", &format!("tcp://127.0.0.1:{back}")])?,
            Self::Raw => announcing(programs, "raw_broker", &[])?,
            Self::Majortomo => majortomo(programs, state)?,
            Self::Redis => redis(programs, &emptied(state, "redis")?, true)?,
            Self::RedisCore => redis(programs, &emptied(state, "redis")?, false)?,
            Self::Nats => nats(programs, &emptied(state, "nats")?, true)?,
            Self::NatsCore => nats(programs, &emptied(state, "nats")?, false)?,
            Self::None => return Ok(None),
        };
        Ok(Some(spec))
    }
}

/// A program that prints its port.
fn announcing(programs: &Programs, name: &str, options: &[&str]) -> Result<ServerSpec> {
    let mut command = programs.command(name)?;
    command.args(options);
    Ok(ServerSpec { command, ready: Ready::Line, life: Life::Long })
}

fn tow(programs: &Programs, state: &Path, journal: bool) -> Result<ServerSpec> {
    let mut spec = announcing(programs, "tow", &["broker", "--max-peers-per-address", "16384"])?;
    if journal {
        spec.command.arg("--journal").arg(emptied(state, "journal")?);
    }
    spec.command.args(["--bind", "tcp://127.0.0.1:0"]);
    Ok(spec)
}

fn cell(programs: &Programs, folder: &Path, standby: bool) -> Result<ServerSpec> {
    let [tow, nats] = ["tow-as-packaged", "nats-server"].map(|name| programs.command(name));
    let mut command = programs.command("python")?;
    command.arg(peers_folder().join("cell.py")).arg("--tow").arg(tow?.get_program());
    command.arg("--nats").arg(nats?.get_program()).arg("--folder").arg(folder);
    if standby {
        command.arg("--standby");
    }
    Ok(ServerSpec { command, ready: Ready::Line, life: Life::Long })
}

/// By default it logs each reply, which costs more than the reply: only what is wrong is logged here.
fn majortomo(programs: &Programs, state: &Path) -> Result<ServerSpec> {
    let config = state.join("majortomo.yaml");
    fs::write(&config, "logging:\n  version: 1\n  root:\n    level: WARNING\n")?;
    let port = free_port()?;
    let mut command = programs.command("python")?;
    command.args(["-m", "majortomo.broker", "--bind-url", &format!("tcp://127.0.0.1:{port}"), "--config"]).arg(config);
    Ok(ServerSpec { command, ready: Ready::Port(port), life: Life::Killed })
}

fn redis(programs: &Programs, folder: &Path, store: bool) -> Result<ServerSpec> {
    let port = free_port()?;
    let mut command = programs.command("redis-server")?;
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    command.args(["--appendonly", if store { "yes" } else { "no" }]);
    command.args(["--appendfsync", "always", "--auto-aof-rewrite-percentage", "0", "--dir"]).arg(folder);
    Ok(ServerSpec { command, ready: Ready::Port(port), life: Life::Long })
}

fn nats(programs: &Programs, folder: &Path, store: bool) -> Result<ServerSpec> {
    let port = free_port()?;
    let config = folder.join("nats.conf");
    let mut text = format!("listen: \"127.0.0.1:{port}\"\n");
    if store {
        text.push_str(&format!("jetstream {{ store_dir: \"{}\", sync_interval: always }}\n", folder.display()));
    }
    fs::write(&config, text)?;
    let mut command = programs.command("nats-server")?;
    command.arg("--config").arg(config);
    Ok(ServerSpec { command, ready: Ready::Port(port), life: Life::Long })
}

/// A folder of which nothing is left from before.
pub fn emptied(state: &Path, name: &str) -> Result<PathBuf> {
    let folder = state.join(name);
    crate::folder::remove(&folder)?;
    fs::create_dir_all(&folder)?;
    Ok(folder)
}
