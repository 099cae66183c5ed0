//! Messages written the quick way.

use serde::Serialize;

use crate::digest::Digest;
use crate::protocol::control::{
    Confirm, ConfirmedFile, EntryKind, FetchFile, FetchRequest, FileAnswer, FileMetadata, FilesReply, ListEntry,
    WirePath,
};
use crate::root::Timestamp;

/// What most elements of a list take, so that room for all of them can be made at once.
const FILE_ANSWER_OCTETS: usize = 192;
const CONFIRMED_OCTETS: usize = 160;
const FETCH_FILE_OCTETS: usize = 64;

/// Whether a text cannot have this octet as it is.
pub(super) fn is_special(octet: u8) -> bool {
    octet == b'"' || octet == b'\\' || octet < b' '
}

/// Appends an entry of a page.
pub(in super::super) fn write_list_entry(json: &mut Vec<u8>, entry: &ListEntry) {
    let kind: &[u8] = match entry {
        ListEntry { target: Some(_), .. } | ListEntry { message: Some(_), .. } => return general(json, entry),
        ListEntry { kind: EntryKind::File, .. } => br#","type":"file","size":"#,
        ListEntry { kind: EntryKind::Dir, .. } => br#","type":"dir","size":"#,
        _ => return general(json, entry),
    };
    json.push(b'{');
    path(json, &entry.path);
    json.extend_from_slice(kind);
    general(json, &entry.size);
    time_and_mode(json, entry.mtime, entry.mode);
    if let Some(known) = &entry.digest {
        json.extend_from_slice(br#","digest":"#);
        digest(json, known);
    }
    json.push(b'}');
}

/// The JSON of a reply of metadata.
pub(in super::super) fn write_files_reply(reply: &FilesReply) -> Vec<u8> {
    let mut json = Vec::with_capacity(64 + reply.files.len() * FILE_ANSWER_OCTETS);
    json.extend_from_slice(br#"{"re":"files","id":"#);
    general(&mut json, &reply.id);
    list(&mut json, &reply.files, |json, answer| match answer {
        FileAnswer::Metadata(file) => metadata(json, file),
        other => general(json, other),
    });
    json
}

fn metadata(json: &mut Vec<u8>, file: &FileMetadata) {
    json.extend_from_slice(br#"{"n":"#);
    general(json, &file.n);
    json.extend_from_slice(br#","size":"#);
    general(json, &file.size);
    time_and_mode(json, file.mtime, file.mode);
    if let Some(known) = &file.digest {
        json.extend_from_slice(br#","digest":"#);
        digest(json, known);
    }
    json.extend_from_slice(br#","leaf_bytes":"#);
    general(json, &file.leaf_bytes);
    if file.sparse {
        json.extend_from_slice(br#","sparse":true"#);
    }
    json.push(b'}');
}

/// The JSON of a fetch.
pub(in super::super) fn write_fetch(fetch: &FetchRequest) -> Vec<u8> {
    let mut json = Vec::with_capacity(192 + fetch.files.len() * FETCH_FILE_OCTETS);
    json.extend_from_slice(br#"{"op":"fetch","id":"#);
    general(&mut json, &fetch.id);
    json.extend_from_slice(br#","chunk_bytes":"#);
    general(&mut json, &fetch.chunk_bytes);
    if let Some(compress) = &fetch.compress {
        json.extend_from_slice(br#","compress":"#);
        general(&mut json, compress);
    }
    json.extend_from_slice(br#","digest":"#);
    general(&mut json, &fetch.digest);
    if fetch.credit_bytes > 0 {
        json.extend_from_slice(br#","credit_bytes":"#);
        general(&mut json, &fetch.credit_bytes);
    }
    list(&mut json, &fetch.files, |json, file| match file {
        FetchFile { path: whole, ranges: None, unless: None } => {
            json.push(b'{');
            path(json, whole);
            json.push(b'}');
        }
        other => general(json, other),
    });
    json
}

/// The JSON of a confirmation.
pub(in super::super) fn write_confirm(confirm: &Confirm) -> Vec<u8> {
    let mut json = Vec::with_capacity(64 + confirm.files.len() * CONFIRMED_OCTETS);
    json.extend_from_slice(br#"{"op":"confirm","id":"#);
    general(&mut json, &confirm.id);
    list(&mut json, &confirm.files, confirmed_file);
    json
}

fn confirmed_file(json: &mut Vec<u8>, file: &ConfirmedFile) {
    json.extend_from_slice(br#"{"n":"#);
    general(json, &file.n);
    json.push(b',');
    path(json, &file.path);
    json.extend_from_slice(br#","digest":"#);
    match &file.digest {
        Some(known) => digest(json, known),
        None => json.extend_from_slice(b"null"),
    }
    json.extend_from_slice(if file.durable { br#","durable":true}"# } else { br#","durable":false}"# });
}

/// The last member of a message, and its end.
fn list<T>(json: &mut Vec<u8>, files: &[T], element: impl Fn(&mut Vec<u8>, &T)) {
    json.extend_from_slice(br#","files":["#);
    for (n, file) in files.iter().enumerate() {
        if n > 0 {
            json.push(b',');
        }
        element(json, file);
    }
    json.extend_from_slice(b"]}");
}

/// The member without braces around it.
fn path(json: &mut Vec<u8>, path: &WirePath) {
    match std::str::from_utf8(path.as_bytes()) {
        Ok(text) => {
            json.extend_from_slice(br#""path":"#);
            if text.bytes().any(is_special) {
                return general(json, text);
            }
            json.push(b'"');
            json.extend_from_slice(text.as_bytes());
            json.push(b'"');
        }
        Err(_) => {
            json.extend_from_slice(br#""path_b64":"#);
            general(json, &path.to_base64());
        }
    }
}

fn time_and_mode(json: &mut Vec<u8>, mtime: Timestamp, mode: u32) {
    json.extend_from_slice(br#","mtime":["#);
    general(json, &mtime.seconds);
    json.push(b',');
    general(json, &mtime.nanoseconds);
    json.extend_from_slice(br#"],"mode":"#);
    general(json, &mode);
}

fn digest(json: &mut Vec<u8>, digest: &Digest) {
    json.push(b'"');
    json.extend_from_slice(&digest.to_digits());
    json.push(b'"');
}

/// Whatever it is, as serde writes it.
pub(super) fn general(json: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    // Numbers and texts, into memory: nothing that serde_json can refuse.
    let _ = serde_json::to_writer(json, value);
}
