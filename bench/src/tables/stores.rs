//! Objects of a store of S3, through `tow` and without it.

use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result, anyhow};

use super::tree::small_files;
use super::{Bound, Content, Layout, Plan, Rows, Target, count_text, size_text};
use crate::Bench;
use crate::folder::{compare, remove, touch_file_memory, touch_memory};
use crate::operator::{metric, socket_in};
use crate::process::{Life, Ready, Server, ServerSpec, run, show};
use crate::series::{Kind, Sample, Variant};
use crate::stores::{BUCKET, REMOTE, Store};
use crate::transfer::check_bytes;

const ALONE: &str = "object_store alone";
const EMPTY: &str = "tow, empty cache";
const FILLED: &str = "tow, filled cache";
const DIRECTORY: &str = "tow, a directory";
const RCLONE: &str = "rclone";
const S5CMD: &str = "s5cmd";

const RECEIVERS: u64 = 20;
/// The part of the large object that each of many receivers gets.
const PART: u64 = 4;
/// As `tow` has them.
const PIECE_BYTES: u64 = 8 << 20;
/// Memory for what the system remembers of files beside their contents.
const CACHES_BYTES: u64 = 64 << 20;

/// A program that moves objects.
#[derive(Clone, Copy, PartialEq)]
enum Mover {
    Alone,
    Tow(Source),
    Rclone,
    S5cmd,
}

/// Source of what our server sends.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    /// A bucket, of which nothing is in the cache.
    EmptyCache,
    /// A bucket, once all was got from this server.
    FilledCache,
    /// A directory. What is got from it was got once before, so that its digest is known; what goes into the bucket wasn't.
    Directory,
}

/// Files or objects that are moved, and where to.
#[derive(Clone, Copy)]
struct Task {
    what: What,
    /// The source in the bench's folder, and in the bucket.
    name: &'static str,
    bytes: u64,
    pieces: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    Large,
    Many,
    Small,
    Into,
}

pub fn plan(bench: &Bench) -> Result<Plan<'_>> {
    let tasks = tasks(bench)?;
    let store = Rc::new(filled(bench, &tasks));
    let mut variants = Vec::new();
    for task in tasks {
        for mover in task.what.movers() {
            let store = Rc::clone(&store);
            variants.push(Variant {
                name: mover.name().to_owned(),
                kind: mover.kind(),
                how: how(bench, mover, task),
                groups: vec![task.group()],
                run: Box::new(move |check| {
                    let store = store.as_ref().as_ref().map_err(|why| anyhow!("{why:#}"))?;
                    Ok(vec![transfer(bench, store, mover, task, check)?])
                }),
            });
        }
    }
    let content = content(bench, store.as_ref().as_ref().ok(), &tasks);
    Ok(Plan { content, variants, targets })
}

fn tasks(bench: &Bench) -> Result<[Task; 4]> {
    let (large, part) = (bench.size, bench.size / PART);
    bench.folder.source("large", large)?;
    bench.folder.source("part", part)?;
    let small = small_files(bench)?;
    let of = |what, name, bytes: u64| Task { what, name, bytes, pieces: bytes.div_ceil(PIECE_BYTES) };
    Ok([
        of(What::Large, "large", large),
        of(What::Many, "part", part),
        Task { what: What::Small, name: "small", bytes: small.bytes, pieces: small.files },
        of(What::Into, "large", large),
    ])
}

/// A store with all that is got from it.
fn filled(bench: &Bench, tasks: &[Task]) -> Result<Store> {
    let store = Store::start(bench)?;
    for task in tasks.iter().filter(|task| task.what != What::Into) {
        let source = bench.folder.join(task.name);
        store.raw(bench, &["put", &source.to_string_lossy(), task.name])?;
    }
    Ok(store)
}

impl What {
    fn movers(self) -> Vec<Mover> {
        let tow: &[Source] = match self {
            What::Large | What::Small => &[Source::EmptyCache, Source::FilledCache, Source::Directory],
            What::Many => &[Source::EmptyCache],
            What::Into => &[Source::Directory],
        };
        let mut movers = vec![Mover::Alone];
        movers.extend(tow.iter().copied().map(Mover::Tow));
        movers.extend([Mover::Rclone, Mover::S5cmd]);
        movers
    }

    fn group(self) -> &'static str {
        match self {
            What::Large => "one object, to a file",
            What::Many => "one object to 20 receivers at once, who drop it",
            What::Small => "small objects, to a directory",
            What::Into => "a file, into the bucket",
        }
    }
}

