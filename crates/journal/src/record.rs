//! Records of requests in bytes.
//!
//! Length, kind and id come first, so that compaction can move a record without decoding it.
// docs/formats/journal.md has the tables.

use super::{Entry, Expiry, JournalError, Letter};
use bytes::Bytes;
use towpath_requests::body::Body;
use towpath_requests::limits::{
    BODY_BYTES_MAX, BODY_FRAMES_MAX, JOURNAL_RECORD_BYTES_MAX, LARGE_BODY_BYTES_MAX, SERVICE_BYTES_MAX,
};
use towpath_spool::{BodyPlace, SpooledBody};

/// Length of the rest, kind, id.
pub(super) const PREFIX_BYTES: usize = 4 + 1 + 8;
/// Client, number, expiry and time left, checksum, length of the service's name.
const ACCEPTED_BYTES: usize = 16 + 8 + 8 + 8 + 4 + 1;
/// Number of the move, length of the service's name.
const MOVED_BYTES: usize = 4 + 1;
/// Attempts, time, lengths of three texts.
const LETTER_BYTES: usize = 2 + 8 + 3;

/// Bytes of a text of a dead letter.
const TEXT_BYTES_MAX: usize = u8::MAX as usize;

const ACCEPTED: u8 = 1;
const FINISHED: u8 = 2;
const FORGOTTEN: u8 = 3;
/// As accepted, with more about the letter behind the service's name.
const LETTER: u8 = 4;
const MOVED: u8 = 5;

const ONE_FRAME: u8 = 0;
const SEVERAL_FRAMES: u8 = 1;
const IN_A_FILE: u8 = 2;
const DROPPED: u8 = 3;
const SHARED: u8 = 4;

/// A decoded record that borrows its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record<'a> {
    pub(super) id: u64,
    pub(super) what: What<'a>,
    /// The whole record with its prefix.
    pub(super) bytes: &'a [u8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What<'a> {
    Accepted {
        client: [u8; 16],
        number: u64,
        expires: Expiry,
        checksum: u32,
        letter: Option<Letter<'a>>,
        service: &'a [u8],
        body: Stored<'a>,
    },
    Moved {
        moves: u32,
        letter: Letter<'a>,
        service: &'a [u8],
    },
    Finished {
        status: u16,
        body: Stored<'a>,
    },
    Forgotten,
}

