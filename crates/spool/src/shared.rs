//! A directory of large bodies that all brokers of a cell share.
//!
//! It is made once, and never by a broker: one that isn't mounted isn't there, and nothing is written in its place.

use super::SpooledBody;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use towpath_requests::LargeBody;

/// Bytes copied at a time.
pub(super) const COPY_BYTES: usize = 256 * 1024;
/// Bytes after which a copy is synced, so that no sync takes long.
const SYNC_BYTES: u64 = 64 * 1024 * 1024;
/// Entries of the directory that one look for leftovers takes.
const LISTED_MAX: usize = 100_000;
/// Ends of the names of bodies, and of those that are being written.
const BODY: &str = ".body";
const WRITTEN: &str = ".tmp";
/// A file that shows the directory's own time.
const CLOCK: &str = "clock";

/// Name of a body, chosen by chance.
pub type BodyName = [u8; 16];

/// Place of a body in a shared directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyPlace {
    /// Its name.
    pub name: BodyName,
    /// Its length in bytes.
    pub length: u64,
    /// Its BLAKE3 digest.
    pub digest: [u8; 32],
}

impl BodyPlace {
    /// Name of its file.
    pub fn file_name(&self) -> String {
        file_name(&self.name)
    }
}

fn file_name(name: &BodyName) -> String {
    let digits: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
    digits + BODY
}

/// The name of a body's file.
fn name_of(file: &str) -> Option<BodyName> {
    let digits = file.strip_suffix(BODY).or_else(|| file.strip_suffix(WRITTEN))?;
    let mut name = BodyName::default();
    if digits.len() != 32 || !digits.is_ascii() {
        return None;
    }
    for (byte, at) in name.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()?;
    }
    Some(name)
}

/// A body that no record names yet: its request may be refused, or be one that is there already.
#[derive(Debug)]
pub(super) struct Fresh {
    dir: SharedDir,
    name: BodyName,
    pub(super) is_named: AtomicBool,
}

impl Drop for Fresh {
    fn drop(&mut self) {
        if !self.is_named.load(Ordering::Relaxed)
            && let Err(error) = self.dir.remove(&self.name)
        {
            tracing::warn!(directory = %self.dir.path.display(), %error, "cannot remove a body that nobody needs");
        }
    }
}

/// A directory of large bodies that several brokers share. All methods may block.
#[derive(Clone, Debug)]
pub struct SharedDir {
    path: PathBuf,
}

impl SharedDir {
    /// The directory of this name in `dir`. Nothing is looked at.
    pub fn new(dir: &Path, name: &str) -> SharedDir {
        SharedDir { path: dir.join(name) }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it, for this user alone, in a directory that is there.
    pub fn make(&self) -> io::Result<()> {
        use std::os::unix::fs::DirBuilderExt;
        match std::fs::DirBuilder::new().mode(0o700).create(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.check(),
            made => {
                made?;
                self.path.parent().map_or(Ok(()), |above| File::open(above)?.sync_all())
            }
        }
    }

    /// Whether it is there, and can be written.
    pub fn check(&self) -> io::Result<()> {
        let mut clock = self.file(CLOCK, OFlags::CREATE | OFlags::TRUNC)?;
        clock.write_all(b"when a broker last looked\n")
    }

    fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = (flags | OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(flags).open(self.path.join(name))
    }

    /// Copies a body into it, under this name, and syncs both. It is removed with its last owner, unless [`SpooledBody::set_named`] was called. Calls
    /// `moves` after each piece.
    pub fn keep(&self, name: BodyName, body: &SpooledBody, moves: impl FnMut()) -> io::Result<Arc<SpooledBody>> {
        let to = file_name(&name);
        let fresh = to.replace(BODY, WRITTEN);
        let kept = self.copy(&fresh, body, moves).and_then(|digest| {
            std::fs::rename(self.path.join(&fresh), self.path.join(&to))?;
            File::open(&self.path)?.sync_all()?;
            let fresh = Fresh { dir: self.clone(), name, is_named: AtomicBool::new(false) };
            self.open_with(&BodyPlace { name, length: body.length(), digest }, Some(fresh))
        });
        kept.inspect_err(|_| _ = std::fs::remove_file(self.path.join(&fresh)))
    }

    fn copy(&self, fresh: &str, body: &SpooledBody, mut moves: impl FnMut()) -> io::Result<[u8; 32]> {
        let file = self.file(fresh, OFlags::CREATE | OFlags::EXCL)?;
        let (mut hasher, mut bytes, mut done) = (blake3::Hasher::new(), vec![0; COPY_BYTES], 0);
        while done < body.length() {
            let most = bytes.len().min(usize::try_from(body.length() - done).unwrap_or(usize::MAX));
            let read = body.read_at(&mut bytes[..most], done)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            hasher.update(&bytes[..read]);
            file.write_all_at(&bytes[..read], done)?;
            done += read as u64;
            if done % SYNC_BYTES < read as u64 {
                file.sync_data()?;
            }
            moves();
        }
        file.sync_all()?;
        Ok(*hasher.finalize().as_bytes())
    }

    /// Opens a body. Whether it is what it was: [`SpooledBody::damage`].
    pub fn open(&self, place: &BodyPlace) -> io::Result<Arc<SpooledBody>> {
        self.open_with(place, None)
    }

    fn open_with(&self, place: &BodyPlace, fresh: Option<Fresh>) -> io::Result<Arc<SpooledBody>> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(self.path.join(place.file_name()))?;
        Ok(SpooledBody::placed(file, *place, fresh))
    }

