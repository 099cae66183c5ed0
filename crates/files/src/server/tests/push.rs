//! Pushes on real sockets: what the time and the operator do.

use super::*;
use crate::digest::Digest;
use crate::limits::PUSH_CONTENT_BYTES_MAX;
use crate::protocol::ErrorCode;
use crate::protocol::control::{Expected, PushRequest};
use crate::server::PushOptions;

const LEAF: usize = 1 << 20;

fn serve(root: &Path, idle_timeout: Duration) -> TestServer {
    serve_up_to(root, idle_timeout, None)
}

fn serve_up_to(root: &Path, idle_timeout: Duration, max_bytes: Option<u64>) -> TestServer {
    let mut push = PushOptions::new("in".parse().unwrap());
    (push.idle_timeout, push.max_bytes, push.max_files) = (idle_timeout, max_bytes, max_bytes.map(|_| 10));
    let mut options = ServerOptions::new(root);
    options.push = Some(push);
    TestServer::start_as(options, Box::new(PageCache))
}

pub(super) fn offer(id: u32, path: &str, data: &[u8]) -> Request {
    Request::Push(PushRequest {
        id,
        path: path.as_bytes().to_vec().into(),
        size: data.len() as u64,
        mtime: Default::default(),
        mode: 0o600,
        digest: Digest::of(data),
        expected: Expected::Anything,
        durable: false,
        content: None,
    })
}

pub(super) fn send(client: &mut TestClient, id: u32, offset: usize, data: &[u8]) {
    for (index, piece) in data.chunks(128 << 10).enumerate() {
        let (offset, length) = ((offset + index * (128 << 10)) as u64, piece.len() as u64);
        let entry = DataEntry { n: 0, end: false, body: Body::Plain, offset, length, body_length: length };
        let header = DataHeader { id, entries: vec![entry] }.encode().unwrap();
        client.send(&[&header, piece]);
    }
}

#[test]
fn idle_push_ends_and_what_has_arrived_is_kept() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("in")).unwrap();
    let server = serve(root.path(), Duration::from_secs(2));
    let mut client = server.client();
    let data: Vec<u8> = (0..3 * LEAF).map(|at| (at % 251) as u8).collect();
    client.request(&offer(1, "in/x", &data));
    assert!(matches!(client.reply(), Reply::Push(push) if push.have.is_empty()));
    send(&mut client, 1, 0, &data[..LEAF + 7]);
    let error = loop {
        match client.reply() {
            Reply::Error(error) => break error,
            Reply::Credit(_) => {}
            reply => panic!("{reply:?}"),
        }
    };
    assert_eq!((error.id, error.code), (Some(1), ErrorCode::Io));
    client.request(&offer(2, "in/x", &data));
    let Reply::Push(push) = client.reply() else { panic!("no push") };
    assert_eq!(push.have.iter().map(|range| (range.offset, range.length)).collect::<Vec<_>>(), [(0, LEAF as u64)]);
    send(&mut client, 2, LEAF, &data[LEAF..]);
    while !matches!(client.reply(), Reply::Pushed(_)) {}
    assert_eq!(std::fs::read(root.path().join("in/x")).unwrap(), data);
}

#[test]
fn pushes_go_to_the_directory_that_is_served_now() {
    let parent = tempfile::tempdir().unwrap();
    let (served, next) = (parent.path().join("served"), parent.path().join("next"));
    std::fs::create_dir_all(served.join("in")).unwrap();
    std::fs::create_dir_all(next.join("in")).unwrap();
    let server = serve(&served, DEADLINE);
    let mut client = server.client();
    std::fs::rename(&served, parent.path().join("old")).unwrap();
    client.request(&offer(1, "in/x", b"x"));
    assert!(matches!(client.reply(), Reply::Error(error) if error.code == ErrorCode::Io));
    std::fs::rename(&next, &served).unwrap();
    client.request(&offer(2, "in/x", b"x"));
    assert!(matches!(client.reply(), Reply::Push(_)));
    send(&mut client, 2, 0, b"x");
    assert!(matches!(client.reply(), Reply::Pushed(_)));
    assert_eq!(std::fs::read(served.join("in/x")).unwrap(), b"x");
}

