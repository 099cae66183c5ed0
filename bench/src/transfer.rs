//! One measured transfer: a fresh server, a receiver from its start to its end, and what both used.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::Bench;
use crate::folder::{compare, remove, touch_file_memory, touch_memory};
use crate::operator::{Look, Operator};
use crate::process::{Server, ServerSpec, run, show};
use crate::series::Sample;

/// Memory for what the system remembers of files beside their contents.
const CACHES_BYTES: u64 = 64 << 20;

type ServerMaker<'a> = Box<dyn Fn() -> Result<ServerSpec> + 'a>;
type ReceiverMaker<'a> = Box<dyn Fn(u16) -> Result<Command> + 'a>;

/// A transfer to measure.
pub struct Transfer<'a> {
    bench: &'a Bench,
    server: Option<ServerMaker<'a>>,
    receiver: ReceiverMaker<'a>,
    bytes: u64,
    to: Option<Destination>,
    rehearsal: Option<ReceiverMaker<'a>>,
    /// The server's socket, and what an operator looks at meanwhile.
    look: Option<(PathBuf, Look)>,
}

struct Destination {
    path: PathBuf,
    /// The files that must be there afterwards.
    source: PathBuf,
    /// Made before the run, for receivers that don't make folders.
    folder: bool,
}

impl Destination {
    /// Takes away what a run has left. A file is removed. A tree is put aside until the end: ext4 avoids inodes that were freed in the last
    /// minutes, and passing over thousands of them would slow down whichever variant is next.
    fn clear(&self, bench: &Bench) -> Result<()> {
        if self.source.is_dir() { bench.folder.put_aside(&self.path) } else { remove(&self.path) }
    }
}

impl<'a> Transfer<'a> {
    /// A transfer from a server, of this many bytes over all receivers.
    pub fn new(
        bench: &'a Bench,
        bytes: u64,
        server: impl Fn() -> Result<ServerSpec> + 'a,
        receiver: impl Fn(u16) -> Result<Command> + 'a,
    ) -> Self {
        Self { server: Some(Box::new(server)), ..Self::alone(bench, bytes, Box::new(receiver)) }
    }

    /// A program that needs no server.
    pub fn local(bench: &'a Bench, bytes: u64, program: impl Fn() -> Result<Command> + 'a) -> Self {
        Self::alone(bench, bytes, Box::new(move |_| program()))
    }

    fn alone(bench: &'a Bench, bytes: u64, receiver: ReceiverMaker<'a>) -> Self {
        Self { bench, server: None, receiver, bytes, to: None, rehearsal: None, look: None }
    }

    /// An operator looks at the server meanwhile, which listens for it on this socket.
    pub fn watched(mut self, socket: PathBuf, look: Look) -> Self {
        self.look = Some((socket, look));
        self
    }

    /// The receiver writes there what must be equal to the source.
    pub fn to(mut self, path: &Path, source: &Path) -> Self {
        self.to = Some(Destination { path: path.to_owned(), source: source.to_owned(), folder: false });
        self
    }

    /// The destination is an empty folder that is there beforehand.
    pub fn into_made_folder(mut self) -> Self {
        if let Some(to) = &mut self.to {
            to.folder = true;
        }
        self
    }

    /// A transfer before the measured one, from the same server, that counts for nothing.
    pub fn rehearsed(mut self, receiver: impl Fn(u16) -> Result<Command> + 'a) -> Self {
        self.rehearsal = Some(Box::new(receiver));
        self
    }

    /// The commands, with names in place of folders and ports.
    pub fn how(&self) -> String {
        let mut commands = Vec::new();
        if let Some(server) = &self.server {
            commands.push(server().map(|spec| show(&spec.command)));
        }
        commands.push((self.receiver)(0).map(|command| show(&command)));
        let shown: Vec<String> =
            commands.into_iter().map(|shown| shown.unwrap_or_else(|why| format!("({why:#})"))).collect();
        self.bench.anonymous(&shown.join(" ; "))
    }

    /// Runs it.
    pub fn run(&self, check: bool) -> Result<Sample> {
        let logs = self.bench.folder.path();
        if let Some(to) = &self.to {
            remove(&to.path)?;
            if to.folder {
                fs::create_dir(&to.path)?;
            }
            self.bench.folder.flush()?;
        }
        let mut server = match &self.server {
            Some(server) => Some(Server::start(server()?, logs)?),
            None => None,
        };
        let port = server.as_ref().map_or(0, |server| server.port);
        if let (Some(rehearsal), Some(server)) = (&self.rehearsal, &mut server) {
            run(rehearsal(port)?, logs)?;
            server.start_counting();
        }
        if self.to.is_some() {
            // At the last moment: what is free meanwhile may be taken back by the host.
            let bytes = self.bytes + self.bytes / 16 + CACHES_BYTES;
            touch_memory(bytes)?;
            touch_file_memory(self.bench.folder.path(), bytes)?;
        }
        let operator = self.look.as_ref().map(|(socket, look)| Operator::start(socket, *look));
        let finished = run((self.receiver)(port)?, logs).with_context(|| {
            server.as_ref().map_or_else(String::new, |server| format!("the server's log: {}", server.log_tail()))
        })?;
        let looks = operator.map(Operator::stop).transpose()?;
        let usage = server.map(Server::stop).transpose()?;
        check_bytes(&finished.stdout, self.bytes)?;
        if let Some(to) = &self.to {
            if check {
                compare(&to.source, &to.path)?;
            }
            to.clear(self.bench)?;
        }
        Ok(Sample {
            seconds: finished.seconds,
            bytes: self.bytes,
            server_cpu_seconds: usage.map(|usage| usage.cpu_seconds),
            receiver_cpu_seconds: Some(finished.cpu_seconds),
            server_peak_bytes: usage.and_then(|usage| usage.peak_bytes),
            looks,
            ..Sample::default()
        })
    }
}

/// A receiver that prints what it got as JSON must have got everything.
pub fn check_bytes(stdout: &str, bytes: u64) -> Result<()> {
    let Ok(Value::Object(summary)) = serde_json::from_str(stdout) else {
        return Ok(());
    };
    match summary.get("bytes").and_then(Value::as_u64) {
        Some(got) if got != bytes => bail!("{got} bytes arrived instead of {bytes}"),
        _ => Ok(()),
    }
}
