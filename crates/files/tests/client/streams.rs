//! The client object: its connections, and streams that are dropped.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;

use towpath_files::client::follow::{FollowEnd, FollowEvent, FollowOptions};
use towpath_files::client::push::{PushEvent, PushFile, PushOptions, PushSource};
use towpath_files::client::{
    ConnectOptions, Destination, Error, Fault, FileClient, Filter, FilterRule, GetOptions, ListOptions,
};
use towpath_files::protocol::ErrorCode;
use towpath_files::server::{ServerOptions, WatchOptions};

use crate::hostile_server::HostileServer;
use crate::interrupted::cutting_proxy;
use crate::support::*;

#[test]
fn questions_share_a_connection_that_still_works() {
    let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(&folder.path().join("a"), b"content");
    let server = TestServer::start(folder.path());
    let (endpoint, connections) = cutting_proxy(&server.endpoint, Vec::new());
    let client = FileClient::connect(ConnectOptions::new(endpoint)).unwrap();
    let count =
        |path: &str| client.list(ListOptions::new(path_source(path)))?.try_fold(0, |sum, entry| entry.map(|_| sum + 1));
    assert_eq!((count(""), count("a")), (Ok(1), Ok(1)));
    assert!(matches!(count("missing"), Err(Error::Refused { code: ErrorCode::NotFound, .. })));
    let mut options = GetOptions::new(path_source(""));
    options.destination = Destination::Path(Some(copy.path().to_owned()));
    assert_eq!(client.get(options, &mut |_| {}).unwrap().files, 1);
    assert_eq!(connections.load(Ordering::Acquire), 1);
    // A transfer may leave something open.
    assert_eq!((count(""), connections.load(Ordering::Acquire)), (Ok(1), 2));
}

#[test]
fn connection_that_was_lost_is_not_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("ipc://{}", folder.path().join("socket").display());
    let served = folder.path().join("served");
    write(&served.join("a"), b"content");
    let server = TestServer::start_at(&served, &endpoint);
    let client = FileClient::connect(ConnectOptions::new(server.endpoint.clone())).unwrap();
    drop(server);
    let _server = TestServer::start_at(&served, &endpoint);
    assert_eq!(client.list(ListOptions::new(path_source(""))).unwrap().map(Result::unwrap).count(), 1);
}

#[test]
fn client_without_a_server_says_so_when_it_connects() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    drop(taken);
    let mut connect = ConnectOptions::new(format!("tcp://127.0.0.1:{port}").parse().unwrap());
    connect.connect_timeout = Duration::from_millis(300);
    let error = FileClient::connect(connect).unwrap_err();
    assert_eq!((error.fault(), matches!(error, Error::Connect { .. })), (Fault::Network, true), "{error:?}");
}

#[test]
fn streams_that_are_dropped_end() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..20_000 {
        fs::write(folder.path().join(format!("{number}")), b"").unwrap();
    }
    let server = TestServer::start(folder.path());
    let client = FileClient::connect(ConnectOptions::new(server.endpoint.clone())).unwrap();
    let list = || client.list(ListOptions::new(path_source(""))).unwrap();
    // There are more pages than the thread may be ahead.
    assert!(list().next().unwrap().is_ok());
    assert_eq!(list().map(Result::unwrap).count(), 20_000);

    let silent = HostileServer::start(|_| Vec::new());
    drop(
        FileClient::new(ConnectOptions::new(silent.endpoint.clone())).list(ListOptions::new(path_source(""))).unwrap(),
    );
}

#[test]
fn events_of_a_follow_come_one_by_one() {
    let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let served = folder.path().join("served");
    for name in ["a", "d/b", "d/c"] {
        write(&served.join(name), name.as_bytes());
    }
    let mut options = ServerOptions::new(&served);
    options.watch = Some(WatchOptions { settle: Duration::from_millis(50), ..WatchOptions::default() });
    let server = TestServer::start_with(options);
    let client = FileClient::connect(ConnectOptions::new(server.endpoint.clone())).unwrap();
    let options = || FollowOptions::new(path_source(""), copy.path().join("copy"));
    // Dropped at the first event.
    assert!(matches!(client.follow(options()).unwrap().next(), Some(Ok(FollowEvent::Put { .. }))));
    let mut once = options();
    once.once = true;
    let mut events = client.follow(once).unwrap();
    assert!(matches!(events.by_ref().last(), Some(Ok(FollowEvent::UpToDate { .. }))));
    assert_eq!(events.end(), Some(FollowEnd::UpToDate));
    assert_eq!(fs::read(copy.path().join("copy/d/c")).unwrap(), b"d/c");
    // One that goes on: a change comes while it is followed.
    let mut events = client.follow(options()).unwrap().map(Result::unwrap);
    assert!(events.any(|event| matches!(event, FollowEvent::UpToDate { .. })));
    write(&served.join("new"), b"new");
    assert!(events.any(|event| matches!(&event, FollowEvent::Put { path, .. } if path.to_string() == "new")));
}

