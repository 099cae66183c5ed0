//! Descriptors.

use super::*;
use crate::protocol::control::DigestWish;

/// Announces files and gives no credit for them.
fn without_credit(id: u32, paths: &[&str]) -> FetchRequest {
    FetchRequest { digest: DigestWish::None, credit_bytes: 0, ..fetch_of(id, paths) }
}

fn files_open_below(root: &Path) -> usize {
    let root = root.canonicalize().unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_below = |entry: &std::fs::DirEntry| {
        std::fs::read_link(entry.path()).is_ok_and(|to| to != root && to.starts_with(&root))
    };
    open.filter(is_below).count()
}

#[test]
fn clients_without_credit_cannot_use_up_the_descriptors() {
    let content = bytes(3 << 20);
    let names: Vec<String> = (0..8).map(|n| format!("{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let temp = root_with(&names.iter().map(|name| (*name, &content[..])).collect::<Vec<_>>());
    let options = ServerOptions { open_files_max: 4, ..ServerOptions::new(temp.path()) };
    let server = TestServer::start_as(options, Box::new(PageCache));
    let announced = |client: &mut TestClient, id| match client.reply() {
        Reply::Files(files) if files.id == id => files.files.len(),
        other => panic!("{other:?}"),
    };

    let mut greedy = server.client();
    greedy.request(&Request::Fetch(without_credit(0, &names)));
    let mut of_greedy = 0;
    while of_greedy < 4 {
        of_greedy += announced(&mut greedy, 0);
    }
    for id in 1..64 {
        greedy.request(&Request::Fetch(without_credit(id, &names)));
    }
    greedy.request(&Request::Hello);
    assert!(matches!(greedy.reply(), Reply::Hello(_)));

    // Another one gets all files all the same, one after the other.
    let mut other = server.client();
    let fetched = other.fetch(fetch_of(1, &names));
    assert!((0..8).all(|n| fetched.bodies[&n] == content));
    // A client that doesn't take the first announced file gets the next when others have closed theirs, and need not ask again.
    let mut waits = server.client();
    waits.request(&Request::Fetch(without_credit(1, &["0"])));
    assert_eq!(announced(&mut waits, 1), 1);
    waits.request(&Request::Fetch(without_credit(2, &["1"])));
    waits.request(&Request::Hello);
    assert!(matches!(waits.reply(), Reply::Hello(_)));
    assert_eq!((of_greedy, files_open_below(temp.path())), (4, 5));
    drop(greedy);
    assert_eq!(announced(&mut waits, 2), 1);
}
