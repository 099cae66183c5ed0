use super::*;
use crate::digest::DigestCache;
use crate::protocol::control::{Reply, WirePath};
use crate::server::client_root::tests::served;
use crate::server::limits::CLIENT_LIST_NAMES_BYTES_MAX;
use crate::server::quota::Quotas;

#[test]
fn a_listing_over_its_quota_of_names_is_busy() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(temp.path().join("b/d")).unwrap();
    for path in ["a.txt", "z.rs", "b/c.txt", "b/d/e.rs", "b/d/f.txt", "b/g.txt", "link", "out"] {
        std::fs::write(temp.path().join(path), b"").unwrap();
    }
    let root = served(temp.path());
    let (hasher, all) = (Hasher::new(DigestCache::new(0)), Quotas::new(0));
    let (names, cancel) = (&all.client().list_names, &CancelToken::new());
    let lister = Lister { root: &root, hasher: &hasher, names, cancel, slice: Duration::from_secs(3600) };
    let list = |lister: &Lister, request| lister.begin(&request).and_then(|mut listing| lister.page(&mut listing));
    let request = |target| ListRequest { id: 1, target, recursive: false, digest: false, follow: FollowLinks::None };
    let flat = || request(ListTarget::Path(WirePath::default()));
    let glob = || request(ListTarget::Glob { glob: "**/*.rs".into() });
    let recursive = || ListRequest { recursive: true, ..flat() };
    let busy = |listed: Result<_, Failure>| listed.unwrap_err().code == ErrorCode::Busy;
    let reserve = |bytes| names.try_acquire(bytes).unwrap();
    let held = reserve(CLIENT_LIST_NAMES_BYTES_MAX - 64);
    assert!(busy(list(&lister, flat())) && busy(list(&lister, glob())));
    drop(held);
    // Enough for the names at the top, and not for those below them.
    let held = reserve(CLIENT_LIST_NAMES_BYTES_MAX - 400);
    assert!(list(&lister, flat()).is_ok() && busy(list(&lister, recursive())));
    assert!(list(&Lister { names: &all.client().list_names, ..lister }, recursive()).is_ok());
    drop(held);
    assert!(list(&lister, recursive()).is_ok());
    assert_eq!(all.list_names.used(), 0);
}

#[test]
fn a_walk_gives_way_and_goes_on_where_it_was() {
    let temp = tempfile::tempdir().unwrap();
    for number in 0..200 {
        std::fs::create_dir_all(temp.path().join(format!("{number}"))).unwrap();
        std::fs::write(temp.path().join(format!("{number}/a")), b"").unwrap();
    }
    let root = served(temp.path());
    let (hasher, all) = (Hasher::new(DigestCache::new(0)), Quotas::new(0));
    let (names, cancel) = (&all.client().list_names, &CancelToken::new());
    let list = |slice, target| {
        let lister = Lister { root: &root, hasher: &hasher, names, cancel, slice };
        let request = ListRequest { id: 1, target, recursive: true, digest: false, follow: FollowLinks::None };
        let mut listing = lister.begin(&request).unwrap();
        let (mut entries, mut slices) = (Vec::new(), 0);
        loop {
            slices += 1;
            let Some(page) = lister.page(&mut listing).unwrap() else { continue };
            let Reply::List(reply) = Reply::decode(&page.json).unwrap() else { panic!("no page") };
            entries.extend(reply.entries);
            if !page.more {
                return (entries, slices);
            }
        }
    };
    let targets = [("**/1*/a", 111), ("**/nothing", 0), ("*", 400)];
    for (glob, count) in targets {
        let target = || ListTarget::Glob { glob: glob.into() };
        let (whole, pages) = list(Duration::from_secs(3600), target());
        let (in_slices, slices) = list(Duration::ZERO, target());
        assert_eq!((whole.len(), pages), (count, 1), "{glob}");
        assert_eq!(in_slices, whole, "{glob}");
        assert!(slices >= 400, "{glob}: {slices}");
    }
}