impl Mover {
    fn name(self) -> &'static str {
        match self {
            Mover::Alone => ALONE,
            Mover::Tow(Source::EmptyCache) => EMPTY,
            Mover::Tow(Source::FilledCache) => FILLED,
            Mover::Tow(Source::Directory) => DIRECTORY,
            Mover::Rclone => RCLONE,
            Mover::S5cmd => S5CMD,
        }
    }

    fn kind(self) -> Kind {
        match self {
            Mover::Alone => Kind::Limit,
            Mover::Tow(_) => Kind::Ours,
            Mover::Rclone | Mover::S5cmd => Kind::Peer,
        }
    }

    /// Our server.
    fn server(self, bench: &Bench) -> Result<Option<ServerSpec>> {
        let Mover::Tow(source) = self else { return Ok(None) };
        let folder = bench.folder.path();
        let mut command = bench.programs.command("tow-as-packaged")?;
        command.arg("serve");
        match source.cache() {
            Some(cache) => command.arg(format!("s3://{BUCKET}")).arg("--cache").arg(folder.join(cache)),
            None => command.arg(folder),
        };
        command.args(["--bind", "tcp://127.0.0.1:0", "--admin-socket"]).arg(socket_in(folder));
        Ok(Some(ServerSpec { command, ready: Ready::Line, life: Life::Long }))
    }

    /// The program that gets or puts; to a path, or it drops what it gets.
    fn client(self, bench: &Bench, task: Task, port: u16, to: Option<&Path>) -> Result<Command> {
        let programs = &bench.programs;
        let (name, file) = (task.name, bench.folder.join(task.name));
        let (into, is_small) = (task.what == What::Into, task.what == What::Small);
        let command = match self {
            Mover::Alone => {
                let mut command = programs.command("raw_objects")?;
                command.args(["--bucket", BUCKET]);
                match to {
                    _ if into => command.arg("put").arg(file).arg(INTO_KEY),
                    Some(to) => command.args(["get", &key(task), "--to"]).arg(to),
                    None => command.args(["get", &key(task)]),
                };
                command
            }
            Mover::Tow(_) => {
                let mut command = programs.command("tow-as-packaged")?;
                command.args(["get", "--json", &format!("tcp://127.0.0.1:{port}/{name}")]);
                match to {
                    _ if into => command.arg(format!("s3://{BUCKET}/{INTO_KEY}")),
                    Some(to) => command.arg(to),
                    None => command.arg("--discard"),
                };
                command
            }
            Mover::Rclone => {
                let mut command = programs.command("rclone")?;
                let remote = format!("{REMOTE}:{BUCKET}/{name}");
                match to {
                    _ if into => {
                        command.arg("copyto").arg(file).arg(format!("{REMOTE}:{BUCKET}/{INTO_KEY}"));
                        command.args(["--s3-upload-cutoff", "8M", "--s3-chunk-size", "8M"]);
                        command.args(["--s3-upload-concurrency", "8", "--s3-no-check-bucket"])
                    }
                    Some(to) if is_small => {
                        command.args(["copy", &remote]).arg(to);
                        command.args(["--transfers", "32", "--checkers", "32", "--use-server-modtime"])
                    }
                    Some(to) => {
                        command.args(["copyto", &remote]).arg(to);
                        command.args(["--multi-thread-streams", "8", "--multi-thread-cutoff", "8M"])
                    }
                    None => command.args(["cat", &remote]),
                };
                command
            }
            Mover::S5cmd => {
                let mut command = programs.command("s5cmd")?;
                // Otherwise it prints a line for each object.
                command.args(["--log", "error"]);
                let parts = ["--concurrency", "8", "--part-size", "8"];
                let object = format!("s3://{BUCKET}/{name}");
                match to {
                    _ if into => command.arg("cp").args(parts).arg(file).arg(format!("s3://{BUCKET}/{INTO_KEY}")),
                    Some(to) if is_small => command.args(["cp", &format!("{object}/*"), &format!("{}/", to.display())]),
                    Some(to) => command.arg("cp").args(parts).arg(object).arg(to),
                    None => command.arg("cat").args(parts).arg(object),
                };
                command
            }
        };
        Ok(command)
    }
}

/// The object that is put.
const INTO_KEY: &str = "into";

/// The key of what is got.
fn key(task: Task) -> String {
    let end = if task.what == What::Small { "/" } else { "" };
    format!("{}{end}", task.name)
}

