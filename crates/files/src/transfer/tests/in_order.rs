//! A single file delivered in order, to an output that can't take anything back.

use crate::error::Error;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::hostile::{Session, entry};
use super::world::{Faults, World, noise};
use crate::client::ordered_writer::OrderedWriter;
use crate::digest::Digest;
use crate::protocol::ErrorCode;
use crate::protocol::control::*;
use crate::protocol::data::{Body, DataEntry};
use crate::root::Timestamp;
use crate::transfer::{DiskCommand, DiskReport, Source};
use towpath_blocking::CancelToken;

const MIB: usize = 1 << 20;

/// The bytes that were written.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A server of one file, and a transfer of it to an output.
fn world(size: usize, seed: u64) -> (World, Shared) {
    let (mut world, output) = (World::new(seed), Shared::default());
    world.server.add("f", noise(size, seed));
    world.server.is_file = true;
    world.options.source = Source::Path("f".parse().unwrap());
    world.options.in_order = true;
    world.fresh = true;
    world.writer = Some(OrderedWriter::new(Box::new(output.clone()), CancelToken::new()));
    (world, output)
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), 1usize..3000, 60_000usize..70_000, Just(MIB), MIB..4 * MIB]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 50, ..ProptestConfig::default() })]

    #[test]
    fn file_arrives_complete_and_verified(
        size in sizes(), seed in any::<u64>(), verify in any::<bool>(), compress in any::<bool>(), small_window in any::<bool>(),
    ) {
        let (mut world, output) = world(size, seed);
        world.options.verify = verify;
        world.options.compress = compress.then_some(Compression::Zstd);
        if small_window {
            (world.options.window_bytes, world.options.chunk_bytes) = (100_000, 40_000);
        }
        let outcome = world.run();
        prop_assert_eq!(outcome.failure, None);
        prop_assert_eq!((outcome.totals.files, outcome.totals.bytes), (1, size as u64));
        prop_assert_eq!((outcome.totals.verified, outcome.totals.unfinished_bytes), (u64::from(verify), 0));
        prop_assert!(*output.0.lock().unwrap() == noise(size, seed), "the output differs");
        prop_assert_eq!(world.server.confirmed.len(), 1);
    }

    /// A file arrives, or changes after part of it was written. Nothing is ever written that isn't the file's.
    #[test]
    fn faults_never_reach_the_output(size in sizes(), seed in any::<u64>(), compress in any::<bool>()) {
        let (mut world, output) = world(size, seed);
        world.options.compress = compress.then_some(Compression::Zstd);
        world.faults = Faults { cuts: 6, voids: 2, changes: 1, corruptions: 2 };
        let outcome = world.run();
        let written = output.0.lock().unwrap().clone();
        let current = world.server.files["f"].content.clone();
        let mut versions = world.server.former.iter().map(|(_, content)| content).chain([&current]);
        match outcome.failure {
            None => prop_assert!(versions.any(|version| *version == written), "the output differs"),
            Some(Error::Unmet { code: ErrorCode::Changed, message }) => {
                prop_assert!(message.ends_with("after part of it was written"), "{}", message);
                prop_assert!(versions.any(|version| version.starts_with(&written)), "what was written differs");
            }
            Some(other) => prop_assert!(false, "{:?}", other),
        }
    }

    /// Without changes on the server, cuts and corruption only cost time.
    #[test]
    fn file_arrives_in_spite_of_cuts_and_corruption(size in sizes(), seed in any::<u64>(), compress in any::<bool>()) {
        let (mut world, output) = world(size, seed);
        world.options.compress = compress.then_some(Compression::Zstd);
        world.faults = Faults { cuts: 6, corruptions: 2, ..Faults::default() };
        let outcome = world.run();
        prop_assert_eq!(outcome.failure, None);
        prop_assert!(*output.0.lock().unwrap() == noise(size, seed), "the output differs");
    }
}

