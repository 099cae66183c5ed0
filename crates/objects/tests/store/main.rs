//! Reading from a store whose answers fail, with and without a cache.

#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "tests of the program use all of it")]
mod server;

use server::{Fault, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tempfile::TempDir;
use towpath_cache::{CACHE_BYTES_MIN, Cache, Content, PIECE_BYTES};
use towpath_objects::{Bucket, Condition, Kind, Options, Version};

const PIECE: usize = PIECE_BYTES as usize;

fn bucket(store: &Store) -> Bucket {
    let mut options = Options::default();
    options.endpoint = Some(store.endpoint.clone());
    options.anonymous = true;
    Bucket::open(&"s3://data/models".parse().unwrap(), &options).unwrap()
}

fn bytes(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at / 251 + at * 7) as u8).collect()
}

fn version(bucket: &Bucket, path: &str) -> Version {
    let object = bucket.head(path).unwrap();
    let (bucket, path) = (bucket.clone(), path.to_owned());
    Version { bucket, path, size: object.size, modified: object.modified, e_tag: object.e_tag }
}

fn read_all(content: &Content<Version>) -> Vec<u8> {
    let mut all = vec![0; content.version().size as usize];
    let mut done = 0;
    while done < all.len() {
        let count = content.read_at(&mut all[done..], done as u64).unwrap();
        assert!(count > 0);
        done += count;
    }
    assert_eq!(content.read_at(&mut [0; 1], done as u64).unwrap(), 0);
    all
}

#[test]
fn a_piece_is_fetched_once_however_many_want_it() {
    let (store, folder) = (Store::start(), TempDir::new().unwrap());
    let (bucket, all) = (bucket(&store), bytes(2 * PIECE + 1000));
    store.put("models/big", all.clone());
    let cache = Cache::open(folder.path(), CACHE_BYTES_MIN).unwrap();
    let version = version(&bucket, "big");
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let content = Content::new(Some(cache.clone()), version.clone());
                assert!(read_all(&content) == all);
            });
        }
    });
    assert_eq!(store.requests("GET").len(), 3);
    assert!(store.requests("GET").iter().all(|get| get.if_match.is_some()));
    let figures = cache.figures();
    assert_eq!((figures.fetched, figures.fetched_bytes, figures.bypassed), (3, all.len() as u64, 0));
    // From a file, and after a restart.
    let cache = Cache::open(folder.path(), CACHE_BYTES_MIN).unwrap();
    let content = Content::new(Some(cache.clone()), version.clone());
    let (file, at) = content.file_at(PIECE_BYTES + 5, 100, true).unwrap().unwrap();
    let mut part = [0; 100];
    file.read_exact_at(&mut part, at).unwrap();
    assert_eq!(part[..], all[PIECE + 5..PIECE + 105]);
    assert!(content.file_at(PIECE_BYTES + 6, 100, false).unwrap().is_some(), "open by now");
    assert!(content.file_at(PIECE_BYTES - 1, 2, true).unwrap().is_none(), "in two files");
    assert!(read_all(&content) == all);
    assert_eq!((store.requests("GET").len(), cache.figures().fetched), (3, 0));
    // Another version is another piece.
    store.put("models/big", bytes(10));
    let content = Content::new(Some(cache), self::version(&bucket, "big"));
    assert!(read_all(&content) == bytes(10));
}

#[test]
fn a_damaged_piece_is_fetched_again() {
    let (store, folder) = (Store::start(), TempDir::new().unwrap());
    let (bucket, all) = (bucket(&store), bytes(5000));
    store.put("models/a", all.clone());
    let read = || {
        let cache = Cache::open(folder.path(), CACHE_BYTES_MIN).unwrap();
        read_all(&Content::new(Some(cache), version(&bucket, "a")))
    };
    assert!(read() == all);
    let [piece] = &pieces(folder.path()).into_values().collect::<Vec<_>>()[..] else { panic!("one piece") };
    let whole = std::fs::read(piece).unwrap();
    for damaged in [[&[whole[0] ^ 1], &whole[1..]].concat(), whole[..100].to_vec(), Vec::new()] {
        std::fs::write(piece, damaged).unwrap();
        assert!(read() == all);
        assert!(std::fs::read(piece).unwrap() == whole);
    }
    assert_eq!(store.requests("GET").len(), 4);
}

