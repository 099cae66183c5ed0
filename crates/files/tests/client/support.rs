//! A server in a thread, trees of files, and `get` with defaults.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use towpath_files::client::{ConnectOptions, Destination, Error, FileClient, GetOptions, Progress, Source, Summary};
use towpath_files::server::{Handle, Server, ServerOptions};
use towpath_sockets::Endpoint;

pub const MIB: usize = 1 << 20;

/// A real server, until it is dropped.
pub struct TestServer {
    pub endpoint: Endpoint,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl TestServer {
    pub fn start(root: &Path) -> Self {
        Self::start_at(root, "tcp://127.0.0.1:0")
    }

    pub fn start_at(root: &Path, endpoint: &str) -> Self {
        Self::bind(ServerOptions::new(root).listen(endpoint.parse().unwrap()))
    }

    pub fn start_with(options: ServerOptions) -> Self {
        Self::bind(options.listen("tcp://127.0.0.1:0".parse().unwrap()))
    }

    fn bind(options: ServerOptions) -> Self {
        let server = Server::bind(options).unwrap();
        let endpoint = server.endpoints()[0].clone();
        let handle = server.handle();
        let thread = std::thread::spawn(move || server.run().unwrap());
        Self { endpoint, handle, thread: Some(thread) }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.handle.shutdown();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Bytes that do not repeat and do not compress.
pub fn noise(count: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; count];
    blake3::Hasher::new_keyed(&[7; 32]).update(&seed.to_be_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

pub fn write(path: &Path, content: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

pub fn set_time(path: &Path, seconds: u64, nanoseconds: u32) {
    let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds);
    fs::File::open(path).unwrap().set_modified(time).unwrap();
}

pub fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

pub fn path_source(path: &str) -> Source {
    Source::Path(path.parse().unwrap())
}

/// A transfer, and the server that it is from.
pub struct Fetch {
    pub connect: ConnectOptions,
    pub get: GetOptions,
}

impl Fetch {
    pub fn run(self, progress: &mut dyn FnMut(Progress)) -> Result<Summary, Error> {
        FileClient::new(self.connect).get(self.get, progress)
    }
}

/// Options with time-outs that a test can wait for.
pub fn options(endpoint: &Endpoint, source: Source, destination: &Path) -> Fetch {
    let mut connect = ConnectOptions::new(endpoint.clone());
    connect.idle_timeout = Duration::from_secs(20);
    let mut get = GetOptions::new(source);
    get.destination = Destination::Path(Some(destination.to_owned()));
    Fetch { connect, get }
}

pub fn run(fetch: Fetch) -> Result<Summary, Error> {
    fetch.run(&mut |_| {})
}

pub fn fetch(endpoint: &Endpoint, source: &str, destination: &Path) -> Result<Summary, Error> {
    run(options(endpoint, path_source(source), destination))
}

/// Everything that a tree has below it, as text that can be compared.
pub fn describe(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    describe_below(root, Path::new(""), &mut lines);
    lines.sort();
    lines
}

fn describe_below(root: &Path, below: &Path, lines: &mut Vec<String>) {
    for entry in fs::read_dir(root.join(below)).unwrap() {
        let relative: PathBuf = below.join(entry.unwrap().file_name());
        let path = root.join(&relative);
        let stat = fs::symlink_metadata(&path).unwrap();
        let (mode, time) = (stat.mode() & 0o7777, (stat.mtime(), stat.mtime_nsec()));
        if stat.is_dir() {
            lines.push(format!("{relative:?} dir {mode:o} {time:?}"));
            describe_below(root, &relative, lines);
        } else if stat.is_symlink() {
            lines.push(format!("{relative:?} -> {:?} {time:?}", fs::read_link(&path).unwrap()));
        } else {
            let hash = blake3::hash(&fs::read(&path).unwrap());
            lines.push(format!("{relative:?} file {mode:o} {time:?} {} {hash}", stat.size()));
        }
    }
}

/// Names that transfers leave behind when they are not finished.
pub fn partial_names(directory: &Path) -> Vec<String> {
    let names =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap_or_default());
    let mut names: Vec<String> = names.filter(|name| name.starts_with(".tow-")).collect();
    names.sort();
    names
}

/// A writer whose content a test can see afterwards.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    pub fn content(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl std::io::Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
