//! Reading a file of a server in parts.

use std::fs;
use std::io::{BufRead, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use towpath_files::client::{ConnectOptions, Error, FileClient, RemoteFile};
use towpath_files::digest::{Digest, LeafSize, TreeHasher};
use towpath_files::protocol::ErrorCode;
use towpath_files::protocol::control::*;
use towpath_sockets::Endpoint;

use crate::hostile_server::{Answer, HostileServer, data, metadata, piece, reply};
use crate::interrupted::cutting_proxy;
use crate::support::*;

fn open(endpoint: &Endpoint, path: &str) -> Result<RemoteFile, Error> {
    FileClient::connect(ConnectOptions::new(endpoint.clone()))?.open(&path.parse().unwrap())
}

/// The error that a reader failed with.
fn source(error: &std::io::Error) -> &Error {
    error.get_ref().and_then(|source| source.downcast_ref()).unwrap()
}

fn read_at(file: &mut RemoteFile, offset: u64, count: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[test]
fn files_are_read_whole_and_from_any_place() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = [0, 5, MIB - 1, MIB, MIB + 1, 4 * MIB, 21 * MIB + 123];
    for size in sizes {
        write(&folder.path().join(size.to_string()), &noise(size, size as u64));
    }
    let sparse = fs::File::create(folder.path().join("sparse")).unwrap();
    sparse.write_all_at(&noise(100_000, 3), 5_000_000).unwrap();
    sparse.set_len(40 * MIB as u64 + 3).unwrap();
    let server = TestServer::start(folder.path());
    for name in sizes.map(|size| size.to_string()).iter().map(String::as_str).chain(["sparse"]) {
        let wanted = fs::read(folder.path().join(name)).unwrap();
        let mut file = open(&server.endpoint, name).unwrap();
        assert_eq!((file.len(), file.is_empty()), (wanted.len() as u64, wanted.is_empty()), "{name}");
        assert_eq!(file.digest(), Digest::of(&wanted), "{name}");
        let mut whole = Vec::new();
        file.read_to_end(&mut whole).unwrap();
        assert!(whole == wanted, "{name}");
        // Past the end there is nothing.
        assert_eq!(file.read(&mut [0; 9]).unwrap(), 0);
        file.seek(SeekFrom::End(7)).unwrap();
        assert_eq!(file.read(&mut [0; 9]).unwrap(), 0);
        assert_eq!(
            file.seek(SeekFrom::Current(-(wanted.len() as i64) - 8)).unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
        for step in 0..200_u64 {
            let Some(most) = (wanted.len() as u64).checked_sub(1) else { continue };
            let offset = step * 7_919_993 % (most + 1);
            let count = usize::try_from((step * 104_729 % 1_500_000).min(most - offset)).unwrap();
            let begin = usize::try_from(offset).unwrap();
            assert!(read_at(&mut file, offset, count).unwrap() == wanted[begin..begin + count], "{name} {offset}");
        }
    }
    let missing = open(&server.endpoint, "missing").unwrap_err();
    assert!(matches!(missing, Error::Refused { code: ErrorCode::NotFound, .. }), "{missing:?}");
    let directory = open(&server.endpoint, "").unwrap_err();
    assert!(matches!(directory, Error::Refused { code: ErrorCode::NotAFile, .. }), "{directory:?}");
}

#[test]
fn reading_goes_on_when_connections_break() {
    let folder = tempfile::tempdir().unwrap();
    let wanted = noise(24 * MIB + 5, 1);
    write(&folder.path().join("f"), &wanted);
    let server = TestServer::start(folder.path());
    let cuts = vec![100_000, 10, 1_500_000, 3_000_001, 64 * 1024, 5_000_000];
    let (endpoint, connections) = cutting_proxy(&server.endpoint, cuts.clone());
    let mut whole = Vec::new();
    open(&endpoint, "f").unwrap().read_to_end(&mut whole).unwrap();
    assert!(whole == wanted);
    assert!(connections.load(std::sync::atomic::Ordering::Acquire) > cuts.len());
}

#[test]
fn file_that_is_replaced_can_not_be_read_on() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("f"), &noise(24 * MIB, 1));
    let server = TestServer::start(folder.path());
    let mut file = open(&server.endpoint, "f").unwrap();
    assert_eq!(read_at(&mut file, 0, 9).unwrap(), noise(9, 1));
    write(&folder.path().join("new"), &noise(24 * MIB, 2));
    fs::rename(folder.path().join("new"), folder.path().join("f")).unwrap();
    let error = read_at(&mut file, 20 * MIB as u64, 9).unwrap_err();
    assert!(matches!(source(&error), Error::Unmet { code: ErrorCode::Changed, .. }), "{error:?}");
    assert!(error.to_string().contains("changed"), "{error}");
}

