//! Random operations on a directory that is served, followed, relayed, frozen and pushed to by real processes that are
//! killed, stopped and slowed down at random. Ten seconds by default; `cargo xtask torture --minutes N` for longer.
//!
//! Holds at all times: no file of a copy has content that the source never had, and nothing is written outside of a destination.
//! Holds each time that the source rests: all copies become as it is, and none says that it is up to date before that.

mod copies;
mod source;
#[allow(dead_code, reason = "the other tests use all of it")]
#[path = "../binary/support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use copies::{Reader, Tree, differences, tree};
use source::Source;
use support::process::{Process, run, tow};
use support::proxy::Proxy;
use support::random::Random;
use support::tree::Entry;
use support::{skip, wait_until};

/// Longest time until all copies are as the source that rests.
const REST: Duration = Duration::from_secs(90);
/// How long operations and faults go on before the source rests.
const ROUND: Duration = Duration::from_secs(5);
/// Set in a mount namespace of our own.
const IN_NAMESPACE: &str = "TOWPATH_TORTURE_IN_NAMESPACE";
const EXCLUDED: &str = "*.skip";
/// No limit on deletions: those at random are intended.
const NO_LIMIT: &str = "1000000000";
/// Paths of the source beyond which some are removed before the next round.
const PATHS: usize = 3000;

/// A program that is killed and started again.
struct Member {
    name: &'static str,
    command: Box<dyn Fn() -> Command>,
    process: Process,
    stopped_until: Option<Instant>,
}

impl Member {
    fn start(name: &'static str, command: impl Fn() -> Command + 'static) -> Self {
        let process = Process::start(&mut command());
        Self { name, command: Box::new(command), process, stopped_until: None }
    }

    fn kill(&mut self, signal: Signal) {
        self.resume();
        self.process.signal(signal);
        wait_until(&format!("{} ended by {signal:?}; it said: {}", self.name, self.process.log()), || {
            self.process.ended()
        });
        self.check();
        self.process = Process::start(&mut (self.command)());
    }

    fn resume(&mut self) {
        if self.stopped_until.take().is_some() {
            self.process.signal(Signal::CONT);
        }
    }

    fn check(&self) {
        let log = self.process.log();
        assert!(!log.contains("panicked"), "{}: {log}", self.name);
    }

    /// The number of its last line, if that says that it is up to date.
    fn up_to_date_at(&self) -> Option<u64> {
        let output = self.process.output();
        let last: serde_json::Value = serde_json::from_str(output.lines().next_back()?).ok()?;
        (last["event"] == "up-to-date").then(|| last["seq"].as_u64())?
    }
}

/// A copy, and the member that keeps it.
struct Copy {
    member: usize,
    root: PathBuf,
    leaves_out: bool,
}

const SERVER: usize = 0;
const RELAY: usize = 1;
const MEDDLED: usize = 4;

struct Torture {
    folder: TempDir,
    seed: u64,
    random: Random,
    source: Source,
    members: Vec<Member>,
    copies: Vec<Copy>,
    proxies: Vec<Proxy>,
    push: Option<(Process, Vec<u8>, PathBuf)>,
    publish: Option<Process>,
    reader: Option<Reader>,
    /// Trees that were moved out of a copy, and must stay as they are.
    moved_away: Vec<(PathBuf, Tree)>,
    /// Content that was written in a copy, and must stay somewhere in it.
    local_work: Vec<Vec<u8>>,
    count: u32,
    faults: u32,
}

fn follow(location: String, destination: &Path, options: &[&str]) -> impl Fn() -> Command + use<> {
    let destination = destination.to_owned();
    let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    move || {
        let mut command = tow(["follow", &location]);
        command.arg(&destination).args(["--json", "--connect-timeout", "7days"]).args(&options);
        if options.iter().any(|option| option == "--mirror") {
            command.args(["--max-delete", NO_LIMIT]);
        }
        command
    }
}

