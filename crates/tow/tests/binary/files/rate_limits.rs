//! `--bwlimit` of everything that transfers: the bytes between two looks at a counter are no more than the rate allows.

use crate::support::process::{Process, Server, run, tow};
use crate::support::proxy::Proxy;
use crate::support::tree::random_file;
use crate::support::wait_until;
use std::time::Instant;
use tempfile::tempdir;

const RATE: u64 = 400 << 10;
/// Bytes of the file: three seconds' worth.
const SIZE: usize = 1200 << 10;
/// Bytes between the first look and the second.
const WINDOW: u64 = 800 << 10;
/// A piece, and what gathers in a pause, are a quarter of a second's worth each; a tenth of the rest is for frames and buffers on the way.
const SLACK: u64 = RATE / 2 + WINDOW / 10;

#[test]
fn commands_that_transfer_keep_to_their_rate() {
    let folder = tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let served = path("served");
    std::fs::create_dir_all(folder.path().join("served/in")).expect("a directory");
    random_file(&folder.path().join("served/file"), SIZE, 1);
    random_file(&folder.path().join("pushed"), SIZE, 2);
    let words = ["serve", &served, "--watch", "--settle", "50ms", "--accept-push", "in", "--bind", "tcp://127.0.0.1:0"];
    let server = Server::from_command(&mut tow(words));
    let proxies: Vec<Proxy> = std::iter::repeat_with(|| Proxy::start(server.port())).take(3).collect();
    let bwlimit = ["--bwlimit", "400K"];
    let started = [
        (
            vec!["get".to_owned(), proxies[0].url("file"), path("got"), "--quiet".to_owned()],
            Proxy::passed as fn(&Proxy) -> u64,
        ),
        (vec!["push".to_owned(), path("pushed"), proxies[1].url("in/"), "--quiet".to_owned()], Proxy::sent),
        (vec!["follow".to_owned(), proxies[2].url("file"), path("followed"), "--once".to_owned()], Proxy::passed),
    ];
    let started = started.map(|(words, count)| (Process::start(tow(words).args(bwlimit)), count));
    std::thread::scope(|scope| {
        for ((process, count), proxy) in started.into_iter().zip(&proxies) {
            scope.spawn(move || {
                // Time from before a look to after the other: never less than what the bytes had.
                let begun = Instant::now();
                wait_until("bytes come", || count(proxy) > 0);
                let first = count(proxy);
                wait_until("more come", || count(proxy) >= first + WINDOW);
                let bytes = count(proxy) - first;
                let allowed = (begun.elapsed().as_secs_f64() * RATE as f64) as u64 + SLACK;
                assert!(bytes <= allowed, "{bytes} bytes, of {allowed}");
                process.finish().expect_code(0);
            });
        }
    });
    let same =
        |one: &str, other: &str| std::fs::read(path(one)).expect("read") == std::fs::read(path(other)).expect("read");
    assert!(same("served/file", "got") && same("served/file", "followed/file") && same("pushed", "served/in/pushed"));
}

/// Both get the file in turns: together they have no more than the rate, and neither waits for the other's end.
#[test]
fn a_server_keeps_to_its_rate_for_all_clients_together() {
    let folder = tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    random_file(&folder.path().join("file"), SIZE / 2, 1);
    let words = ["serve", &path("file"), "--bind", "tcp://127.0.0.1:0", "--bwlimit", "400K"];
    let server = Server::from_command(&mut tow(words));
    let proxies: Vec<Proxy> = std::iter::repeat_with(|| Proxy::start(server.port())).take(2).collect();
    let begun = Instant::now();
    let copies = ["first", "second"];
    let gets = copies.iter().zip(&proxies);
    let gets: Vec<_> =
        gets.map(|(copy, proxy)| Process::start(&mut tow(["get", "-q", &proxy.url("file"), &path(copy)]))).collect();
    let passed = |count: u64| proxies.iter().all(|proxy| proxy.passed() >= count);
    wait_until("both get something", || passed(SIZE as u64 / 4));
    assert!(proxies.iter().all(|proxy| proxy.passed() < SIZE as u64 / 2), "they take turns");
    gets.into_iter().for_each(|get| _ = get.finish().expect_code(0));
    let allowed = (begun.elapsed().as_secs_f64() * RATE as f64) as u64 + SLACK;
    assert!(SIZE as u64 <= allowed, "{SIZE} bytes, of {allowed}");
    for copy in copies {
        assert!(std::fs::read(path(copy)).expect("read") == std::fs::read(path("file")).expect("read"));
    }
}

#[test]
fn rates_that_are_too_low_are_refused() {
    for words in [&["get", "h:/a"][..], &["push", "a", "h:/"], &["follow", "h:/a", "b"], &["serve", "a"]] {
        let outcome = run(tow(words).args(["--bwlimit", "1000"])).expect_code(2);
        assert!(outcome.stderr.contains("at least 4K"), "{}", outcome.stderr);
    }
}