#[test]
fn a_small_file_comes_with_its_push() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("in")).unwrap();
    let server = serve(root.path(), DEADLINE);
    let mut client = server.client();
    let large = bytes(PUSH_CONTENT_BYTES_MAX as usize + 1);
    let mut push = |id: u32, path: &str, data: &[u8], sent: &[u8], expected: Expected| {
        let Request::Push(push) = offer(id, path, data) else { panic!() };
        let [tag, json] = Request::Push(PushRequest { expected, ..push }).to_frames();
        client.send(&[&tag, &json, sent]);
        match client.reply() {
            Reply::Pushed(pushed) => Ok((pushed.id, pushed.same)),
            Reply::Error(error) => Err((error.id.unwrap(), error.code)),
            reply => panic!("{reply:?}"),
        }
    };
    let most = &large[1..];
    assert_eq!(push(1, "in/d/a", b"one", b"one", Expected::Anything), Ok((1, false)));
    assert_eq!(push(2, "in/d/a", b"one", b"one", Expected::Nothing), Ok((2, true)));
    assert_eq!(push(3, "in/d/a", b"two", b"two", Expected::Nothing), Err((3, ErrorCode::Conflict)));
    assert_eq!(push(4, "in/d/a", b"two", b"two", Expected::Digest(Digest::of(b"one"))), Ok((4, false)));
    assert_eq!(push(5, "in/d/b", b"two", b"owt", Expected::Anything), Err((5, ErrorCode::Changed)));
    assert_eq!(push(6, "in/d/b", b"two", b"twos", Expected::Anything), Err((6, ErrorCode::BadRequest)));
    assert_eq!(push(7, "in/d/b", &large, &large, Expected::Anything), Err((7, ErrorCode::BadRequest)));
    assert_eq!(push(8, "in/empty", b"", b"", Expected::Nothing), Ok((8, false)));
    assert_eq!(push(9, "in/most", most, most, Expected::Anything), Ok((9, false)));
    assert_eq!(push(10, "out", b"x", b"x", Expected::Anything), Err((10, ErrorCode::Denied)));
    let there = |path: &str| std::fs::read(root.path().join(path)).unwrap();
    assert_eq!((there("in/d/a"), there("in/empty"), there("in/most")), (b"two".to_vec(), Vec::new(), most.to_vec()));
    let names: Vec<_> =
        std::fs::read_dir(root.path().join("in/d")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["a"]);
}

#[test]
fn what_is_not_put_takes_no_space() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("in")).unwrap();
    let there = root.path().join("in/there");
    let server = serve_up_to(root.path(), DEADLINE, Some(300 << 10));
    let mut client = server.client();
    let data = bytes(PUSH_CONTENT_BYTES_MAX as usize);
    let mut offer = |id: u32, path: &str, expected: Expected, with_content: bool| {
        let Request::Push(push) = offer(id, path, &data) else { panic!() };
        let [tag, json] = Request::Push(PushRequest { expected, ..push }).to_frames();
        match with_content {
            true => client.send(&[&tag, &json, &data]),
            false => client.send(&[&tag, &json]),
        }
        match client.reply() {
            Reply::Push(_) => {
                // Meanwhile something else gets there.
                std::fs::write(&there, id.to_string()).unwrap();
                send(&mut client, id, 0, &data);
                client.reply()
            }
            reply => reply,
        }
    };
    std::fs::write(&there, b"x").unwrap();
    for id in 0..30 {
        let of_there = Expected::Digest(Digest::of(&std::fs::read(&there).unwrap()));
        let reply = match id % 4 {
            0 => offer(id, "in/a/b/c", of_there, true),
            1 => offer(id, "in/there/x", Expected::Anything, true),
            2 => offer(id, "in/there", Expected::Nothing, true),
            _ => offer(id, "in/there", of_there, false),
        };
        let code = if id % 4 == 1 { ErrorCode::Io } else { ErrorCode::Conflict };
        assert!(matches!(&reply, Reply::Error(error) if error.code == code), "{id}: {reply:?}");
    }
    let reply = offer(30, "in/a/b/c", Expected::Nothing, true);
    assert!(matches!(reply, Reply::Pushed(_)), "{reply:?}");
}