impl Torture {
    fn new(seed: u64, may_mount: bool) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let source = Source::new(folder.path(), seed, may_mount);
        let at = |name: &str| folder.path().join(name);
        let (root, state) = (source.root.clone(), at("state"));
        let server = Member::start("server", move || {
            let mut command = tow(["serve", "--bind", "tcp://127.0.0.1:0", "--settle", "300ms", "--accept-push", "in"]);
            command.args(["--max-delete", NO_LIMIT, "--accept-publish", "--watch", "--state"]).arg(&state).arg(&root);
            command
        });
        let port = port_of(&server);
        let proxies: Vec<Proxy> = (0..6).map(|_| Proxy::start(port)).collect();
        let relay = format!("ipc://{}", at("relay.sock").display());
        let members = vec![
            server,
            Member::start(
                "relay",
                follow(proxies[0].url(""), &at("relayed"), &["--mirror", "--name", "relay", "--serve", &relay]),
            ),
            Member::start("mirror", follow(proxies[1].url(""), &at("mirror"), &["--mirror", "--name", "mirror"])),
            Member::start(
                "excluding",
                follow(
                    proxies[2].url(""),
                    &at("excluding"),
                    &["--mirror", "--name", "excluding", "--exclude", EXCLUDED],
                ),
            ),
            Member::start("meddled", follow(proxies[3].url(""), &at("meddled"), &["--mirror", "--name", "meddled"])),
            Member::start(
                "versions",
                follow(proxies[4].url(""), &at("versions"), &["--versions", "--name", "versions"]),
            ),
            Member::start(
                "behind the relay",
                follow(format!("{relay}:/"), &at("behind"), &["--mirror", "--name", "behind"]),
            ),
        ];
        let copy = |member, name, leaves_out| Copy { member, root: at(name), leaves_out };
        let copies = vec![
            copy(2, "mirror", false),
            copy(3, "excluding", true),
            copy(RELAY, "relayed", false),
            copy(6, "behind", false),
            copy(MEDDLED, "meddled", false),
        ];
        let random = Random::new(seed ^ 0x746f_7274);
        Self {
            folder,
            seed,
            random,
            source,
            members,
            copies,
            proxies,
            push: None,
            publish: None,
            reader: None,
            moved_away: Vec::new(),
            local_work: Vec::new(),
            count: 0,
            faults: 0,
        }
    }

    fn url(&self, path: &str) -> String {
        self.proxies[5].url(path)
    }

    /// Operations and faults until `end`.
    fn act(&mut self, end: Instant) {
        let top = self.source.root.join("tree");
        for directory in fs::read_dir(&top).into_iter().flatten().flatten() {
            if tree(&top).len() > PATHS {
                // Fails for a file.
                let _ = fs::remove_dir_all(directory.path());
            }
        }
        while Instant::now() < end {
            for _ in 0..self.random.below(30) {
                self.source.step();
            }
            // The moments are random on purpose.
            std::thread::sleep(Duration::from_millis(self.random.below(60)));
            for member in &mut self.members {
                if member.stopped_until.is_some_and(|until| until < Instant::now()) {
                    member.resume();
                }
            }
            if self.random.below(5) == 0 {
                self.fault();
            }
            self.go_on_pushing();
            if self.random.below(12) == 0 && self.publish.is_none() {
                self.count += 1;
                let label = format!("v{}", self.count);
                // Where something is always written, it waits in vain.
                let publish = ["publish", &self.url(""), &label, "--keep", "3", "--timeout", "10s"];
                self.publish = Some(Process::start(&mut tow(publish)));
            }
            self.publish.take_if(|process| process.ended());
            self.reader.as_ref().expect("it runs").check();
        }
    }

    fn fault(&mut self) {
        self.faults += 1;
        let index = self.random.below(self.members.len() as u64) as usize;
        match self.random.below(8) {
            0..3 => self.restart(index, Signal::KILL),
            3 => self.restart(index, Signal::TERM),
            4 | 5 => {
                let member = &mut self.members[index];
                member.process.signal(Signal::STOP);
                member.stopped_until = Some(Instant::now() + Duration::from_millis(self.random.below(1500)));
            }
            number => {
                let proxy = &self.proxies[index % self.proxies.len()];
                let bytes = self.random.below(2 << 20);
                match number {
                    6 => proxy.slow_down(100_000 + bytes * 20),
                    _ => proxy.cut_after([bytes]),
                }
            }
        }
    }

    fn restart(&mut self, index: usize, signal: Signal) {
        self.members[index].kill(signal);
        if index == SERVER {
            let port = port_of(&self.members[SERVER]);
            for proxy in &self.proxies {
                proxy.lead_to(port);
            }
        }
    }

    /// Starts a push, or looks how one ended.
    fn go_on_pushing(&mut self) {
        if let Some((mut process, content, name)) = self.push.take() {
            if !process.ended() {
                self.push = Some((process, content, name));
                return;
            }
            let outcome = process.finish();
            if outcome.status.success() {
                let there = fs::read(self.source.root.join("in").join(&name)).expect("what was confirmed is there");
                assert!(there == content, "{}: confirmed, and other content is there", name.display());
            } else {
                assert!(!outcome.stderr.contains("panicked"), "{}", outcome.stderr);
            }
        }
        let size = self.random.below(2 << 20);
        let content = self.source.content(size);
        let name = PathBuf::from(format!("pushed-{}", self.random.below(4)));
        let local = self.folder.path().join(&name);
        fs::write(&local, &content).expect("write");
        let location = self.url(&format!("in/{}", name.display()));
        let process = Process::start(tow(["push", "--json"]).arg(&local).arg(location));
        self.push = Some((process, content, name));
    }

    /// Differences of a copy from its expected content.
    fn differences(&self, copy: &Copy) -> Vec<String> {
        let (mut expected, found) = (tree(&self.source.root), tree(&copy.root));
        // What is on a disk that isn't there is held.
        if let Some(disk) = self.source.disk() {
            expected.extend(tree(disk).into_iter().map(|(path, entry)| (Path::new("mnt").join(path), entry)));
        }
        let is_left_out = |path: &Path| path.iter().any(|name| name.to_string_lossy().ends_with(".skip"));
        // Nor can one that began again get what is on a disk that isn't there.
        let may_lack = |path: &Path| copy.member == MEDDLED && self.source.is_unmounted() && path.starts_with("mnt");
        expected
            .retain(|path, _| !(copy.leaves_out && is_left_out(path) || may_lack(path) && !found.contains_key(path)));
        differences(&expected, &found)
    }

    /// The source rests: all copies become as it is, and none says so before.
    fn rest(&mut self) {
        self.source.rest();
        for member in &mut self.members {
            member.resume();
        }
        for proxy in &self.proxies {
            proxy.slow_down(1 << 40);
        }
        for (process, what) in
            [self.push.take().map(|push| push.0), self.publish.take()].into_iter().zip(["push", "publish"])
        {
            if let Some(process) = process {
                let log = process.log();
                println!("at rest, waiting for a {what}{}{log}", if log.is_empty() { "" } else { ": " });
                let outcome = process.finish();
                assert!(!outcome.stderr.contains("panicked"), "{what}: {}", outcome.stderr);
            }
        }
        self.wait_same();
    }

    fn wait_same(&self) {
        let begin = Instant::now();
        // Number from which on the server has published all that there is.
        let mut whole = None;
        let mut missing: Vec<&Copy> = self.copies.iter().collect();
        // Those that were the same when last compared, and what they had said: they may have had more than that.
        let mut same = HashMap::new();
        while !missing.is_empty() {
            missing.retain(|copy| {
                let member = &self.members[copy.member];
                let said = member.up_to_date_at();
                let differences = self.differences(copy);
                if differences.is_empty() {
                    let is_certain = same.insert(copy.member, said) == Some(said) && said.is_some();
                    whole = whole.or(said.filter(|_| is_certain));
                    return !is_certain && begin.elapsed() < REST;
                }
                let says = |whole: u64| said.is_some_and(|said| said >= whole);
                let is_false = whole.is_some_and(says) && member.up_to_date_at() == said;
                assert!(!is_false, "{}: up to date at {said:?}, but {differences:#?}\n{}", member.name, self.logs());
                let name = member.name;
                assert!(
                    begin.elapsed() < REST,
                    "{name} isn't as the source after {REST:?}: {differences:#?}\n{}",
                    self.logs()
                );
                true
            });
            self.reader.as_ref().expect("it runs").check();
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn logs(&self) -> String {
        let last = |text: String| {
            text.lines().rev().take(30).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n  ")
        };
        let member = |member: &Member| {
            format!("--- {}\n  {}\n  {}\n", member.name, last(member.process.output()), last(member.process.log()))
        };
        self.members.iter().map(member).collect()
    }

    /// While all are at rest: what a new follower and a new version have is what is there.
    fn check_new_ones(&mut self) {
        self.source.mount();
        self.wait_same();
        self.count += 1;
        let copy = self.folder.path().join("once");
        run(tow(["follow", &self.url(""), "--once", "--name", "once"]).arg(&copy)).expect_code(0);
        let whole = Copy { member: SERVER, root: copy.clone(), leaves_out: false };
        let differences_now = self.differences(&whole);
        assert!(differences_now.is_empty(), "follow --once ends with 0: {differences_now:#?}\n{}", self.logs());
        fs::remove_dir_all(&copy).expect("rm -r");

        let label = format!("rest-{}", self.count);
        run(&mut tow(["publish", &self.url(""), &label, "--keep", "3"])).expect_code(0);
        let current = self.folder.path().join("versions/current");
        let version = Copy { root: current.clone(), ..whole };
        let begin = Instant::now();
        loop {
            let differences = self.differences(&version);
            if differences.is_empty() {
                break;
            }
            assert!(begin.elapsed() < REST, "version {label} isn't as the source: {differences:#?}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
        let copy = self.folder.path().join("got");
        run(tow(["get", "-q", &self.url(&format!(".tow-versions/{label}/tree"))]).arg(&copy)).expect_code(0);
        let without_modes = |tree: Tree| -> Tree {
            tree.into_iter().filter(|(_, entry)| !matches!(entry, Entry::Directory(_))).collect()
        };
        // Directories of a version are its server's own.
        let differences = differences(&without_modes(tree(&self.source.root)), &without_modes(tree(&copy)));
        assert!(differences.is_empty(), "get of version {label}: {differences:#?}");
        fs::remove_dir_all(&copy).expect("rm -r");
    }

    /// Works in a copy while its follower has nothing to do, as a person would: moves a directory out of it, and edits a file so that size and
    /// time are as before.
    fn meddle(&mut self) {
        let root = self.folder.path().join("meddled");
        let found = tree(&root.join("tree"));
        let directories: Vec<&PathBuf> = found
            .iter()
            .filter(|(path, entry)| matches!(entry, Entry::Directory(_)) && path.components().count() == 1)
            .map(|(path, _)| path)
            .collect();
        if !directories.is_empty() {
            let index = self.random.below(directories.len() as u64) as usize;
            let away = self.folder.path().join(format!("moved-away-{}", self.moved_away.len()));
            fs::rename(root.join("tree").join(directories[index]), &away).expect("mv");
            let is = tree(&away);
            self.moved_away.push((away, is));
        }
        for (path, entry) in tree(&root) {
            if let Entry::File(size @ 100.., ..) = entry
                && self.local_work.len() < 5
            {
                let path = root.join(path);
                let times = fs::metadata(&path).and_then(|metadata| metadata.modified()).expect("stat");
                let content = self.random.bytes(size as usize);
                self.source.contents.edit(&path, &content).expect("write");
                fs::File::options().write(true).open(&path).expect("open").set_modified(times).expect("touch");
                self.local_work.push(content);
            }
        }
    }

    /// Checks that moved trees are untouched, and all local work is still there.
    fn check_meddled(&mut self) {
        for (path, was) in &self.moved_away {
            let differences = differences(was, &tree(path));
            assert!(differences.is_empty(), "{} was written to: {differences:#?}\n{}", path.display(), self.logs());
        }
        let root = self.folder.path().join("meddled");
        let found = tree(&root);
        for content in self.local_work.drain(..) {
            let hash = blake3::hash(&content);
            let is_there = found.values().any(|entry| matches!(entry, Entry::File(_, is, ..) if *is == hash));
            assert!(is_there, "what was edited in a copy is lost: {hash}\n{}", self.members[MEDDLED].process.log());
        }
        // From the beginning again.
        self.members[MEDDLED].process.signal(Signal::KILL);
        wait_until("it has ended", || self.members[MEDDLED].process.ended());
        fs::remove_dir_all(&root).expect("rm -r");
        self.restart(MEDDLED, Signal::KILL);
    }
}

/// The port on which the server listens, once it does.
fn port_of(server: &Member) -> u16 {
    wait_until(&format!("the server listens; it said: {}", server.process.log()), || {
        server.process.output().contains('\n')
    });
    let output = server.process.output();
    let port = output.lines().next().and_then(|line| line.rsplit(':').next()?.parse().ok());
    port.unwrap_or_else(|| panic!("no port in {output:?}"))
}

#[test]
fn copies_stay_true_under_random_operations_and_faults() {
    let mounts = std::env::var_os(IN_NAMESPACE).is_some();
    if !mounts {
        let may = Command::new("unshare").args(["-m", "true"]).stderr(Stdio::null()).status();
        if may.is_ok_and(|status| status.success()) {
            let mut command = Command::new("unshare");
            command.args(["-m", "--propagation", "private"]).arg(std::env::current_exe().expect("its path"));
            command.args(["--exact", "copies_stay_true_under_random_operations_and_faults", "--nocapture"]);
            let status = command.env(IN_NAMESPACE, "1").status().expect("run it");
            assert!(status.success(), "{status}");
            return;
        }
        skip("no mounts: a mount namespace isn't allowed here");
    }
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<f64>().expect("a number"));
    let time = Duration::from_secs_f64(number("TOWPATH_TORTURE_MINUTES").map_or(10.0, |minutes| minutes * 60.0));
    let clock = std::time::UNIX_EPOCH.elapsed().map_or(0, |now| now.subsec_nanos() % 1_000_000);
    let seed = number("TOWPATH_SEED").map_or(u64::from(clock), |seed| seed as u64);
    println!("torture: TOWPATH_SEED={seed}");
    let mut torture = Torture::new(seed, mounts);
    let roots =
        torture.copies.iter().map(|copy| copy.root.clone()).chain([torture.folder.path().join("versions")]).collect();
    torture.reader = Some(Reader::start(roots, torture.source.contents.clone()));
    let begin = Instant::now();
    let mut rounds = 0;
    torture.wait_same();
    while begin.elapsed() < time {
        torture.act(Instant::now() + ROUND.min(time));
        if rounds % 2 == 1 {
            torture.copies.retain(|copy| copy.member != MEDDLED);
        }
        torture.rest();
        torture.check_new_ones();
        let meddled = Copy { member: MEDDLED, root: torture.folder.path().join("meddled"), leaves_out: false };
        if rounds % 2 == 1 {
            torture.check_meddled();
            torture.copies.push(meddled);
        } else {
            torture.meddle();
        }
        for member in &torture.members {
            member.check();
        }
        rounds += 1;
    }
    let files = torture.reader.take().expect("it runs").finish();
    let operations = &torture.source.done;
    println!(
        "seed {}, {rounds} rounds, {} faults, {files} files read, operations: {operations:?}",
        torture.seed, torture.faults
    );
    assert!(files > 100 && torture.faults > 0 && operations.len() > 15, "it tested too little");
}
