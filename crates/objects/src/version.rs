//! Versions of objects, whose pieces may be kept in a cache.

use crate::{Bucket, Error, Kind, Object};
use std::ops::Range;
use std::time::SystemTime;

/// A version of an object.
#[derive(Clone, Debug)]
pub struct Version {
    /// The bucket.
    pub bucket: Bucket,
    /// Path below the bucket's prefix.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// When it was put there.
    pub modified: SystemTime,
    /// Its entity tag.
    pub e_tag: Option<String>,
}

impl Version {
    fn key(&self) -> String {
        self.bucket.url().key(&self.path)
    }

    /// Fails if an answer is of another version.
    fn check(&self, object: &Object) -> Result<(), Error> {
        let is_same = match &self.e_tag {
            Some(_) => object.e_tag == self.e_tag,
            None => object.modified == self.modified,
        };
        if is_same && object.size == self.size {
            return Ok(());
        }
        Err(Error::new(Kind::Changed, self.key(), ""))
    }
}

impl towpath_cache::Version for Version {
    type Error = Error;

    fn size(&self) -> u64 {
        self.size
    }

    fn id(&self) -> [u8; 32] {
        let modified = self.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut hasher = blake3::Hasher::new_derive_key("towpath object 1");
        for part in [self.bucket.endpoint(), &self.key(), self.e_tag.as_deref().unwrap_or_default()] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        hasher.update(&self.size.to_le_bytes()).update(&modified.to_le_bytes());
        *hasher.finalize().as_bytes()
    }

    fn read(&self, range: Range<u64>, take: &mut dyn FnMut(&[u8]) -> bool) -> Result<(), Error> {
        let mut reading = self.bucket.read(&self.path, range, self.e_tag.as_deref())?;
        self.check(&reading.object)?;
        while let Some(bytes) = reading.next_bytes()? {
            if !take(&bytes) {
                break;
            }
        }
        Ok(())
    }
}
