//! `tow serve --watch` and `tow follow`: a directory that is kept as another one is, through faults of either side.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use tempfile::{TempDir, tempdir};

use crate::support::process::{Outcome, Process, Server, run, tow};
use crate::support::tree::{mixed, random_file, write};
use crate::support::wait_until;

const SETTLE: &str = "200ms";
/// A file that was hashed so long after its last change is known by its identity and times.
const SETTLE_FULLY: &str = "2s";

/// A watched directory, its server, and where it is followed to.
pub struct Pair {
    pub folder: TempDir,
    pub server: Option<Server>,
    pub settle: &'static str,
    /// Keeps its numbers.
    pub has_state: bool,
    /// More options of the server.
    pub options: &'static [&'static str],
    /// The server's port, once it has one.
    port: u16,
}

impl Pair {
    pub fn start() -> Self {
        let folder = tempdir().expect("a folder");
        fs::create_dir(folder.path().join("source")).expect("mkdir");
        Self { folder, server: None, settle: SETTLE, has_state: false, options: &[], port: 0 }
    }

    pub fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    pub fn copy(&self) -> PathBuf {
        self.folder.path().join("copy")
    }

    /// Starts the server, on the port that it had.
    pub fn serve(&mut self) {
        self.server = None;
        let port = self.port;
        let bind = format!("tcp://127.0.0.1:{port}");
        let source = self.source();
        let words = ["serve", source.to_str().expect("UTF-8"), "--watch", "--settle", self.settle, "--bind", &bind];
        let mut command = tow(words);
        command.args(self.options);
        if self.has_state {
            command.arg("--state").arg(self.folder.path().join("state"));
        }
        let server = Server::from_command(&mut command);
        self.port = server.port();
        self.server = Some(server);
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().expect("a server")
    }

    pub fn words(&self, path: &str, options: &[&str]) -> Vec<String> {
        let copy = self.copy().to_str().expect("UTF-8").to_owned();
        let words = ["follow".to_owned(), self.server().url(path), copy];
        words.into_iter().chain(options.iter().map(ToString::to_string)).collect()
    }

    pub fn follow(&self, options: &[&str]) -> Process {
        Process::start(&mut tow(self.words("", options)))
    }

    pub fn once(&self, options: &[&str]) -> Outcome {
        run(tow(self.words("", options)).arg("--once"))
    }

    /// Waits until the copy has what the source has.
    pub fn wait_same(&self) {
        let mut last = (BTreeMap::new(), BTreeMap::new());
        wait_until("the copy is as its source", || {
            last = (contents(&self.source()), contents(&self.copy()));
            last.0 == last.1
        });
    }
}

/// Content of a directory, without the files that following keeps there: bytes of files and targets of links, with modes.
pub fn contents(root: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        let Ok(entries) = fs::read_dir(&dir) else { continue };
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            let Ok(meta) = path.symlink_metadata() else { continue };
            if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".tow-")) {
                continue;
            }
            let bytes = if meta.is_symlink() {
                fs::read_link(&path).map(|target| target.into_os_string().into_encoded_bytes())
            } else if meta.is_dir() {
                dirs.push(path.clone());
                Ok(b"a directory".to_vec())
            } else {
                fs::read(&path)
            };
            let relative = path.strip_prefix(root).expect("below").to_owned();
            found.insert(relative, (meta.mode() & 0o777, bytes.unwrap_or_default()));
        }
    }
    found
}

pub fn lines(output: &str, begin: &str) -> Vec<String> {
    output.lines().filter(|line| line.starts_with(begin)).map(ToOwned::to_owned).collect()
}

/// Whether the last thing that was said is that.
pub fn is_up_to_date(output: &str) -> bool {
    output.lines().next_back().is_some_and(|line| line.starts_with("up to date at "))
}

pub fn text(outcome: &Outcome) -> String {
    String::from_utf8(outcome.stdout.clone()).expect("UTF-8")
}

