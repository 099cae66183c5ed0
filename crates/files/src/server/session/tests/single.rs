//! Single rules of a session, each on its own.

use super::*;
use crate::limits::PLAIN_FRAME_BYTES;

/// A prepared large file without digest and holes.
fn large(file: &FakeFile) -> Prepared<FakeFile> {
    let metadata = FileMetadata {
        n: 0,
        size: file.size,
        mtime: Default::default(),
        mode: 0,
        digest: None,
        leaf_bytes: 1 << 20,
        sparse: false,
    };
    Prepared::Large { metadata, file: file.clone(), layout: Layout::without_holes(), unless: None }
}

#[test]
fn credit_saturates() {
    let credit = Credit::default();
    credit.add(CREDIT_BYTES_MAX);
    credit.add(5);
    assert_eq!(credit.available(), CREDIT_BYTES_MAX);
    assert!(!credit.take(CREDIT_BYTES_MAX + 1));
    assert!(credit.take(CREDIT_BYTES_MAX));
}

#[test]
fn a_client_that_does_not_read_is_not_read() {
    let mut session: Session<FakeFile> = Session::new(Principal::Anonymous, Quotas::new(usize::MAX).client());
    let mut taken = 0;
    while !session.is_congested() {
        session.request(Vec::new(), Err(WireError::bad("nonsense")));
        taken += 1;
        assert!(taken <= REPLIES_WAITING_MAX);
    }
    while session.next_message().is_some() {}
    assert!(!session.is_congested());
    let mut taken = 0;
    while !session.is_congested() {
        let range = PlainRange { offset: 0, size: 1 };
        session.plain_request(Vec::new(), Ok(PlainRequest { path: None, range: Some(range) }));
        taken += 1;
        assert!(taken <= PLAIN_WAITING_MAX + 1);
    }
}

#[test]
fn incompressible_files_are_mostly_sent_uncompressed() {
    let mut session: Session<FakeFile> = Session::new(Principal::Anonymous, Quotas::new(usize::MAX).client());
    let file = FakeFile { kind: Kind::Large, size: 4 << 20 };
    let wanted = FetchFile { path: WirePath::default(), ranges: None, unless: None };
    let request = FetchRequest {
        id: 0,
        chunk_bytes: 4096,
        compress: Some(Compression::Zstd),
        digest: DigestWish::None,
        credit_bytes: 1 << 30,
        files: vec![wanted],
    };
    session.request(Vec::new(), Ok(Request::Fetch(request)));
    let (mut compressed, mut pieces) = (0, 0);
    loop {
        if let Some(Action::Start(ticket, job)) = session.next_action() {
            match job {
                Job::Prepare(_) => session.finish(ticket, Answer::Prepare(vec![large(&file)])),
                Job::Load(Load { slot, how, .. }) => {
                    pieces += 1;
                    compressed += usize::from(how == LoadHow::Compressed);
                    session.finish(ticket, Answer::Load(slot, Ok(Loaded::InPlace)));
                }
                _ => {}
            }
        } else if let Some(message) = session.next_message() {
            for part in message.parts {
                if let Part::File { slot, .. } = part {
                    session.sent(slot, Ok(()));
                }
            }
        } else {
            break;
        }
    }
    assert_eq!(pieces, 1024);
    // The pipeline's worth before anything is known, then one in sixteen.
    assert!((64..64 + 70).contains(&compressed), "{compressed}");
}

#[test]
fn names_in_fetches_are_limited_per_client_and_for_all() {
    let quotas = Quotas::new(usize::MAX);
    let fetch_of = |session: &mut Session<FakeFile>, id, count| {
        let wanted = FetchFile { path: WirePath::default(), ranges: None, unless: None };
        let request = FetchRequest {
            id,
            chunk_bytes: 4096,
            compress: None,
            digest: DigestWish::None,
            credit_bytes: 1,
            files: vec![wanted; count],
        };
        let credit_before = session.shared.credits.available();
        session.request(Vec::new(), Ok(Request::Fetch(request)));
        let refused = session.next_message().is_some();
        assert_eq!(refused, session.requests().all(|(of, ..)| of != id));
        // A client that is refused has given its credit all the same.
        assert_eq!(session.shared.credits.available(), credit_before + 1);
        !refused
    };
    let fetch = |session: &mut Session<FakeFile>, id| fetch_of(session, id, FETCH_FILES_MAX);
    let admitted = |session: &mut Session<FakeFile>| (0..64).take_while(|id| fetch(session, *id)).count();
    let mut first = Session::new(Principal::Anonymous, quotas.client());
    let of_one = admitted(&mut first);
    assert!((2..32).contains(&of_one), "{of_one}");
    // One that ends makes space for another.
    first.cancel(&Vec::new(), 0);
    first.next_message();
    assert!(fetch(&mut first, 100) && !fetch(&mut first, 101));

    let mut others: Vec<_> = (0..64).map(|_| Session::new(Principal::Anonymous, quotas.client())).collect();
    let of_all = of_one + others.iter_mut().map(admitted).sum::<usize>();
    assert!((of_one * 16..of_one * 64).contains(&of_all), "{of_all}");
    let mut last = Session::new(Principal::Anonymous, quotas.client());
    assert_eq!(admitted(&mut last), 0);
    // A little is there for everybody.
    assert!(fetch_of(&mut last, 200, 512) && !fetch_of(&mut last, 201, FETCH_FILES_MAX));
    last.cancel(&Vec::new(), 200);
    last.next_message();
    others.clear();
    assert_eq!(admitted(&mut last), of_one);
}

