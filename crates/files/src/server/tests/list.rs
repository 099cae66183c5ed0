//! Listings.

use super::*;
use crate::limits::LIST_PAGE_ENTRIES_MAX;
use crate::protocol::ErrorCode;
use crate::protocol::control::{Base, EntryKind, FollowLinks, ListEntry, ListRequest, ListTarget};
use crate::server::glob::GLOB_BRACES_MAX;
use crate::server::jobs::list::{FIRST_PAGE_ENTRIES, PAGE_ENTRIES_MAX};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

fn list_of(id: u32, path: &str) -> ListRequest {
    let target = ListTarget::Path(WirePath::from(path.as_bytes().to_vec()));
    ListRequest { id, target, recursive: false, digest: false, follow: FollowLinks::None }
}

fn glob_of(id: u32, glob: &str) -> ListRequest {
    ListRequest { target: ListTarget::Glob { glob: glob.into() }, ..list_of(id, "") }
}

impl TestClient {
    /// All pages of a listing, and how many they were.
    fn list(&mut self, request: ListRequest) -> Result<(Base, Vec<ListEntry>, usize), ErrorCode> {
        let id = request.id;
        self.request(&Request::List(request));
        let mut entries = Vec::new();
        for pages in 1.. {
            match self.reply() {
                Reply::List(page) => {
                    assert_eq!(page.id, id);
                    entries.extend(page.entries);
                    if !page.more {
                        return Ok((page.base, entries, pages));
                    }
                    self.request(&Request::More { id });
                }
                Reply::Error(error) => return Err(error.code),
                other => panic!("{other:?}"),
            }
        }
        unreachable!("pages end")
    }

    fn names(&mut self, request: ListRequest) -> Vec<String> {
        let (_, entries, _) = self.list(request).unwrap();
        entries.iter().map(|entry| String::from_utf8_lossy(entry.path.as_bytes()).into_owned()).collect()
    }
}

fn tree() -> TempDir {
    let temp = root_with(&[
        ("a.txt", b"a"),
        ("b/c.txt", b"cc"),
        ("b/d/e.rs", b"eee"),
        ("b/d/f.txt", b""),
        ("b/é.txt", b"x"),
        ("z.rs", b"z"),
    ]);
    symlink("a.txt", temp.path().join("link")).unwrap();
    symlink("/etc", temp.path().join("out")).unwrap();
    temp
}

#[test]
fn directories_are_listed_flat_or_with_all_below() {
    let temp = tree();
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    let (base, entries, pages) = client.list(list_of(1, "")).unwrap();
    assert_eq!((base, pages), (Base::Dir, 1));
    let kinds: Vec<_> = entries.iter().map(|entry| (entry.path.as_bytes(), entry.kind, entry.size)).collect();
    assert_eq!(kinds[0], (&b"a.txt"[..], EntryKind::File, 1));
    assert_eq!((kinds[1].0, kinds[1].1), (&b"b"[..], EntryKind::Dir));
    assert_eq!((kinds[2].0, kinds[2].1), (&b"link"[..], EntryKind::Link));
    assert_eq!(entries[2].target.as_ref().unwrap().as_bytes(), b"a.txt");
    assert_eq!(entries[3].target.as_ref().unwrap().as_bytes(), b"/etc");
    assert_eq!(kinds.len(), 5);

    let all = client.names(ListRequest { recursive: true, ..list_of(1, "") });
    let expected = ["a.txt", "b", "b/c.txt", "b/d", "b/d/e.rs", "b/d/f.txt", "b/é.txt", "link", "out", "z.rs"];
    assert_eq!(all, expected);
    assert_eq!(client.names(ListRequest { recursive: true, ..list_of(1, "b/d") }), ["b/d/e.rs", "b/d/f.txt"]);
    let (base, entries, _) = client.list(list_of(2, "b/c.txt")).unwrap();
    assert_eq!((base, entries.len(), entries[0].size), (Base::File, 1, 2));
    let (base, entries, _) = client.list(list_of(2, "out")).unwrap();
    assert_eq!((base, entries.len()), (Base::Link, 1));
    for path in ["missing", "out/passwd", "../x", "/etc", "a.txt/b"] {
        assert_eq!(client.list(list_of(3, path)).unwrap_err(), ErrorCode::NotFound, "{path}");
    }
}