/// Offsets and lengths that were asked for.
type Asked = Arc<Mutex<Vec<(u64, u64)>>>;

/// A server of this content that says which ranges were asked for, and lets `edit` change each piece.
fn recording(content: Vec<u8>, mut edit: impl FnMut(u64, &mut Vec<u8>) + Send + 'static) -> (HostileServer, Asked) {
    let ranges = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&ranges);
    let mut hasher = TreeHasher::new(LeafSize::for_file(content.len() as u64));
    hasher.update(&content).unwrap();
    let (digest, leaves) = hasher.finish().unwrap();
    let server = HostileServer::start(move |request| -> Answer {
        match request {
            Request::Fetch(fetch) => {
                let FileAnswer::Metadata(mut answer) = metadata(0, b"") else { unreachable!() };
                (answer.size, answer.digest) = (content.len() as u64, Some(digest));
                let files = vec![FileAnswer::Metadata(answer)];
                let mut answers = vec![reply(&Reply::Files(FilesReply { id: fetch.id, files }))];
                for range in fetch.files[0].ranges.as_ref().unwrap() {
                    recorded.lock().unwrap().push((range.offset, range.length));
                    for offset in (range.offset..range.end()).step_by(MIB) {
                        let length = (range.end() - offset).min(MIB as u64);
                        let [begin, end] = [offset, offset + length].map(|at| usize::try_from(at).unwrap());
                        let mut body = content[begin..end].to_vec();
                        edit(offset, &mut body);
                        answers.push(data(fetch.id, piece(0, offset, length, false), &body));
                    }
                }
                answers.extend([reply(&Reply::End { id: fetch.id, n: 0 }), reply(&Reply::Done { id: fetch.id })]);
                answers
            }
            Request::Leaves(request) => {
                let count = u32::try_from(leaves.len()).unwrap();
                let reply = Reply::Leaves(LeavesReply { id: request.id, from: 0, count, total: count });
                let mut frames = reply.to_frames().to_vec();
                frames.push(Bytes::from(leaves.concat()));
                vec![frames]
            }
            Request::Cancel { id } => vec![reply(&Reply::Cancelled(Cancelled { id }))],
            _ => Vec::new(),
        }
    });
    (server, ranges)
}

#[test]
fn only_what_is_read_and_a_little_more_is_fetched() {
    let content = noise(64 * MIB, 5);
    let (server, ranges) = recording(content.clone(), |_, _| {});
    let mut file = open(&server.endpoint, "f").unwrap();
    let asked = || std::mem::take(&mut *ranges.lock().unwrap());
    // Neither opening nor seeking fetches anything.
    file.seek(SeekFrom::Start(33 * MIB as u64)).unwrap();
    assert_eq!(asked(), []);
    // One leaf for a few bytes, once.
    for offset in [33 * MIB + 10, 33 * MIB, 33 * MIB + 500_000] {
        assert_eq!(read_at(&mut file, offset as u64, 9).unwrap(), content[offset..offset + 9]);
    }
    let first = asked();
    assert_eq!(first[0], (33 * MIB as u64, MIB as u64));
    assert!(first.iter().map(|(_, length)| length).sum::<u64>() <= 3 * MIB as u64, "{first:?}");
    // Reading on fetches ahead, and never more than 8 MiB.
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut read = 0;
    while read < 32 * MIB as u64 {
        let count = file.fill_buf().unwrap().len();
        file.consume(count);
        read += count as u64;
        let requested = ranges.lock().unwrap().iter().map(|(_, length)| length).sum::<u64>();
        assert!(requested <= read + 8 * MIB as u64, "{requested} at {read}");
    }
    let all = asked();
    assert!(all.iter().any(|(_, length)| *length == 4 * MIB as u64), "{all:?}");
    assert!(all.is_sorted(), "{all:?}");
}