#[test]
fn pages_are_made_as_the_client_reads_them() {
    let mut session: Session<FakeFile> = Session::new(Principal::Anonymous, Quotas::new(usize::MAX).client());
    let page_bytes = 100 << 10;
    // All that is begun is made, and nothing is read. The pages begun: all of them, and those of each listing.
    let make = |session: &mut Session<FakeFile>, left: &mut HashMap<Ticket, u32>, most_begun: usize| {
        loop {
            let actions: Vec<_> = std::iter::from_fn(|| session.next_action()).collect();
            let tickets = actions.iter().filter_map(|action| match action {
                Action::Start(ticket, Job::List(_)) => Some(*ticket),
                _ => None,
            });
            let tickets: Vec<_> = tickets.collect();
            if tickets.is_empty() {
                return;
            }
            assert!(tickets.len() <= most_begun, "{}", tickets.len());
            for ticket in tickets {
                let left = left.entry(ticket).or_insert(3);
                *left -= 1;
                let page = Page { json: Bytes::from(vec![b' '; page_bytes]), more: *left > 0 };
                session.finish(ticket, Answer::List(Ok(page)));
            }
        }
    };
    let mut left = HashMap::new();
    for id in 0..REQUESTS_MAX as u32 {
        let target = ListTarget::Path(WirePath::default());
        let request = ListRequest { id, target, recursive: false, digest: false, follow: FollowLinks::None };
        session.request(Vec::new(), Ok(Request::List(request)));
        // Asked for ahead.
        session.request(Vec::new(), Ok(Request::More { id }));
        session.request(Vec::new(), Ok(Request::More { id }));
    }
    make(&mut session, &mut left, REPLY_BYTES_WAITING_MAX / PAGE_BYTES_EXPECTED);
    assert!(session.shared.reply_bytes <= REPLY_BYTES_WAITING_MAX + page_bytes, "{}", session.shared.reply_bytes);
    assert!(session.is_congested());
    // Each page that is read makes space for another one, down to the last.
    let mut read = 0;
    while session.next_message().is_some() {
        read += 1;
        make(&mut session, &mut left, REPLY_BYTES_WAITING_MAX / PAGE_BYTES_EXPECTED);
    }
    assert_eq!((read, session.requests().count()), (3 * REQUESTS_MAX, 0));
    assert!(left.values().all(|left| *left == 0));
}

#[test]
fn answered_requests_are_released() {
    let mut session: Session<FakeFile> = Session::new(Principal::Anonymous, Quotas::new(usize::MAX).client());
    let (path, digest) = (WirePath::default(), Digest([0; 32]));
    let target = ListTarget::Path(path.clone());
    let requests = [
        Request::List(ListRequest { id: 1, target, recursive: false, digest: false, follow: FollowLinks::None }),
        Request::Leaves(LeavesRequest { id: 1, path: path.clone(), digest, from: 0, count: 1 }),
        Request::Leaves(LeavesRequest { id: 1, path, digest, from: 1, count: 1 }),
    ];
    for (n, request) in requests.into_iter().enumerate() {
        session.request(Vec::new(), Ok(request));
        let asked = match session.next_action() {
            Some(Action::Start(ticket, Job::List(_))) => {
                session.finish(ticket, Answer::List(Ok(Page { json: Bytes::new(), more: false })));
                ticket
            }
            Some(Action::Start(ticket, Job::Operation(_))) => {
                let reply = LeavesReply { id: 1, from: 0, count: 0, total: 0 };
                let found = Answered::new(Reply::Leaves(reply), Some(Bytes::new()));
                let result = if n == 1 { Ok(found) } else { Err(Failure::changed("another")) };
                session.finish(ticket, Answer::Reply(result));
                ticket
            }
            other => panic!("{other:?}"),
        };
        // A failure is logged before.
        let mut actions = std::iter::from_fn(|| session.next_action());
        let released = actions.find(|action| !matches!(action, Action::Log(_)));
        assert!(matches!(released, Some(Action::Release { ticket, take_back: false }) if ticket == asked), "{n}");
        assert!(session.next_message().is_some());
    }
}