#[test]
fn globs_match_names_and_take_whole_directories() {
    let temp = tree();
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    let mut names = |glob: &str| client.names(glob_of(1, glob));
    assert_eq!(names("*.txt"), ["a.txt"]);
    assert_eq!(names("**/*.rs"), ["b/d/e.rs", "z.rs"]);
    assert_eq!(names("b/*.txt"), ["b/c.txt", "b/é.txt"]);
    assert_eq!(names("b/{c,é}.txt"), ["b/c.txt", "b/é.txt"]);
    assert_eq!(names("[a-y]*"), ["a.txt", "b", "b/c.txt", "b/d", "b/d/e.rs", "b/d/f.txt", "b/é.txt", "link", "out"]);
    assert_eq!(names("*/d"), ["b/d", "b/d/e.rs", "b/d/f.txt"]);
    assert_eq!(names("b/d/?.rs"), ["b/d/e.rs"]);
    assert!(names("nothing/*").is_empty());
    assert!(names("a.txt/*").is_empty());
    assert!(names("../*").is_empty());
    assert!(names("out/*").is_empty());
    assert_eq!(client.list(glob_of(1, "[")).unwrap_err(), ErrorCode::BadRequest);
}

#[test]
fn nesting_of_braces_in_globs_is_limited() {
    let temp = tree();
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    let nested = |depth: usize| format!("{}z{}.rs", "{".repeat(depth), "}".repeat(depth));
    assert_eq!(client.names(glob_of(1, &nested(GLOB_BRACES_MAX))), ["z.rs"]);
    for depth in [GLOB_BRACES_MAX + 1, 300, 2000] {
        assert_eq!(client.list(glob_of(1, &nested(depth))).unwrap_err(), ErrorCode::BadRequest, "{depth}");
    }
    // Neither do those in brackets end any, nor begin them; nor do those that are escaped, or beside others.
    let hidden = format!("{}z{}", "{[}]".repeat(300), "}".repeat(300));
    assert_eq!(client.list(glob_of(1, &hidden)).unwrap_err(), ErrorCode::BadRequest);
    for beside in ["[{]", "[]{]", "[!]{]", "\\{", "{a,z}"] {
        assert!(client.names(glob_of(1, &beside.repeat(100))).is_empty(), "{beside}");
    }
}

#[test]
fn long_listings_come_in_pages() {
    let temp = TempDir::new().unwrap();
    let count = LIST_PAGE_ENTRIES_MAX + 100;
    for n in 0..count {
        std::fs::write(temp.path().join(format!("{n:06}")), "").unwrap();
    }
    std::fs::create_dir(temp.path().join("x")).unwrap();
    std::fs::write(temp.path().join("x/last"), "").unwrap();
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    let (_, entries, pages) = client.list(ListRequest { recursive: true, ..list_of(1, "") }).unwrap();
    // The first page is short, the others are twice as long.
    assert_eq!((entries.len(), pages), (count + 2, 1 + (count + 2 - FIRST_PAGE_ENTRIES).div_ceil(PAGE_ENTRIES_MAX)));
    assert!(entries.is_sorted_by_key(|entry| entry.path.as_bytes().to_vec()));
    // A listing that is given up between its pages is over, and its id free.
    client.request(&Request::List(list_of(1, "")));
    assert!(matches!(client.reply(), Reply::List(page) if page.more && page.entries.len() == FIRST_PAGE_ENTRIES));
    client.request(&Request::Cancel { id: 1 });
    assert!(matches!(client.reply(), Reply::Cancelled(_)));
    // Exactly a page is one page.
    for n in FIRST_PAGE_ENTRIES..count {
        std::fs::remove_file(temp.path().join(format!("{n:06}"))).unwrap();
    }
    std::fs::remove_dir_all(temp.path().join("x")).unwrap();
    let (_, entries, pages) = client.list(list_of(1, "")).unwrap();
    assert_eq!((entries.len(), pages), (FIRST_PAGE_ENTRIES, 1));
}

#[test]
fn pages_are_bounded_in_bytes_as_well() {
    let temp = TempDir::new().unwrap();
    // Control characters take six bytes each in JSON.
    for n in 0..1000 {
        std::fs::write(temp.path().join(format!("{}{n:03}", "\x01".repeat(240))), "").unwrap();
    }
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    client.request(&Request::List(list_of(1, "")));
    let mut entries = 0;
    loop {
        let frames = client.receive();
        assert!(frames[1].len() <= 512 << 10, "{}", frames[1].len());
        let Reply::List(page) = Reply::decode(&frames[1]).unwrap() else { panic!("no page") };
        entries += page.entries.len();
        if !page.more {
            break;
        }
        client.request(&Request::More { id: 1 });
    }
    assert_eq!(entries, 1000);
}

#[test]
fn digests_come_with_the_listing() {
    let temp = tree();
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    let request = ListRequest { recursive: true, digest: true, ..list_of(1, "b") };
    let (_, entries, _) = client.list(request).unwrap();
    for entry in entries {
        let content = std::fs::read(temp.path().join(OsStr::from_bytes(entry.path.as_bytes())));
        let expected = content.ok().map(|content| crate::digest::Digest::of(&content));
        assert_eq!(entry.digest, expected);
    }
}

