//! The lock that lets one transfer at a time write a tree into a directory.
//!
//! Two transfers of the same tree would each find what the other has begun taken, and fail. The first one therefore
//! locks a file that is named as if the tree were a file of that directory, and the other fails at once. Other things
//! can still be fetched into it.

use std::fs::File;

use super::destination::Destination;
use super::lock::{Unclaimed, claim, displace, has_name, hold};
use super::partial::PARTIAL_MODE;
use crate::root::{Dir, RootError};
use crate::transfer::Source;
use crate::transfer::names::{partial_names, source_key};

/// Attempts when another transfer has just ended.
const ATTEMPTS_MAX: usize = 16;

/// The lock, held during a transfer of a tree.
#[derive(Debug)]
pub(super) struct TreeLock {
    dir: Dir,
    name: Vec<u8>,
    file: File,
}

/// Another transfer holds the lock: the name of its file.
#[derive(Debug)]
pub(super) struct Held(pub(super) String);

impl TreeLock {
    /// Takes the lock. `None` if no file can be made or locked: each file then shows what can be written.
    pub(super) fn take(destination: &Destination, dir: Dir, source: &Source) -> Result<Option<TreeLock>, Held> {
        let names = partial_names(&source_key(source));
        let name = &names.0;
        let held = || Held(String::from_utf8_lossy(name).into_owned());
        for _ in 0..ATTEMPTS_MAX {
            let file = match dir.create_file(name, PARTIAL_MODE) {
                Ok(file) => hold(&dir, name, file).map_err(|_| held())?,
                // Left by one that was killed, or held.
                Err(RootError::Exists) => match claim(destination, &dir, name) {
                    Ok(file) => Some(file),
                    Err(Unclaimed::Taken(_)) => return Err(held()),
                    Err(Unclaimed::Closed(RootError::NotFound)) => None,
                    // Nobody else may keep this transfer out.
                    Err(Unclaimed::Foreign) if displace(destination, &dir, &names).is_ok() => None,
                    Err(Unclaimed::Closed(_) | Unclaimed::Foreign) => return Ok(None),
                },
                Err(_) => return Ok(None),
            };
            if let Some(file) = file {
                let name = names.0;
                return Ok(Some(TreeLock { dir, name, file }));
            }
        }
        Err(held())
    }
}

impl Drop for TreeLock {
    fn drop(&mut self) {
        // With the lock held, so that nobody else's is removed.
        if has_name(&self.dir, &self.name, &self.file).is_ok_and(|is_own| is_own) {
            let _ = self.dir.remove_file(&self.name);
        }
    }
}
