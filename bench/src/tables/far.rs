//! Links to far machines, made here: whole commands, from their start to their end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use towpath_far_link::{End, FAR, FarLink, Link};

use super::{Bound, Content, Figure, Layout, Plan, Rows, Target};
use crate::Bench;
use crate::folder::{compare, remove};
use crate::process::{Life, Ready, Server, ServerSpec, run, show};
use crate::series::{Kind, Sample, Variant};
use crate::servers;

/// TCP buffers as Linux comes, to send and to receive.
const DEFAULT_BUFFERS: (u64, u64) = (4 << 20, 6 << 20);
const LARGE_BUFFERS: (u64, u64) = (128 << 20, 128 << 20);

/// A link, and what goes over it.
struct Case {
    round_trip_ms: u64,
    mbit: u64,
    content: What,
    /// Of so many packets one is lost; 0: none.
    loses_one_of: u64,
    buffers: (u64, u64),
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    /// A file of so many megabytes.
    File(u64),
    /// Small files.
    Tree,
}

const TREE_FILES: u64 = 2_000;
const TREE_FILE_BYTES: u64 = 4 << 10;

const fn file(round_trip_ms: u64, mbit: u64, megabytes: u64) -> Case {
    Case { round_trip_ms, mbit, content: What::File(megabytes), loses_one_of: 0, buffers: LARGE_BUFFERS }
}

const CASES: [Case; 8] = [
    file(20, 400, 100),
    file(200, 200, 100),
    file(100, 800, 400),
    file(200, 400, 200),
    file(300, 400, 200),
    Case { loses_one_of: 200, ..file(100, 400, 200) },
    Case { buffers: DEFAULT_BUFFERS, ..file(300, 400, 50) },
    Case { content: What::Tree, ..file(200, 400, 0) },
];

const OURS: [&str; 2] = ["tow get", "tow push"];
const NGINX: &str = "nginx, curl";
const RSYNC: &str = "rsync daemon";

/// A TCP server that sends a file, and one that receives it.
const SEND: &str = "import socket,sys\ns=socket.create_server((sys.argv[1],0))\nprint(s.getsockname()[1],flush=True)\n\
    while True:\n c,_=s.accept()\n with c,open(sys.argv[2],'rb') as f: c.sendfile(f)";
const RECEIVE: &str = "import socket,sys\nb=bytearray(1<<20)\nwith socket.create_connection((sys.argv[1],int(sys.argv[2]))) as s,open(sys.argv[3],'wb') as f:\n \
    while n:=s.recv_into(b): f.write(memoryview(b)[:n])";

type Maker<'a> = Box<dyn Fn(&Path) -> Result<ServerSpec> + 'a>;
/// A receiver of a file of a server on a port, below the bench's folder.
type Client<'a> = Box<dyn Fn(u16, &str) -> Result<Command> + 'a>;

/// A server and a client, and where what arrives is.
struct Setup<'a> {
    kind: Kind,
    name: &'static str,
    server: Maker<'a>,
    client: Client<'a>,
    takes: fn(&Case) -> bool,
    arrives: fn(&str) -> String,
}

pub fn plan(bench: &Bench) -> Result<Plan<'_>> {
    let root = bench.folder.join("far");
    for case in &CASES {
        match case.content {
            What::File(_) => _ = bench.folder.source(&format!("far/{}", name_of(bench, case)), case.bytes(bench))?,
            What::Tree => make_tree(bench, &root.join(name_of(bench, case)))?,
        }
    }
    fs::create_dir_all(root.join("in"))?;
    let variants = setups(bench).into_iter().map(|setup| {
        let cases: Vec<&Case> = CASES.iter().filter(|case| (setup.takes)(case)).collect();
        Variant {
            name: setup.name.to_owned(),
            kind: setup.kind,
            how: how(bench, &setup),
            groups: cases.iter().map(|case| case.group()).collect(),
            run: Box::new(move |check| cases.iter().map(|case| transfer(bench, &setup, case, check)).collect()),
        }
    });
    Ok(Plan { content: content(), variants: variants.collect(), targets })
}

/// Small files without a pattern.
fn make_tree(bench: &Bench, tree: &Path) -> Result<()> {
    if tree.exists() {
        return Ok(());
    }
    let all = bench.folder.source("far/small", TREE_FILES * TREE_FILE_BYTES)?;
    fs::create_dir_all(tree)?;
    for (number, bytes) in fs::read(all)?.chunks(TREE_FILE_BYTES as usize).enumerate() {
        fs::write(tree.join(number.to_string()), bytes)?;
    }
    Ok(())
}

