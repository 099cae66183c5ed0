use super::*;
use rustix::fs::Mode;
use std::os::unix::fs::symlink;
use tempfile::TempDir;

fn path(text: &str) -> RelPath {
    RelPath::new(text).unwrap()
}

/// Outside a secret; inside files, links that stay and links that leave.
fn tree() -> TempDir {
    let temp = TempDir::new().unwrap();
    let at = |name: &str| temp.path().join(name);
    std::fs::create_dir_all(at("root/sub/deep")).unwrap();
    std::fs::write(at("secret"), "secret").unwrap();
    std::fs::write(at("root/a"), "inside").unwrap();
    std::fs::write(at("root/sub/b"), "below").unwrap();
    symlink("a", at("root/link")).unwrap();
    symlink("sub", at("root/linked")).unwrap();
    symlink("../secret", at("root/out")).unwrap();
    symlink(at("secret"), at("root/absolute")).unwrap();
    symlink("..", at("root/up")).unwrap();
    symlink("loop", at("root/loop")).unwrap();
    temp
}

fn both_ways(temp: &TempDir, links: Links) -> [Root; 2] {
    let root = || Root::directory(temp.path().join("root"), links).unwrap();
    [root(), root().without_openat2()]
}

fn content(root: &Root, name: &str) -> Result<String, RootError> {
    let (file, stat) = root.open_file(&path(name))?;
    let text = std::io::read_to_string(file).unwrap();
    assert_eq!(stat.size, text.len() as u64);
    Ok(text)
}

#[test]
fn links_never_lead_out() {
    let temp = tree();
    for links in [Links::Beneath, Links::Never] {
        for root in both_ways(&temp, links) {
            assert_eq!(content(&root, "a").unwrap(), "inside");
            assert_eq!(content(&root, "sub/b").unwrap(), "below");
            for name in ["out", "absolute", "up/secret", "loop"] {
                let error = content(&root, name).unwrap_err();
                assert!(matches!(error, RootError::Outside | RootError::NotFound), "{name}: {error}");
            }
            assert!(root.open_dir(&path("up")).is_err());
            assert_eq!(root.stat(&path("out")).unwrap().kind, FileKind::Link);
            assert_eq!(root.read_link(&path("out")).unwrap(), b"../secret");
        }
    }
}

#[test]
fn mounts_are_found_by_cached_names() {
    let device = |path: &str| FileStat::try_from(&File::open(path).unwrap()).unwrap().device;
    let (root, proc) = (Root::directory("/", Links::Beneath).unwrap(), device("/proc/version"));
    assert_ne!(proc, device("/"));
    assert_eq!(root.mounted_below(&path("proc/version")), Some(proc));
    // Nobody has asked for these: that they'd be below the mount is known all the same.
    assert_eq!(root.mounted_below(&path("proc/none")), Some(proc));
    assert_eq!(root.mounted_below(&path(&format!("proc{}", "/none".repeat(800)))), Some(proc));
    assert_eq!(root.mounted_below(&path("none/none")), None);
    assert_eq!(root.mounted_below(&RelPath::root()), None);
    assert!(root.open_unmounted_file(&path("proc/version")).unwrap().is_none());
    assert!(matches!(root.open_file(&path("proc/version")), Err(RootError::SizeUnknown)));

    let temp = tree();
    for root in both_ways(&temp, Links::Beneath) {
        for name in ["a", "sub/b", "sub/none", "out"] {
            assert_eq!(root.mounted_below(&path(name)), None);
        }
        assert!(root.open_unmounted_file(&path("sub/b")).unwrap().is_some());
        assert!(matches!(root.open_unmounted_file(&path("none")), Err(RootError::NotFound)));
    }
    let root = Root::directory("/", Links::Beneath).unwrap().without_openat2();
    assert_eq!(root.mounted_below(&path("proc/version")), None);
    assert!(matches!(root.open_unmounted_file(&path("proc/version")), Err(RootError::SizeUnknown)));
}

#[test]
fn inner_links_are_followed_only_if_requested() {
    let temp = tree();
    let serving = Root::directory(temp.path().join("root"), Links::Beneath).unwrap();
    assert_eq!(content(&serving, "link").unwrap(), "inside");
    assert_eq!(content(&serving, "linked/b").unwrap(), "below");
    let [receiving, walking] = both_ways(&temp, Links::Never);
    let others = [receiving, walking, serving.without_openat2()];
    for root in &others {
        assert!(content(root, "link").is_err());
        assert!(content(root, "linked/b").is_err());
        assert!(root.open_dir(&path("linked")).is_err());
    }
}

#[test]
fn special_files_are_refused_without_waiting() {
    let temp = tree();
    let fifo = temp.path().join("root/fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    for root in both_ways(&temp, Links::Beneath) {
        // Without O_NONBLOCK this would wait for a writer for ever.
        assert!(matches!(root.open_file(&path("fifo")), Err(RootError::NotAFile)));
        assert!(matches!(root.open_file(&path("sub")), Err(RootError::NotAFile)));
        assert!(matches!(root.open_file(&RelPath::root()), Err(RootError::NotAFile)));
        assert!(matches!(root.open_file(&path("missing")), Err(RootError::NotFound)));
        assert!(matches!(root.open_file(&path("a/b")), Err(RootError::NotFound)));
        assert_eq!(root.stat(&path("fifo")).unwrap().kind, FileKind::Other);
    }
}