impl Source {
    /// The cache's directory in the bench's folder.
    fn cache(self) -> Option<&'static str> {
        match self {
            Source::EmptyCache => Some("cache"),
            Source::FilledCache => Some("cache-filled"),
            Source::Directory => None,
        }
    }
}

impl Task {
    fn group(&self) -> String {
        self.what.group().to_owned()
    }

    fn receivers(&self) -> u64 {
        if self.what == What::Many { RECEIVERS } else { 1 }
    }

    /// Whether receivers get all of it from the same server beforehand, so that it knows the digests.
    fn is_rehearsed(&self, mover: Mover) -> bool {
        matches!(mover, Mover::Tow(Source::FilledCache | Source::Directory)) && self.what != What::Into
    }

    /// Takes away what a run has left. A tree is put aside, since ext4 avoids inodes that were freed lately.
    fn clear(&self, bench: &Bench, path: &Path) -> Result<()> {
        if self.what == What::Small && path.exists() { bench.folder.put_aside(path) } else { remove(path) }
    }
}

fn how(bench: &Bench, mover: Mover, task: Task) -> String {
    let to = bench.folder.join("destination");
    let shown = || -> Result<String> {
        let server = mover.server(bench)?.map(|spec| format!("{} ; ", show(&spec.command))).unwrap_or_default();
        let client =
            show(&mover.client(bench, task, 0, Some(&to).filter(|_| task.receivers() == 1).map(|to| &**to))?);
        let times = if task.receivers() > 1 { format!("({RECEIVERS} times at once) ") } else { String::new() };
        Ok(bench.anonymous(&format!("{server}{times}{client}")))
    };
    shown().unwrap_or_else(|why| format!("({why:#})"))
}

/// A program that runs some of a command at once, and drops what they print.
fn at_once(command: &Command, count: u64) -> Command {
    let mut all = Command::new("sh");
    all.args(["-c", &format!("seq {count} | xargs -P {count} -I '{{}}' \"$0\" \"$@\" > /dev/null")]);
    all.arg(command.get_program()).args(command.get_args());
    all
}

fn transfer(bench: &Bench, store: &Store, mover: Mover, task: Task, check: bool) -> Result<Sample> {
    let (logs, to) = (bench.folder.path(), bench.folder.join("destination"));
    clear(bench, store, mover, task)?;
    bench.folder.flush()?;
    let mut server = started(bench, store, mover, task)?;
    let port = server.as_ref().map_or(0, |server| server.port);
    let is_alone = task.receivers() == 1;
    let mut client = mover.client(bench, task, port, is_alone.then_some(&*to))?;
    if !is_alone {
        client = at_once(&client, task.receivers());
    }
    store.known_to(&mut client);
    // What the destination and the cache need.
    let memory = 2 * task.bytes + task.bytes / 16 + CACHES_BYTES;
    touch_memory(memory)?;
    touch_file_memory(logs, memory)?;
    let (gets_before, store_before) = (gets(bench, mover)?, store.cpu_now());
    server.iter_mut().for_each(Server::start_counting);
    let finished = run(client, logs).with_context(|| match &server {
        Some(server) => format!("the server's log: {}", server.log_tail()),
        None => mover.name().to_owned(),
    })?;
    let store_cpu = store.cpu_now() - store_before;
    let gets = gets(bench, mover)?.zip(gets_before).map(|(after, before)| after - before);
    let usage = server.map(Server::stop).transpose()?;
    check_bytes(&finished.stdout, task.bytes)?;
    if check {
        check_copy(bench, store, task, &to)?;
    }
    clear(bench, store, mover, task)?;
    Ok(Sample {
        seconds: finished.seconds,
        bytes: task.bytes * task.receivers(),
        server_cpu_seconds: Some(usage.map_or(0.0, |usage| usage.cpu_seconds) + store_cpu),
        store_cpu_seconds: Some(store_cpu),
        receiver_cpu_seconds: Some(finished.cpu_seconds),
        server_peak_bytes: usage.and_then(|usage| usage.peak_bytes),
        gets_per_piece: gets.map(|gets| gets as f64 / task.pieces.max(1) as f64),
        ..Sample::default()
    })
}

/// Takes away what a run has left.
fn clear(bench: &Bench, store: &Store, mover: Mover, task: Task) -> Result<()> {
    task.clear(bench, &bench.folder.join("destination"))?;
    if mover == Mover::Tow(Source::EmptyCache) {
        task.clear(bench, &bench.folder.join("cache"))?;
    }
    if task.what == What::Into {
        store.raw(bench, &["delete", INTO_KEY])?;
    }
    Ok(())
}

