use super::*;
use crate::digest::DigestCache;
use crate::server::limits::CLIENT_LIST_NAMES_BYTES_MAX;
use crate::server::quota::Quotas;

#[test]
fn a_listing_over_its_quota_of_names_is_busy() {
    let temp = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(temp.path().join("b/d")).unwrap();
    for path in ["a.txt", "z.rs", "b/c.txt", "b/d/e.rs", "b/d/f.txt", "b/g.txt", "link", "out"] {
        std::fs::write(temp.path().join(path), b"").unwrap();
    }
    let root = Root::serve(temp.path()).unwrap();
    let (hasher, all) = (Hasher::new(DigestCache::new(0)), Quotas::new(0));
    let (names, cancel) = (&all.client().list_names, &CancelToken::new());
    let lister = Lister { root: &root, hasher: &hasher, names, cancel };
    let list = |lister: &Lister, request| lister.begin(&request).and_then(|mut listing| lister.page(&mut listing));
    let request = |target| ListRequest { id: 1, target, recursive: false, digest: false };
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
