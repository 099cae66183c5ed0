//! The directory that is served, and what programs do to it.

use super::devices::Devices;
use crate::digest::Digest;
use crate::path::is_reserved;
use crate::transfer::tests::server::SimFile;
use crate::transfer::tests::world::{Draw, noise};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// Paths that are used: few, so that the same ones are met again and again.
pub const PATHS: [&str; 10] = ["a", "b", "c", "d", "d/a", "d/b", "d/e", "d/e/a", "f/a", "f/b"];
/// Sizes of contents: some are copied when they are known under another name, some have several leaves.
const SIZES: [usize; 5] = [0, 10, 3_000, 70_000, 2_200_000];

/// Content of a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum What {
    File(Digest),
    Dir,
    Link(Vec<u8>),
}

/// Digests of files that haven't changed since.
#[derive(Default)]
pub struct Digests(HashMap<(u64, u64, i64, i64, i64), Digest>);

impl Digests {
    /// Content below a directory, but for the files that transfers use.
    pub fn scan(&mut self, top: &Path) -> BTreeMap<String, What> {
        let (mut found, mut dirs) = (BTreeMap::new(), vec![top.to_owned()]);
        while let Some(dir) = dirs.pop() {
            // A destination is made when it is needed.
            for entry in fs::read_dir(&dir).into_iter().flatten() {
                let entry = entry.unwrap();
                if is_reserved(entry.file_name().as_bytes()) {
                    continue;
                }
                let (path, stat) = (entry.path(), entry.path().symlink_metadata().unwrap());
                let what = if stat.is_dir() {
                    dirs.push(path.clone());
                    What::Dir
                } else if stat.is_symlink() {
                    What::Link(fs::read_link(&path).unwrap().as_os_str().as_bytes().to_vec())
                } else {
                    let key = (stat.ino(), stat.size(), stat.mtime(), stat.ctime(), stat.ctime_nsec());
                    let digest = self.0.entry(key).or_insert_with(|| Digest::of(&fs::read(&path).unwrap()));
                    What::File(*digest)
                };
                found.insert(path.strip_prefix(top).unwrap().to_str().unwrap().to_owned(), what);
            }
        }
        found
    }
}

/// A file that is being written.
struct Writer {
    file: File,
    rest: Vec<u8>,
    seed: usize,
}

pub struct Source {
    pub dir: PathBuf,
    /// Path of the directory that another one has replaced.
    elsewhere: PathBuf,
    pub is_replaced: bool,
    /// Contents that were complete.
    pub complete: HashSet<Digest>,
    writers: Vec<Writer>,
    /// Contents by the time of their files, which no two have in common.
    by_time: HashMap<i64, SimFile>,
    contents: HashMap<(usize, usize), SimFile>,
    time: i64,
    pub devices: Devices,
}

impl Source {
    pub fn new(dir: PathBuf, elsewhere: PathBuf, can_mount: bool) -> Source {
        fs::create_dir(&dir).unwrap();
        let devices = Devices::new(dir.with_file_name("disk"), can_mount);
        Source {
            devices,
            dir,
            elsewhere,
            is_replaced: false,
            complete: HashSet::new(),
            writers: Vec::new(),
            by_time: HashMap::new(),
            contents: HashMap::new(),
            time: 1_000_000,
        }
    }

    /// Does something, and says what.
    pub fn step(&mut self, draw: &mut Draw) -> String {
        let path = PATHS[draw.below(PATHS.len())];
        let other = PATHS[draw.below(PATHS.len())];
        match draw.below(46) {
            0..12 => self.write(path, draw.below(10), 1),
            12..15 => self.write(path, draw.below(10), 2),
            15..18 => self.finish_writing(),
            18..25 => {
                let did = self.rename(path, other);
                if draw.one_in(3) { format!("{did}, {}", self.touch(other)) } else { did }
            }
            25..31 => self.remove(path),
            31..34 => self.make_dir(path),
            34..36 => self.link(path),
            36..38 => self.burst(draw),
            38 => self.replace(draw),
            39..42 => self.chmod(["d", "d/e", "f", path][draw.below(4)], draw),
            42 => self.touch(path),
            43..45 => self.move_many(),
            _ => self.empty(),
        }
    }

