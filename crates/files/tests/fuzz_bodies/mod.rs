//! Bodies of the fuzz targets of `fuzz/`. `tests/corpus.rs` does the same with those that are kept, so that the
//! two can't drift apart.

mod fake_disk;
mod hostile_server;

use towpath_files::limits::{CREDIT_BYTES_MAX, DATA_ENTRIES_MAX, NAME_BYTES_MAX, PATH_BYTES_MAX, PLAIN_SIZE_MAX};
use towpath_files::path::{Escaped, RelPath};
use towpath_files::protocol::Dialect;
use towpath_files::protocol::control::{Reply, Request};
use towpath_files::protocol::data::DataHeader;
use towpath_files::protocol::envelope::{Opening, client_of, opening};
use towpath_files::protocol::plain::{PlainMessage, PlainRequest};

/// A fuzz target's name and body.
pub type Target = (&'static str, fn(&[u8]));

/// Every target, by the name of its corpus folder.
#[allow(dead_code, reason = "each fuzz target uses its own body")]
pub const TARGETS: [Target; 7] = [
    ("files_request", files_request),
    ("files_reply", files_reply),
    ("files_data_header", files_data_header),
    ("files_plain", files_plain),
    ("files_envelope", files_envelope),
    ("files_path", files_path),
    ("files_hostile_server", files_hostile_server),
];

/// A client's JSON: refused, or understood and written again it means the same.
pub fn files_request(json: &[u8]) {
    match Request::decode(json) {
        Ok(request) => assert_eq!(Request::decode(&request.encode()).as_ref(), Ok(&request)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A server's JSON: the same.
pub fn files_reply(json: &[u8]) {
    match Reply::decode(json) {
        Ok(Reply::Unknown) => {}
        Ok(reply) => assert_eq!(Reply::decode(&reply.encode()).as_ref(), Ok(&reply)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// The header of a data message is fixed to the byte: what is understood has no other form.
pub fn files_data_header(frame: &[u8]) {
    if let Ok(header) = DataHeader::decode(frame) {
        assert!((1..=DATA_ENTRIES_MAX).contains(&header.entries.len()));
        for entry in &header.entries {
            assert!(entry.offset.checked_add(entry.length).is_some_and(|end| end <= i64::MAX as u64));
            assert!(entry.cost() >= 256 && entry.cost() >= entry.body_length);
        }
        assert_eq!(header.encode().as_deref(), Ok(frame));
        assert_eq!(Dialect::of(frame), Some(Dialect::Data));
    }
}

/// A message of frames, each with its length in the byte before it; the last takes what there is.
fn frames(mut data: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    while let [length, rest @ ..] = data {
        let (frame, later) = rest.split_at(rest.len().min(usize::from(*length)));
        frames.push(frame);
        data = later;
    }
    frames
}

/// A request of the plain dialect.
pub fn files_plain(data: &[u8]) {
    let operands = frames(data);
    // Without a word in front the fuzzer would spend its time on finding it.
    let with = |word: &'static [u8]| std::iter::once(word).chain(operands.iter().copied()).collect::<Vec<_>>();
    match PlainMessage::decode(&with(b"follow")) {
        Ok(PlainMessage::Follow(follow)) => {
            assert!(follow.path.len() <= PATH_BYTES_MAX);
            assert_eq!(follow.from.to_string().parse(), Ok(follow.from));
        }
        other => assert!(other.is_err()),
    }
    match PlainMessage::decode(&with(b"credit")) {
        Ok(PlainMessage::Credit { bytes }) => assert!(bytes <= CREDIT_BYTES_MAX),
        other => assert!(other.is_err()),
    }
    let message = with(b"fetch");
    if let Ok(request) = PlainRequest::decode(&message) {
        assert!(request.range.is_none_or(|range| range.size <= PLAIN_SIZE_MAX));
        assert!(request.range.is_none_or(|range| range.offset.checked_add(range.size).is_some()));
        assert!(request.path.as_ref().is_none_or(|path| path.len() <= PATH_BYTES_MAX));
        assert_eq!(PlainRequest::decode(&request.encode()), Ok(request));
    }
}

/// Splits messages into envelope and content.
pub fn files_envelope(data: &[u8]) {
    let frames = frames(data);
    match opening(&frames) {
        Opening::Probe => assert!(frames.iter().position(|frame| frame.is_empty()) == frames.len().checked_sub(1)),
        Opening::Envelope(length) => {
            let (envelope, message) = frames.split_at(length);
            // An envelope ends with its only empty frame, or has none and ends where the message begins.
            match envelope.iter().position(|frame| frame.is_empty()) {
                Some(empty) => assert_eq!(empty + 1, length),
                None => assert!(length == 0 || message.first().is_some_and(|first| Dialect::of(first).is_some())),
            }
            assert!(client_of(envelope).len() <= length);
            if let [first, rest @ ..] = message {
                match Dialect::of(first) {
                    Some(Dialect::Control) => rest.iter().take(1).for_each(|json| files_request(json)),
                    Some(Dialect::Data) => files_data_header(first),
                    Some(Dialect::Plain) => drop(PlainRequest::decode(message)),
                    None => assert!(PlainRequest::decode(message).is_err()),
                }
            }
        }
    }
}

/// A path below a root, as a hostile peer may name one.
pub fn files_path(bytes: &[u8]) {
    let shown = Escaped(bytes).to_string();
    assert!(!shown.chars().any(char::is_control), "a log or terminal would obey this");
    let names = || bytes.split(|byte| *byte == b'/');
    let fits = bytes.is_empty()
        || bytes.len() <= PATH_BYTES_MAX
            && names()
                .all(|name| !matches!(name, b"" | b"." | b"..") && !name.contains(&0) && name.len() <= NAME_BYTES_MAX);
    let path = RelPath::new(bytes);
    assert_eq!(path.is_ok(), fits, "{path:?}");
    let Ok(path) = path else { return };
    assert_eq!(path.as_bytes(), bytes);
    assert_eq!(path.is_root(), bytes.is_empty());
    let rebuilt = path.names().try_fold(RelPath::root(), |path, name| path.join(name));
    assert_eq!(rebuilt.as_ref(), Ok(&path));
    if let Some((parent, name)) = path.split() {
        assert_eq!(parent.join(name).as_ref(), Ok(&path));
        let below = path.below(&parent);
        assert_eq!(below.as_ref().map(RelPath::as_bytes), Some(name));
        assert!(parent.below(&path).is_none());
    }
}

/// A server that says anything in any order.
pub fn files_hostile_server(data: &[u8]) {
    hostile_server::run(data);
}