#[test]
fn without_credit_files_are_hashed_only_if_they_wait_for_it() {
    let file = FakeFile { kind: Kind::Large, size: 4 << 20 };
    // Whether files are hashed, before there is credit and after.
    for (digest, ranges, expected) in [
        (DigestWish::Later, None, [false, true]),
        (DigestWish::Later, Some(Vec::new()), [true, true]),
        (DigestWish::Now, None, [true, true]),
        (DigestWish::None, None, [false, false]),
    ] {
        let mut session: Session<FakeFile> = Session::new(Principal::Anonymous, Quotas::new(usize::MAX).client());
        let wanted = FetchFile { path: WirePath::default(), ranges, unless: None };
        let files = vec![wanted];
        let request = FetchRequest { id: 0, chunk_bytes: 4096, compress: None, digest, credit_bytes: 0, files };
        session.request(Vec::new(), Ok(Request::Fetch(request)));
        let mut is_hashed = false;
        let has_been = expected.map(|_| {
            loop {
                match session.next_action() {
                    Some(Action::Start(ticket, Job::Prepare(_))) => {
                        session.finish(ticket, Answer::Prepare(vec![large(&file)]));
                    }
                    Some(Action::Start(_, Job::Hash(_))) => is_hashed = true,
                    Some(_) => {}
                    None if session.next_message().is_some() => {}
                    None => break,
                }
            }
            session.request(Vec::new(), Ok(Request::Credit { bytes: 1 << 20, slow: None }));
            session.next_message();
            is_hashed
        });
        assert_eq!(has_been, expected, "{digest:?}");
    }
}

#[test]
fn an_error_is_the_last_frame_of_a_plain_request() {
    // Of this many frames, the empty one included, this one can't be had: among the last, and with many still to be begun.
    for (frames, bad) in [(1, 0), (3, 0), (3, 2), (100, 0), (100, 5), (100, 50)] {
        let mut session: Session<FakeFile> = Session::new(Principal::Anonymous, Quotas::new(usize::MAX).client());
        for path in ["a", "b"] {
            let path = Some(Bytes::from_static(path.as_bytes()));
            session.plain_request(Vec::new(), Ok(PlainRequest { path, range: None }));
        }
        let size = frames * PLAIN_FRAME_BYTES;
        let (mut messages, mut opened) = (Vec::new(), 0);
        loop {
            // Later ones first.
            let mut loads = Vec::new();
            while let Some(action) = session.next_action() {
                match action {
                    Action::Start(ticket, Job::Open(_)) => {
                        opened += 1;
                        let kind = if opened == 1 { Kind::Changing } else { Kind::Large };
                        session.finish(ticket, Answer::Open(Ok((FakeFile { kind, size }, size))));
                    }
                    Action::Start(ticket, Job::Load(Load { slot, file, offset, .. })) => {
                        let fails = file.kind == Kind::Changing && offset == bad * PLAIN_FRAME_BYTES;
                        loads.push((ticket, slot, fails));
                    }
                    _ => {}
                }
            }
            for (ticket, slot, fails) in loads.into_iter().rev() {
                let result = if fails { Err(Failure::changed("bad")) } else { Ok(Loaded::InPlace) };
                session.finish(ticket, Answer::Load(slot, result));
            }
            let Some(message) = session.next_message() else {
                if session.has_actions() {
                    continue;
                }
                break;
            };
            messages.push(match message.parts.as_slice() {
                [Part::File { slot, .. }] => {
                    session.sent(*slot, Ok(()));
                    'f'
                }
                [Part::Bytes(end)] if end.is_empty() => '.',
                [Part::Bytes(_), Part::Bytes(_)] => '!',
                other => panic!("{other:?}"),
            });
        }
        let whole = |frames: u64, end: char| (0..frames).map(|_| 'f').chain([end]).collect::<String>();
        let came: String = messages.into_iter().collect();
        assert_eq!((came, opened), (whole(bad, '!') + &whole(frames, '.'), 2), "{bad} of {frames}");
    }
}

