//! Pushes into a store.

use super::*;
use crate::protocol::ErrorCode;
use crate::protocol::control::{Expected, PushRequest, PushedReply};
use crate::server::tests::push::{offer, send};

const LEAF: usize = 1 << 20;

fn taking(memory: &Memory, folder: &Path) -> TestServer {
    memory.take_files();
    let mut options = ServerOptions::from_source(Arc::new(memory.clone()));
    let mut push = PushOptions::new("in".parse().unwrap());
    push.staging = Some(folder.join("staging"));
    options.push = Some(push);
    TestServer::start_as(options, Box::new(PageCache))
}

fn empty() -> Memory {
    Memory::new(7, READ_BYTES, Duration::ZERO)
}

/// Pushes a file to its end: with its push if it is small, otherwise what the server lacks of it.
fn push(
    client: &mut TestClient,
    id: u32,
    path: &str,
    data: &[u8],
    expected: Expected,
) -> Result<(PushedReply, u64), ErrorCode> {
    let Request::Push(push) = offer(id, path, data) else { panic!() };
    let request = Request::Push(PushRequest { expected, ..push });
    let is_small = data.len() < 1000;
    let [tag, json] = request.to_frames();
    if is_small {
        client.send(&[&tag, &json, data])
    } else {
        client.send(&[&tag, &json])
    }
    let mut had = 0;
    loop {
        match client.reply() {
            Reply::Push(push) => {
                had = push.have.first().map_or(0, |have| have.length);
                send(client, id, had as usize, &data[had as usize..]);
            }
            Reply::Credit(_) => {}
            Reply::Pushed(pushed) => return Ok((pushed, had)),
            Reply::Error(error) => return Err(error.code),
            reply => panic!("{reply:?}"),
        }
    }
}

fn left_over(folder: &Path) -> usize {
    std::fs::read_dir(folder.join("staging")).unwrap().count()
}

#[test]
fn pushed_files_are_in_the_store_once_they_are_whole_and_right() {
    let (memory, folder) = (empty(), TempDir::new().unwrap());
    let server = taking(&memory, folder.path());
    let mut client = server.client();
    let large = bytes(3 * LEAF + 1000);
    for (id, path, data) in [(1, "in/small", &b"small"[..]), (2, "in/a/large", &large), (3, "in/empty", b"")] {
        let (pushed, _) = push(&mut client, id, path, data, Expected::Anything).unwrap();
        assert!(!pushed.same && memory.content(path).is_some_and(|there| *there == *data), "{path}");
        let (pushed, _) = push(&mut client, id, path, data, Expected::Nothing).unwrap();
        assert!(pushed.same, "{path}");
    }
    assert_eq!(push(&mut client, 4, "in/a", b"no file", Expected::Anything), Err(ErrorCode::Conflict));
    assert_eq!(push(&mut client, 5, "out", b"elsewhere", Expected::Anything), Err(ErrorCode::Denied));
    assert_eq!(push(&mut client, 6, "in/small", b"other", Expected::Nothing), Err(ErrorCode::Conflict));
    let of = |data: &[u8]| Expected::Digest(Digest::of(data));
    assert_eq!(push(&mut client, 7, "in/small", b"other", of(b"none")), Err(ErrorCode::Conflict));
    push(&mut client, 8, "in/small", b"other", of(b"small")).unwrap();
    // Not of a push: its digest has to be computed.
    memory.put("in/large", large.clone());
    assert!(push(&mut client, 9, "in/large", &large, Expected::Anything).unwrap().0.same);
    push(&mut client, 10, "in/large", &large[1..], of(&large)).unwrap();
    // Another content than was announced.
    let Request::Push(announced) = offer(11, "in/wrong", &large) else { panic!() };
    client.request(&Request::Push(announced));
    assert!(matches!(client.reply(), Reply::Push(_)));
    let mut wrong = large.clone();
    wrong[LEAF] ^= 1;
    send(&mut client, 11, 0, &wrong);
    let error = loop {
        match client.reply() {
            Reply::Error(error) => break error,
            Reply::Credit(_) => {}
            reply => panic!("{reply:?}"),
        }
    };
    assert_eq!(error.code, ErrorCode::Changed);
    assert!(memory.content("in/wrong").is_none());
    let until = Instant::now() + DEADLINE;
    while left_over(folder.path()) > 0 {
        assert!(Instant::now() < until, "what is wrong is removed");
        client.turn();
    }
}

