//! Replacing the served root.

use super::*;
use crate::protocol::ErrorCode;
use crate::protocol::control::{DigestWish, FollowLinks, ListRequest, ListTarget};
use std::fs::rename;
use std::os::unix::fs::symlink;

/// A file `a` that says which release it is of, in a folder for each of them, and a secret beside them.
fn releases() -> TempDir {
    let temp = root_with(&[("one/a", b"first"), ("two/a", b"second, longer"), ("secret", b"secret")]);
    for release in ["one", "two"] {
        symlink("../secret", temp.path().join(release).join("out")).unwrap();
    }
    temp
}

/// As `ln -sfn` does it, but that at no moment there is no link.
fn switch(link: &Path, to: &str) {
    let next = link.with_extension("next");
    symlink(to, &next).unwrap();
    rename(next, link).unwrap();
}

impl TestClient {
    fn content(&mut self, path: &str) -> Vec<u8> {
        self.fetch(fetch_of(1, &[path])).bodies.remove(&0).unwrap()
    }

    fn plain(&mut self, path: &str) -> Vec<u8> {
        self.send(&[b"fetch", path.as_bytes(), b"0", b"1000"]);
        self.receive().pop().unwrap().to_vec()
    }

    fn both(&mut self, path: &str) -> String {
        let content = self.content(path);
        assert_eq!(self.plain(path), content);
        String::from_utf8(content).unwrap()
    }

    fn size_in_listing(&mut self) -> u64 {
        let target = ListTarget::Path(WirePath::from(b"a".to_vec()));
        self.request(&Request::List(ListRequest {
            id: 9,
            target,
            recursive: false,
            digest: false,
            follow: FollowLinks::None,
        }));
        match self.reply() {
            Reply::List(page) => page.entries[0].size,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_new_request_sees_the_replaced_root() {
    let temp = releases();
    let at = |name: &str| temp.path().join(name);
    symlink("one", at("link")).unwrap();
    std::fs::create_dir(at("plain")).unwrap();
    rename(at("one"), at("plain/one")).unwrap();
    symlink("plain/one", at("one")).unwrap();
    // Once the directory itself is another one, once the link.
    let servers = [at("plain/one"), at("link")].map(|path| TestServer::start(&path));
    let mut clients = servers.each_ref().map(TestServer::client);
    for client in &mut clients {
        assert_eq!(client.both("a"), "first");
    }
    rename(at("plain/one"), at("plain/before")).unwrap();
    rename(at("two"), at("plain/one")).unwrap();
    for (client, server) in clients.iter_mut().zip(&servers) {
        assert_eq!(client.size_in_listing(), 14);
        assert_eq!(client.both("a"), "second, longer");
        assert_eq!(server.client().both("a"), "second, longer");
    }
    switch(&at("link"), "plain/before");
    assert_eq!(clients[0].both("a"), "second, longer");
    assert_eq!(clients[1].plain("a"), b"first");
    assert_eq!(clients[1].both("a"), "first");

    // What leads out of it does as little as before.
    for client in &mut clients {
        match client.fetch(fetch_of(1, &["out"])).answers.remove(&0) {
            Some(FileAnswer::Error { code: ErrorCode::NotFound, .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn requests_in_progress_keep_their_root() {
    let temp = releases();
    let link = temp.path().join("link");
    symlink("one", &link).unwrap();
    let server = TestServer::start(&link);
    let mut client = server.client();
    // Without credit it isn't over.
    client.request(&Request::Fetch(FetchRequest { credit_bytes: 0, digest: DigestWish::None, ..fetch_of(7, &["a"]) }));
    let Reply::Files(files) = client.reply() else { panic!("no metadata") };
    switch(&link, "two");
    assert_eq!(server.client().both("a"), "second, longer");
    // What the same client asks for beside it fits to it.
    assert_eq!(client.size_in_listing(), 5);
    client.request(&Request::Credit { bytes: 1 << 20, slow: None });
    let mut fetched = Fetched::default();
    fetched.answers.extend(files.files.into_iter().map(|answer| (0, answer)));
    while !fetched.take(7, client.receive()) {}
    assert_eq!(fetched.bodies[&0], b"first");
    assert_eq!(client.content("a"), b"second, longer");
}

#[test]
fn the_previous_root_is_served_while_the_path_leads_nowhere() {
    let temp = releases();
    let (path, aside) = (temp.path().join("one"), temp.path().join("aside"));
    let server = TestServer::start(&path);
    let mut client = server.client();
    for again in 0..2 {
        assert_eq!(client.both("a"), "first", "{again}");
        rename(&path, &aside).unwrap();
        assert_eq!(client.both("a"), "first", "{again}");
        rename(&aside, &path).unwrap();
    }
    rename(&path, &aside).unwrap();
    // Nor does it lead to anything that could be served.
    symlink("one", &path).unwrap();
    assert_eq!(client.both("a"), "first");
    std::fs::remove_file(&path).unwrap();
    rename(temp.path().join("two"), &path).unwrap();
    assert_eq!(client.both("a"), "second, longer");
}

#[test]
fn a_replaced_single_file_is_served() {
    let temp = releases();
    let at = |name: &str| temp.path().join(name);
    symlink("one", at("current")).unwrap();
    symlink("one/a", at("a")).unwrap();
    let servers = ["one/a", "current/a", "a"].map(|path| TestServer::start(&at(path)));
    let mut clients = servers.each_ref().map(TestServer::client);
    let mut said = || clients.each_mut().map(|client| client.both("a"));
    assert_eq!(said(), ["first"; 3]);
    std::fs::write(at("next"), "third").unwrap();
    rename(at("next"), at("one/a")).unwrap();
    assert_eq!(said(), ["third"; 3]);
    switch(&at("current"), "two");
    assert_eq!(said(), ["third", "second, longer", "third"]);
    switch(&at("a"), "two/a");
    assert_eq!(said(), ["third", "second, longer", "second, longer"]);
    // The file itself becomes a link: the path is the operator's, wherever it leads.
    switch(&at("one/a"), "../secret");
    assert_eq!(said(), ["secret", "second, longer", "second, longer"]);
}