/// Body in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stored<'a> {
    One(&'a [u8]),
    /// Count already consumed: each frame preceded by its length in 4 bytes, checked.
    Several(&'a [u8]),
    /// In a file of this length.
    File(u64),
    /// In a directory that the brokers of a cell share.
    Shared(BodyPlace),
    /// Dropped when the record was moved, because the request has its outcome.
    Dropped,
}

impl<'a> Record<'a> {
    /// Decodes the first record of `bytes` and advances past it. The error says what is wrong.
    pub(super) fn take(bytes: &mut &'a [u8]) -> Result<Record<'a>, &'static str> {
        let all = *bytes;
        let mut rest = all;
        let length = u32::from_le_bytes(array(&mut rest)?) as usize;
        if length > JOURNAL_RECORD_BYTES_MAX {
            return Err("a record is longer than records can be");
        }
        let (mut fields, left) = rest.split_at_checked(length).ok_or("a record is longer than its block")?;
        let bytes_of_it = all.get(..4 + length).ok_or("a record is longer than its block")?;
        let [kind] = array(&mut fields)?;
        let id = u64::from_le_bytes(array(&mut fields)?);
        let what = match kind {
            ACCEPTED | LETTER => {
                let client = array(&mut fields)?;
                let number = u64::from_le_bytes(array(&mut fields)?);
                let unix_ms = u64::from_le_bytes(array(&mut fields)?);
                let expires = Expiry { unix_ms, left_ms: u64::from_le_bytes(array(&mut fields)?) };
                let checksum = u32::from_le_bytes(array(&mut fields)?);
                let service = short(&mut fields)?;
                let letter = if kind == LETTER { Some(letter(&mut fields)?) } else { None };
                let body = Stored::decode(fields)?;
                What::Accepted { client, number, expires, checksum, letter, service, body }
            }
            MOVED => {
                let moves = u32::from_le_bytes(array(&mut fields)?);
                let service = short(&mut fields)?;
                let letter = letter(&mut fields)?;
                if !fields.is_empty() {
                    return Err("a record has more than it should");
                }
                What::Moved { moves, letter, service }
            }
            FINISHED => {
                let status = u16::from_le_bytes(array(&mut fields)?);
                What::Finished { status, body: Stored::decode(fields)? }
            }
            FORGOTTEN if fields.is_empty() => What::Forgotten,
            FORGOTTEN => return Err("a record has more than it should"),
            _ => return Err("a record is of an unknown kind"),
        };
        *bytes = left;
        Ok(Record { id, what, bytes: bytes_of_it })
    }

    /// Bytes of the record without its body.
    pub(super) fn bytes_without_body(&self) -> usize {
        match self.what {
            What::Accepted { service, letter, .. } => {
                PREFIX_BYTES + ACCEPTED_BYTES + service.len() + letter.as_ref().map_or(0, letter_bytes) + 1
            }
            _ => self.bytes.len(),
        }
    }

    /// Appends the record to `out`, a request without its body if that isn't needed.
    pub(super) fn copy(&self, out: &mut Vec<u8>, with_body: bool) {
        let kept = self.bytes_without_body();
        if with_body || !matches!(self.what, What::Accepted { .. }) {
            return out.extend_from_slice(self.bytes);
        }
        out.extend_from_slice(&length_field(kept));
        out.extend_from_slice(self.bytes.get(4..kept - 1).unwrap_or_default());
        out.push(DROPPED);
    }
}

impl<'a> Stored<'a> {
    fn decode(mut bytes: &'a [u8]) -> Result<Stored<'a>, &'static str> {
        let [form] = array(&mut bytes)?;
        match form {
            ONE_FRAME if bytes.len() > BODY_BYTES_MAX => Err("a body is larger than bodies can be"),
            ONE_FRAME => Ok(Stored::One(bytes)),
            SEVERAL_FRAMES => {
                let count = u32::from_le_bytes(array(&mut bytes)?) as usize;
                if !(2..=BODY_FRAMES_MAX).contains(&count) {
                    return Err("a body has too many frames or too few");
                }
                let mut rest = bytes;
                for _ in 0..count {
                    frame(&mut rest)?;
                }
                // Lengths don't count towards the body's bytes.
                if !rest.is_empty() || bytes.len() - 4 * count > BODY_BYTES_MAX {
                    return Err("a body's frames are not as long as the body");
                }
                Ok(Stored::Several(bytes))
            }
            IN_A_FILE => {
                let length = u64::from_le_bytes(array(&mut bytes)?);
                if length > LARGE_BODY_BYTES_MAX || !bytes.is_empty() {
                    return Err("a body in a file is larger than bodies can be");
                }
                Ok(Stored::File(length))
            }
            DROPPED if bytes.is_empty() => Ok(Stored::Dropped),
            SHARED => {
                let (name, length, digest) = (array(&mut bytes)?, array(&mut bytes)?, array(&mut bytes)?);
                let place = BodyPlace { name, length: u64::from_le_bytes(length), digest };
                if place.length > LARGE_BODY_BYTES_MAX || !bytes.is_empty() {
                    return Err("a body in a shared directory is larger than bodies can be");
                }
                Ok(Stored::Shared(place))
            }
            _ => Err("a body is of an unknown form"),
        }
    }

    /// Bytes of the frames.
    pub(super) fn length(&self) -> u64 {
        match *self {
            Stored::One(bytes) => bytes.len() as u64,
            Stored::Several(mut bytes) => {
                let mut length = 0;
                while let Ok(frame) = frame(&mut bytes) {
                    length += frame.len() as u64;
                }
                length
            }
            Stored::File(length) | Stored::Shared(BodyPlace { length, .. }) => length,
            Stored::Dropped => 0,
        }
    }

    /// Copies the body to memory. Empty if it isn't stored here.
    pub(super) fn to_body(self) -> Body {
        match self {
            Stored::One(bytes) => Body::copied(bytes),
            Stored::Several(bytes) => {
                // One allocation, which the frames share.
                let shared = Bytes::copy_from_slice(bytes);
                let (mut rest, mut at) = (bytes, 0);
                let mut frames = Vec::new();
                while let Ok(frame) = frame(&mut rest) {
                    frames.push(shared.slice(at + 4..at + 4 + frame.len()));
                    at += 4 + frame.len();
                }
                Body::of_frames(frames)
            }
            Stored::File(_) | Stored::Shared(_) | Stored::Dropped => Body::default(),
        }
    }
}

fn array<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], &'static str> {
    let (first, rest) = bytes.split_first_chunk().ok_or("a record is cut off")?;
    *bytes = rest;
    Ok(*first)
}

/// A service's name, or another text that has its length in front.
fn short<'a>(fields: &mut &'a [u8]) -> Result<&'a [u8], &'static str> {
    let [length] = array(fields)?;
    let (text, rest) = fields.split_at_checked(usize::from(length)).ok_or("a service's name or a text is cut off")?;
    *fields = rest;
    Ok(text)
}

fn letter<'a>(fields: &mut &'a [u8]) -> Result<Letter<'a>, &'static str> {
    Ok(Letter {
        attempts: u16::from_le_bytes(array(fields)?),
        kept_unix_ms: u64::from_le_bytes(array(fields)?),
        reason: short(fields)?,
        client: short(fields)?,
        worker: short(fields)?,
    })
}

fn letter_bytes(letter: &Letter) -> usize {
    LETTER_BYTES + letter.reason.len() + letter.client.len() + letter.worker.len()
}

fn frame<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], &'static str> {
    let length = u32::from_le_bytes(array(bytes)?) as usize;
    let (frame, rest) = bytes.split_at_checked(length).ok_or("a frame is longer than its body")?;
    *bytes = rest;
    Ok(frame)
}

