//! The folder in which everything happens: sources of random data, destinations, trees of files. It is on the disk of the
//! workspace's target folder, and removed at the end.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::seed::Seed;

const BLOCK_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;

/// A temporary folder for one run of the bench.
pub struct Folder {
    temporary: TempDir,
}

impl Folder {
    /// A new folder below `parent`.
    pub fn create(parent: &Path) -> Result<Self> {
        fs::create_dir_all(parent)?;
        let temporary = tempfile::Builder::new().prefix("bench-").tempdir_in(parent)?;
        Ok(Self { temporary })
    }

    pub fn path(&self) -> &Path {
        self.temporary.path()
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// A file of random data, made when it is first asked for.
    pub fn source(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.join(name);
        let there = fs::metadata(&path).is_ok_and(|facts| facts.len() == bytes);
        if !there {
            if let Some(parent) = path.parent() {
                fs::create_dir_all(parent)?;
            }
            write_random(&path, bytes, &mut Seed::new(bytes))?;
            self.flush()?;
        }
        fill_cache(&path)?;
        Ok(path)
    }

    /// Where a receiver may write. Nothing is there.
    pub fn empty_destination(&self) -> Result<PathBuf> {
        let path = self.join("destination");
        remove(&path)?;
        Ok(path)
    }

    /// Moves a tree to where it is in nobody's way.
    pub fn put_aside(&self, path: &Path) -> Result<()> {
        let aside = tempfile::Builder::new().prefix("aside-").tempdir_in(self.path())?.keep();
        fs::rename(path, aside.join("tree"))?;
        Ok(())
    }

    /// Waits until nothing is left to be written to the disk, so that one run does not pay for another.
    pub fn flush(&self) -> Result<()> {
        rustix::fs::syncfs(File::open(self.path())?).context("syncfs")
    }
}

/// Writes a file of data that does not compress.
pub fn write_random(path: &Path, bytes: u64, seed: &mut Seed) -> Result<()> {
    let mut file = BufWriter::with_capacity(BLOCK_BYTES, File::create(path)?);
    let mut left = bytes;
    while left > 0 {
        let word = seed.next().to_ne_bytes();
        let part = left.min(word.len() as u64);
        file.write_all(&word[..usize::try_from(part)?])?;
        left -= part;
    }
    file.flush()?;
    Ok(())
}

/// Reads a file, or all files of a tree, so that they are in the page cache.
pub fn fill_cache(path: &Path) -> Result<()> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            fill_cache(&entry?.path())?;
        }
    } else if path.is_file() {
        let mut file = File::open(path)?;
        let mut block = vec![0; BLOCK_BYTES];
        while file.read(&mut block)? > 0 {}
    }
    Ok(())
}

/// Takes memory from the system as a program and gives it back: on a virtual machine, memory that was not in use lately costs a
/// fault of the host at first, which would be measured instead of the programs.
pub fn touch_memory(bytes: u64) -> Result<()> {
    let mut memory = vec![0_u8; usize::try_from(bytes)?];
    for page in memory.chunks_mut(PAGE_BYTES) {
        if let Some(first) = page.first_mut() {
            *first = 1;
        }
    }
    std::hint::black_box(&memory);
    Ok(())
}

/// The same as a file in `folder`: the system gives a large file larger pieces than a program, from elsewhere. Nothing of it reaches
/// the disk unless the system hurries.
pub fn touch_file_memory(folder: &Path, bytes: u64) -> Result<()> {
    let path = folder.join("memory");
    let mut file = File::create(&path)?;
    let block = vec![1; BLOCK_BYTES];
    for _ in 0..bytes.div_ceil(BLOCK_BYTES as u64) {
        file.write_all(&block)?;
    }
    drop(file);
    fs::remove_file(path)?;
    Ok(())
}

/// Removes a file or tree that may be there.
pub fn remove(path: &Path) -> Result<()> {
    let Ok(facts) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if facts.is_dir() {
        fs::remove_dir_all(path)?;
    } else {
        fs::remove_file(path)?;
    }
    Ok(())
}

/// Checks that two files, or trees of files, have the same contents.
pub fn compare(left: &Path, right: &Path) -> Result<()> {
    if left.is_dir() {
        for entry in fs::read_dir(left)? {
            let entry = entry?;
            compare(&entry.path(), &right.join(entry.file_name()))?;
        }
        return Ok(());
    }
    let open = |path: &Path| -> Result<BufReader<File>> {
        let file = File::open(path).with_context(|| format!("{} is missing", path.display()))?;
        Ok(BufReader::with_capacity(BLOCK_BYTES, file))
    };
    let (mut left_file, mut right_file) = (open(left)?, open(right)?);
    let (mut left_block, mut right_block) = (vec![0; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
    loop {
        let left_bytes = read_block(&mut left_file, &mut left_block)?;
        let right_bytes = read_block(&mut right_file, &mut right_block)?;
        if left_block.get(..left_bytes) != right_block.get(..right_bytes) {
            bail!("{} is not what was sent", right.display());
        }
        if left_bytes == 0 {
            return Ok(());
        }
    }
}

fn read_block(file: &mut impl Read, block: &mut [u8]) -> Result<usize> {
    let mut have = 0;
    while let Some(rest) = block.get_mut(have..).filter(|rest| !rest.is_empty()) {
        match file.read(rest)? {
            0 => break,
            got => have += got,
        }
    }
    Ok(have)
}

/// A path or name for the rest of the program: the closures that make commands share it, and there are few.
pub fn keep<B: ?Sized>(value: impl Into<Box<B>>) -> &'static B {
    Box::leak(value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_or_a_missing_file_is_noticed() -> Result<()> {
        let folder = Folder::create(&std::env::temp_dir())?;
        let source = folder.source("tree/a", 3_000_001)?;
        let copy = folder.join("copy");
        fs::create_dir(&copy)?;
        assert!(compare(&folder.join("tree"), &copy).is_err());
        fs::copy(&source, copy.join("a"))?;
        compare(&folder.join("tree"), &copy)?;
        let mut contents = fs::read(&source)?;
        contents.pop();
        fs::write(copy.join("a"), &contents)?;
        assert!(compare(&folder.join("tree"), &copy).is_err());
        Ok(())
    }
}
