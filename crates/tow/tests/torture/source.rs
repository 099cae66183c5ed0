//! The served tree, and random operations on it. All contents that a file there ever had are known, also those between two writes.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, Mode, RenameFlags, mkfifoat, renameat_with};

use crate::support::random::Random;

/// Branches between which `git checkout` switches.
const BRANCHES: [&str; 3] = ["one", "two", "three"];

/// Digests of all contents that a file of the source had.
#[derive(Clone, Default)]
pub struct Contents(Arc<Mutex<HashSet<blake3::Hash>>>);

impl Contents {
    /// Must come before the content is visible.
    pub fn add(&self, content: &[u8]) {
        self.0.lock().expect("no panic holds it").insert(blake3::hash(content));
    }

    /// Changes a file in place, which takes more than one step, and adds its new content.
    pub fn edit(&self, path: &Path, content: &[u8]) -> std::io::Result<()> {
        let mut contents = self.0.lock().expect("no panic holds it");
        contents.insert(blake3::hash(content));
        fs::write(path, content)
    }

    /// Whether the source had what a file has, which nobody changes in place meanwhile.
    pub fn has_that_of(&self, path: &Path) -> bool {
        let contents = self.0.lock().expect("no panic holds it");
        fs::read(path).map_or(true, |content| contents.contains(&blake3::hash(&content)))
    }

    /// True if the source had this.
    pub fn has(&self, content: &[u8]) -> bool {
        self.0.lock().expect("no panic holds it").contains(&blake3::hash(content))
    }
}

/// A file that its writer hasn't closed yet, and how far that is.
struct Writer {
    file: File,
    at: usize,
}

/// The tree, and where what isn't served is.
pub struct Source {
    /// The served directory.
    pub root: PathBuf,
    pub contents: Contents,
    /// Beside it, on the same file system.
    outside: PathBuf,
    /// A file system that comes and goes at `mnt`, if mounts are allowed.
    disk: Option<PathBuf>,
    is_mounted: bool,
    has_git: bool,
    random: Random,
    writers: Vec<Writer>,
    count: u64,
    /// How often each operation was done.
    pub done: BTreeMap<&'static str, u64>,
}

impl Source {
    /// A tree with something in it.
    pub fn new(folder: &Path, seed: u64, may_mount: bool) -> Self {
        let root = folder.join("source");
        let outside = folder.join("outside");
        for path in [&root, &outside, &root.join("in"), &root.join("mnt"), &root.join("repo")] {
            fs::create_dir_all(path).expect("mkdir");
        }
        let contents = Contents::default();
        contents.add(b"");
        let mut source = Self {
            root,
            contents,
            outside,
            disk: None,
            is_mounted: false,
            has_git: false,
            random: Random::new(seed),
            writers: Vec::new(),
            count: 0,
            done: BTreeMap::new(),
        };
        // Never empty: an emptied root is held.
        let kept = source.content(1000);
        fs::write(source.root.join("kept"), kept).expect("write");
        if may_mount {
            source.make_disk(folder);
        }
        source.make_branches(folder);
        for _ in 0..150 {
            source.step();
        }
        // The server must have seen it once.
        source.mount();
        source
    }

    /// The disk of the mount point, mounted or not: deletions are held while it isn't.
    pub fn disk(&self) -> Option<&Path> {
        self.disk.as_deref()
    }

    /// Whether there is a disk, and it isn't mounted below the root.
    pub fn is_unmounted(&self) -> bool {
        self.disk.is_some() && !self.is_mounted
    }

