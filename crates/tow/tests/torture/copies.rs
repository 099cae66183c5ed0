//! Content of a directory while others change it, and of its copies.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::source::Contents;
use crate::support::tree::Entry;

/// A tree, by path from its root.
pub type Tree = BTreeMap<PathBuf, Entry>;

/// Permission bits of the source that its copies must have: others' write is taken away, and directories stay open to their owner.
const FILE_MODE: u32 = 0o755;
const DIRECTORY_MODE: u32 = 0o700;

/// All that is below `root` but our own files. What goes away meanwhile is left out.
pub fn tree(root: &Path) -> Tree {
    let mut found = Tree::new();
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for path in children(&directory) {
            let Ok(metadata) = path.symlink_metadata() else { continue };
            let mode = metadata.mode() & FILE_MODE;
            let entry = if metadata.is_dir() {
                directories.push(path.clone());
                Some(Entry::Directory(mode | DIRECTORY_MODE))
            } else if metadata.is_symlink() {
                fs::read_link(&path).ok().map(Entry::Link)
            } else if metadata.is_file() {
                let file = |content: Vec<u8>| {
                    let times = (metadata.mtime(), metadata.mtime_nsec());
                    Entry::File(content.len() as u64, blake3::hash(&content), mode, times)
                };
                fs::read(&path).ok().map(file)
            } else {
                None
            };
            if let Some(entry) = entry {
                found.insert(path.strip_prefix(root).expect("it is below").to_owned(), entry);
            }
        }
    }
    found
}

fn children(directory: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(directory).into_iter().flatten().flatten().map(|child| child.path());
    paths.filter(|path| !path.file_name().is_some_and(|name| name.as_bytes().starts_with(b".tow-"))).collect()
}

/// The first differences, for people; none if both are the same.
pub fn differences(expected: &Tree, found: &Tree) -> Vec<String> {
    let paths = expected.keys().chain(found.keys().filter(|path| !expected.contains_key(*path)));
    let differ = paths.filter(|path| expected.get(*path) != found.get(*path));
    differ.take(8).map(|path| format!("{path:?}: {:?} is {:?}", expected.get(path), found.get(path))).collect()
}

/// A thread that reads all files of some directories all the time: each must be one that the source had.
pub struct Reader {
    stop: Arc<AtomicBool>,
    wrong: Arc<Mutex<Option<String>>>,
    thread: Option<JoinHandle<u64>>,
}

impl Reader {
    pub fn start(roots: Vec<PathBuf>, contents: Contents) -> Self {
        let (stop, wrong) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        let (stopped, reported) = (Arc::clone(&stop), Arc::clone(&wrong));
        let thread = std::thread::spawn(move || {
            let mut files = 0;
            while !stopped.load(Ordering::Relaxed) {
                for root in &roots {
                    if let Some(path) = read_all(root, &contents, &mut files) {
                        *reported.lock().expect("no panic holds it") =
                            Some(format!("{} has content that the source never had", path.display()));
                        return files;
                    }
                }
                std::thread::yield_now();
            }
            files
        });
        Self { stop, wrong, thread: Some(thread) }
    }

    /// Panics if a file was wrong.
    pub fn check(&self) {
        if let Some(wrong) = &*self.wrong.lock().expect("no panic holds it") {
            panic!("{wrong}");
        }
    }

    /// How many files it has read.
    pub fn finish(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let files = self.thread.take().map_or(0, |thread| thread.join().expect("the reader doesn't panic"));
        self.check();
        files
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// The first file that isn't the source's.
fn read_all(root: &Path, contents: &Contents, files: &mut u64) -> Option<PathBuf> {
    let mut directories = vec![root.to_owned()];
    while let Some(directory) = directories.pop() {
        for path in children(&directory) {
            match path.symlink_metadata() {
                Ok(metadata) if metadata.is_dir() => directories.push(path),
                Ok(metadata) if metadata.is_file() => {
                    if let Ok(content) = fs::read(&path) {
                        *files += 1;
                        if !contents.has(&content) && !contents.has_that_of(&path) {
                            return Some(path);
                        }
                    }
                }
                _ => {}
            }
        }
    }
    None
}
