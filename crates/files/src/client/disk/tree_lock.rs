//! One transfer of a tree into a directory at a time.
//!
//! Two transfers of the same tree would each take what the other has begun for taken, and fail with it. So who begins holds the lock of
//! a file that is named as if the tree were a file of that directory, and the other is told at once. Nobody is kept from getting
//! something else into it.

use std::fs::File;

use super::lock::{Unclaimed, claim, has_name, hold};
use super::partial::PARTIAL_MODE;
use crate::client::names::partial_names;
use crate::client::transfer::Source;
use crate::root::{Dir, RootError};

/// How often it is begun anew when another transfer has just ended.
const ATTEMPTS_MAX: usize = 16;

/// Held as long as a transfer of a tree is under way.
#[derive(Debug)]
pub(super) struct TreeLock {
    dir: Dir,
    name: Vec<u8>,
    file: File,
}

/// Another transfer has it: the name of the file that it holds.
#[derive(Debug)]
pub(super) struct Held(pub(super) String);

impl TreeLock {
    /// Takes it. `None` where no file can be made, or locked: what can be written then, each file tells.
    pub(super) fn take(dir: Dir, source: &Source) -> Result<Option<TreeLock>, Held> {
        // No name has a slash in it.
        let key = match source {
            Source::Path(path) => [b"/path/", path.as_bytes()].concat(),
            Source::Glob(glob) => [b"/glob/", glob.as_bytes()].concat(),
        };
        let (name, _) = partial_names(&key);
        let held = || Held(String::from_utf8_lossy(&name).into_owned());
        for _ in 0..ATTEMPTS_MAX {
            let file = match dir.create_file(&name, PARTIAL_MODE) {
                Ok(file) => hold(&dir, &name, file).map_err(|_| held())?,
                // Left by one that was killed, or held.
                Err(RootError::Exists) => match claim(&dir, &name) {
                    Ok(file) => Some(file),
                    Err(Unclaimed::Taken(_)) => return Err(held()),
                    Err(Unclaimed::Closed(RootError::NotFound)) => None,
                    Err(Unclaimed::Closed(_)) => return Ok(None),
                },
                Err(_) => return Ok(None),
            };
            if let Some(file) = file {
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
