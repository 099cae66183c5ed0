//! Servers that break the protocol: the transfer or the file fails with a clear error, and nothing panics.

use bytes::Bytes;
use proptest::prelude::*;

use super::super::{DiskCommand, Error, Output, Placement, Transfer, TransferOptions};
use super::world::World;
use crate::digest::Digest;
use crate::protocol::ErrorCode;
use crate::protocol::assembler::Inbound;
use crate::protocol::control::*;
use crate::protocol::data::{Body, DataEntry, DataHeader};
use crate::root::Timestamp;
use std::time::Instant;

const LIST_ID: u32 = 1;

pub(super) fn entry(path: &str, kind: EntryKind) -> ListEntry {
    ListEntry {
        path: path.as_bytes().to_vec().into(),
        kind,
        size: 100,
        mtime: Timestamp::default(),
        mode: 0o644,
        allocated: None,
        hard_link: None,
        target: (kind == EntryKind::Link).then(|| b"x".to_vec().into()),
        digest: None,
        message: None,
    }
}

/// A transfer of directory `d` that has requested its listing.
pub(super) struct Session {
    pub(super) transfer: Transfer,
    pub(super) commands: Vec<DiskCommand>,
    pub(super) requests: Vec<Request>,
    warnings: Vec<String>,
    finished: bool,
    pub(super) now: Instant,
    /// The destination is new.
    pub(super) fresh: bool,
}

impl Session {
    pub(super) fn begin() -> Self {
        Self::with(|_| {})
    }

    /// Begins with other options.
    pub(super) fn with(change: impl FnOnce(&mut TransferOptions)) -> Self {
        let now = Instant::now();
        let mut options = World::new(1).options;
        options.source = super::super::Source::Path("d".parse().unwrap());
        change(&mut options);
        let mut transfer = Transfer::new(options, now);
        transfer.connected();
        let (commands, requests, warnings) = (Vec::new(), Vec::new(), Vec::new());
        let mut session = Self { transfer, commands, requests, warnings, finished: false, now, fresh: true };
        session.outputs();
        session
    }

    /// A transfer of one file `d/f` of 100 bytes, whose metadata has come.
    fn receiving() -> Self {
        let mut session = Self::begin();
        session.list(vec![entry("d/f", EntryKind::File)]);
        session.transfer.disk(super::super::DiskReport::Space { free: None }, session.now);
        session.outputs();
        session.reply(&session.metadata(100));
        session
    }

    pub(super) fn fetch_id(&self) -> u32 {
        let id = |request: &Request| if let Request::Fetch(fetch) = request { Some(fetch.id) } else { None };
        self.requests.iter().find_map(id).expect("something was fetched")
    }

    fn metadata(&self, size: u64) -> Reply {
        let (mtime, digest) = (Timestamp::default(), Some(Digest::of(&[0; 100])));
        let metadata = FileMetadata { n: 0, size, mtime, mode: 0o644, digest, leaf_bytes: 1 << 20, sparse: false };
        Reply::Files(FilesReply { id: self.fetch_id(), files: vec![FileAnswer::Metadata(metadata)] })
    }

    pub(super) fn outputs(&mut self) {
        while let Some(output) = self.transfer.next_output() {
            match output {
                Output::Send(request) => self.requests.push(request),
                Output::OpenDestination { name, .. } => {
                    self.transfer.destination(name.map_or(Placement::Below, Placement::As), self.fresh);
                }
                Output::Disk(command) => self.commands.push(command),
                Output::InPlace | Output::Sweep => {}
                Output::Warn(text) => self.warnings.push(text),
                Output::Finished => self.finished = true,
            }
        }
    }

    pub(super) fn give(&mut self, inbound: Inbound) {
        self.transfer.inbound(inbound, self.now);
        self.outputs();
    }

    pub(super) fn reply(&mut self, reply: &Reply) {
        self.give(Inbound::Control { json: reply.encode().into(), attachment: None });
    }

    pub(super) fn list(&mut self, entries: Vec<ListEntry>) {
        self.list_as(Base::Dir, entries);
    }

    pub(super) fn list_as(&mut self, base: Base, entries: Vec<ListEntry>) {
        self.reply(&Reply::List(ListPage { id: LIST_ID, base, dir: None, entries, more: false }));
    }