#[test]
fn what_was_not_used_for_longest_is_evicted() {
    let (store, folder) = (Store::start(), TempDir::new().unwrap());
    let bucket = bucket(&store);
    let full = CACHE_BYTES_MIN / 100 * 95;
    // As many as are within the limit, and more.
    let (count, more) = ((full / (PIECE_BYTES + 32)) as usize, 6);
    let all: Vec<u8> = (0..count + more).flat_map(|index| vec![index as u8; PIECE]).collect();
    store.put("models/big", all);
    let version = version(&bucket, "big");
    let open = || Cache::open(folder.path(), CACHE_BYTES_MIN).unwrap();
    let content = |cache: &Cache<Version>| Content::new(Some(cache.clone()), version.clone());
    let read = |content: &Content<Version>, index: usize| {
        let mut byte = [0];
        content.read_at(&mut byte, index as u64 * PIECE_BYTES).unwrap();
        assert_eq!(usize::from(byte[0]), index);
    };
    let (cache, held) = (open(), 1);
    // Each by a reader of its own, for which nothing is fetched ahead.
    (0..count).for_each(|index| read(&content(&cache), index));
    let (file, at) = content(&cache).file_at(held * PIECE_BYTES + 5, 100, true).unwrap().unwrap();
    assert_eq!((cache.figures().evicted, pieces(folder.path()).len()), (0, count));
    drop(cache);
    // Used one after the other, and some again.
    let begin = SystemTime::now() - Duration::from_secs(3600);
    for (index, path) in pieces(folder.path()) {
        let piece = File::options().write(true).open(path).unwrap();
        piece.set_modified(begin + Duration::from_secs(index as u64)).unwrap();
    }
    let (cache, again) = (open(), [2, 9, 20]);
    again.iter().for_each(|index| read(&content(&cache), *index));
    let until = Instant::now() + Duration::from_secs(60);
    let wait = |is_there: &dyn Fn() -> bool| {
        while !is_there() {
            assert!(Instant::now() < until, "{:?}", cache.figures());
            std::thread::yield_now();
        }
    };
    wait(&|| cache.figures().bytes > 0);
    (count..count + more).for_each(|index| read(&content(&cache), index));
    wait(&|| cache.figures().evicted > 0 && cache.figures().bytes <= full);
    let left = pieces(folder.path());
    let by_use = (0..count).filter(|index| !again.contains(index));
    let gone: Vec<_> = (0..count + more).filter(|index| !left.contains_key(index)).collect();
    assert_eq!(gone, by_use.take(gone.len()).collect::<Vec<_>>());
    assert_eq!(cache.figures().evicted, gone.len() as u64);
    // A piece that was evicted while it was open is as it was.
    assert!(gone.contains(&(held as usize)));
    let mut part = [0; 100];
    file.read_exact_at(&mut part, at).unwrap();
    assert_eq!(part, [held as u8; 100]);
}

/// Files of the pieces in a cache, by their first byte.
fn pieces(cache: &Path) -> BTreeMap<usize, PathBuf> {
    let shelves = std::fs::read_dir(cache.join("pieces-1")).unwrap();
    let files = shelves.flat_map(|shelf| std::fs::read_dir(shelf.unwrap().path()).unwrap());
    let by_first = |path: PathBuf| {
        let mut first = [0];
        File::open(&path).unwrap().read_exact_at(&mut first, 0).unwrap();
        (usize::from(first[0]), path)
    };
    files.map(|file| by_first(file.unwrap().path())).collect()
}

#[test]
fn a_piece_that_the_disk_cannot_read_comes_from_the_store() {
    let (store, folder) = (Store::start(), TempDir::new().unwrap());
    let (bucket, all) = (bucket(&store), bytes(5000));
    store.put("models/a", all.clone());
    let cache = Cache::open(folder.path(), CACHE_BYTES_MIN).unwrap();
    let content = Content::new(Some(cache.clone()), version(&bucket, "a"));
    assert!(read_all(&content) == all);
    for path in pieces(folder.path()).values() {
        File::options().write(true).open(path).unwrap().set_len(0).unwrap();
    }
    assert!(read_all(&content) == all);
    assert!(cache.figures().is_broken && cache.figures().bypassed == 1, "{:?}", cache.figures());
}

#[test]
fn without_a_place_to_keep_them_pieces_are_read_from_the_store() {
    let (store, folder) = (Store::start(), TempDir::new().unwrap());
    let (bucket, all) = (bucket(&store), bytes(PIECE + 10));
    store.put("models/a", all.clone());
    let cache = Cache::open(folder.path(), CACHE_BYTES_MIN).unwrap();
    let content = Content::new(Some(cache.clone()), version(&bucket, "a"));
    std::fs::remove_dir_all(folder.path()).unwrap();
    assert!(read_all(&content) == all);
    assert!(cache.figures().is_broken && cache.figures().bypassed > 0, "{:?}", cache.figures());
    let uncached = Content::new(None, version(&bucket, "a"));
    assert!(read_all(&uncached) == all);
    assert!(uncached.file_at(0, 10, true).unwrap().is_none());
}

