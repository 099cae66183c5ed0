//! Bodies that are too large for memory, and where they have a place.

use super::*;

#[test]
fn large_bodies_go_through_files_both_ways() {
    on_both(|| async {
        const SIZE: usize = 9 << 20;
        let broker = Running::start(|_| ());
        let endpoint = std::slice::from_ref(&broker.endpoint);
        let worker = Worker::at_once(endpoint, "echo", options(2, Dialect::Auto), |body| {
            assert!(body.as_large().is_some() == (body.length() > 1 << 20));
            body
        })
        .unwrap();
        let client = client(&[&broker.endpoint], Dialect::Auto);
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..SIZE).map(|n| (n * 7 + n / 251) as u8).collect();
        let mut writer = Spool::new(folder.path()).unwrap().create().unwrap();
        writer.write(&bytes).unwrap();
        for body in [Body::large(writer.finish()), Body::from(bytes.clone())] {
            let reply = client.call("echo", body).await.unwrap().body;
            assert_eq!((reply.length(), reply.large_bytes()), (SIZE as u64, SIZE as u64));
            let came = tokio::task::spawn_blocking(move || reply.to_vec_limited(SIZE)).await.unwrap().unwrap();
            assert!(came == bytes);
        }
        assert_eq!(worker.status().counters.requests, 2);
        assert_eq!(client.call("echo", "small").await.unwrap().body, Body::from("small"));
    });
}

#[test]
fn a_worker_without_a_place_for_large_bodies_leaves_them_to_others() {
    on_one(async {
        let broker = Running::start(|_| ());
        let here = std::slice::from_ref(&broker.endpoint);
        let mut without = options(1, Dialect::Auto);
        without.link.spool_folder = Some("/proc/nowhere".into());
        let without = Worker::at_once(here, "work", without, |_| Body::from("without")).unwrap();
        let client = client(&[&broker.endpoint], Dialect::Auto);
        // There is nobody else.
        let short = CallOptions { ttl: Some(Duration::from_millis(300)), ..CallOptions::default() };
        let error = client.call_with("work", vec![0; 2 * MIB], short).await.unwrap_err();
        // It may be on its way to that worker just then.
        assert!(matches!(error.status(), Some(Status::EXPIRED | Status::TIMED_OUT)), "{error}");
        let workers = client.call("mmi.workers", "work").await.unwrap().body.to_vec_limited(MIB).unwrap();
        assert!(String::from_utf8_lossy(&workers).contains("/proc/nowhere"), "{}", String::from_utf8_lossy(&workers));
        let _with = Worker::at_once(here, "work", options(1, Dialect::Auto), |_| Body::from("with")).unwrap();
        let served = || async {
            let served = client.call("mmi.workers", "work").await.unwrap().body.to_vec_limited(MIB).unwrap();
            String::from_utf8_lossy(&served).matches("credit").count()
        };
        while served().await < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The client waits a second, and asks again.
        let (before, start) = (without.status().counters.requests, Instant::now());
        while without.status().counters.requests == before {
            assert!(start.elapsed() < TIMEOUT, "it was never asked");
            assert_eq!(client.call("work", vec![0; 2 * MIB]).await.unwrap().body, Body::from("with"));
        }
        // Small ones it does.
        while client.call("work", "small").await.unwrap().body != Body::from("without") {}
    });
}

/// Drops what is in memory of the files below a folder; false where some of a file stays.
fn drop_cached(folder: &std::path::Path) -> bool {
    use towpath_sockets::page_cache::{Residency, probe};
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.fold(true, |all, path| {
        let dropped = if path.is_dir() {
            drop_cached(&path)
        } else {
            let file = std::fs::File::open(&path).unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            let length = file.metadata().unwrap().len();
            length == 0 || probe(&file, 0, length) == Residency::Uncached
        };
        dropped && all
    })
}

#[test]
fn stored_replies_of_any_kind_reach_a_numbered_client() {
    on_one(async {
        // Where files are on a disk, what is in memory of them can be dropped.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let broker = Running::start(|options| options.journal = Some(folder.path().join("journal")));
        let here = std::slice::from_ref(&broker.endpoint);
        let reply = |body: Body| match body.single().unwrap() {
            b"in a file" => vec![7; 3 * MIB].into(),
            b"too large" => vec![7; 64 * MIB].into(),
            b"many" => of_frames(&[1; 999]),
            _ => of_frames(&[1; 1000]),
        };
        let _worker = Worker::at_once(here, "work", options(1, Dialect::Auto), reply).unwrap();
        let client = client(&[&broker.endpoint], Dialect::Auto);
        for (kind, frames, last) in
            [("in a file", 2, 3 * MIB), ("many", 1000, 1), ("too many", 2, 0), ("too large", 2, 0)]
        {
            let asked = client.call("titanic.request", Body::of_frames(["work".into(), kind.into()])).await.unwrap();
            let name = Body::copied(asked.body.frames().unwrap().last().unwrap());
            let given = loop {
                let given = client.call("titanic.reply", name.clone()).await.unwrap().body;
                if given != Body::from("300") {
                    break given;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            };
            if kind == "in a file" {
                let dropped = drop_cached(folder.path());
                let again = client.call("titanic.reply", name.clone()).await.unwrap().body;
                assert!(again == given, "dropped: {dropped}");
                // One that is asked for before it is closed is given, though the disk has to be asked.
                let dropped = drop_cached(folder.path());
                let (again, closed) = tokio::join!(
                    client.call("titanic.reply", name.clone()),
                    client.call("titanic.close", name.clone())
                );
                assert!(again.unwrap().body == given, "dropped: {dropped}");
                assert_eq!(closed.unwrap().body, Body::from("200"));
            }
            let given: Vec<_> = given.frames().unwrap().collect();
            let code = if last > 0 { "200" } else { "413" };
            assert_eq!((given[0], given.len()), (code.as_bytes(), frames), "{kind}");
            match last {
                0 => assert!(given[1].ends_with(b"a stock client of Majordomo is given it")),
                bytes => assert_eq!(given.last().unwrap().len(), bytes),
            }
        }
    });
}