#[test]
fn copy_follows_every_kind_of_change() {
    let mut pair = Pair::start();
    let source = pair.source();
    mixed(&source.join("tree"), 40, 2);
    fs::create_dir_all(source.join("empty/below")).expect("mkdir");
    symlink("tree", source.join("link")).expect("symlink");
    pair.serve();
    let mut follower = pair.follow(&["--mirror"]);
    pair.wait_same();

    write(&source.join("new"), b"new");
    random_file(&source.join("large"), 5 << 20, 1);
    fs::create_dir_all(source.join("a/b/c")).expect("mkdir");
    write(&source.join("a/b/c/deep"), b"deep");
    pair.wait_same();

    write(&source.join("new"), b"another");
    fs::set_permissions(source.join("new"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("chmod");
    // A file becomes a directory, a directory a file, and a link something else.
    fs::remove_file(source.join("large")).expect("rm");
    fs::create_dir(source.join("large")).expect("mkdir");
    write(&source.join("large/inner"), b"inner");
    fs::remove_dir_all(source.join("a")).expect("rm -r");
    write(&source.join("a"), b"was a directory");
    fs::remove_file(source.join("link")).expect("rm");
    symlink("new", source.join("link")).expect("symlink");
    fs::remove_dir_all(source.join("empty")).expect("rm -r");
    pair.wait_same();

    fs::rename(source.join("tree"), source.join("moved")).expect("mv");
    pair.wait_same();
    wait_until("it says so", || is_up_to_date(&follower.output()));
    assert!(!follower.ended());
    follower.signal(Signal::INT);
    follower.finish();
}

#[test]
fn renamed_file_isnt_sent_again() {
    let mut pair = Pair::start();
    pair.settle = SETTLE_FULLY;
    let source = pair.source();
    random_file(&source.join("big"), 20 << 20, 1);
    write(&source.join("other"), b"1");
    pair.serve();
    let follower = pair.follow(&["--mirror"]);
    pair.wait_same();
    let inode = fs::metadata(pair.copy().join("big")).expect("stat").ino();
    let before = follower.output();
    fs::rename(source.join("big"), source.join("bigger")).expect("mv");
    pair.wait_same();
    wait_until("it is said", || follower.output().contains("> big bigger"));
    assert_eq!(fs::metadata(pair.copy().join("bigger")).expect("stat").ino(), inode, "{before}");
}

#[test]
fn killed_follower_and_server_lose_nothing_and_send_nothing_twice() {
    let mut pair = Pair::start();
    let source = pair.source();
    mixed(&source, 60, 2);
    pair.serve();
    let outcome = pair.once(&["--mirror"]).expect_code(0);
    assert_eq!(lines(&text(&outcome), "up to date at ").len(), 1);
    pair.wait_same();
    // It goes on where it was.
    write(&source.join("later"), b"later");
    fs::remove_file(first_file(&source)).expect("rm");
    wait_until("all is there", || {
        let outcome = pair.once(&["--mirror"]).expect_code(0);
        assert!(lines(&text(&outcome), "+ ").len() + lines(&text(&outcome), "~ ").len() <= 1, "{}", text(&outcome));
        contents(&source) == contents(&pair.copy())
    });

    let follower = pair.follow(&["--mirror"]);
    wait_until("it is up to date", || follower.output().contains("up to date at "));
    // The server is killed, and knows nothing of its numbers any more.
    write(&source.join("meanwhile"), b"meanwhile");
    pair.serve();
    pair.wait_same();
    wait_until("it says so", || lines(&follower.output(), "up to date at ").len() >= 2);
    assert_eq!(lines(&follower.output(), "+ "), ["+ meanwhile 9"]);
    assert_eq!(lines(&follower.output(), "~ "), [""; 0]);

    // The follower is killed in the middle.
    for round in 0..5 {
        mixed(&source.join(format!("round-{round}")), 100, 1);
        let follower = pair.follow(&["--mirror"]);
        wait_until("it has begun", || pair.copy().join(format!("round-{round}")).exists());
        follower.signal(Signal::KILL);
        drop(follower);
    }
    let _follower = pair.follow(&["--mirror"]);
    pair.wait_same();
}

#[test]
fn killed_server_that_keeps_its_numbers_goes_on_with_them() {
    let mut pair = Pair::start();
    pair.has_state = true;
    let source = pair.source();
    mixed(&source, 30, 1);
    pair.serve();
    pair.once(&["--mirror"]).expect_code(0);
    for round in 0..3 {
        // Killed, with whatever it has not published yet.
        write(&source.join(format!("before-{round}")), b"before");
        pair.server = None;
        let gone = first_file(&source.join("folder 1"));
        fs::remove_file(&gone).expect("rm");
        write(&source.join("changed"), format!("in round {round}").as_bytes());
        pair.serve();
        let follower = pair.follow(&["--mirror"]);
        pair.wait_same();
        // Its record has all that it says.
        let is_printed = |printed: &str| !lines(printed, "- ").is_empty() && is_up_to_date(printed);
        wait_until("it says so", || is_printed(&follower.output()));
        let printed = follower.output();
        assert_eq!(lines(&printed, "- ").len(), 1, "{printed}");
        assert!(lines(&printed, "+ ").len() + lines(&printed, "~ ").len() <= 3, "{printed}");
        let log = pair.server().log();
        assert!(log.contains("from=") && !log.contains("from=beginning"), "{log}");
    }
    // Damaged, it is refused.
    pair.server = None;
    let name = pair.folder.path().join("state/catalogue");
    let mut bytes = fs::read(&name).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&name, bytes).expect("write");
    let state = pair.folder.path().join("state");
    let words = ["serve", source.to_str().expect("UTF-8"), "--watch", "--bind", "tcp://127.0.0.1:0"];
    let outcome = run(tow(words).arg("--state").arg(&state)).expect_code(1);
    assert!(outcome.stderr.contains("remove it"), "{}", outcome.stderr);
}

pub fn first_file(root: &Path) -> PathBuf {
    let found = contents(root);
    let file = found.keys().find(|path| root.join(path).is_file()).expect("a file");
    root.join(file)
}

#[test]
fn what_a_person_changed_is_kept() {
    let mut pair = Pair::start();
    let (source, copy) = (pair.source(), pair.copy());
    for name in ["changed", "deleted", "other"] {
        write(&source.join(name), b"from the server");
    }
    pair.serve();
    pair.once(&["--mirror"]).expect_code(0);
    write(&copy.join("changed"), b"edited here");
    write(&copy.join("deleted"), b"edited here too");
    write(&copy.join("own"), b"own");
    write(&source.join("changed"), b"a new version");
    fs::remove_file(source.join("deleted")).expect("rm");
    let mut printed = String::new();
    wait_until("both are printed", || {
        printed += &text(&pair.once(&["--mirror"]).expect_code(0));
        printed.contains("~ changed 13") && printed.contains("- deleted")
    });
    assert_eq!(fs::read(copy.join("changed")).expect("read"), b"a new version");
    let is_kept = |path: &PathBuf| path.to_string_lossy().contains(".tow-conflict-");
    let kept: Vec<_> = contents(&copy).into_iter().filter(|(path, _)| is_kept(path)).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert_eq!(kept[0].1.1, b"edited here");
    assert_eq!(fs::read(copy.join("deleted")).expect("read"), b"edited here too");
    assert_eq!(fs::read(copy.join("own")).expect("read"), b"own");
}

#[test]
fn an_edit_that_keeps_size_and_time_is_kept() {
    let mut pair = Pair::start();
    let (source, copy) = (pair.source(), pair.copy());
    for name in ["replaced", "chmod", "deleted", "renamed"] {
        write(&source.join(name), &name.as_bytes().repeat(20_000));
    }
    pair.serve();
    pair.once(&["--mirror"]).expect_code(0);
    let edited = |name: &str| name.to_uppercase().as_bytes().repeat(20_000);
    for name in ["replaced", "chmod", "deleted", "renamed"] {
        let before = fs::metadata(copy.join(name)).expect("stat");
        write(&copy.join(name), &edited(name));
        let file = fs::File::options().append(true).open(copy.join(name)).expect("open");
        file.set_modified(before.modified().expect("a time")).expect("touch -r");
    }
    write(&source.join("replaced"), b"another");
    fs::set_permissions(source.join("chmod"), fs::Permissions::from_mode(0o600)).expect("chmod");
    fs::remove_file(source.join("deleted")).expect("rm");
    fs::rename(source.join("renamed"), source.join("other")).expect("mv");
    wait_until("all of it is there", || {
        pair.once(&["--mirror"]).expect_code(0);
        let there = contents(&copy);
        contents(&source).iter().all(|(path, what)| there.get(path) == Some(what))
    });
    let there = contents(&copy);
    for name in ["replaced", "chmod", "deleted", "renamed"] {
        let is_kept =
            there.iter().any(|(path, (_, bytes))| path.to_string_lossy().starts_with(name) && *bytes == edited(name));
        assert!(is_kept, "{name} is lost: {:?}", there.keys());
    }
}

#[test]
fn what_is_moved_away_or_removed_comes_again_and_nothing_is_written_elsewhere() {
    let mut pair = Pair::start();
    let (source, copy, elsewhere) = (pair.source(), pair.copy(), pair.folder.path().join("elsewhere"));
    for name in ["d/1", "d/e/1", "other"] {
        write(&source.join(name), name.as_bytes());
    }
    pair.serve();
    let follower = pair.follow(&["--mirror"]);
    pair.wait_same();
    fs::rename(copy.join("d"), &elsewhere).expect("mv");
    let moved = contents(&elsewhere);
    write(&source.join("d/2"), b"2");
    pair.wait_same();
    fs::remove_dir_all(copy.join("d")).expect("rm -r");
    write(&source.join("d/e/3"), b"3");
    pair.wait_same();
    assert_eq!(contents(&elsewhere), moved);
    drop(follower);
    fs::remove_dir_all(copy.join("d/e")).expect("rm -r");
    fs::remove_file(copy.join("other")).expect("rm");
    let outcome = pair.once(&["--mirror"]).expect_code(0);
    assert!(outcome.stderr.contains("not there any more; everything is compared"), "{}", outcome.stderr);
    assert_eq!(contents(&copy), contents(&source));
}

#[test]
fn long_names_are_kept_in_the_trash_and_beside_new_versions() {
    let mut pair = Pair::start();
    let (source, copy, trash) = (pair.source(), pair.copy(), pair.folder.path().join("trash"));
    let [edited, replaced] = ["\u{e4}", "\u{f6}"].map(|letter| letter.repeat(127));
    for name in [&edited, &replaced] {
        write(&source.join(name), b"first");
    }
    pair.serve();
    let follow = || pair.once(&["--mirror", "--trash", trash.to_str().expect("UTF-8")]);
    follow().expect_code(0);
    write(&copy.join(&edited), b"edited here");
    for version in ["second", "the third"] {
        for name in [&edited, &replaced] {
            write(&source.join(name), version.as_bytes());
        }
        wait_until("it is there", || {
            follow().expect_code(0);
            [&edited, &replaced].iter().all(|name| fs::read(copy.join(name)).is_ok_and(|is| is == version.as_bytes()))
        });
    }
    let has = |root: &Path, content: &[u8]| contents(root).values().any(|(_, bytes)| bytes == content);
    assert!(has(&copy, b"edited here") && has(&trash, b"first") && has(&trash, b"second"));
}

#[test]
fn deletions_need_mirror_and_are_held_above_the_limit() {
    let mut pair = Pair::start();
    let (source, copy) = (pair.source(), pair.copy());
    for index in 0..20 {
        write(&source.join(format!("dir/{index}")), b"x");
    }
    pair.serve();
    pair.once(&[]).expect_code(0);
    for index in 0..5 {
        fs::remove_file(source.join(format!("dir/{index}"))).expect("rm");
    }
    let mut printed = 0;
    wait_until("all deletions are printed", || {
        printed += lines(&text(&pair.once(&[]).expect_code(0)), "- dir/").len();
        printed == 5
    });
    assert_eq!(contents(&copy).len(), 21, "nothing is deleted without --mirror");

    let mut other = Pair::start();
    other.server = pair.server.take();
    for index in 5..10 {
        fs::remove_file(source.join(format!("dir/{index}"))).expect("rm");
    }
    // A mirror that had all that there was.
    let has = |count: usize| contents(&other.copy()).len() == count;
    wait_until("the rest is there", || {
        other.once(&["--mirror"]).expect_code(0);
        has(11)
    });
    for index in 10..15 {
        fs::remove_file(source.join(format!("dir/{index}"))).expect("rm");
    }
    wait_until("the deletions are held", || other.once(&["--mirror", "--max-delete", "3"]).status.code() == Some(3));
    let held = other.once(&["--mirror", "--max-delete", "3"]).expect_code(3);
    assert!(has(11) && held.stderr.contains("dir/1"), "{}", held.stderr);
    wait_until("they are released", || {
        other.once(&["--mirror", "--max-delete", "5"]).expect_code(0);
        has(6)
    });
}

#[test]
fn the_end_waits_for_what_the_server_will_notice_but_not_for_ever() {
    for (settle, is_noticed) in [("2s", true), ("1h", false)] {
        let mut pair = Pair::start();
        pair.settle = settle;
        let (source, copy) = (pair.source(), pair.copy());
        write(&source.join("written"), b"old");
        pair.serve();
        // Published at once, since nobody has it open.
        let outcome = pair.once(&[]).expect_code(0);
        assert!(text(&outcome).contains("+ written 3"), "{}", text(&outcome));
        fs::remove_dir_all(&copy).expect("rm -r");
        // What is published isn't there any more, and what is there isn't finished.
        let mut file = fs::File::options().append(true).open(source.join("written")).expect("open");
        file.write_all(b" and new").expect("write");
        let outcome = pair.once(&[]).expect_code(if is_noticed { 0 } else { 1 });
        match is_noticed {
            true => assert_eq!(fs::read(copy.join("written")).expect("read"), b"old and new"),
            false => assert!(outcome.stderr.contains("written: "), "{}", outcome.stderr),
        }
        assert_eq!(is_noticed, copy.join("written").exists());
    }
}

#[test]
fn only_whole_files_appear() {
    const PIECES: usize = 20;
    let mut pair = Pair::start();
    pair.settle = SETTLE_FULLY;
    let (source, copy) = (pair.source(), pair.copy());
    pair.serve();
    let _follower = pair.follow(&[]);
    // Written slowly, and renamed while it is open: neither that nor the pauses make it a whole file.
    let mut file = fs::File::create(source.join("growing.tmp")).expect("create");
    let piece = vec![7; 50_000];
    for index in 0..PIECES {
        file.write_all(&piece).expect("write");
        if index == PIECES / 2 {
            fs::rename(source.join("growing.tmp"), source.join("growing")).expect("mv");
        }
        std::thread::sleep(Duration::from_millis(30));
        assert!(!copy.join("growing").exists() && !copy.join("growing.tmp").exists(), "a part of a file appeared");
    }
    drop(file);
    wait_until("it is there", || copy.join("growing").exists());
    assert_eq!(fs::metadata(copy.join("growing")).expect("stat").len() as usize, PIECES * piece.len());
}

#[test]
fn root_that_is_emptied_or_replaced_deletes_nothing() {
    let mut pair = Pair::start();
    let (source, copy) = (pair.source(), pair.copy());
    for index in 0..5 {
        write(&source.join(format!("dir/{index}")), b"x");
    }
    pair.serve();
    let mut follower = pair.follow(&["--mirror", "--max-delete", "1000"]);
    pair.wait_same();
    let away = pair.folder.path().join("away");
    fs::rename(&source, &away).expect("mv");
    fs::create_dir(&source).expect("mkdir");
    write(&source.join("added"), b"added");
    wait_until("what is new there comes all the same", || copy.join("added").exists());
    assert!((0..5).all(|index| copy.join(format!("dir/{index}")).exists()));
    assert!(pair.server().log().contains("another directory has taken the place"), "{}", pair.server().log());
    // The old one is back: what is deleted in it now is deleted.
    // (The other one is moved away whole, so that it is never seen empty: that is waited for below.)
    fs::rename(&source, pair.folder.path().join("other")).expect("mv");
    fs::rename(&away, &source).expect("mv");
    fs::remove_file(source.join("dir/1")).expect("rm");
    pair.wait_same();
    // The new directory may have been seen before anything was in it.
    let noticed = || pair.server().log().matches("is empty").count();
    let before = noticed();
    fs::rename(source.join("dir"), &away).expect("mv");
    wait_until("it is noticed", || noticed() > before);
    write(&source.join("later"), b"later");
    wait_until("it goes on", || copy.join("later").exists());
    assert!(copy.join("dir/2").exists() && !follower.ended());
}

#[test]
fn a_path_or_a_glob_is_followed_alone() {
    let mut pair = Pair::start();
    let source = pair.source();
    write(&source.join("models/a.bin"), b"a");
    write(&source.join("models/b.txt"), b"b");
    write(&source.join("else"), b"else");
    pair.serve();
    let follow = |path: &str| {
        run(&mut tow(pair.words(path, &["--once"]))).expect_code(0);
        let found = contents(&pair.copy()).into_keys().map(|path| path.display().to_string()).collect::<Vec<_>>();
        fs::remove_dir_all(pair.copy()).expect("rm -r");
        found
    };
    assert_eq!(follow("models"), ["a.bin", "b.txt"]);
    assert_eq!(follow("models/b.txt"), ["b.txt"]);
    assert_eq!(follow("models/*.bin"), ["a.bin"]);
    assert_eq!(follow("not-yet"), [""; 0]);
}

#[test]
fn a_missing_path_is_reported() {
    let mut pair = Pair::start();
    write(&pair.source().join("models/a"), b"a");
    pair.serve();
    let follow = |path: &str, copy: &str| {
        run(tow(["follow", &pair.server().url(path), "--once"]).arg(pair.folder.path().join(copy))).expect_code(0)
    };
    assert!(follow("modles", "none").stderr.contains("modles: nothing to follow is there yet"));
    assert_eq!(follow("models", "copy").stderr, "");
    // The second time there is nothing to fetch.
    assert_eq!(follow("models", "copy").stderr, "");
}

#[test]
fn a_filter_that_excludes_everything_and_wrong_options_are_reported() {
    let mut pair = Pair::start();
    write(&pair.source().join("a"), b"a");
    pair.serve();
    for _ in 0..2 {
        let outcome = pair.once(&["--exclude", "**"]).expect_code(0);
        assert_eq!(outcome.stderr, "tow: all that is there is left out by --exclude\n");
    }
    for (pattern, why) in [
        (" ", "--exclude: ' ': the pattern is empty"),
        ("[z-a]", "[z-a] matches nothing: write the range from a to z"),
        ("!a", "tow get does that by an --include"),
    ] {
        let outcome = pair.once(&["--exclude", pattern]).expect_code(2);
        assert!(outcome.stderr.contains(why), "{}", outcome.stderr);
    }
    let file = pair.source().join("a").display().to_string();
    let outcome = pair.once(&["--trash", &file]).expect_code(1);
    assert!(outcome.stderr.contains(&format!("{file}: not a directory")), "{}", outcome.stderr);
}

#[test]
fn events_are_printed_as_json() {
    let mut pair = Pair::start();
    write(&pair.source().join("a"), b"hello");
    pair.serve();
    let outcome = pair.once(&["--json"]).expect_code(0);
    let events: Vec<serde_json::Value> =
        text(&outcome).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let digest = blake3::hash(b"hello").to_hex().to_string();
    assert_eq!(events[0]["event"], "new");
    assert_eq!((&events[0]["path"], &events[0]["size"]), (&"a".into(), &5.into()));
    assert_eq!(events[0]["digest"], digest);
    assert_eq!((&events[1]["event"], &events[1]["seq"]), (&"up-to-date".into(), &events[0]["seq"]));
}

#[test]
fn server_that_does_not_watch_says_so() {
    let folder = tempdir().expect("a folder");
    let server = Server::start(folder.path());
    let copy = folder.path().join("copy");
    let outcome = run(tow(["follow", &server.url(""), copy.to_str().expect("UTF-8")]).arg("--once")).expect_code(1);
    assert!(outcome.stderr.contains("--watch"), "{}", outcome.stderr);
    // One file can't be followed.
    let file = folder.path().join("file");
    write(&file, b"x");
    let words = ["serve", file.to_str().expect("UTF-8"), "--watch", "--bind", "tcp://127.0.0.1:0"];
    assert!(run(&mut tow(words)).expect_code(1).stderr.contains("only a directory"));
}