    /// The error that the transfer ended with.
    pub(super) fn failure(self) -> Error {
        assert!(self.finished);
        self.transfer.into_outcome().1.expect("a failure")
    }

    pub(super) fn piece(&mut self, id: u32, entry: DataEntry) {
        self.give(Inbound::Header(DataHeader { id, entries: vec![entry] }));
        self.give(Inbound::Body(entry));
    }

    fn protocol_error(self) -> String {
        assert!(self.finished);
        match self.transfer.into_outcome().1 {
            Some(Error::Protocol(message)) => message,
            other => panic!("{other:?}"),
        }
    }
}

const PIECE: DataEntry = DataEntry { n: 0, end: true, body: Body::Plain, offset: 0, length: 100, body_length: 100 };

#[test]
fn paths_that_lead_out_are_refused() {
    let mut session = Session::begin();
    let paths =
        ["d/../../x", "/etc/passwd", "d//x", "x", "d", "", "d/.", "dd/x", "d/\0", &format!("d/{}", "x".repeat(256))];
    session.list(paths.iter().map(|path| entry(path, EntryKind::File)).collect());
    assert!(matches!(session.commands[..], [DiskCommand::CheckSpace { bytes: 0 }]), "{:?}", session.commands);
    assert_eq!(session.transfer.totals.failed, paths.len() as u64);
    assert!(session.requests.iter().all(|request| !matches!(request, Request::Fetch(_))));
}

#[test]
fn links_that_lead_out_and_names_of_partial_files_are_left_out() {
    let mut session = Session::begin();
    let mut out = entry("d/a/link", EntryKind::Link);
    out.target = Some(b"../../x".to_vec().into());
    let partial = |path: &str, kind| entry(&format!("d/{path}"), kind);
    session.list(vec![
        out,
        partial(".tow-0123456789abcdef.part", EntryKind::File),
        // All that is in such a directory, whether or not it is listed itself.
        partial("sub/.tow-0123456789abcdef.state", EntryKind::Dir),
        partial("sub/.tow-0123456789abcdef.state/file", EntryKind::File),
        partial("sub/.tow-0123456789abcdef.state/dir/file", EntryKind::File),
        partial(".tow-0123456789abcde0.part/sub/file", EntryKind::File),
        entry("d/pipe", EntryKind::Other),
    ]);
    let of_partial = session.warnings.iter().filter(|warning| warning.contains("partial file of another"));
    let of_partial: Vec<_> = of_partial.map(|warning| warning.split_once(':').unwrap().0).collect();
    let named = ["d/.tow-0123456789abcdef.part", "d/sub/.tow-0123456789abcdef.state", "d/.tow-0123456789abcde0.part"];
    assert_eq!(of_partial, named);
    assert_eq!(session.warnings.len(), 5, "{:?}", session.warnings);
    assert!(session.commands.iter().all(|command| matches!(command, DiskCommand::CheckSpace { .. })));
}

#[test]
fn leaving_out_the_only_entry_is_a_failure() {
    let mut link = entry("d", EntryKind::Link);
    link.target = Some(b"../x".to_vec().into());
    for (only, base) in [(link, Base::Link), (entry("d", EntryKind::Other), Base::File)] {
        let mut session = Session::begin();
        session.reply(&Reply::List(ListPage { id: LIST_ID, base, dir: None, entries: vec![only], more: false }));
        assert_eq!((session.transfer.totals.failed, session.warnings.len()), (1, 0), "{:?}", session.warnings);
    }
}

#[test]
fn endless_listing_is_refused() {
    let mut session = Session::begin();
    session.reply(&Reply::List(ListPage { id: LIST_ID, base: Base::Dir, dir: None, entries: vec![], more: true }));
    assert!(session.protocol_error().contains("empty page"));
    let mut session = Session::begin();
    session.reply(&Reply::List(ListPage { id: 77, base: Base::Dir, dir: None, entries: vec![], more: false }));
    assert!(session.protocol_error().contains("requested"));
}

