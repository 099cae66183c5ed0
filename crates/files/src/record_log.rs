//! A file that records are appended to, each with its length and a checksum.
//!
//! ```text
//! file    magic (8 bytes), records
//! record  length of the body (4 bytes), check of the length, body, check of the body
//! check   the first 4, or 8, bytes of the BLAKE3 of where the record begins in the file, and of what is checked
//! ```
//! Numbers are big-endian. What a crash leaves at the end, a part of a record or zeros, is cut off; anything else that isn't a record is damage,
//! which isn't guessed about.

use crate::root::{Dir, RootError};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};

/// Mode of such files.
pub(crate) const MODE: u32 = 0o600;
const MAGIC_BYTES: usize = 8;
const LENGTH_BYTES: usize = 4;
const HEAD_BYTES: usize = LENGTH_BYTES + 4;
const CHECK_BYTES: usize = 8;
/// Bytes that are collected before they are written.
const BUFFER_BYTES: usize = 256 << 10;

/// A kind of such files.
#[derive(Debug)]
pub(crate) struct Format {
    /// Bytes that a file begins with, the format's version among them.
    pub(crate) magic: &'static [u8; MAGIC_BYTES],
    /// Largest body, in bytes.
    pub(crate) body_bytes_max: usize,
}

/// Such a file, open and locked against other processes.
#[derive(Debug)]
pub(crate) struct RecordLog {
    format: &'static Format,
    file: File,
    /// With what is in the buffer.
    length: u64,
    buffer: Vec<u8>,
}

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    #[error("another process has it")]
    Locked,
    #[error("it is something else, or of another version of tow")]
    Foreign,
    #[error("it is damaged at byte {0}")]
    Damaged(u64),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Root(#[from] RootError),
}

impl RecordLog {
    /// Takes a file that was opened for reading and writing, and calls `each` with every record, oldest first.
    pub(crate) fn open(file: File, format: &'static Format, each: impl FnMut(&[u8])) -> Result<RecordLog, LogError> {
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
            Errno::AGAIN => LogError::Locked,
            errno => LogError::Io(errno.into()),
        })?;
        let mut log = RecordLog { format, file, length: 0, buffer: Vec::new() };
        match RecordLog::read(&log.file, format, each)? {
            Some(end) => log.truncate(end)?,
            None => log.clear()?,
        }
        Ok(log)
    }

    /// Calls `each` with every record of a file that another process may be appending to. Returns where they end; `None`: it is new.
    pub(crate) fn read(
        file: &File,
        format: &'static Format,
        mut each: impl FnMut(&[u8]),
    ) -> Result<Option<u64>, LogError> {
        let end = file.metadata()?.len();
        let mut reader = BufReader::new(file);
        let mut found = Vec::new();
        reader.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut found)?;
        if found.len() < MAGIC_BYTES && format.magic.starts_with(&found) {
            return Ok(None);
        }
        if found != format.magic {
            return Err(LogError::Foreign);
        }
        let mut at = MAGIC_BYTES as u64;
        while at < end
            && let Some(body) = read_record(&mut reader, format, at, end)?
        {
            each(&body);
            at += (HEAD_BYTES + body.len() + CHECK_BYTES) as u64;
        }
        Ok(Some(at))
    }

    /// Makes a new file with what `fill` appends, and gives it the name of the old one when it is durable.
    pub(crate) fn replace(
        dir: &Dir,
        name: &[u8],
        new_name: &[u8],
        format: &'static Format,
        fill: impl FnOnce(&mut RecordLog) -> io::Result<()>,
    ) -> Result<RecordLog, LogError> {
        match dir.remove_file(new_name) {
            Ok(()) | Err(RootError::NotFound) => {}
            Err(error) => return Err(error.into()),
        }
        // Locked before it has the name.
        let mut log = RecordLog::open(dir.create_file(new_name, MODE)?, format, |_| {})?;
        fill(&mut log)?;
        log.sync()?;
        dir.rename(new_name, dir, name)?;
        Ok(log)
    }

    /// Bytes of the file, and of what isn't written yet.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Appends a record, at [`RecordLog::flush`] at the latest.
    pub(crate) fn append(&mut self, body: &[u8]) -> io::Result<()> {
        let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= self.format.body_bytes_max);
        let length = length.ok_or_else(|| io::Error::other("a record over the limit"))?.to_be_bytes();
        let at = self.length;
        self.buffer.extend_from_slice(&length);
        self.buffer.extend_from_slice(&check::<4>(at, &length));
        self.buffer.extend_from_slice(body);
        self.buffer.extend_from_slice(&check::<CHECK_BYTES>(at, body));
        self.length += (HEAD_BYTES + body.len() + CHECK_BYTES) as u64;
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    /// Writes what was appended. What can't be written is kept for the next attempt.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let begin = self.length - self.buffer.len() as u64;
        self.file.write_all(&self.buffer).inspect_err(|_| {
            // A part of a record would hide all that comes behind it.
            let _ = self.file.set_len(begin).and_then(|()| self.file.seek(SeekFrom::Start(begin)));
        })?;
        self.buffer.clear();
        Ok(())
    }

    /// Makes what was written durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        self.file.sync_data()
    }

    /// Removes all records.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        self.truncate(0)?;
        self.file.write_all(self.format.magic)?;
        self.length = MAGIC_BYTES as u64;
        Ok(())
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.buffer.clear();
        self.file.set_len(length)?;
        self.file.seek(SeekFrom::Start(length))?;
        self.length = length;
        Ok(())
    }
}

