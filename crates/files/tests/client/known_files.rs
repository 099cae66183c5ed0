//! Questions about versions of files, and reading them, from servers that lie.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use towpath_files::client::{ConnectOptions, Error, Fault, FileClient, KnownFile};
use towpath_files::protocol::control::*;
use towpath_files::protocol::data::{Body, DataEntry};
use towpath_sockets::Endpoint;

use crate::hostile_server::{Answer, HostileServer, data, metadata, piece, reply};

const CONTENTS: [&[u8]; 2] = [b"first", b"second one"];

fn client(endpoint: &Endpoint) -> FileClient {
    let mut options = ConnectOptions::new(endpoint.clone());
    options.idle_timeout = Duration::from_secs(5);
    FileClient::new(options)
}

fn files(fetch: &FetchRequest, change: impl Fn(&mut FileMetadata)) -> Vec<Bytes> {
    let answers = (0_u32..).zip(&fetch.files).map(|(n, _)| {
        let FileAnswer::Metadata(mut of) = metadata(n, CONTENTS[n as usize]) else { unreachable!() };
        change(&mut of);
        FileAnswer::Metadata(of)
    });
    reply(&Reply::Files(FilesReply { id: fetch.id, files: answers.collect() }))
}

fn look_up(client: &FileClient) -> Result<Vec<KnownFile>, Error> {
    let paths = ["first", "second"].map(|path| path.parse().unwrap());
    let found = client.look_up(&paths, Duration::from_secs(20))?;
    found.into_iter().map(|file| file.unwrap()).collect()
}

/// A server that answers questions honestly, and the fetch of both files with this.
fn sending(send: impl Fn(u32) -> Answer + Send + 'static) -> HostileServer {
    HostileServer::start(move |request| {
        let Request::Fetch(fetch) = request else { return Vec::new() };
        let mut answer = vec![files(&fetch, |_| ())];
        if fetch.credit_bytes > 0 {
            answer.extend(send(fetch.id));
        }
        answer.push(reply(&Reply::Done { id: fetch.id }));
        answer
    })
}

/// Its name, which of the files are right, and the messages that are sent for them.
type Case = (&'static str, [bool; 2], Box<dyn Fn(u32) -> Answer + Send>);

#[test]
fn wrong_answers_give_no_content_and_each_file_one_outcome() {
    let hole = |id, n, offset, length| {
        vec![data(id, DataEntry { n, end: true, body: Body::Hole, offset, length, body_length: 0 }, b"")]
    };
    let whole = |id, n: u32| {
        let content = CONTENTS[n as usize];
        vec![data(id, piece(n, 0, content.len() as u64, true), content)]
    };
    let cases: Vec<Case> = vec![
        ("honest", [true, true], Box::new(move |id| [whole(id, 0), whole(id, 1)].concat())),
        ("nothing", [false, false], Box::new(|_| Vec::new())),
        ("one of two", [true, false], Box::new(move |id| whole(id, 0))),
        // Bytes of one file must not be taken for the beginning of the other.
        ("a hole behind another file", [true, false], Box::new(move |id| [whole(id, 0), hole(id, 1, 5, 5)].concat())),
        ("a hole of 2^60 bytes", [false, false], Box::new(move |id| hole(id, 0, 0, 1 << 60))),
        ("a hole in place of content", [false, true], Box::new(move |id| [hole(id, 0, 0, 5), whole(id, 1)].concat())),
        ("a file that nobody wants", [false, false], Box::new(|id| vec![data(id, piece(9, 0, 5, true), b"first")])),
        (
            "other content",
            [false, true],
            Box::new(move |id| [vec![data(id, piece(0, 0, 5, true), b"FIRST")], whole(id, 1)].concat()),
        ),
        ("more than there is", [false, false], Box::new(|id| vec![data(id, piece(0, 0, 6, true), b"first!")])),
        ("twice", [true, true], Box::new(move |id| [whole(id, 0), whole(id, 0), whole(id, 1)].concat())),
    ];
    for (case, expected, send) in cases {
        let server = sending(send);
        let client = client(&server.endpoint);
        let known = look_up(&client).unwrap();
        let mut outcomes = BTreeMap::new();
        client.read_whole(&known.iter().collect::<Vec<_>>(), &mut |at, outcome| {
            let is_right = match outcome {
                Ok(content) => {
                    assert_eq!(content, CONTENTS[at], "{case}");
                    true
                }
                Err(_) => false,
            };
            assert_eq!(outcomes.insert(at, is_right), None, "{case}: two outcomes");
        });
        assert_eq!(outcomes, BTreeMap::from([(0, expected[0]), (1, expected[1])]), "{case}");
    }
}

#[test]
fn impossible_leaves_are_an_error_of_the_server() {
    for leaf_bytes in [0, 1, 3 << 20, 1 << 40, u64::MAX] {
        let server = HostileServer::start(move |request| {
            let Request::Fetch(fetch) = request else { return Vec::new() };
            let of_size = |of: &mut FileMetadata| (of.size, of.leaf_bytes) = (1 << 42, leaf_bytes);
            vec![files(&fetch, of_size), reply(&Reply::Done { id: fetch.id })]
        });
        let error = look_up(&client(&server.endpoint)).unwrap_err();
        assert!(matches!(error, Error::Protocol(_) | Error::Unmet { .. }), "{leaf_bytes}: {error:?}");
    }
}

#[test]
fn server_that_is_away_is_no_answer() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint: Endpoint = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
    drop(listener);
    let mut options = ConnectOptions::new(endpoint);
    options.connect_timeout = Duration::from_millis(100);
    let error = look_up(&FileClient::new(options)).unwrap_err();
    assert_eq!(error.fault(), Fault::Network, "{error:?}");
}
