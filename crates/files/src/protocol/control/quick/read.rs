//! Messages read the quick way.

use super::cursor::Cursor;
use crate::limits::{CHUNK_BYTES_MIN, CREDIT_BYTES_MAX, FETCH_FILES_MAX, LIST_PAGE_ENTRIES_MAX};
use crate::protocol::control::reply::{RawFileAnswer, RawListEntry};
use crate::protocol::control::request::{RawConfirmedFile, RawFetchFile};
use crate::protocol::control::{
    Compression, Confirm, ConfirmedFile, EntryKind, FetchFile, FetchRequest, FileAnswer, FilesReply, ListEntry,
    ListPage,
};

/// A page of a listing.
pub(in super::super) fn list_page(json: &[u8]) -> Option<ListPage> {
    let mut cursor = Cursor::new(json);
    cursor.skip(br#"{"re":"list","id":"#)?;
    let id = cursor.number()?;
    cursor.skip(br#","base":"#)?;
    let base = cursor.general()?;
    cursor.skip(br#","entries":["#)?;
    let entries = cursor.list(LIST_PAGE_ENTRIES_MAX, list_entry, |raw: RawListEntry| raw.try_into().ok())?;
    cursor.skip(br#","more":"#)?;
    let more = boolean(&mut cursor)?;
    cursor.skip(b"}")?;
    cursor.end()?;
    Some(ListPage { id, base, entries, more })
}

/// A file or a directory.
fn list_entry(cursor: &mut Cursor<'_>) -> Option<ListEntry> {
    cursor.skip(br#"{"path":""#)?;
    let path = cursor.path()?;
    cursor.skip(br#","type":""#)?;
    let kind = if cursor.has(b"file\"") {
        EntryKind::File
    } else {
        cursor.skip(b"dir\"")?;
        EntryKind::Dir
    };
    cursor.skip(br#","size":"#)?;
    let size = cursor.number()?;
    cursor.skip(br#","mtime":["#)?;
    let mtime = cursor.time()?;
    cursor.skip(br#","mode":"#)?;
    let mode = cursor.number()?;
    let digest = if cursor.has(br#","digest":""#) { Some(cursor.digest()?) } else { None };
    cursor.skip(b"}")?;
    let entry = ListEntry { path, kind, size, mtime, mode, target: None, digest, message: None };
    entry.check().ok()
}

/// Metadata of files.
pub(in super::super) fn files_reply(json: &[u8]) -> Option<FilesReply> {
    let mut cursor = Cursor::new(json);
    cursor.skip(br#"{"re":"files","id":"#)?;
    let id = cursor.number()?;
    cursor.skip(br#","files":["#)?;
    let files = cursor.list(FETCH_FILES_MAX, metadata, |raw: RawFileAnswer| raw.try_into().ok())?;
    cursor.skip(b"}")?;
    cursor.end()?;
    Some(FilesReply { id, files })
}

fn metadata(cursor: &mut Cursor<'_>) -> Option<FileAnswer> {
    cursor.skip(br#"{"n":"#)?;
    let mut raw = RawFileAnswer { n: cursor.number()?, ..RawFileAnswer::default() };
    cursor.skip(br#","size":"#)?;
    raw.size = Some(cursor.number()?);
    cursor.skip(br#","mtime":["#)?;
    raw.mtime = Some(cursor.time()?);
    cursor.skip(br#","mode":"#)?;
    raw.mode = Some(cursor.number()?);
    if cursor.has(br#","digest":""#) {
        raw.digest = Some(cursor.digest()?);
    }
    cursor.skip(br#","leaf_bytes":"#)?;
    raw.leaf_bytes = Some(cursor.number()?);
    raw.sparse = cursor.has(br#","sparse":true"#);
    cursor.skip(b"}")?;
    raw.try_into().ok()
}

/// A fetch.
pub(in super::super) fn fetch(json: &[u8]) -> Option<FetchRequest> {
    let mut cursor = Cursor::new(json);
    cursor.skip(br#"{"op":"fetch","id":"#)?;
    let id = cursor.number()?;
    cursor.skip(br#","chunk_bytes":"#)?;
    let chunk_bytes = cursor.number()?;
    let compress = cursor.has(br#","compress":"zstd""#).then_some(Compression::Zstd);
    cursor.skip(br#","digest":"#)?;
    let digest = cursor.general()?;
    let credit_bytes = if cursor.has(br#","credit_bytes":"#) { cursor.number()? } else { 0 };
    cursor.skip(br#","files":["#)?;
    let files = cursor.list(FETCH_FILES_MAX, whole_file, |raw: RawFetchFile| raw.check().ok())?;
    cursor.skip(b"}")?;
    cursor.end()?;
    if chunk_bytes < CHUNK_BYTES_MIN || credit_bytes > CREDIT_BYTES_MAX || files.is_empty() {
        return None;
    }
    Some(FetchRequest { id, chunk_bytes, compress, digest, credit_bytes, files })
}

fn whole_file(cursor: &mut Cursor<'_>) -> Option<FetchFile> {
    cursor.skip(br#"{"path":""#)?;
    let path = cursor.path()?;
    cursor.skip(b"}")?;
    Some(FetchFile { path, ranges: None, unless: None })
}

/// A confirmation.
pub(in super::super) fn confirm(json: &[u8]) -> Option<Confirm> {
    let mut cursor = Cursor::new(json);
    cursor.skip(br#"{"op":"confirm","id":"#)?;
    let id = cursor.number()?;
    cursor.skip(br#","files":["#)?;
    let files = cursor.list(FETCH_FILES_MAX, confirmed_file, |raw: RawConfirmedFile| raw.check().ok())?;
    cursor.skip(b"}")?;
    cursor.end()?;
    Some(Confirm { id, files })
}

fn confirmed_file(cursor: &mut Cursor<'_>) -> Option<ConfirmedFile> {
    cursor.skip(br#"{"n":"#)?;
    let n = cursor.number()?;
    cursor.skip(br#","path":""#)?;
    let path = cursor.path()?;
    cursor.skip(br#","digest":"#)?;
    let digest = if cursor.has(b"null") {
        None
    } else {
        cursor.skip(b"\"")?;
        Some(cursor.digest()?)
    };
    cursor.skip(br#","durable":"#)?;
    let durable = boolean(cursor)?;
    cursor.skip(b"}")?;
    Some(ConfirmedFile { n, path, digest, durable })
}

fn boolean(cursor: &mut Cursor<'_>) -> Option<bool> {
    if cursor.has(b"true") {
        return Some(true);
    }
    cursor.skip(b"false").map(|()| false)
}
