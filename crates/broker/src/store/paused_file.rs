//! The services that an operator has paused, in a file: docs/formats/journal.md.

use bytes::Bytes;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use towpath_requests::limits::SERVICE_BYTES_MAX;

/// The file, below the journal's directory.
const NAME: &str = "paused";

/// Bytes of the file, beyond which it isn't ours.
const BYTES_MAX: u64 = 4 << 20;

/// A file of names of services.
#[derive(Debug, Clone)]
pub(crate) struct PausedFile {
    path: PathBuf,
}

impl PausedFile {
    /// The file of a journal.
    pub fn new(journal: &Path) -> PausedFile {
        PausedFile { path: journal.join(NAME) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names in it; none if there is no file.
    pub fn read(&self) -> io::Result<Vec<Bytes>> {
        let mut text = String::new();
        match File::open(&self.path) {
            Ok(file) => file.take(BYTES_MAX).read_to_string(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let wrong = |line| io::Error::new(io::ErrorKind::InvalidData, format!("line {line} is no service"));
        text.lines().enumerate().map(|(line, text)| parse(text).ok_or_else(|| wrong(line + 1))).collect()
    }

    /// Replaces the names in it, durably.
    pub fn write(&self, names: &[Bytes]) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        let text: String = names.iter().map(|name| hex(name) + "\n").collect();
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(&self.path).map_err(|error| error.error)?;
        File::open(directory)?.sync_all()
    }
}

/// A name as hexadecimal digits: it may have any bytes.
fn hex(name: &[u8]) -> String {
    name.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse(text: &str) -> Option<Bytes> {
    let digits = text.as_bytes();
    let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
    if !is_hex || !digits.len().is_multiple_of(2) || digits.len() > 2 * SERVICE_BYTES_MAX {
        return None;
    }
    digits.chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_come_back_and_damage_is_reported() {
        let directory = tempfile::tempdir().unwrap();
        let file = PausedFile::new(directory.path());
        assert!(file.read().unwrap().is_empty());
        let names = [&b"echo"[..], b"\n\xff", b""].map(Bytes::from_static);
        file.write(&names).unwrap();
        assert_eq!(file.read().unwrap(), names);
        for damaged in ["6", "zz", "6563686f\n+1"] {
            std::fs::write(file.path(), damaged).unwrap();
            assert!(file.read().is_err(), "{damaged}");
        }
    }
}
