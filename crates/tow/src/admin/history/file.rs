//! The file of a history: docs/formats/history.md.

use super::events::{Event, KINDS};
use super::{FileError, History, NAME_BYTES_MAX, Ring, SAMPLES_MAX, THINGS_MAX, TOTALS_MAX, Thing, Things};

const MAGIC: &[u8; 8] = b"tow-hist";
const VERSION: u32 = 1;

/// Bytes of a file. The fullest one has less.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// Events in a file.
const EVENTS_MAX: usize = 1000;

/// Number of a kind of server.
fn number_of(of: Things) -> u8 {
    match of {
        Things::Services => 1,
        Things::Followers => 2,
    }
}

pub fn encode(history: &History) -> Vec<u8> {
    let mut to = Vec::new();
    to.extend(MAGIC);
    put(&mut to, VERSION);
    to.push(number_of(history.of));
    put_ring(&mut to, &history.totals);
    put(&mut to, history.things.len() as u32);
    for (name, thing) in &history.things {
        put_bytes(&mut to, name);
        to.extend(thing.weight.to_le_bytes());
        put_ring(&mut to, &thing.ring);
    }
    let events = history.events.all();
    put(&mut to, events.len() as u32);
    for event in events {
        to.push(event.kind as u8);
        put(&mut to, event.time);
        put_bytes(&mut to, event.text.as_bytes());
        // Neither is ever empty.
        put_bytes(&mut to, event.service.as_deref().unwrap_or_default());
        put_bytes(&mut to, event.peer.as_deref().unwrap_or_default().as_bytes());
    }
    let checksum = crc32c::crc32c(&to);
    put(&mut to, checksum);
    to
}

fn put(to: &mut Vec<u8>, number: u32) {
    to.extend(number.to_le_bytes());
}

fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    put(to, bytes.len() as u32);
    to.extend(bytes);
}

fn put_ring<const N: usize>(to: &mut Vec<u8>, ring: &Ring<N>) {
    put(to, ring.samples.len() as u32);
    for (time, values) in &ring.samples {
        put(to, *time);
        values.iter().for_each(|value| to.extend(value.to_le_bytes()));
    }
}

pub fn decode(bytes: &[u8], of: Things) -> Result<History, FileError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(FileError::Foreign)?;
    let mut from = Reader(rest);
    match from.number()? {
        VERSION => {}
        other => return Err(FileError::OtherVersion(other)),
    }
    let (content, checksum) = bytes.split_last_chunk::<4>().ok_or(FileError::Damaged)?;
    if crc32c::crc32c(content) != u32::from_le_bytes(*checksum) {
        return Err(FileError::Damaged);
    }
    if from.byte()? != number_of(of) {
        return Err(FileError::Foreign);
    }
    let mut history = History::new(of);
    from.ring(&mut history.totals, TOTALS_MAX)?;
    for _ in 0..from.count(THINGS_MAX)? {
        let name = from.bytes(NAME_BYTES_MAX)?.to_vec();
        let weight = f64::from_le_bytes(from.array()?);
        let mut thing = Thing { ring: Ring::new(SAMPLES_MAX), weight: if weight.is_finite() { weight } else { 0.0 } };
        from.ring(&mut thing.ring, SAMPLES_MAX)?;
        history.things.insert(name, thing);
    }
    for _ in 0..from.count(EVENTS_MAX)? {
        let kind = *KINDS.get(usize::from(from.byte()?)).ok_or(FileError::Damaged)?;
        let time = from.number()?;
        let text = String::from_utf8_lossy(from.bytes(FILE_BYTES_MAX)?).into_owned();
        let service = Some(from.bytes(NAME_BYTES_MAX)?.to_vec()).filter(|name| !name.is_empty());
        let peer = String::from_utf8_lossy(from.bytes(NAME_BYTES_MAX)?).into_owned();
        history.note(Event { kind, time, text, service, peer: Some(peer).filter(|peer| !peer.is_empty()) });
    }
    Ok(history)
}

/// Bytes that aren't read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], FileError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(FileError::Damaged)?;
        self.0 = rest;
        Ok(*array)
    }

    fn byte(&mut self) -> Result<u8, FileError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn number(&mut self) -> Result<u32, FileError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// A number up to `most`.
    fn count(&mut self, most: usize) -> Result<usize, FileError> {
        usize::try_from(self.number()?).ok().filter(|count| *count <= most).ok_or(FileError::Damaged)
    }

    fn bytes(&mut self, most: usize) -> Result<&'a [u8], FileError> {
        let length = self.count(most)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(FileError::Damaged)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn ring<const N: usize>(&mut self, to: &mut Ring<N>, most: usize) -> Result<(), FileError> {
        for _ in 0..self.count(most)? {
            let time = self.number()?;
            let mut values = [f32::NAN; N];
            for value in &mut values {
                *value = f32::from_le_bytes(self.array()?);
            }
            to.push(time, values);
        }
        Ok(())
    }
}