    /// Writes a file, or only a part of it, which goes on later.
    pub fn write(&mut self, path: &str, seed: usize, parts: usize) -> String {
        self.make_way(path);
        let at = self.dir.join(path);
        if at.is_dir() && !at.is_symlink() {
            fs::remove_dir_all(&at).unwrap();
        } else if at.is_symlink() {
            fs::remove_file(&at).unwrap();
        }
        // No two write to one file.
        let is_open =
            |stat: fs::Metadata| self.writers.iter().any(|writer| writer.file.metadata().unwrap().ino() == stat.ino());
        if fs::metadata(&at).is_ok_and(is_open) {
            fs::remove_file(&at).unwrap();
        }
        let size = SIZES[seed % SIZES.len()];
        let content = noise(size, seed as u64 + 1);
        let now = size / parts;
        let mut file = File::create(&at).unwrap();
        file.write_all(&content[..now]).unwrap();
        self.stamp(&file, seed, now);
        if now < size {
            self.writers.push(Writer { file, rest: content[now..].to_vec(), seed });
        } else {
            self.complete.insert(self.contents[&(seed, size)].digest);
        }
        format!("write {now} of {size} bytes, content {seed}, to {path}")
    }

    /// Gives a file its own time.
    fn stamp(&mut self, file: &File, seed: usize, length: usize) {
        self.time += 1;
        let size = SIZES[seed % SIZES.len()];
        let content = || SimFile::new(noise(size, seed as u64 + 1)[..length].to_vec());
        let mut known = self.contents.entry((seed, length)).or_insert_with(content).clone();
        known.modified = self.time;
        self.by_time.insert(self.time, known);
        file.set_modified(UNIX_EPOCH + Duration::new(self.time as u64, 1)).unwrap();
    }

    /// Finishes a file that is about to get another name. The event of the last close has the name by which it was opened: if that is gone by
    /// then, the other name waits for the settle time.
    pub fn finish_writing_to(&mut self, path: &Path) {
        let inode = |stat: fs::Metadata| stat.ino();
        let Ok(wanted) = path.metadata().map(inode) else { return };
        while let Some(index) =
            self.writers.iter().position(|writer| writer.file.metadata().map(inode).unwrap() == wanted)
        {
            self.writers.swap(0, index);
            self.finish_writing();
        }
    }

    fn finish_writing(&mut self) -> String {
        if self.writers.is_empty() {
            return "nothing to write".to_owned();
        }
        let Writer { mut file, rest, seed } = self.writers.remove(0);
        file.write_all(&rest).unwrap();
        let size = SIZES[seed % SIZES.len()];
        self.stamp(&file, seed, size);
        self.complete.insert(self.contents[&(seed, size)].digest);
        format!("finish content {seed}")
    }

    fn rename(&mut self, from: &str, to: &str) -> String {
        let source = self.dir.join(from);
        if source.symlink_metadata().is_err()
            || to == from
            || to.starts_with(&format!("{from}/"))
            || from.starts_with(to)
        {
            return "nothing to rename".to_owned();
        }
        self.make_way(to);
        // What was in the way may have been above it.
        if source.symlink_metadata().is_ok() {
            remove(&self.dir.join(to));
            fs::rename(source, self.dir.join(to)).unwrap();
        }
        format!("rename {from} to {to}")
    }

    pub fn remove(&mut self, path: &str) -> String {
        remove(&self.dir.join(path));
        format!("remove {path}")
    }

    pub fn make_dir(&mut self, path: &str) -> String {
        self.make_way(path);
        let at = self.dir.join(path);
        if at.is_symlink() || !at.is_dir() {
            remove(&at);
            fs::create_dir(at).unwrap();
        }
        format!("make directory {path}")
    }

    fn link(&mut self, path: &str) -> String {
        self.make_way(path);
        remove(&self.dir.join(path));
        std::os::unix::fs::symlink("b", self.dir.join(path)).unwrap();
        format!("link {path}")
    }

    /// Writes a small file into a directory, if there is one.
    pub fn write_into(&mut self, dir: &str, draw: &mut Draw) -> Option<String> {
        let below = PATHS.iter().filter(|path| path.rsplit_once('/').is_some_and(|(above, _)| above == dir));
        let below: Vec<_> = below.collect();
        let path = below.get(draw.below(below.len()))?;
        self.dir.join(dir).is_dir().then(|| self.write(path, draw.below(3), 1))
    }

    fn chmod(&mut self, path: &str, draw: &mut Draw) -> String {
        let (at, mode) = (self.dir.join(path), [0o700, 0o750, 0o755][draw.below(3)]);
        if !at.exists() || at.is_symlink() {
            return "nothing to chmod".to_owned();
        }
        fs::set_permissions(at, fs::Permissions::from_mode(mode)).unwrap();
        format!("chmod {mode:o} {path}")
    }