/// Length prefix of a record of `bytes` in all. Callers have checked the limits.
fn length_field(bytes: usize) -> [u8; 4] {
    u32::try_from(bytes.saturating_sub(4)).unwrap_or(u32::MAX).to_le_bytes()
}

/// Size of an entry in the journal, or an error if it exceeds a limit.
pub(super) fn encoded_bytes(entry: &Entry) -> Result<usize, JournalError> {
    match entry {
        Entry::Accepted { service, .. } | Entry::Moved { service, .. } if service.len() > SERVICE_BYTES_MAX => {
            Err(JournalError::TooLarge("the service's name"))
        }
        Entry::Accepted { letter: Some(letter), .. } | Entry::Moved { letter, .. }
            if [letter.reason, letter.client, letter.worker].iter().any(|text| text.len() > TEXT_BYTES_MAX) =>
        {
            Err(JournalError::TooLarge("what is known of the dead letter"))
        }
        Entry::Accepted { service, letter, body, .. } => {
            let letter = letter.as_ref().map_or(0, letter_bytes);
            Ok(PREFIX_BYTES + ACCEPTED_BYTES + service.len() + letter + body_bytes(body)?)
        }
        Entry::Moved { letter, service, .. } => Ok(PREFIX_BYTES + MOVED_BYTES + service.len() + letter_bytes(letter)),
        Entry::Finished { body, .. } => Ok(PREFIX_BYTES + 2 + body_bytes(body)?),
        Entry::Forgotten { .. } => Ok(PREFIX_BYTES),
    }
}

fn body_bytes(body: &Body) -> Result<usize, JournalError> {
    if let Some(bytes) = body.single() {
        return if bytes.len() > BODY_BYTES_MAX {
            Err(JournalError::TooLarge("the body"))
        } else {
            Ok(1 + bytes.len())
        };
    }
    let Some(frames) = body.frames() else {
        let fits = body.length() <= LARGE_BODY_BYTES_MAX;
        let bytes = if SpooledBody::place_of(body).is_some() { 16 + 8 + 32 } else { 8 };
        return if fits { Ok(1 + bytes) } else { Err(JournalError::TooLarge("the body")) };
    };
    let (count, bytes) = (frames.len(), body.length());
    if count > BODY_FRAMES_MAX || bytes > BODY_BYTES_MAX as u64 {
        return Err(JournalError::TooLarge("the body"));
    }
    Ok(1 + 4 + 4 * count + bytes as usize)
}

/// Appends an entry to `out`. `bytes`: the result of [`encoded_bytes`].
pub(super) fn encode(entry: &Entry, bytes: usize, out: &mut Vec<u8>) {
    out.reserve(bytes);
    out.extend_from_slice(&length_field(bytes));
    match entry {
        Entry::Accepted { id, client, number, service, expires, checksum, letter, body } => {
            out.push(if letter.is_some() { LETTER } else { ACCEPTED });
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(client);
            out.extend_from_slice(&number.to_le_bytes());
            out.extend_from_slice(&expires.unix_ms.to_le_bytes());
            out.extend_from_slice(&expires.left_ms.to_le_bytes());
            out.extend_from_slice(&checksum.to_le_bytes());
            encode_short(service, out);
            if let Some(letter) = letter {
                encode_letter(letter, out);
            }
            encode_body(body, out);
        }
        Entry::Moved { id, moves, letter, service } => {
            out.push(MOVED);
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&moves.to_le_bytes());
            encode_short(service, out);
            encode_letter(letter, out);
        }
        Entry::Finished { id, status, body } => {
            out.push(FINISHED);
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&status.to_le_bytes());
            encode_body(body, out);
        }
        Entry::Forgotten { id } => {
            out.push(FORGOTTEN);
            out.extend_from_slice(&id.to_le_bytes());
        }
    }
}

fn encode_short(text: &[u8], out: &mut Vec<u8>) {
    out.push(text.len() as u8);
    out.extend_from_slice(text);
}

fn encode_letter(letter: &Letter, out: &mut Vec<u8>) {
    out.extend_from_slice(&letter.attempts.to_le_bytes());
    out.extend_from_slice(&letter.kept_unix_ms.to_le_bytes());
    [letter.reason, letter.client, letter.worker].iter().for_each(|text| encode_short(text, out));
}

fn encode_body(body: &Body, out: &mut Vec<u8>) {
    if let Some(bytes) = body.single() {
        out.push(ONE_FRAME);
        out.extend_from_slice(bytes);
    } else if let Some(frames) = body.frames() {
        out.push(SEVERAL_FRAMES);
        out.extend_from_slice(&(frames.len() as u32).to_le_bytes());
        for frame in frames {
            out.extend_from_slice(&(frame.len() as u32).to_le_bytes());
            out.extend_from_slice(frame);
        }
    } else if let Some(place) = SpooledBody::place_of(body) {
        out.push(SHARED);
        out.extend_from_slice(&place.name);
        out.extend_from_slice(&place.length.to_le_bytes());
        out.extend_from_slice(&place.digest);
    } else {
        out.push(IN_A_FILE);
        out.extend_from_slice(&body.length().to_le_bytes());
    }
}