#[test]
fn what_the_store_does_not_take_is_kept_and_put_by_the_next_push() {
    let (memory, folder) = (empty(), TempDir::new().unwrap());
    let server = taking(&memory, folder.path());
    let mut client = server.client();
    let large = bytes(3 * LEAF + 1000);
    let busy = || RootError::Busy("503 slow down".to_owned());
    memory.fail(move |call, _| (call == Call::Put).then(busy));
    assert_eq!(push(&mut client, 1, "in/x", &large, Expected::Anything), Err(ErrorCode::Busy));
    assert_eq!(push(&mut client, 2, "in/x", &large, Expected::Anything), Err(ErrorCode::Busy));
    memory.fail(move |call, _| (call == Call::Stat).then(busy));
    assert_eq!(push(&mut client, 3, "in/x", &large, Expected::Anything), Err(ErrorCode::Busy));
    drop(server);
    memory.fail(|_, _| None);
    // Also by another server.
    let server = taking(&memory, folder.path());
    let (pushed, had) = push(&mut server.client(), 1, "in/x", &large, Expected::Nothing).unwrap();
    assert!(!pushed.same && had == large.len() as u64);
    assert!(memory.content("in/x").is_some_and(|there| *there == large[..]));
    assert_eq!(left_over(folder.path()), 0);
}

#[test]
fn an_object_that_got_there_meanwhile_is_not_replaced() {
    let (memory, folder) = (empty(), TempDir::new().unwrap());
    let server = taking(&memory, folder.path());
    let other = memory.clone();
    let mut is_there = false;
    memory.fail(move |call, path| {
        if call == Call::Put && !std::mem::replace(&mut is_there, true) {
            other.put(path.to_string().as_str(), *b"faster");
        }
        None
    });
    let large = bytes(LEAF + 1000);
    assert_eq!(push(&mut server.client(), 1, "in/x", &large, Expected::Nothing), Err(ErrorCode::Conflict));
    assert!(memory.content("in/x").is_some_and(|there| *there == *b"faster"));
    assert_eq!(left_over(folder.path()), 0);
}

#[test]
fn a_client_that_comes_again_waits_for_its_file_that_is_on_its_way() {
    let (memory, folder) = (empty(), TempDir::new().unwrap());
    let server = taking(&memory, folder.path());
    let large = bytes(3 * LEAF + 1000);
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    memory.fail(move |call, _| {
        if call == Call::Put {
            begun.send(()).unwrap();
            goes_on.recv_timeout(DEADLINE).unwrap();
        }
        None
    });
    let (mut first, mut second) = (server.client(), server.client());
    first.request(&offer(1, "in/x", &large));
    assert!(matches!(first.reply(), Reply::Push(_)));
    send(&mut first, 1, 0, &large);
    while has_begun.try_recv().is_err() {
        first.turn();
    }
    second.request(&offer(7, "in/x", &large));
    let Reply::Push(push) = second.reply() else { panic!() };
    assert_eq!(push.have.iter().map(|have| (have.offset, have.length)).collect::<Vec<_>>(), [(0, large.len() as u64)]);
    let error = loop {
        match first.reply() {
            Reply::Error(error) => break error,
            Reply::Credit(_) => {}
            reply => panic!("{reply:?}"),
        }
    };
    assert_eq!(error.code, ErrorCode::Conflict);
    assert!(
        matches!(second.reply(), Reply::Credit(credit) if (credit.id, credit.bytes) == (7, 0)),
        "the server is at work"
    );
    go_on.send(()).unwrap();
    let pushed = loop {
        match second.reply() {
            Reply::Pushed(pushed) => break pushed,
            Reply::Credit(_) => {}
            reply => panic!("{reply:?}"),
        }
    };
    assert!(pushed.id == 7 && !pushed.same);
    assert!(memory.content("in/x").is_some_and(|there| *there == large[..]));
}