/// Bytes of what counts as a megabyte: less in a quick run.
fn bench_unit(bench: &Bench) -> u64 {
    if bench.quick { 20_000 } else { 1_000_000 }
}

fn name_of(bench: &Bench, case: &Case) -> String {
    match case.content {
        What::File(megabytes) => format!("f{megabytes}{}", if bench.quick { "q" } else { "" }),
        What::Tree => "tree".to_owned(),
    }
}

impl Case {
    fn bytes(&self, bench: &Bench) -> u64 {
        match self.content {
            What::File(megabytes) => megabytes * bench_unit(bench),
            What::Tree => TREE_FILES * TREE_FILE_BYTES,
        }
    }

    fn is_file(&self) -> bool {
        self.content != What::Tree
    }

    fn group(&self) -> String {
        let content = match self.content {
            What::File(megabytes) => format!("{megabytes} MB"),
            What::Tree => "2,000 files of 4 KiB".to_owned(),
        };
        let losses = match self.loses_one_of {
            0 => String::new(),
            packets => format!(", {} % lost", 100.0 / packets as f64),
        };
        let buffers = if self.buffers == DEFAULT_BUFFERS { ", default buffers" } else { "" };
        format!("{} ms, {} Mbit/s{losses}, {content}{buffers}", self.round_trip_ms, self.mbit)
    }
}

fn setups(bench: &Bench) -> [Setup<'_>; 6] {
    let (programs, copy) = (&bench.programs, bench.folder.join("far-copy"));
    let tow = |root: &Path| {
        let mut spec = servers::tow_at(programs, root, FAR)?;
        spec.command.args(["--open-to-all", "--accept-push", "in"]);
        Ok(spec)
    };
    let with_cubic = move |root: &Path| {
        let mut spec = tow(root)?;
        spec.command.args(["--congestion", "cubic"]);
        Ok(spec)
    };
    let get = |copy: PathBuf| -> Client<'_> {
        Box::new(move |port, file| {
            let mut command = programs.command("tow")?;
            command.args(["get", "-q", &format!("tcp://{FAR}:{port}/{file}")]).arg(&copy);
            Ok(command)
        })
    };
    let in_copy: fn(&str) -> String = |_| "far-copy".to_owned();
    let python = |script: &'static str| {
        let mut command = Command::new("python3");
        command.args(["-c", script]);
        command
    };
    let (raw_copy, curl_copy, rsync_copy) = (copy.clone(), copy.clone(), copy.clone());
    [
        Setup {
            kind: Kind::Limit,
            name: "one TCP connection",
            server: Box::new(move |root| {
                let mut command = python(SEND);
                command.arg(FAR);
                command.current_dir(root);
                Ok(ServerSpec { command, ready: Ready::Line, life: Life::Long })
            }),
            client: Box::new(move |port, _| {
                let mut command = python(RECEIVE);
                command.args([FAR, &port.to_string()]).arg(&raw_copy);
                Ok(command)
            }),
            takes: Case::is_file,
            arrives: in_copy,
        },
        Setup {
            kind: Kind::Ours,
            name: OURS[0],
            server: Box::new(tow),
            client: get(copy.clone()),
            takes: |_| true,
            arrives: in_copy,
        },
        Setup {
            kind: Kind::Ours,
            name: "tow get, CUBIC",
            server: Box::new(with_cubic),
            client: get(copy),
            takes: |case| case.loses_one_of > 0,
            arrives: in_copy,
        },
        Setup {
            kind: Kind::Ours,
            name: OURS[1],
            server: Box::new(tow),
            client: Box::new(move |port, file| {
                let mut command = programs.command("tow")?;
                command.args(["push", "-q"]).arg(bench.folder.join("far").join(file));
                command.arg(format!("tcp://{FAR}:{port}/in/"));
                Ok(command)
            }),
            takes: |_| true,
            arrives: |file| format!("far/in/{file}"),
        },
        Setup {
            kind: Kind::Peer,
            name: NGINX,
            server: Box::new(move |root| servers::nginx_at(programs, bench.folder.path(), root, FAR)),
            client: Box::new(move |port, file| {
                let mut command = programs.command("curl")?;
                command.args(["-sf", "-o"]).arg(&curl_copy).arg(format!("http://{FAR}:{port}/{file}"));
                Ok(command)
            }),
            takes: Case::is_file,
            arrives: in_copy,
        },
        Setup {
            kind: Kind::Peer,
            name: RSYNC,
            server: Box::new(move |root| servers::rsync_at(programs, bench.folder.path(), root, true, FAR)),
            client: Box::new(move |port, file| {
                let mut command = programs.command("rsync")?;
                command.args(["-rtW", "--sockopts=TCP_NODELAY", &format!("rsync://{FAR}:{port}/files/{file}")]);
                command.arg(&rsync_copy);
                Ok(command)
            }),
            takes: |_| true,
            arrives: in_copy,
        },
    ]
}