#[test]
fn a_link_swapped_in_between_does_not_lead_out() {
    let temp = tree();
    let at = |name: &str| temp.path().join(name);
    std::fs::create_dir(at("outside")).unwrap();
    std::fs::write(at("outside/b"), "secret").unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let running = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            symlink("../outside", at("root/evil")).unwrap();
            while !stop.load(running) {
                rustix::fs::renameat_with(
                    rustix::fs::CWD,
                    at("root/evil"),
                    rustix::fs::CWD,
                    at("root/sub"),
                    rustix::fs::RenameFlags::EXCHANGE,
                )
                .unwrap();
            }
        });
        for root in both_ways(&temp, Links::Beneath) {
            let mut read = 0;
            for _ in 0..20_000 {
                match content(&root, "sub/b") {
                    Ok(text) => {
                        assert_eq!(text, "below");
                        read += 1;
                    }
                    Err(RootError::Outside | RootError::NotFound) => {}
                    Err(RootError::Io(error)) => {
                        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock)
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(read > 0);
        }
        stop.store(true, running);
    });
}

#[test]
fn a_root_of_one_file_shows_nothing_else() {
    let temp = tree();
    let root = Root::serve(temp.path().join("root/a")).unwrap();
    assert_eq!(root.only_file(), Some(&path("a")));
    assert_eq!(content(&root, "a").unwrap(), "inside");
    // It is the root, too.
    assert_eq!(root.open_file(&RelPath::root()).unwrap().1, root.open_file(&path("a")).unwrap().1);
    assert_eq!(root.stat(&RelPath::root()).unwrap().kind, FileKind::File);
    for name in ["sub/b", "link", "sub"] {
        assert!(matches!(root.open_file(&path(name)), Err(RootError::NotFound)));
        assert!(matches!(root.stat(&path(name)), Err(RootError::NotFound)));
    }
    assert!(matches!(root.open_dir(&RelPath::root()), Err(RootError::NotFound)));

    let by_link = Root::serve(temp.path().join("root/out")).unwrap();
    assert_eq!(by_link.only_file(), Some(&path("out")));
    assert_eq!(content(&by_link, "out").unwrap(), "secret");
    assert!(matches!(by_link.open_file(&path("a")), Err(RootError::NotFound)));
}

#[test]
fn receiving_creates_renames_and_sets_metadata() {
    use std::io::Write;
    let temp = tree();
    for root in both_ways(&temp, Links::Never) {
        let dir = root.create_dirs(&path("new/deeper/still"), 0o755).unwrap();
        let mut file = dir.create_file(b".part", 0o600).unwrap();
        file.write_all(b"data").unwrap();
        assert!(matches!(dir.create_file(b".part", 0o600), Err(RootError::Exists)));
        set_mode(&file, 0o640).unwrap();
        let time = Timestamp { seconds: -5, nanoseconds: 250_000_000 };
        set_modified(&file, time).unwrap();
        dir.rename(b".part", &dir, b"whole").unwrap();
        let stat = root.stat(&path("new/deeper/still/whole")).unwrap();
        assert_eq!((stat.mode, stat.modified, stat.size), (0o640, time, 4));
        dir.create_file(b"second", 0o600).unwrap();
        dir.rename(b"second", &dir, b"third").unwrap();

        assert!(matches!(root.create_dirs(&path("a/b"), 0o755), Err(RootError::NotADirectory)));
        assert!(matches!(root.create_dirs(&path("up/b"), 0o755), Err(RootError::NotADirectory | RootError::Outside)));
        let top = root.open_dir(&RelPath::root()).unwrap();
        assert!(matches!(top.open_writable(b"out"), Err(RootError::Outside)));
        assert!(matches!(top.create_file(b"out", 0o600), Err(RootError::Exists)));
        assert!(matches!(dir.create_file(b"../x", 0o600), Err(RootError::Path(PathError::Slash))));
        assert!(!temp.path().join("root/x").exists());

        dir.symlink(b"whole", b"link").unwrap();
        dir.set_entry_modified(b"link", time).unwrap();
        assert_eq!(dir.stat(b"link").unwrap().modified, time);
        assert_eq!(dir.existing(b"nothing").unwrap(), None);
        let names: Vec<_> = dir.entries(10).unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, [&b"link"[..], b"third", b"whole"].map(Box::from));
        assert!(matches!(dir.entries(2), Err(RootError::TooMany(2))));
        for name in [&b"link"[..], b"third", b"whole"] {
            dir.remove_file(name).unwrap();
        }
        root.open_dir(&path("new/deeper")).unwrap().remove_dir(b"still").unwrap();
        root.open_dir(&path("new")).unwrap().remove_dir(b"deeper").unwrap();
        top.remove_dir(b"new").unwrap();
    }
    assert_eq!(std::fs::read_to_string(temp.path().join("secret")).unwrap(), "secret");
}

#[test]
fn cached_paths_open_by_the_same_rules() {
    let temp = tree();
    let [root, without_openat2] = both_ways(&temp, Links::Beneath);
    let cached = |name: &str| root.open_cached_file(&path(name));
    for name in ["a", "sub/b", "link", "linked/b"] {
        // Its names are in the cache from here on, unless the system is short of memory, which it isn't for long.
        let opened = (0..1000).find_map(|_| {
            content(&root, name).unwrap();
            cached(name).unwrap()
        });
        let (file, _) = opened.unwrap();
        assert_eq!(std::io::read_to_string(file).unwrap(), content(&root, name).unwrap());
    }
    for name in ["out", "absolute", "up/secret", "loop", "sub", "missing"] {
        assert!(!matches!(cached(name), Ok(Some(_))), "{name}");
    }
    assert!(without_openat2.open_cached_file(&path("a")).unwrap().is_none());
}