#[test]
fn endless_directories_wait_for_the_disk() {
    const PAGE: usize = 4096;
    let mut session = Session::begin();
    let mut names = 0..;
    let mut page_asked_for = |session: &mut Session| {
        let asked =
            session.requests.drain(..).any(|request| matches!(request, Request::List(_) | Request::More { .. }));
        if asked {
            let entries = names.by_ref().take(PAGE).map(|n| entry(&format!("d/{n}"), EntryKind::Dir)).collect();
            session.reply(&Reply::List(ListPage { id: LIST_ID, base: Base::Dir, dir: None, entries, more: true }));
        }
        asked
    };
    while page_asked_for(&mut session) {
        assert!(session.commands.len() < 2 * super::super::FILES_IN_PROGRESS_MAX, "it asks for more and more");
    }
    let made: Vec<_> = session.commands.drain(..).collect();
    for command in made {
        if let DiskCommand::MakeDir { local } = command {
            session.transfer.disk(super::super::DiskReport::Entry { local, result: Ok(()) }, session.now);
        }
    }
    session.outputs();
    assert!(page_asked_for(&mut session), "the disk is done with all of them");
}

#[test]
fn busy_listing_is_requested_again() {
    let mut session = Session::begin();
    let timeout = World::new(1).options.idle_timeout;
    let begun = session.now;
    let busy = |id| Reply::Error(ErrorReply { id: Some(id), code: ErrorCode::Busy, message: "no space".to_owned() });
    while !session.finished {
        let asked = session.requests.drain(..).find_map(|request| match request {
            Request::List(list) => Some(list.id),
            _ => None,
        });
        match asked {
            Some(id) => session.reply(&busy(id)),
            None => {
                let due = session.transfer.deadline();
                assert!(due > session.now && due < begun + 2 * timeout, "it waits for less than that");
                session.now = due;
                session.transfer.tick(due);
                session.outputs();
            }
        }
    }
    assert!(session.now >= begun + timeout);
    let failure = session.transfer.into_outcome().1;
    assert!(matches!(failure, Some(Error::Refused { code: ErrorCode::Busy, .. })), "{failure:?}");
}

#[test]
fn busy_file_is_fetched_later() {
    let mut session = Session::begin();
    session.list(vec![entry("d/f", EntryKind::File)]);
    session.transfer.disk(super::super::DiskReport::Space { free: None }, session.now);
    session.outputs();
    let (timeout, begun) = (World::new(1).options.idle_timeout, session.now);
    let mut asked = 0;
    while !session.finished {
        let fetch = session.requests.drain(..).find_map(|request| match request {
            Request::Fetch(fetch) => Some(fetch.id),
            _ => None,
        });
        match fetch {
            Some(id) => {
                asked += 1;
                let (code, message) = (ErrorCode::Busy, "too many files are open".to_owned());
                let files = vec![FileAnswer::Error { n: 0, code, message }];
                session.reply(&Reply::Files(FilesReply { id, files }));
                session.reply(&Reply::Done { id });
            }
            None => {
                let due = session.transfer.deadline();
                assert!(due > session.now && due < begun + 2 * timeout, "it waits for less than that");
                session.now = due;
                session.transfer.tick(due);
                session.outputs();
            }
        }
    }
    assert!(session.now >= begun + timeout && asked > 3, "{asked}");
    let failures = session.transfer.into_outcome().0.failures;
    assert!(failures.iter().any(|failure| failure.reason.ends_with("(busy)")), "{failures:?}");
}

#[test]
fn path_that_is_listed_twice_is_taken_once() {
    let mut session = Session::begin();
    session.list(vec![entry("d/f", EntryKind::File), entry("d/f", EntryKind::File)]);
    assert_eq!(session.transfer.totals.listed_files, 1);
}

#[test]
fn unrequested_pieces_are_refused() {
    let lies = [
        DataEntry { n: 1, ..PIECE },
        DataEntry { offset: 1, length: 99, body_length: 99, ..PIECE },
        DataEntry { length: 101, body_length: 101, ..PIECE },
        DataEntry { length: 10, body_length: 10, ..PIECE },
        DataEntry { length: 1 << 20, body_length: 1 << 20, ..PIECE },
        DataEntry { body: Body::Hole, body_length: 0, length: 1 << 60, ..PIECE },
    ];
    for lie in lies {
        let mut session = Session::receiving();
        session.piece(session.fetch_id(), lie);
        if !session.finished {
            // Too short: found out at its end.
            session.give(Inbound::BodyData(vec![0; lie.body_length as usize].into()));
            session.give(Inbound::BodyEnd);
        }
        session.protocol_error();
    }
    let mut session = Session::receiving();
    session.piece(99, PIECE);
    assert!(session.protocol_error().contains("isn't open"));
}