    /// Gives a file another time, and nothing else.
    fn touch(&mut self, path: &str) -> String {
        let at = self.dir.join(path);
        let Some(before) = at.symlink_metadata().ok().filter(fs::Metadata::is_file) else {
            return "nothing to touch".to_owned();
        };
        self.time += 1;
        let mut known = self.by_time[&before.mtime()].clone();
        known.modified = self.time;
        self.by_time.insert(self.time, known);
        let file = File::options().append(true).open(at).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::new(self.time as u64, 1)).unwrap();
        format!("touch {path}")
    }

    /// More files than may be deleted at a time, or all of them gone.
    pub fn burst(&mut self, draw: &mut Draw) -> String {
        if self.dir.join("many").exists() {
            return self.remove("many");
        }
        (0..6).for_each(|index| _ = self.write(&format!("many/{index}"), draw.below(3), 1));
        "write many".to_owned()
    }

    /// The same, where they are certainly there then.
    pub fn burst_at_last(&mut self, draw: &mut Draw) {
        ["many", "moved"].iter().for_each(|path| remove(&self.dir.join(path)));
        self.burst(draw);
    }

    /// Moves a directory with more files than may be deleted at a time.
    pub fn move_many(&mut self) -> String {
        match self.dir.join("many").exists() {
            true => self.rename("many", "moved/many"),
            false => self.rename("moved/many", "many"),
        }
    }

    /// Another directory takes its place, or it comes back.
    fn replace(&mut self, draw: &mut Draw) -> String {
        self.unmount();
        self.is_replaced = !self.is_replaced;
        if !self.is_replaced {
            fs::remove_dir_all(&self.dir).unwrap();
            fs::rename(&self.elsewhere, &self.dir).unwrap();
            return "the directory comes back".to_owned();
        }
        fs::rename(&self.dir, &self.elsewhere).unwrap();
        fs::create_dir(&self.dir).unwrap();
        (0..draw.below(3)).for_each(|index| _ = self.write(PATHS[index], index, 1));
        "another directory takes its place".to_owned()
    }

    fn empty(&mut self) -> String {
        self.unmount();
        fs::read_dir(&self.dir).unwrap().for_each(|entry| remove(&entry.unwrap().path()));
        "empty it".to_owned()
    }

    /// Programs finish what they write, and all can be read.
    pub fn quiet(&mut self) {
        self.finish_all();
        self.reveal();
    }

    /// Programs finish what they write.
    pub fn finish_all(&mut self) {
        while !self.writers.is_empty() {
            self.finish_writing();
        }
    }

    /// Removes whatever isn't a directory above a path, and makes the directories.
    pub fn make_way(&self, path: &str) {
        let mut at = self.dir.clone();
        let Some((parent, _)) = path.rsplit_once('/') else { return };
        for name in parent.split('/') {
            at.push(name);
            if at.is_symlink() || at.is_file() {
                fs::remove_file(&at).unwrap();
            }
            if !at.exists() {
                fs::create_dir(&at).unwrap();
            }
        }
    }

    /// The files, as they can be fetched.
    pub fn files(&self) -> BTreeMap<String, SimFile> {
        let (mut files, mut dirs) = (BTreeMap::new(), vec![self.dir.clone()]);
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).unwrap() {
                let (path, stat) = { entry.map(|entry| (entry.path(), entry.metadata().unwrap())) }.unwrap();
                if stat.is_dir() {
                    dirs.push(path);
                } else if stat.is_file() {
                    let name = path.strip_prefix(&self.dir).unwrap().to_str().unwrap().to_owned();
                    files.insert(name, self.by_time[&stat.mtime()].clone());
                }
            }
        }
        files
    }

    /// A large file that isn't renamed yet, and another name for it.
    pub fn rename_large(&mut self, truth: &BTreeMap<String, What>) -> Option<String> {
        let large = |(path, what): (&String, &What)| {
            let is_large = matches!(what, What::File(_)) && fs::metadata(self.dir.join(path)).unwrap().len() >= 70_000;
            (is_large && !path.starts_with("m/")).then(|| path.clone())
        };
        let from = truth.iter().find_map(large)?;
        fs::rename(self.dir.join(&from), self.dir.join("renamed")).unwrap();
        Some(from)
    }
}

fn remove(path: &Path) {
    match path.symlink_metadata() {
        Ok(stat) if stat.is_dir() => fs::remove_dir_all(path).unwrap(),
        Ok(_) => fs::remove_file(path).unwrap(),
        Err(_) => {}
    }
}