#[test]
fn wrong_content_fails_and_is_never_written() {
    for size in [1000, 2 * MIB] {
        let (mut world, output) = world(size, 3);
        world.server.always_corrupt = Some("f".to_owned());
        let failure = world.run().failure;
        let is_mismatch = matches!(&failure, Some(Error::Unmet { message, .. }) if message.contains("digest"));
        assert!(is_mismatch, "{failure:?}");
        assert!(output.0.lock().unwrap().is_empty());
    }
}

#[test]
fn wrong_leaf_cancels_the_rest_of_its_fetch() {
    let (mut world, output) = world(4 * MIB, 4);
    world.faults.corruptions = 1;
    let outcome = world.run();
    assert_eq!(outcome.failure, None);
    assert_eq!((world.server.cancelled, output.0.lock().unwrap().len()), (1, 4 * MIB));
}

/// A transfer of one file `d/f` of 100 bytes, whose listing has come.
fn asked_for(base: Base, entries: Vec<ListEntry>) -> Session {
    let mut session = Session::with(|options| {
        options.source = Source::Path("d/f".parse().unwrap());
        options.in_order = true;
    });
    session.list_as(base, entries);
    session
}

#[test]
fn anything_but_a_single_file_is_refused() {
    let file = || entry("d/f", EntryKind::File);
    let directory = asked_for(Base::Dir, vec![file()]).failure();
    assert_eq!(directory.to_string(), "not a single file");
    let link = asked_for(Base::Link, vec![entry("d/f", EntryKind::Link)]).failure();
    assert_eq!(link.to_string(), "a link to x: get its target instead");
    for entries in [vec![entry("d/f", EntryKind::Dir)], vec![entry("d/f", EntryKind::Link)], vec![file(), file()]] {
        let failure = asked_for(Base::File, entries).failure();
        assert!(matches!(failure, Error::Unmet { .. }), "{failure:?}");
    }
}

fn metadata(session: &mut Session, size: u64, seconds: i64) {
    let Some(Request::Fetch(fetch)) = session.requests.iter().rfind(|request| matches!(request, Request::Fetch(_)))
    else {
        panic!("nothing was fetched")
    };
    let (id, mtime) = (fetch.id, Timestamp { seconds, nanoseconds: 0 });
    let digest = Some(Digest::of(&[7; 100]));
    let metadata = FileMetadata { n: 0, size, mtime, mode: 0o644, digest, leaf_bytes: 1 << 20, sparse: false };
    session.reply(&Reply::Files(FilesReply { id, files: vec![FileAnswer::Metadata(metadata)] }));
}

fn fetches(session: &Session) -> Vec<&FetchRequest> {
    session.requests.iter().filter_map(fetch_of).collect()
}

fn fetch_of(request: &Request) -> Option<&FetchRequest> {
    if let Request::Fetch(fetch) = request { Some(fetch) } else { None }
}

#[test]
fn change_between_metadata_and_content_starts_anew() {
    let mut session = asked_for(Base::File, vec![entry("d/f", EntryKind::File)]);
    session.transfer.disk(DiskReport::Space { free: None }, session.now);
    session.outputs();
    assert_eq!(fetches(&session)[0].files[0].ranges, Some(Vec::new()), "only its metadata");
    metadata(&mut session, 100, 0);
    let id = fetches(&session)[0].id;
    session.reply(&Reply::End { id, n: 0 });
    session.reply(&Reply::Done { id });
    assert_eq!(fetches(&session)[1].files[0].ranges, Some(vec![(0, 100).into()]));
    let id = fetches(&session)[1].id;
    metadata(&mut session, 100, 5);
    assert!(session.requests.contains(&Request::Cancel { id }), "{:?}", session.requests);
    assert_eq!(fetches(&session)[2].files[0].ranges, Some(Vec::new()), "only its metadata");
    // The rest of the second fetch is dropped.
    session.piece(id, DataEntry { n: 0, end: true, body: Body::Plain, offset: 0, length: 100, body_length: 100 });
    session.give(crate::protocol::assembler::Inbound::BodyData(vec![7; 100].into()));
    session.give(crate::protocol::assembler::Inbound::BodyEnd);
    assert!(!session.commands.iter().any(|command| matches!(command, DiskCommand::Write { .. })));
    session.reply(&Reply::Cancelled(Cancelled { id }));
}