    /// Removes a body. One that isn't there is no error.
    pub fn remove(&self, name: &BodyName) -> io::Result<()> {
        let file = file_name(name);
        for file in [file.replace(BODY, WRITTEN), file] {
            match std::fs::remove_file(self.path.join(file)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Bodies, also those that are being written, that are at least so old, by the directory's own clock.
    pub fn older_than(&self, age: Duration) -> io::Result<Vec<BodyName>> {
        self.check()?;
        let now = std::fs::metadata(self.path.join(CLOCK))?.modified()?;
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.path)?.take(LISTED_MAX) {
            let entry = entry?;
            let Some(name) = entry.file_name().to_str().and_then(name_of) else { continue };
            // It may have been removed meanwhile.
            let Ok(modified) = entry.metadata().and_then(|metadata| metadata.modified()) else { continue };
            if now.duration_since(modified).is_ok_and(|old| old >= age) {
                found.push(name);
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Spool;
    use std::time::SystemTime;
    use towpath_requests::body::Body;

    #[test]
    fn bodies_are_kept_opened_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let shared = SharedDir::new(folder.path(), "cell");
        assert!(shared.check().is_err() && shared.older_than(Duration::ZERO).is_err(), "it isn't made by itself");
        shared.make().unwrap();
        shared.make().unwrap();
        let spool = Spool::new(folder.path().join("spool")).unwrap();
        let mut writer = spool.create().unwrap();
        let content = vec![7; COPY_BYTES + 5];
        writer.write(&content).unwrap();
        let kept = shared.keep([3; 16], &writer.finish(), || {}).unwrap();
        let place = kept.place.unwrap();
        assert_eq!((place.length, place.digest), (content.len() as u64, *blake3::hash(&content).as_bytes()));
        let mut bytes = vec![0; content.len()];
        shared.open(&place).unwrap().file().read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes == content);
        SpooledBody::set_named(&Body::large(kept));
        // One that no record names is gone with its last owner.
        let mut writer = spool.create().unwrap();
        writer.write(b"refused").unwrap();
        let refused = shared.keep([9; 16], &writer.finish(), || {}).unwrap();
        let path = shared.path().join(file_name(&[9; 16]));
        assert!(path.exists());
        drop(refused);
        let start = std::time::Instant::now();
        while path.exists() {
            assert!(start.elapsed() < Duration::from_secs(60), "it isn't removed");
            std::thread::yield_now();
        }
        // Gone, of a wrong length, or with other bytes.
        assert!(shared.open(&BodyPlace { name: [4; 16], ..place }).is_err());
        let damage = |place| shared.open(&place).unwrap().damage(|| {}).unwrap();
        assert_eq!(damage(place), None);
        assert_eq!(damage(BodyPlace { length: 1, ..place }), Some("has another length"));
        assert_eq!(damage(BodyPlace { digest: [0; 32], ..place }), Some("has other bytes than it had"));
        // Only what is old is a leftover, and only bodies.
        std::fs::write(shared.path().join("readme"), "").unwrap();
        assert_eq!(shared.older_than(Duration::from_secs(3600)).unwrap(), Vec::<BodyName>::new());
        let old = SystemTime::now() - Duration::from_secs(7200);
        for name in [place.file_name(), "05".repeat(16) + WRITTEN, "readme".to_owned()] {
            let file = File::create(shared.path().join(name)).unwrap();
            file.set_modified(old).unwrap();
        }
        let mut found = shared.older_than(Duration::from_secs(3600)).unwrap();
        found.sort();
        assert_eq!(found, [[3; 16], [5; 16]]);
        found.iter().for_each(|name| shared.remove(name).unwrap());
        shared.remove(&[3; 16]).unwrap();
        assert!(shared.older_than(Duration::ZERO).unwrap().is_empty());
    }
}