#[test]
fn a_replaced_object_is_never_mixed() {
    let (store, folder) = (Store::start(), TempDir::new().unwrap());
    let bucket = bucket(&store);
    store.put("models/a", bytes(2 * PIECE));
    let gets = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&gets);
    store.fail(move |request| {
        let is_second = request.method == "GET" && count.fetch_add(1, Ordering::Relaxed) == 1;
        is_second.then(|| Fault::Replaced(vec![0; 2 * PIECE]))
    });
    let cache = Cache::open(folder.path(), CACHE_BYTES_MIN).unwrap();
    let content = Content::new(Some(cache), version(&bucket, "a"));
    let mut buffer = vec![0; PIECE];
    let results = [0, PIECE_BYTES].map(|offset| content.read_at(&mut buffer, offset).map_err(|error| error.kind));
    assert!(results.contains(&Err(Kind::Changed)), "{results:?}");
}

#[test]
fn passing_failures_are_repeated_and_others_have_clear_kinds() {
    let store = Store::start();
    let (bucket, all) = (bucket(&store), bytes(100_000));
    store.put("models/a", all.clone());
    let version = version(&bucket, "a");
    let read = || {
        let mut buffer = vec![0; all.len()];
        let content = Content::new(None, version.clone());
        content.read_at(&mut buffer, 0).map(|count| assert!(buffer[..count] == all[..])).map_err(|error| error.kind)
    };
    for fault in [Fault::Status(503, "SlowDown"), Fault::Status(500, "InternalError"), Fault::Cut(777)] {
        let mut left = 2;
        store.fail(move |_| {
            left -= 1;
            (left >= 0).then(|| fault.clone())
        });
        assert_eq!(read(), Ok(()));
        let mut left = 2;
        store.fail(move |request| {
            left -= i32::from(request.query.contains_key("list-type"));
            (left >= 0).then_some(Fault::Status(503, "SlowDown"))
        });
        assert_eq!(bucket.list("", None).unwrap().objects.len(), 1);
    }
    let kinds = [
        (403, "AccessDenied", Kind::Denied),
        (403, "ExpiredToken", Kind::Expired),
        (403, "InvalidObjectState", Kind::Archived),
        (404, "NoSuchBucket", Kind::NoBucket),
        (404, "NoSuchKey", Kind::NotFound),
        (412, "PreconditionFailed", Kind::Changed),
    ];
    for (status, code, kind) in kinds {
        store.fail(move |_| Some(Fault::Status(status, code)));
        assert_eq!(read(), Err(kind), "{code}");
        assert_eq!(bucket.check().unwrap_err().kind, kind, "{code}");
    }
}

#[test]
fn keys_of_all_kinds_are_listed() {
    let store = Store::start();
    let bucket = bucket(&store);
    let keys =
        ["models/a//b", "models//c", "models/../d", "models/dir/", "models/new\nline", "models/ä b+c%", "other/e"];
    keys.iter().for_each(|key| store.put(key, *b"x"));
    for number in 0..250 {
        store.put(&format!("models/many/{number:03}"), *b"x");
    }
    let page = bucket.list("", None).unwrap();
    assert_eq!(page.prefixes, ["models/../", "models//", "models/a/", "models/dir/", "models/many/"]);
    let names: Vec<_> = page.objects.iter().map(|object| object.key.as_str()).collect();
    assert_eq!(names, ["models/new\nline", "models/ä b+c%"]);
    let (mut mark, mut found) = (None, BTreeSet::new());
    loop {
        let page = bucket.list("many", mark.as_deref()).unwrap();
        found.extend(page.objects.into_iter().map(|object| object.key));
        mark = page.next;
        if mark.is_none() {
            break;
        }
    }
    assert_eq!(found.len(), 250);
    assert!(bucket.is_directory("dir").unwrap() && !bucket.is_directory("di").unwrap());
    assert_eq!(bucket.head("ä b+c%").unwrap().size, 1);
    for unnamed in ["new\nline", "a//b", "../d", "dir/", ""] {
        assert_eq!(bucket.head(unnamed).unwrap_err().kind, Kind::NotFound, "{unnamed:?}");
    }
}