#[test]
fn clients_behind_a_proxy_have_their_own_ids_and_a_silent_one_gives_way() {
    let mut session: Session<FakeFile> = Session::new(Principal::Anonymous, Quotas::new(usize::MAX).client());
    let client = |name: &'static str| vec![Bytes::from_static(name.as_bytes())];
    let replies = |session: &mut Session<FakeFile>| -> Vec<(Bytes, Reply)> {
        let messages = std::iter::from_fn(|| session.next_message());
        let frames = messages.map(|message| match &message.parts[..] {
            [Part::Bytes(envelope), Part::Bytes(_), Part::Bytes(json)] => {
                (envelope.clone(), Reply::decode(json).unwrap())
            }
            other => panic!("{other:?}"),
        });
        frames.collect()
    };
    let list = |session: &mut Session<FakeFile>, name, id| {
        let request = ListRequest {
            id,
            target: ListTarget::Path(WirePath::default()),
            recursive: false,
            digest: false,
            follow: FollowLinks::None,
        };
        session.request(client(name), Ok(Request::List(request)));
    };
    (0..REQUESTS_MAX as u32 - 1).for_each(|id| list(&mut session, "gone", id));
    list(&mut session, "active", 0);
    assert!(replies(&mut session).is_empty());
    list(&mut session, "active", 1);
    let refused = replies(&mut session);
    assert!(matches!(&refused[..], [(to, Reply::Error(error))] if to == "active" && error.code == ErrorCode::Busy));

    for _ in 0..MESSAGES_SILENT_MAX {
        session.request(client("active"), Ok(Request::Credit { bytes: 1, slow: None }));
    }
    list(&mut session, "active", 1);
    let displaced = replies(&mut session);
    assert!(matches!(&displaced[..], [(to, Reply::Error(error))] if to == "gone" && error.code == ErrorCode::Busy));
    // The other client's requests are not its own.
    session.request(client("active"), Ok(Request::Cancel { id: 40 }));
    assert_eq!(session.requests().count(), REQUESTS_MAX);
    session.request(client("active"), Ok(Request::Cancel { id: 0 }));
    assert_eq!(session.requests().count(), REQUESTS_MAX - 1);
}

#[test]
fn a_refused_message_costs_other_clients_of_its_proxy_nothing() {
    let mut session: Session<FakeFile> = Session::new(Principal::Anonymous, Quotas::new(usize::MAX).client());
    session.request(vec![Bytes::from_static(b"idle")], Ok(Request::Credit { bytes: 5, slow: None }));
    session.request(vec![Bytes::from(vec![b'x'; 2 * CREDIT_NAMES_BYTES_MAX])], Err(WireError::bad("too large")));
    assert_eq!(session.shared.credits.available(), 5);
}

/// As most clients of the plain dialect do: pieces in order, ten requests ahead.
#[test]
fn a_file_in_plain_pieces_is_one_line_of_the_log() {
    for size in [Some(0), Some(10), Some(40), Some(45), None] {
        let mut session: Session<FakeFile> = Session::new(Principal::Anonymous, Quotas::new(usize::MAX).client());
        for _ in 0..2 {
            for n in 0..10 {
                let (path, range) = (Some(Bytes::from_static(b"a")), Some(PlainRange { offset: n * 10, size: 10 }));
                session.plain_request(Vec::new(), Ok(PlainRequest { path, range }));
            }
            let mut events = Vec::new();
            loop {
                while let Some(action) = session.next_action() {
                    match action {
                        Action::Start(ticket, Job::Open(_)) => {
                            let opened = size.map(|size| (FakeFile { kind: Kind::Large, size }, size));
                            let missing = || Failure::new(ErrorCode::NotFound, "no such file");
                            session.finish(ticket, Answer::Open(opened.ok_or_else(missing)));
                        }
                        Action::Start(ticket, Job::Load(Load { slot, .. })) => {
                            session.finish(ticket, Answer::Load(slot, Ok(Loaded::InPlace)));
                        }
                        Action::Log(event) => events.push(event),
                        _ => {}
                    }
                }
                if session.next_message().is_none() && !session.has_actions() {
                    break;
                }
            }
            match (&events[..], size) {
                ([LogEvent::Ended { files: 1, bytes, ending: Ending::Done, .. }], Some(size)) => {
                    assert_eq!(*bytes, size)
                }
                ([LogEvent::Refused { count: 1, .. }], None) => {}
                _ => panic!("{size:?}: {events:?}"),
            }
            assert_eq!(session.lost().count(), 0);
        }
    }
}
