//! A server of S3 with a bucket, and how programs find it.

use std::fs;
use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::Bench;
use crate::brokers::emptied;
use crate::process::{Life, Ready, Server, ServerSpec, run};
use crate::programs::Programs;

pub const BUCKET: &str = "bench";
/// The name of rclone's remote.
pub const REMOTE: &str = "store";
const KEY: &str = "bench";
const SECRET: &str = "bench-secret";
const REGION: &str = "us-east-1";
/// How long a server may take until it takes objects.
const READY_LIMIT: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(100);

/// A server of S3 that runs.
pub struct Store {
    /// The program.
    pub name: &'static str,
    server: Server,
}

impl Store {
    /// Starts versitygw if there is one, or else weed, and makes the bucket.
    pub fn start(bench: &Bench) -> Result<Store> {
        let programs = &bench.programs;
        let logs = bench.folder.path();
        let (name, spec) = match programs.command("versitygw") {
            Ok(command) => ("versitygw", versity(command, bench)?),
            Err(why) => {
                let command = programs.command("weed").with_context(|| format!("{why:#}"))?;
                ("weed", seaweed(command, bench)?)
            }
        };
        let store = Store { name, server: Server::start(spec, logs)? };
        let until = Instant::now() + READY_LIMIT;
        while !store.takes_objects(bench)? {
            ensure!(Instant::now() < until, "{name} takes no objects: {}", store.server.log_tail());
            thread::sleep(RETRY);
        }
        Ok(store)
    }

    /// CPU seconds since it began.
    pub fn cpu_now(&self) -> f64 {
        self.server.cpu_now()
    }

    /// Its version, if it knows it.
    pub fn version(&self, programs: &Programs) -> Option<String> {
        programs.version(self.name).filter(|version| version.contains(|letter: char| letter.is_ascii_digit()))
    }

    fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.server.port)
    }

    /// Gives a program the credentials and the address, in the variables of its kind.
    pub fn known_to(&self, command: &mut Command) {
        let endpoint = self.endpoint();
        command.envs([("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_REGION", REGION)]);
        command.envs([("AWS_ENDPOINT_URL", &endpoint), ("S3_ENDPOINT_URL", &endpoint)]);
        // Nobody's own configuration. rclone fails if there is a variable for certificates.
        command.env_remove("AWS_CA_BUNDLE").env_remove("AWS_PROFILE").env_remove("AWS_SESSION_TOKEN");
        command.env("RCLONE_CONFIG", "/notfound");
        let remote = REMOTE.to_uppercase();
        for (name, value) in [
            ("TYPE", "s3"),
            ("PROVIDER", "Other"),
            ("ACCESS_KEY_ID", KEY),
            ("SECRET_ACCESS_KEY", SECRET),
            ("REGION", REGION),
            ("ENDPOINT", &endpoint),
        ] {
            command.env(format!("RCLONE_CONFIG_{remote}_{name}"), value);
        }
    }

    /// Runs `raw_objects` to its end.
    pub fn raw(&self, bench: &Bench, arguments: &[&str]) -> Result<()> {
        let mut command = bench.programs.command("raw_objects")?;
        self.known_to(&mut command);
        command.args(["--bucket", BUCKET]).args(arguments);
        run(command, bench.folder.path()).map(drop)
    }

    /// Makes the bucket, and tries whether all of the server works.
    fn takes_objects(&self, bench: &Bench) -> Result<bool> {
        let tried = bench.folder.join("tried");
        fs::write(&tried, "tried")?;
        let ask = |path: &str| -> Result<Command> {
            let mut command = bench.programs.command("curl")?;
            command.args(["--silent", "--fail", "--max-time", "5", "--output", "/dev/null"]);
            command.args(["--aws-sigv4", &format!("aws:amz:{REGION}:s3"), "--user", &format!("{KEY}:{SECRET}")]);
            command.args(["--header", "x-amz-content-sha256: UNSIGNED-PAYLOAD"]);
            command.arg(format!("{}/{BUCKET}{path}", self.endpoint()));
            Ok(command)
        };
        let mut bucket = ask("")?;
        bucket.args(["--request", "PUT"]);
        // It fails if the bucket is there already.
        let _ = run(bucket, bench.folder.path());
        let mut object = ask("/tried")?;
        object.arg("--upload-file").arg(&tried);
        Ok(run(object, bench.folder.path()).is_ok())
    }
}

fn versity(mut command: Command, bench: &Bench) -> Result<ServerSpec> {
    let [port] = free_ports()?;
    command.env("ROOT_ACCESS_KEY", KEY).env("ROOT_SECRET_KEY", SECRET);
    command.args(["--quiet", "--keep-alive", "--port", &format!("127.0.0.1:{port}"), "posix"]);
    command.arg(emptied(bench.folder.path(), "objects")?);
    Ok(ServerSpec { command, ready: Ready::Port(port), life: Life::Long })
}

fn seaweed(mut command: Command, bench: &Bench) -> Result<ServerSpec> {
    const NAMED: [&str; 10] = [
        "s3.port",
        "s3.port.grpc",
        "master.port",
        "master.port.grpc",
        "volume.port",
        "volume.port.grpc",
        "filer.port",
        "filer.port.grpc",
        "admin.port",
        "admin.port.grpc",
    ];
    let ports: [u16; NAMED.len()] = free_ports()?;
    let data = emptied(bench.folder.path(), "objects")?;
    command.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET);
    command.arg("mini").arg("-dir").arg(&data).args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-webdav=false"]);
    command.args(["-admin.ui=false", "-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]);
    command.arg("-volume.max=20").args(NAMED.iter().zip(ports).map(|(name, port)| format!("-{name}={port}")));
    command.current_dir(&data);
    Ok(ServerSpec { command, ready: Ready::Port(ports[0]), life: Life::Long })
}

/// Ports that nothing listens on. All at once: one that is asked for again may be given again.
fn free_ports<const COUNT: usize>() -> Result<[u16; COUNT]> {
    let mut listeners = Vec::new();
    let mut ports = [0; COUNT];
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        *port = listener.local_addr()?.port();
        listeners.push(listener);
    }
    Ok(ports)
}