#[test]
fn metadata_and_ends_out_of_order_are_refused() {
    let mut twice = Session::receiving();
    twice.reply(&twice.metadata(100));
    assert!(twice.protocol_error().contains("twice"));
    let mut early = Session::receiving();
    early.reply(&Reply::End { id: early.fetch_id(), n: 0 });
    early.protocol_error();
    let mut done = Session::receiving();
    done.reply(&Reply::Done { id: done.fetch_id() });
    done.protocol_error();
    let mut same = Session::begin();
    same.list(vec![entry("d/f", EntryKind::File)]);
    same.transfer.disk(super::super::DiskReport::Space { free: None }, same.now);
    same.outputs();
    same.reply(&Reply::Files(FilesReply { id: same.fetch_id(), files: vec![FileAnswer::Same { n: 0 }] }));
    assert!(same.protocol_error().contains("same"));
}

#[test]
fn data_beyond_the_credit_is_refused() {
    let mut session = Session::receiving();
    let id = session.fetch_id();
    // As if other pieces had used it up.
    while session.transfer.credit.spend(200).is_some() {}
    session.piece(id, PIECE);
    assert!(session.protocol_error().contains("credit"));
}

#[test]
fn compressed_piece_must_have_its_announced_length() {
    let mut session = Session::receiving();
    let bomb = zstd::bulk::compress(&vec![0; 4 << 20], 1).unwrap();
    let packed = DataEntry { body: Body::Zstd, body_length: bomb.len() as u64, length: 100, ..PIECE };
    // Not refused by its header here, which would say that a body must not be longer than its piece.
    session.piece(session.fetch_id(), packed);
    session.give(Inbound::BodyData(bomb.into()));
    session.give(Inbound::BodyEnd);
    let writes = |command: &DiskCommand| matches!(command, DiskCommand::Small(_) | DiskCommand::Write { .. });
    assert!(!session.commands.iter().any(writes), "{:?}", session.commands);
}

fn replies() -> impl Strategy<Value = Reply> {
    let (id, n) = (0u32..4, 0u32..3);
    let kinds = prop::sample::select(vec![EntryKind::File, EntryKind::Dir, EntryKind::Link, EntryKind::Error]);
    let listed = ("d/[a-c]{0,2}", kinds).prop_map(|(path, kind)| entry(&path, kind));
    let page = (id.clone(), proptest::collection::vec(listed, 0..5), any::<bool>())
        .prop_map(|(id, entries, more)| Reply::List(ListPage { id, base: Base::Dir, dir: None, entries, more }));
    let digest = Digest::of(&[0; 100]);
    let metadata = (n.clone(), 0u64..3 << 20, any::<bool>()).prop_map(move |(n, size, known)| {
        let digest = known.then_some(digest);
        let mtime = Timestamp::default();
        FileAnswer::Metadata(FileMetadata { n, size, mtime, mode: 0o644, digest, leaf_bytes: 1 << 20, sparse: false })
    });
    let answers = prop_oneof![
        4 => metadata,
        1 => n.clone().prop_map(|n| FileAnswer::Same { n }),
    ];
    prop_oneof![
        page,
        (id.clone(), proptest::collection::vec(answers, 0..3))
            .prop_map(|(id, files)| Reply::Files(FilesReply { id, files })),
        (id.clone(), n.clone()).prop_map(|(id, n)| Reply::End { id, n }),
        (id.clone(), n.clone()).prop_map(move |(id, n)| Reply::Digest(DigestReply {
            id,
            n,
            digest,
            leaf_bytes: 1 << 20
        })),
        (id.clone(), n).prop_map(|(id, n)| {
            let (code, message) = (crate::protocol::ErrorCode::Changed, String::new());
            Reply::Void(VoidReply { id, n, code, message })
        }),
        id.clone().prop_map(|id| Reply::Done { id }),
        (id.clone(), 0u32..3, 0u32..3)
            .prop_map(|(id, from, count)| { Reply::Leaves(LeavesReply { id, from, count, total: from + count }) }),
        id.prop_map(|id| {
            let (code, message) = (crate::protocol::ErrorCode::Io, String::new());
            Reply::Error(ErrorReply { id: Some(id), code, message })
        }),
    ]
}