    fn make_disk(&mut self, folder: &Path) {
        let disk = folder.join("disk");
        fs::create_dir(&disk).expect("mkdir");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&disk).status();
        assert!(
            mounted.is_ok_and(|status| status.success()),
            "a tmpfs can't be mounted in a mount namespace of our own"
        );
        fs::create_dir(disk.join("sub")).expect("mkdir");
        for index in 0..20 {
            let content = self.content(500);
            fs::write(disk.join(if index % 2 == 0 { "sub" } else { "." }).join(format!("{index}")), content)
                .expect("write");
        }
        self.disk = Some(disk);
        self.mount();
    }

    fn toggle_mount(&mut self) {
        let Some(disk) = &self.disk else { return };
        let (program, arguments) = match self.is_mounted {
            true => ("umount", vec!["-l".into(), self.root.join("mnt").into_os_string()]),
            false => ("mount", vec!["--bind".into(), disk.clone().into_os_string(), self.root.join("mnt").into()]),
        };
        let ended = Command::new(program).args(arguments).status().expect("run it");
        assert!(ended.success(), "{program} fails: {ended}");
        self.is_mounted = !self.is_mounted;
    }

    /// A repository whose work tree is served, and whose own files aren't.
    fn make_branches(&mut self, folder: &Path) {
        let git = folder.join("git");
        if !self.git(&git, &["init", "-q"]) {
            println!("without git: it can't be run");
            return;
        }
        self.has_git = true;
        for branch in BRANCHES {
            assert!(self.git(&git, &["checkout", "-q", "--orphan", branch]), "git checkout --orphan {branch}");
            for directory in ["lib", "lib/inner", branch, "dist"] {
                let directory = self.root.join("repo").join(directory);
                fs::create_dir_all(&directory).expect("mkdir");
                for name in 0..6 {
                    if self.random.below(4) != 0 {
                        let size = self.random.below(4000);
                        let content = self.content(size);
                        fs::write(directory.join(format!("file-{name}")), content).expect("write");
                    }
                }
            }
            let commit = ["-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-q", "-m", branch];
            assert!(self.git(&git, &["add", "-A"]) && self.git(&git, &commit), "git commit");
            assert!(self.git(&git, &["rm", "-q", "-r", "-f", "."]), "git rm");
        }
        assert!(self.git(&git, &["checkout", "-q", "-f", BRANCHES[0]]), "git checkout");
    }

    fn git(&self, git: &Path, arguments: &[&str]) -> bool {
        let mut command = Command::new("git");
        command.env("GIT_DIR", git).env("GIT_WORK_TREE", self.root.join("repo")).env("GIT_CONFIG_GLOBAL", "/dev/null");
        command
            .args(["-c", "core.autocrlf=false", "-c", "gc.auto=0"])
            .args(arguments)
            .current_dir(self.root.join("repo"));
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    /// Random bytes that the source is known to have from now on.
    pub fn content(&mut self, size: u64) -> Vec<u8> {
        let content = self.random.bytes(size as usize);
        self.contents.add(&content);
        content
    }

    fn size(&mut self) -> u64 {
        match self.random.below(20) {
            0 => 0,
            1 => 300_000 + self.random.below(3_000_000),
            2..5 => self.random.below(200_000),
            _ => self.random.below(5_000),
        }
    }

    /// One of few names, so that operations meet.
    fn name(&mut self) -> OsString {
        match self.random.below(24) {
            0 => OsString::from_vec(b"not\xffutf8".to_vec()),
            1 => "two\nlines".into(),
            2 => "x".repeat(255).into(),
            3 => "é ü".into(),
            4 => "left-out.skip".into(),
            number => char::from(b'a' + (number % 8) as u8).to_string().into(),
        }
    }

    /// A path of up to three names whose parents are there, perhaps with nothing at it yet.
    fn place(&mut self) -> PathBuf {
        let mut path = self.root.join("tree");
        let _ = fs::create_dir(&path);
        for _ in 0..self.random.below(3) {
            let below = path.join(self.name());
            if below.symlink_metadata().is_err() {
                let _ = fs::create_dir(&below);
            }
            if !below.symlink_metadata().is_ok_and(|found| found.is_dir()) {
                break;
            }
            path = below;
        }
        path.join(self.name())
    }

    /// A file that is there and has no other names; a changed one is noticed under those only when everything is looked at.
    fn file(&mut self) -> Option<PathBuf> {
        (0..10)
            .map(|_| self.place())
            .find(|path| path.symlink_metadata().is_ok_and(|found| found.is_file() && found.nlink() == 1))
    }

    fn beside(&mut self) -> PathBuf {
        self.count += 1;
        self.outside.join(self.count.to_string())
    }

    /// Does one random operation; one that isn't possible now does nothing.
    pub fn step(&mut self) {
        let choice = self.random.below(100);
        let done = match choice {
            0..14 => ("replace", self.replace()),
            14..24 => ("write in place", self.write_in_place()),
            24..32 => ("append", self.append()),
            32..36 => ("write slowly", self.begin_writing()),
            36..42 => ("go on writing", self.go_on_writing()),
            42..50 => ("remove", self.remove()),
            50..62 => ("rename", self.rename()),
            62..66 => ("exchange", self.exchange()),
            66..71 => ("link", self.link()),
            71..75 => ("hard link", self.hard_link()),
            75..81 => ("mode", self.mode()),
            81..84 => ("time", self.time()),
            84..89 => ("make anew", self.make_anew()),
            89..91 => ("burst", self.burst()),
            91..94 => ("other type", self.other_type()),
            94..96 => ("move away", self.move_away()),
            96..97 => ("fifo", mkfifoat(CWD, self.place(), Mode::RUSR).ok()),
            97..99 => ("git checkout", self.checkout()),
            _ => ("mount", self.mount_or_unmount()),
        };
        if done.1.is_some() {
            *self.done.entry(done.0).or_default() += 1;
        }
    }

    fn replace(&mut self) -> Option<()> {
        let (path, beside, size) = (self.place(), self.beside(), self.size());
        let content = self.content(size);
        fs::write(&beside, content).ok()?;
        let renamed = fs::rename(&beside, path).ok();
        let _ = fs::remove_file(beside);
        renamed
    }

    fn write_in_place(&mut self) -> Option<()> {
        let path = self.file()?;
        let mut content = fs::read(&path).ok()?;
        let times = fs::metadata(&path).ok()?.modified().ok()?;
        let mut file = OpenOptions::new().write(true).open(&path).ok()?;
        for _ in 0..=self.random.below(3) {
            let at = self.random.below(content.len() as u64 + 1);
            let length = self.random.below(3000);
            let piece = self.random.bytes(length as usize);
            let end = at as usize + piece.len();
            content.resize(content.len().max(end), 0);
            content[at as usize..end].copy_from_slice(&piece);
            self.contents.add(&content);
            file.seek(SeekFrom::Start(at)).ok()?;
            file.write_all(&piece).ok()?;
        }
        if self.random.below(4) == 0 {
            file.set_modified(times).ok()?;
        }
        Some(())
    }

    fn append(&mut self) -> Option<()> {
        let path = self.file()?;
        let mut content = fs::read(&path).ok()?;
        let mut file = OpenOptions::new().append(true).open(&path).ok()?;
        let piece = self.random.bytes(700);
        content.extend_from_slice(&piece);
        self.contents.add(&content);
        file.write_all(&piece).ok()
    }

    fn begin_writing(&mut self) -> Option<()> {
        if self.writers.len() > 3 {
            return None;
        }
        let path = self.place();
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).ok()?;
        self.writers.push(Writer { file, at: 0 });
        Some(())
    }

    fn go_on_writing(&mut self) -> Option<()> {
        let length = self.random.below(20_000);
        let piece = self.random.bytes(length as usize);
        if self.writers.is_empty() {
            return None;
        }
        let index = self.random.below(self.writers.len() as u64) as usize;
        let writer = &mut self.writers[index];
        // Others may have written there meanwhile.
        let mut content = vec![0; writer.file.metadata().ok()?.len() as usize];
        writer.file.read_exact_at(&mut content, 0).ok()?;
        let (from, to) = (writer.at, writer.at + piece.len());
        content.resize(content.len().max(to), 0);
        content[from..to].copy_from_slice(&piece);
        self.contents.add(&content);
        writer.file.write_all(&piece).ok()?;
        writer.at = to;
        if self.random.below(3) == 0 {
            self.writers.swap_remove(index);
        }
        Some(())
    }

    fn remove(&mut self) -> Option<()> {
        let path = self.place();
        match path.symlink_metadata().ok()?.is_dir() {
            true => fs::remove_dir_all(path).ok(),
            false => fs::remove_file(path).ok(),
        }
    }

    fn rename(&mut self) -> Option<()> {
        let (from, to) = (self.place(), self.place());
        fs::rename(from, to).ok()
    }

    fn exchange(&mut self) -> Option<()> {
        let (from, to) = (self.place(), self.place());
        renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE).ok()
    }

    fn link(&mut self) -> Option<()> {
        let (target, path) = (self.name(), self.place());
        symlink(target, path).ok()
    }

    /// Within the tree, or from outside of it.
    fn hard_link(&mut self) -> Option<()> {
        let file = self.file()?;
        let other = if self.random.below(2) == 0 { self.place() } else { self.beside() };
        fs::hard_link(file, other).ok()
    }

    fn mode(&mut self) -> Option<()> {
        let path = self.place();
        let found = path.symlink_metadata().ok()?;
        let modes = if found.is_dir() { [0o755, 0o700, 0o750, 0o555] } else { [0o644, 0o600, 0o755, 0o444] };
        let mode = modes[self.random.below(4) as usize];
        // Of a link it would be the mode of where it leads.
        (!found.is_symlink()).then(|| fs::set_permissions(path, Permissions::from_mode(mode)).ok())?
    }

    fn time(&mut self) -> Option<()> {
        let path = self.file()?;
        let past = SystemTime::now() - Duration::from_nanos(self.random.below(1 << 50));
        OpenOptions::new().write(true).open(path).ok()?.set_modified(past).ok()
    }

    /// A directory of the same name: the file system may give it the number of the old one.
    fn make_anew(&mut self) -> Option<()> {
        let path = self.place();
        let _ = fs::remove_file(&path);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).ok()?;
        for _ in 0..self.random.below(4) {
            let (name, size) = (self.name(), self.size());
            let content = self.content(size);
            fs::write(path.join(name), content).ok()?;
        }
        Some(())
    }

    fn burst(&mut self) -> Option<()> {
        let path = self.place();
        let _ = fs::create_dir(&path);
        for index in 0..self.random.below(150) {
            let content = self.content(index);
            fs::write(path.join(format!("many-{index}")), content).ok()?;
        }
        Some(())
    }

    fn other_type(&mut self) -> Option<()> {
        let path = self.place();
        if path.symlink_metadata().ok()?.is_dir() {
            fs::remove_dir_all(&path).ok()?;
            let content = self.content(100);
            return fs::write(path, content).ok();
        }
        fs::remove_file(&path).ok()?;
        fs::create_dir(&path).ok()?;
        let content = self.content(100);
        fs::write(path.join("inner"), content).ok()
    }

    /// A directory leaves the tree, or one comes in from outside.
    fn move_away(&mut self) -> Option<()> {
        let (path, beside) = (self.place(), self.beside());
        match path.symlink_metadata() {
            Ok(found) if found.is_dir() => fs::rename(path, beside).ok(),
            Ok(_) => None,
            Err(_) => {
                fs::create_dir(&beside).ok()?;
                let content = self.content(2000);
                fs::write(beside.join("came"), content).ok()?;
                fs::rename(beside, path).ok()
            }
        }
    }

    fn checkout(&mut self) -> Option<()> {
        let branch = BRANCHES[self.random.below(3) as usize];
        let git = self.root.with_file_name("git");
        (self.has_git && self.git(&git, &["checkout", "-q", "-f", branch])).then_some(())
    }

    fn mount_or_unmount(&mut self) -> Option<()> {
        self.disk.is_some().then(|| self.toggle_mount())
    }

    /// Mounts the disk if it isn't.
    pub fn mount(&mut self) {
        if self.disk.is_some() && !self.is_mounted {
            self.toggle_mount();
        }
    }

    /// Ends what is half done: all writers close.
    pub fn rest(&mut self) {
        self.writers.clear();
    }
}