#[test]
fn pages_without_entries_are_passed_over() {
    let store = Store::start();
    let bucket = bucket(&store);
    store.put("models/dir/a", *b"x");
    let mut left = 0;
    store.fail(move |_| {
        left = (left + 1) % 3;
        (left > 0).then_some(Fault::EmptyPage)
    });
    assert!(bucket.is_directory("dir").unwrap() && !bucket.is_directory("other").unwrap());
    assert_eq!(bucket.list("dir", None).unwrap().objects.len(), 1);
    store.fail(|_| Some(Fault::EmptyPage));
    assert!(bucket.is_directory("dir").unwrap_err().to_string().contains("no entries"));
}

#[test]
fn a_store_that_is_not_there_is_unreachable() {
    let mut options = Options::default();
    // Nobody listens there: the port was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    options.endpoint = Some(format!("http://127.0.0.1:{port}"));
    options.anonymous = true;
    let bucket = Bucket::open(&"s3://data".parse().unwrap(), &options).unwrap();
    assert_eq!(bucket.check().unwrap_err().kind, Kind::Unreachable);
}

/// Puts an object as a whole, or in two parts.
fn put(bucket: &Bucket, path: &str, content: &[u8], in_parts: bool, condition: &Condition) -> Result<String, Kind> {
    let metadata = vec![("a".to_owned(), "b".to_owned())];
    let tag = match in_parts {
        false => bucket.put_if(path, content.to_vec().into(), &metadata, condition),
        true => bucket.upload(path, &metadata).and_then(|upload| {
            upload.part(1, content[1..].to_vec().into())?;
            upload.part(0, content[..1].to_vec().into())?;
            upload.complete_if(condition)
        }),
    };
    tag.map(Option::unwrap).map_err(|error| error.kind)
}

#[test]
fn an_object_is_put_on_a_condition() {
    let store = Store::start();
    let bucket = bucket(&store);
    for in_parts in [false, true] {
        let path = format!("d e+%/{in_parts}");
        let there = || store.content(&format!("models/{path}")).map(|content| content.to_vec());
        let put = |content, condition| put(&bucket, &path, content, in_parts, &condition);
        let other = Condition::Tag("\"other\"".to_owned());
        assert_eq!(put(b"none", other.clone()), Err(Kind::Changed));
        assert_eq!(there(), None);
        let tag = put(b"first", Condition::Nothing).unwrap();
        assert_eq!(bucket.head(&path).unwrap().e_tag, Some(tag.clone()));
        assert_eq!(put(b"none", Condition::Nothing), Err(Kind::Changed));
        assert_eq!(put(b"none", other), Err(Kind::Changed));
        assert_eq!(there().unwrap(), b"first");
        put(b"second", Condition::Tag(tag)).unwrap();
        put(b"third", Condition::Anything).unwrap();
        assert_eq!(there().unwrap(), b"third");
        assert_eq!(store.metadata(&format!("models/{path}"), "a").unwrap(), "b");
    }
    assert_eq!(store.keys().len(), 2);
}

#[test]
fn a_completion_is_repeated_and_one_that_failed_leaves_no_parts() {
    let store = Store::start();
    let bucket = bucket(&store);
    let mut refused = 0;
    store.fail(move |request| {
        let is_end = request.method == "POST" && request.query.contains_key("uploadId");
        refused += usize::from(is_end);
        (is_end && refused <= 2).then_some(Fault::Status(503, "SlowDown"))
    });
    put(&bucket, "a", b"content", true, &Condition::Nothing).unwrap();
    // Its answer is lost: the repetition finds the object itself.
    let mut is_lost = false;
    store.fail(move |request| {
        let is_end = request.method == "POST" && request.query.contains_key("uploadId");
        (is_end && !std::mem::replace(&mut is_lost, true)).then_some(Fault::Lost)
    });
    assert_eq!(put(&bucket, "b", b"content", true, &Condition::Nothing), Err(Kind::Changed));
    assert_eq!(store.keys(), ["models/a", "models/b"]);
    store.fail(|request| request.query.contains_key("uploadId").then_some(Fault::Status(501, "NotImplemented")));
    let upload = bucket.upload("c", &Vec::new()).unwrap();
    assert_eq!(upload.part(0, b"content".to_vec().into()).unwrap_err().kind, Kind::Other);
    store.fail(|_| None);
    upload.abort().unwrap();
    assert_eq!(store.uploads(), [""; 0]);
}
