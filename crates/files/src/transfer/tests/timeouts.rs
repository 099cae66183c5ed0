//! How long a server may be silent: longer while it can only be hashing.

use std::time::{Duration, Instant};

use super::super::{DiskCommand, DiskReport, Found, Transfer};
use super::hostile::{Session, entry};
use crate::digest::Digest;
use crate::protocol::control::*;
use crate::protocol::data::{Body, DataEntry};
use crate::root::Timestamp;

/// A size that takes two seconds to hash, at least.
const SIZE: u64 = 400 << 20;
const HASHED: u64 = 60 + 2;

/// A transfer of two files of that size; in one fetch if the destination is new.
fn asked_for(fresh: bool) -> Session {
    let mut session = Session::begin();
    session.fresh = fresh;
    let listed = |path| ListEntry { size: SIZE, ..entry(path, EntryKind::File) };
    session.list(vec![listed("d/f"), listed("d/g")]);
    disk_is_done(&mut session);
    session
}

/// Reports what the disk was asked: all existing files have the right size.
fn disk_is_done(session: &mut Session) {
    while !session.commands.is_empty() {
        for command in std::mem::take(&mut session.commands) {
            let report = match command {
                DiskCommand::CheckSpace { .. } => DiskReport::Space { free: None },
                DiskCommand::Inspect { file, .. } => {
                    DiskReport::Inspected { file, found: Ok(Found::SameSize(Digest([1; 32]))) }
                }
                DiskCommand::Zeros { content, leaf, offset, length, credit } => {
                    let leaves = (leaf..leaf + length.div_ceil(1 << 20)).map(|leaf| (leaf, [0; 32])).collect();
                    DiskReport::Written { content, offset, length, credit, result: Ok(leaves) }
                }
                _ => continue,
            };
            session.transfer.disk(report, session.now);
            session.outputs();
        }
    }
}

fn metadata(session: &mut Session, n: u32) {
    let (mtime, digest) = (Timestamp::default(), None);
    metadata_with(session, n, digest, mtime);
}

fn metadata_with(session: &mut Session, n: u32, digest: Option<Digest>, mtime: Timestamp) {
    let metadata = FileMetadata { n, size: SIZE, mtime, mode: 0o644, digest, leaf_bytes: 1 << 20, sparse: false };
    session.reply(&Reply::Files(FilesReply { id: session.fetch_id(), files: vec![FileAnswer::Metadata(metadata)] }));
}

/// The content of a file: a hole.
fn content(session: &mut Session, n: u32) {
    let hole = DataEntry { n, end: false, body: Body::Hole, offset: 0, length: SIZE, body_length: 0 };
    session.piece(session.fetch_id(), hole);
    assert_eq!(seconds_left(session), 60, "in the middle of a piece");
    session.give(crate::protocol::assembler::Inbound::BodyEnd);
    assert_eq!(seconds_left(session), 60, "while the disk writes");
    disk_is_done(session);
}

fn digest(session: &mut Session, n: u32) {
    let digest = Digest([n as u8; 32]);
    session.reply(&Reply::Digest(DigestReply { id: session.fetch_id(), n, digest, leaf_bytes: 1 << 20 }));
}

/// The time until the transfer stalls, in seconds.
fn seconds_left(session: &Session) -> u64 {
    session.transfer.deadline().duration_since(session.now).as_secs()
}

#[test]
fn server_may_be_silent_while_it_hashes_what_it_has_sent() {
    let mut session = asked_for(true);
    assert_eq!(seconds_left(&session), 60, "the metadata is to come");
    metadata(&mut session, 0);
    assert_eq!(seconds_left(&session), 60, "the content is to come");
    content(&mut session, 0);
    // Whatever it says of the next file, that one comes after the digest of the first.
    assert_eq!(seconds_left(&session), HASHED);
    metadata(&mut session, 1);
    assert_eq!(seconds_left(&session), HASHED);
    session.transfer.tick(session.now + Duration::from_secs(HASHED - 1));
    digest(&mut session, 0);
    assert_eq!(seconds_left(&session), 60, "the end is to come");
    session.transfer.disconnected();
    assert_eq!(seconds_left(&session), 60, "without a connection");
}

#[test]
fn server_may_be_silent_while_it_hashes_for_leaf_values() {
    let mut session = asked_for(true);
    for n in 0..2 {
        metadata(&mut session, n);
        content(&mut session, n);
        // Not the digest of the leaves, so their values are requested.
        digest(&mut session, n);
        session.reply(&Reply::End { id: session.fetch_id(), n });
    }
    assert_eq!(seconds_left(&session), 60, "the fetch is to be done");
    session.reply(&Reply::Done { id: session.fetch_id() });
    assert_eq!(seconds_left(&session), 60 + 2 * 2);
}

#[test]
fn largest_idle_timeout_overflows_nothing() {
    let mut options = super::World::new(1).options;
    options.idle_timeout = Duration::MAX;
    let now = Instant::now();
    let mut transfer = Transfer::new(options, now);
    transfer.connected();
    let year = Duration::from_secs(365 * 86_400);
    assert!(transfer.deadline() > now + year);
    transfer.tick(now + year);
    assert!(transfer.into_outcome().1.is_none());
}

#[test]
fn server_may_be_silent_while_it_compares_digests() {
    // Each is fetched when it was inspected, in a fetch of its own.
    let mut session = asked_for(false);
    assert_eq!(seconds_left(&session), 60 + 2 * 2);
    session.reply(&Reply::Files(FilesReply { id: session.fetch_id(), files: vec![FileAnswer::Same { n: 0 }] }));
    assert_eq!(seconds_left(&session), 60, "the disk sets its time");
}

#[test]
fn server_may_be_silent_while_it_hashes_what_is_delivered_in_order() {
    let mut session = Session::with(|options| {
        options.source = super::super::Source::Path("d/f".parse().unwrap());
        options.in_order = true;
    });
    assert_eq!(seconds_left(&session), 60, "the listing is to come");
    session.list_as(Base::File, vec![ListEntry { size: SIZE, ..entry("d/f", EntryKind::File) }]);
    disk_is_done(&mut session);
    assert_eq!(seconds_left(&session), HASHED, "the digest is to come");
    metadata_with(&mut session, 0, Some(Digest([1; 32])), Timestamp::default());
    session.reply(&Reply::End { id: session.fetch_id(), n: 0 });
    session.reply(&Reply::Done { id: session.fetch_id() });
    assert!(matches!(session.requests.last(), Some(Request::Leaves(_))), "{:?}", session.requests);
    assert_eq!(seconds_left(&session), HASHED, "the leaves are to come");
}