#[test]
fn trees_and_readers_are_pushed() {
    let folder = tempfile::tempdir().unwrap();
    let (served, tree) = (folder.path().join("served"), folder.path().join("tree"));
    fs::create_dir_all(served.join("in")).unwrap();
    for (name, size) in
        [("a", 10), ("d/b", 3 * MIB), ("d/e/c", 0), ("d/skipped.tmp", 5), (".tow-0123456789abcdef.part", 5)]
    {
        write(&tree.join(name), &noise(size, size as u64));
    }
    fs::create_dir(tree.join("empty")).unwrap();
    std::os::unix::fs::symlink("a", tree.join("link")).unwrap();
    let mut options = ServerOptions::new(&served);
    options.push = Some(towpath_files::server::PushOptions::new("in".parse().unwrap()));
    let server = TestServer::start_with(options);
    let client = FileClient::connect(ConnectOptions::new(server.endpoint.clone())).unwrap();
    let filter = Filter::new(&[FilterRule::Exclude("*.tmp".to_owned())]).unwrap();
    let stream = noise(2 * MIB + 7, 9);
    let sources = || {
        let reader = Box::new(std::io::Cursor::new(stream.clone()));
        vec![
            PushSource::Tree { local: tree.clone(), remote: "in/tree".parse().unwrap(), filter: filter.clone() },
            PushSource::Reader { reader, remote: "in/stream".parse().unwrap() },
        ]
    };
    let (mut pushed, mut failed, mut warned, mut last) = (Vec::new(), Vec::new(), Vec::new(), (0, 0));
    let mut on_event = |event: PushEvent| {
        match event {
            PushEvent::Pushed { file, .. } => pushed.push(file.remote.to_string()),
            PushEvent::Failed { file, reason, .. } => failed.push((file.local, reason)),
            PushEvent::Warning(text) => warned.push(text),
            other => panic!("{other:?}"),
        }
        Ok(())
    };
    client
        .push(PushOptions::new(sources()), &mut on_event, &mut |progress| last = (progress.files_done, progress.files))
        .unwrap();
    pushed.sort();
    assert_eq!(pushed, ["in/stream", "in/tree/a", "in/tree/d/b", "in/tree/d/e/c"]);
    let [(path, reason)] = &failed[..] else { panic!("{failed:?}") };
    assert!(*path == tree.join("link") && reason.contains("a symbolic link"), "{failed:?}");
    assert!(warned.len() == 1 && warned[0].contains("an empty directory is left out"), "{warned:?}");
    assert_eq!(last, (4, 4));
    assert_eq!(fs::read(served.join("in/tree/d/b")).unwrap(), fs::read(tree.join("d/b")).unwrap());
    assert_eq!(fs::read(served.join("in/stream")).unwrap(), stream);

    // Files are removed, links stay; what two sources have in common is refused before anything is sent.
    let mut options = PushOptions::new(sources());
    options.remove_source = true;
    client.push(options, &mut |_| Ok(()), &mut |_| {}).unwrap();
    assert_eq!(partial_names(&tree).len() + fs::read_dir(tree.join("d")).unwrap().count(), 3);
    assert!(tree.join("link").is_symlink() && !tree.join("a").exists());
    let file = PushFile { local: tree.join("d/skipped.tmp"), remote: "in/stream".parse().unwrap() };
    let sources = sources().into_iter().chain([PushSource::File(file)]).collect();
    let error = client.push(PushOptions::new(sources), &mut |_| Ok(()), &mut |_| {}).unwrap_err();
    assert_eq!(error.fault(), Fault::Local, "{error:?}");
}