proptest! {
    /// Well-formed messages, in any order.
    #[test]
    fn any_order_of_messages_is_handled(
        steps in proptest::collection::vec((replies(), 0u8..6, 0u64..3, 0u64..200_000, any::<bool>()), 0..60),
    ) {
        let mut session = Session::receiving();
        for (reply, kind, chunk, length, end) in steps {
            let id = session.fetch_id();
            match kind {
                0 | 1 => session.reply(&reply),
                2 => {
                    let offset = chunk * 100;
                    let piece = DataEntry { n: 0, end, body: Body::Plain, offset, length, body_length: length };
                    session.piece(id, piece);
                    session.give(Inbound::BodyData(vec![0; length as usize].into()));
                    session.give(Inbound::BodyEnd);
                }
                3 => session.give(Inbound::BodyEnd),
                4 => session.give(Inbound::BodyData(Bytes::from_static(b"bytes"))),
                _ => {
                    session.transfer.disconnected();
                    session.transfer.connected();
                    session.outputs();
                }
            }
        }
    }
}

#[test]
fn file_that_always_changes_fails_with_advice() {
    let mut session = Session::begin();
    session.list(vec![entry("d/log", EntryKind::File)]);
    session.transfer.disk(super::super::DiskReport::Space { free: None }, session.now);
    session.outputs();
    let (code, message) = (crate::protocol::ErrorCode::Changed, "it grew".to_owned());
    while let Some(Request::Fetch(fetch)) = session.requests.pop() {
        let answer = FileAnswer::Error { n: 0, code, message: message.clone() };
        session.reply(&Reply::Files(FilesReply { id: fetch.id, files: vec![answer] }));
    }
    assert!(session.finished);
    let failures = session.transfer.into_outcome().0.failures;
    assert!(failures[0].reason.starts_with("the server says: it grew"), "{failures:?}");
    assert!(
        failures[0].reason.ends_with(
            "gave up after 4 attempts: a file that is being written to can't be fetched, but a copy of it can"
        )
    );
}

/// One file that is in place when the connection is lost.
fn in_place_and_disconnected() -> Session {
    let mut session = Session::receiving();
    let id = session.fetch_id();
    session.piece(id, PIECE);
    session.give(Inbound::BodyData(Bytes::from_static(&[0; 100])));
    session.give(Inbound::BodyEnd);
    session.transfer.disconnected();
    session.outputs();
    let Some(DiskCommand::Small(small)) = session.commands.pop() else { panic!("{:?}", session.commands) };
    let result = Ok(super::super::SmallOutcome::Installed);
    session.transfer.disk(super::super::DiskReport::Small { file: small.file, credit: 0, result }, session.now);
    session.outputs();
    assert!(!session.finished && session.transfer.is_unconfirmed());
    session
}

#[test]
fn confirmation_is_sent_after_a_reconnect() {
    let mut session = in_place_and_disconnected();
    // Connections that are lost again don't count.
    for _ in 0..100 {
        session.transfer.disconnected();
    }
    session.outputs();
    assert!(!session.finished);
    session.requests.clear();
    session.transfer.connected();
    session.outputs();
    let Some(Request::Confirm(confirm)) = session.requests.last() else { panic!("{:?}", session.requests) };
    assert_eq!((confirm.files.len(), confirm.files[0].path.as_bytes()), (1, &b"d/f"[..]));
    assert!(session.finished && session.transfer.into_outcome().1.is_none());
}

#[test]
fn unconfirmed_transfer_succeeds_without_the_server() {
    let ends: [fn(&mut Session); 3] = [
        |session| {
            session.transfer.tick(session.now);
            session.transfer.tick(session.now + super::super::CONFIRMING_MAX);
        },
        |session| session.transfer.cancel(),
        |session| session.transfer.fail(Error::Protocol("nonsense".to_owned())),
    ];
    for end in ends {
        let mut session = in_place_and_disconnected();
        end(&mut session);
        session.outputs();
        let (totals, failure) = session.transfer.into_outcome();
        assert!(session.finished && failure.is_none() && totals.files == 1, "{failure:?}");
    }
}