/// Reads the record that begins here: `None` if it is what a crash leaves at the end.
fn read_record(reader: &mut impl Read, format: &Format, at: u64, end: u64) -> Result<Option<Vec<u8>>, LogError> {
    let mut head = [0; HEAD_BYTES];
    if end - at < HEAD_BYTES as u64 {
        return Ok(None);
    }
    reader.read_exact(&mut head)?;
    let [l0, l1, l2, l3, check_of_length @ ..] = head;
    let length = [l0, l1, l2, l3];
    if check_of_length != check::<4>(at, &length) {
        return if is_zeros(reader)? { Ok(None) } else { Err(LogError::Damaged(at)) };
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > format.body_bytes_max {
        return Err(LogError::Damaged(at));
    }
    let behind = at + (HEAD_BYTES + length + CHECK_BYTES) as u64;
    if behind > end {
        return Ok(None);
    }
    let (mut body, mut stored) = (vec![0; length], [0; CHECK_BYTES]);
    reader.read_exact(&mut body)?;
    reader.read_exact(&mut stored)?;
    match stored == check::<CHECK_BYTES>(at, &body) {
        true => Ok(Some(body)),
        false if is_zeros(reader)? => Ok(None),
        false => Err(LogError::Damaged(at)),
    }
}

/// Whether nothing but zeros follows, or nothing.
fn is_zeros(reader: &mut impl Read) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok(true),
            read if buffer.iter().take(read).any(|byte| *byte != 0) => return Ok(false),
            _ => {}
        }
    }
}

fn check<const N: usize>(at: u64, bytes: &[u8]) -> [u8; N] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&at.to_be_bytes());
    hasher.update(bytes);
    let mut check = [0; N];
    check.iter_mut().zip(hasher.finalize().as_bytes()).for_each(|(to, from)| *to = *from);
    check
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const FORMAT: Format = Format { magic: b"TOWTEST1", body_bytes_max: 1000 };

    fn open(path: &Path) -> Result<(RecordLog, Vec<Vec<u8>>), LogError> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut records = Vec::new();
        RecordLog::open(file, &FORMAT, |body| records.push(body.to_vec())).map(|log| (log, records))
    }

    #[test]
    fn a_torn_end_is_cut_and_damage_is_refused() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("log");
        let bodies: Vec<Vec<u8>> = (0..4).map(|index| vec![index; 10 * usize::from(index)]).collect();
        let (mut log, records) = open(&path).unwrap();
        assert!(records.is_empty());
        assert!(matches!(open(&path), Err(LogError::Locked)));
        bodies.iter().for_each(|body| log.append(body).unwrap());
        log.sync().unwrap();
        drop(log);
        let whole = std::fs::read(&path).unwrap();
        let last = whole.len() - (HEAD_BYTES + 30 + CHECK_BYTES);
        for cut in 0..=whole.len() {
            for zeros in [0, 100] {
                std::fs::write(&path, [&whole[..cut], &vec![0; zeros]].concat()).unwrap();
                let Ok((mut log, records)) = open(&path) else {
                    assert!(zeros > 0 && cut < MAGIC_BYTES, "cut at {cut}");
                    continue;
                };
                assert!(bodies.starts_with(&records));
                assert!(cut < whole.len() || records == bodies);
                log.append(b"more").unwrap();
                log.flush().unwrap();
                drop(log);
                assert_eq!(open(&path).unwrap().1, [records, vec![b"more".to_vec()]].concat());
            }
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            std::fs::write(&path, &damaged).unwrap();
            match open(&path) {
                Err(LogError::Foreign) => assert!(at < MAGIC_BYTES),
                Err(LogError::Damaged(begin)) => assert!(begin <= at as u64 && at >= MAGIC_BYTES),
                // The last record may be one that a crash tore.
                Ok((_, records)) => assert!(at >= last + HEAD_BYTES && records == bodies[..3]),
                Err(error) => panic!("{error}"),
            }
        }
    }
}