#[test]
fn non_utf8_names_and_special_files_are_listed() {
    let temp = root_with(&[]);
    std::fs::write(temp.path().join(OsStr::from_bytes(b"\xff\xfe")), "x").unwrap();
    std::os::unix::net::UnixListener::bind(temp.path().join("socket")).unwrap();
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    let (_, entries, _) = client.list(list_of(1, "")).unwrap();
    assert_eq!((entries[0].path.as_bytes(), entries[0].kind), (&b"socket"[..], EntryKind::Other));
    assert_eq!((entries[1].path.as_bytes(), entries[1].kind), (&b"\xff\xfe"[..], EntryKind::File));
    let mut request = fetch_of(2, &["socket", ""]);
    request.files[1].path = entries[1].path.clone();
    let fetched = client.fetch(request);
    assert!(matches!(&fetched.answers[&0], FileAnswer::Error { code: ErrorCode::NotAFile, .. }));
    assert_eq!(fetched.bodies[&1], b"x");
}

#[test]
fn unreadable_entries_are_listed_as_errors() {
    use std::os::unix::fs::PermissionsExt;
    let temp = root_with(&[("closed/x", b"x"), ("open/y", b"y"), ("secret", b"s")]);
    let close = |name: &str, mode| {
        std::fs::set_permissions(temp.path().join(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    close("closed", 0o000);
    close("secret", 0o000);
    if std::fs::read_dir(temp.path().join("closed")).is_ok() {
        // A user who may read everything, such as root, can't see this.
        return;
    }
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    let (_, entries, _) = client.list(ListRequest { recursive: true, digest: true, ..list_of(1, "") }).unwrap();
    let kinds: Vec<_> = entries.iter().map(|entry| (entry.path.as_bytes(), entry.kind)).collect();
    let expected = [
        (&b"closed"[..], EntryKind::Error),
        (b"open", EntryKind::Dir),
        (b"open/y", EntryKind::File),
        (b"secret", EntryKind::Error),
    ];
    assert_eq!(kinds, expected);
    assert!(matches!(
        &client.fetch(fetch_of(2, &["secret"])).answers[&0],
        FileAnswer::Error { code: ErrorCode::Denied, .. }
    ));
    close("closed", 0o700);
}

#[test]
fn a_root_of_one_file_lists_as_that_file() {
    let temp = tree();
    let server = TestServer::start(&temp.path().join("a.txt"));
    let mut client = server.client();
    let digest = crate::digest::Digest::of(b"a");
    for (request, base) in
        [(list_of(1, ""), Base::File), (list_of(1, "a.txt"), Base::File), (glob_of(1, "*.txt"), Base::Glob)]
    {
        let (listed, entries, _) = client.list(ListRequest { digest: true, ..request }).unwrap();
        assert_eq!(listed, base);
        assert_eq!((entries.len(), entries[0].path.as_bytes()), (1, &b"a.txt"[..]));
        assert_eq!(entries[0].digest, Some(digest));
    }
    assert_eq!(client.names(glob_of(1, "*")), ["a.txt"]);
    assert!(client.names(glob_of(1, "b/**")).is_empty());
    assert_eq!(client.list(list_of(1, "z.rs")).unwrap_err(), ErrorCode::NotFound);
    assert_eq!(client.fetch(fetch_of(1, &["a.txt"])).bodies[&0], b"a");
}

#[test]
fn more_than_there_is_and_more_than_a_request_may_have() {
    let temp = root_with(&[("a", b"a")]);
    let server = TestServer::start(temp.path());
    let mut client = server.client();
    assert_eq!(client.names(list_of(1, "")), ["a"]);
    client.request(&Request::More { id: 1 });
    match client.reply() {
        Reply::Error(error) => assert_eq!((error.id, error.code), (Some(1), ErrorCode::BadRequest)),
        other => panic!("{other:?}"),
    }
    for number in ["1.0", "1e3"] {
        let json = format!(r#"{{"op":"more","id":{number}}}"#);
        client.send(&[b"TOW1", json.as_bytes()]);
        assert!(matches!(client.reply(), Reply::Error(error) if error.code == ErrorCode::BadRequest), "{number}");
    }
    let with_frames = |count: usize| -> Vec<&[u8]> {
        let hello: [&[u8]; 2] = [b"TOW1", br#"{"op":"hello"}"#];
        hello.into_iter().chain(std::iter::repeat(&b"x"[..])).take(count).collect()
    };
    client.send(&with_frames(32));
    assert!(matches!(client.reply(), Reply::Hello(_)));
    let spaces = vec![b' '; (1 << 20) + 8192];
    for over in [with_frames(33), vec![b"TOW1", &spaces]] {
        let mut client = server.client();
        client.send(&over);
        let until = Instant::now() + DEADLINE;
        while client.gone.is_none() && Instant::now() < until {
            client.turn();
        }
        assert!(client.gone.is_some() && client.inbox.is_empty());
    }
}