/// Our server, once it is as the run needs it.
fn started(bench: &Bench, store: &Store, mover: Mover, task: Task) -> Result<Option<Server>> {
    let Some(mut spec) = mover.server(bench)? else { return Ok(None) };
    store.known_to(&mut spec.command);
    let server = Server::start(spec, bench.folder.path())?;
    if task.is_rehearsed(mover) {
        run(mover.client(bench, task, server.port, None)?, bench.folder.path())?;
    }
    Ok(Some(server))
}

/// Requests for content to the store that our server has made.
fn gets(bench: &Bench, mover: Mover) -> Result<Option<u64>> {
    if !matches!(mover, Mover::Tow(source) if source.cache().is_some()) {
        return Ok(None);
    }
    let socket = socket_in(bench.folder.path());
    let [kept, passed] = ["fetched", "bypassed"].map(|name| metric(&socket, &format!("towpath_cache_{name}_total")));
    Ok(Some(kept? + passed?))
}

/// Compares what has arrived with what was sent.
fn check_copy(bench: &Bench, store: &Store, task: Task, to: &Path) -> Result<()> {
    match task.what {
        What::Many => return Ok(()),
        What::Into => store.raw(bench, &["get", INTO_KEY, "--to", &to.to_string_lossy()])?,
        What::Large | What::Small => {}
    }
    compare(&bench.folder.join(task.name), to)
}

fn content(bench: &Bench, store: Option<&Store>, tasks: &[Task]) -> Content {
    let programs = &bench.programs;
    let version = |name: &str| programs.version(name).unwrap_or_else(|| format!("no {name}"));
    let of = |what: What| tasks.iter().find(|task| task.what == what).map_or((0, 0), |task| (task.bytes, task.pieces));
    let (large, part, (small, count)) = (of(What::Large).0, of(What::Many).0, of(What::Small));
    // What `go install` makes doesn't know its version.
    let of_store = store.map(|store| format!("{} {}", store.name, store.version(programs).unwrap_or_default()));
    let described = of_store.map_or_else(String::new, |store| format!(" ({})", store.trim()));
    Content {
        title: "Object stores".to_owned(),
        about: format!(
            "Objects of a server of S3 on this machine{described}, content that doesn't compress. The large object has {}, that of {RECEIVERS} receivers {}; there are {} \
             small ones of {}. *{ALONE}* is the crate that `tow` uses, without anything else: ranges and parts of 8 MiB, 8 at a time, or 32 small objects. \
             rclone ({}) and s5cmd ({}) have as many at a time, s5cmd 256 small objects; 20 receivers of them get the object from the store \
             each. With an *empty cache* each object goes from the store to the cache of `tow serve`, and from there to `tow get`, which verifies it: two more writes and reads \
             than without a cache, on the same disk and processors. With a *filled cache*, and from a *directory*, all was got from the same server once \
             before, but for the file that goes into the bucket: the server hashes it meanwhile. \
             The server's CPU time has the store's, which is shown beside it: the store, the server and the receivers share {} cores. *GETs a piece* are what our server \
             asked the store for, by its own count and without retries, for each piece of 8 MiB or small object.",
            size_text(large),
            size_text(part),
            count_text(count),
            size_text(small / count.max(1)),
            version("rclone"),
            version("s5cmd"),
            std::thread::available_parallelism().map_or(1, usize::from),
        ),
        peer: ALONE.to_owned(),
        layout: Layout::Full,
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let [large, many, small] = [What::Large, What::Many, What::Small].map(What::group);
    let faster = |text: &str, least, name, peer| {
        rows.compared(text, Bound::AtLeast(least), (name, peer, large), |row, peer| row.times_faster(peer))
    };
    let peaks = [large, many, small].into_iter().filter_map(|group| rows.find(EMPTY, group)?.server_peak());
    vec![
        faster("one object with an empty cache, rate of object_store's alone", 0.8, EMPTY, ALONE),
        faster("one object from the filled cache, rate of a directory's", 0.95, FILLED, DIRECTORY),
        rows.compared("GETs a piece, 20 receivers", Bound::AtMost(1.0), (EMPTY, EMPTY, many), |row, _| {
            row.gets_per_piece()
        }),
        Target {
            text: "the most memory of a server with an empty cache, MiB".to_owned(),
            bound: Bound::AtMost(64.0),
            measured: peaks.reduce(f64::max).map(|bytes| bytes / f64::from(1 << 20)),
        },
    ]
}