fn how(bench: &Bench, setup: &Setup<'_>) -> String {
    let shown = || -> Result<String> {
        let commands = [(setup.server)(&bench.folder.join("far"))?.command, (setup.client)(0, "FILE")?];
        Ok(bench.anonymous(&commands.each_ref().map(show).join(" ; ")))
    };
    shown().unwrap_or_else(|why| format!("({why:#})"))
}

/// The same command at an end of a link.
fn at(link: &FarLink, end: End, command: &Command) -> Command {
    let mut there = link.command(end, command.get_program());
    there.args(command.get_args());
    if let Some(directory) = command.get_current_dir() {
        there.current_dir(directory);
    }
    there
}

fn transfer(bench: &Bench, setup: &Setup<'_>, case: &Case, check: bool) -> Result<Sample> {
    let (root, logs, file) = (bench.folder.join("far"), bench.folder.path(), name_of(bench, case));
    let link = FarLink::start(Link {
        round_trip: Duration::from_millis(case.round_trip_ms),
        bits_per_second: case.mbit * 1_000_000,
        loses_one_of: case.loses_one_of,
        buffers_max: case.buffers,
    });
    let link = link.context("no link can be made here: that takes root and /dev/net/tun")?;
    let arrives = bench.folder.join(&(setup.arrives)(&file));
    remove(&arrives)?;
    let mut spec = (setup.server)(&root)?;
    if setup.kind == Kind::Limit {
        spec.command.arg(&file);
    }
    let command = at(&link, End::Far, &spec.command);
    let ready = match spec.ready {
        Ready::Port(port) => Ready::Listening(port),
        ready => ready,
    };
    let server = Server::start(ServerSpec { command, ready, ..spec }, logs)?;
    let client = (setup.client)(server.port, &file)?;
    let finished = run(at(&link, End::Near, &client), logs).with_context(|| server.log_tail())?;
    let usage = server.stop()?;
    if check {
        check_copy(case, &root.join(&file), &arrives)?;
    }
    remove(&arrives)?;
    Ok(Sample {
        seconds: finished.seconds,
        bytes: case.bytes(bench),
        server_cpu_seconds: Some(usage.cpu_seconds),
        receiver_cpu_seconds: Some(finished.cpu_seconds),
        server_peak_bytes: usage.peak_bytes,
        ..Sample::default()
    })
}

/// Each program puts a tree where it thinks best, below the place of a file.
fn check_copy(case: &Case, source: &Path, arrives: &Path) -> Result<()> {
    if case.content != What::Tree {
        return compare(source, arrives);
    }
    let below = arrives.join(source.file_name().unwrap_or_default());
    let copy = if below.is_dir() { below.as_path() } else { arrives };
    compare(source, copy)
}

fn content() -> Content {
    Content {
        title: "Far links".to_owned(),
        about: "Whole commands over a link between two network namespaces that the bench makes itself (testing/far-link): both directions have this \
             rate and half of this round trip, a queue of one round trip, and no losses unless they are named. TCP buffers may have 128 MiB, except where the \
             defaults of Linux are named: 4 MiB to send, and 6 to receive. All use the machine's congestion control but for the row that names another. The limit is one \
             TCP connection with the same bytes, without a request."
            .to_owned(),
        peer: NGINX.to_owned(),
        layout: Layout::Grid { groups: "link".to_owned(), figures: vec![Figure::Milliseconds], log_y: false },
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let slowest = |name: &str| {
        let times = CASES.iter().filter(|case| case.is_file()).map(|case| {
            let group = case.group();
            rows.find(NGINX, &group)?.times_faster(rows.find(name, &group)?)
        });
        times.collect::<Option<Vec<_>>>()?.into_iter().reduce(f64::max)
    };
    let target = |name: &str| Target {
        text: format!("the time of {name}, of nginx and curl's, where it is longest"),
        bound: Bound::AtMost(1.05),
        measured: slowest(name),
    };
    let tree = CASES.iter().find(|case| case.content == What::Tree).map(Case::group).unwrap_or_default();
    let of_tree = |name: &str| {
        let text = format!("the time of {name}, of rsync's, small files");
        rows.compared(&text, Bound::AtMost(1.05), (name, RSYNC, &tree), |row, peer| peer.times_faster(row))
    };
    OURS.map(target).into_iter().chain(OURS.map(of_tree)).collect()
}
