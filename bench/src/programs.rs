//! The programs that are compared: ours, the peers in `bench/peers` that are compiled here, and those of the system. What is
//! missing is installed where that is possible; otherwise its rows say why they weren't run.

use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A program, or why there is none.
type Found = Result<PathBuf, String>;

/// A peer written in C: its name, its sources, and whether it needs libzmq.
const PEERS: [(&str, &[&str], bool); 6] = [
    ("raw_server", &["raw_server.c", "peer.c"], false),
    ("receiver", &["receiver.c", "wire.c", "peer.c"], false),
    ("file_receiver", &["file_receiver.c", "peer.c"], false),
    ("socket_exec", &["socket_exec.c", "peer.c"], false),
    ("zmq_server", &["zmq_server.c", "peer.c"], true),
    ("zmq_client", &["zmq_client.c", "peer.c"], true),
];

/// Programs of the system and the Debian package that each is in.
const TOOLS: [(&str, &str); 6] = [
    ("nginx", "nginx"),
    ("curl", "curl"),
    ("rsync", "rsync"),
    ("java", "default-jre-headless"),
    ("cp", "coreutils"),
    ("tar", "tar"),
];

/// Where each program is.
pub struct Programs {
    found: BTreeMap<&'static str, Found>,
}

impl Programs {
    /// Compiles the peers, builds `tow`, and looks for the rest.
    pub fn prepare(tow: Option<PathBuf>) -> Self {
        let mut found = BTreeMap::new();
        let compiler = tool("cc", "gcc");
        let libzmq = libzmq_flags();
        for (name, sources, needs_libzmq) in PEERS {
            let flags = if needs_libzmq { libzmq.clone() } else { Ok(Vec::new()) };
            let peer = compiler.clone().and_then(|compiler| compile(&compiler, name, sources, flags?));
            found.insert(name, peer);
        }
        for (name, package) in TOOLS {
            found.insert(name, tool(name, package));
        }
        found.insert("tow", tow.map_or_else(build_tow, Ok));
        Self { found }
    }

    /// A command that runs a program; the error says why there is none.
    pub fn command(&self, name: &str) -> Result<Command> {
        match self.found.get(name) {
            Some(Ok(path)) => Ok(Command::new(path)),
            Some(Err(why)) => bail!("{why}"),
            None => bail!("{name} is not known here"),
        }
    }

    /// The versions of what was found.
    pub fn versions(&self) -> Vec<(String, String)> {
        let asked = [
            ("tow", "--version"),
            ("nginx", "-v"),
            ("curl", "--version"),
            ("rsync", "--version"),
            ("java", "--version"),
            ("cp", "--version"),
            ("tar", "--version"),
        ];
        let mut versions: Vec<_> = asked
            .into_iter()
            .filter_map(|(name, flag)| Some((name.to_owned(), first_line(self.command(name).ok()?.arg(flag))?)))
            .collect();
        if let Some(version) = first_line(Command::new("pkg-config").args(["--modversion", "libzmq"])) {
            versions.push(("libzmq".to_owned(), version));
        }
        if let Some(version) = first_line(Command::new("cc").arg("--version")) {
            versions.push(("cc".to_owned(), version));
        }
        versions
    }
}

/// The folder of the peers' sources.
pub fn peers_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

/// The workspace's folder.
pub fn workspace() -> PathBuf {
    let bench = Path::new(env!("CARGO_MANIFEST_DIR"));
    bench.parent().unwrap_or(bench).to_owned()
}

/// The first line that a program prints, on either output.
fn first_line(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let printed = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    let line = String::from_utf8_lossy(&printed).lines().next()?.trim().to_owned();
    (!line.is_empty()).then_some(line)
}

/// Finds a program, installing its package if it has to and can.
fn tool(name: &str, package: &str) -> Found {
    if let Some(path) = in_path(name) {
        return Ok(path);
    }
    install(package)?;
    in_path(name).ok_or_else(|| format!("{name} is not in the package {package}"))
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file())
}

fn install(package: &str) -> Result<(), String> {
    eprintln!("bench: installing {package}");
    let installed = Command::new("apt-get")
        .args(["install", "-y", "--no-install-recommends", package])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .output();
    match installed {
        Ok(output) if output.status.success() => Ok(()),
        Ok(_) => Err(format!("{package} is not installed and apt-get could not install it")),
        Err(_) => Err(format!("{package} is not installed and there is no apt-get")),
    }
}

fn libzmq_flags() -> Result<Vec<String>, String> {
    let ask = || {
        let output = Command::new("pkg-config").args(["--cflags", "--libs", "libzmq"]).output().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect())
    };
    if let Some(flags) = ask() {
        return Ok(flags);
    }
    install("pkg-config")?;
    install("libzmq3-dev")?;
    ask().ok_or_else(|| "pkg-config does not know libzmq".to_owned())
}

fn compile(compiler: &Path, name: &str, sources: &[&str], libraries: Vec<String>) -> Found {
    let folder = build_folder().map_err(|error| format!("{error:#}"))?;
    let program = folder.join(name);
    let output = Command::new(compiler)
        .current_dir(peers_folder())
        .args(["-O2", "-std=gnu11", "-Wall", "-Wextra", "-pthread", "-o"])
        .arg(&program)
        .args(sources)
        .args(libraries)
        .output()
        .map_err(|error| format!("cc: {error}"))?;
    if output.status.success() {
        Ok(program)
    } else {
        Err(format!("{name} does not compile: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// Beside this program: the target folder of the build that it is from.
fn build_folder() -> Result<PathBuf> {
    let program = env::current_exe()?;
    let folder = program.parent().context("no folder")?.join("bench-peers");
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn build_tow() -> Found {
    let built = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(workspace())
        .args(["build", "--release", "--quiet", "--package", "towpath"])
        .status();
    match built {
        Ok(status) if status.success() => {}
        _ => return Err("tow could not be built".to_owned()),
    }
    let program = env::current_exe().map_err(|error| error.to_string())?;
    let tow = program.with_file_name("tow");
    if tow.is_file() { Ok(tow) } else { Err("cargo built no tow".to_owned()) }
}