#[test]
fn wrong_bytes_are_fetched_again_and_never_read() {
    let content = noise(4 * MIB, 6);
    let mut lies = 3;
    let (server, _) = recording(content.clone(), move |offset, body| {
        if offset == 2 * MIB as u64 && lies > 0 {
            lies -= 1;
            body[77] ^= 1;
        }
    });
    let mut whole = Vec::new();
    open(&server.endpoint, "f").unwrap().read_to_end(&mut whole).unwrap();
    assert!(whole == content);

    let (server, _) = recording(content.clone(), |offset, body| body[5] ^= u8::from(offset == 2 * MIB as u64));
    let mut file = open(&server.endpoint, "f").unwrap();
    let mut begin = vec![0; 2 * MIB];
    file.read_exact(&mut begin).unwrap();
    assert!(begin == content[..2 * MIB]);
    let error = file.read(&mut begin).unwrap_err();
    assert!(error.to_string().contains("does not match its digest"), "{error}");
    // It stays so.
    assert!(file.read(&mut begin).is_err());
}

#[test]
fn server_that_breaks_the_protocol_is_found_out() {
    type Edit = fn(&mut Vec<Vec<Bytes>>, u32);
    let cases: [(&str, Edit); 4] = [
        ("a piece that wasn't requested", |answers, id| answers.push(data(id, piece(0, 9, 4, false), b"evil"))),
        ("ended before all", |answers, id| answers.push(reply(&Reply::End { id, n: 0 }))),
        ("isn't open", |answers, id| answers.push(data(id + 9, piece(0, 0, 4, false), b"evil"))),
        ("a piece that wasn't requested", |answers, id| {
            answers.clear();
            answers.push(data(id, piece(0, 0, 4, false), b"evil"));
        }),
    ];
    for (message, edit) in cases {
        let server = HostileServer::start(move |request| {
            let Request::Fetch(fetch) = request else { return Vec::new() };
            let files = vec![metadata(0, b"good")];
            let mut answers = vec![reply(&Reply::Files(FilesReply { id: fetch.id, files }))];
            if fetch.files[0].ranges.as_ref().is_some_and(|ranges| !ranges.is_empty()) {
                edit(&mut answers, fetch.id);
            }
            answers
        });
        let error = open(&server.endpoint, "f").unwrap().read(&mut [0; 4]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        assert!(error.to_string().contains(message), "{message}: {error}");
    }
}

#[test]
fn silent_server_is_given_up_and_a_reader_can_be_cancelled() {
    let server = HostileServer::start(|_| Vec::new());
    let mut connect = ConnectOptions::new(server.endpoint.clone());
    connect.idle_timeout = std::time::Duration::from_millis(300);
    let result = FileClient::new(connect).open(&"f".parse().unwrap());
    assert!(matches!(result, Err(Error::Stalled { connected: true, .. })), "{result:?}");

    let (asked, is_asked) = std::sync::mpsc::channel();
    let server = HostileServer::start(move |_| {
        let _ = asked.send(());
        Vec::new()
    });
    let client = FileClient::new(ConnectOptions::new(server.endpoint.clone()));
    let cancel = client.options().cancel.clone();
    let thread = std::thread::spawn(move || client.open(&"f".parse().unwrap()).map(drop));
    is_asked.recv().unwrap();
    cancel.cancel();
    assert_eq!(thread.join().unwrap(), Err(Error::Cancelled));
}
