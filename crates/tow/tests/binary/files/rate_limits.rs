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
    // So large that the first hasn't ended when the second begins.
    random_file(&folder.path().join("file"), 10 * SIZE, 1);
    let words = ["serve", &path("file"), "--bind", "tcp://127.0.0.1:0", "--bwlimit", "400K"];
    let server = Server::from_command(&mut tow(words));
    let proxies = [Proxy::start(server.port()), Proxy::start(server.port())];
    let _gets = ["first", "second"]
        .map(path)
        .iter()
        .zip(&proxies)
        .map(|(copy, proxy)| Process::start(&mut tow(["get", "-q", &proxy.url("file"), copy])))
        .collect::<Vec<_>>();
    let passed = || proxies.each_ref().map(Proxy::passed);
    let begun = Instant::now();
    // Greetings and metadata come first, and wait for turns, too.
    wait_until("both get something of the file", || passed().iter().all(|bytes| *bytes > RATE / 8));
    let before = passed();
    let gained = || std::array::from_fn::<u64, 2, _>(|index| passed()[index] - before[index]);
    wait_until("both get more", || gained().iter().all(|bytes| *bytes >= WINDOW / 2));
    let [first, second] = gained();
    assert!(first.abs_diff(second) <= SLACK, "{first} and {second} bytes: they don't take turns");
    let allowed = (begun.elapsed().as_secs_f64() * RATE as f64) as u64 + SLACK;
    assert!(first + second <= allowed, "{first} and {second} bytes, of {allowed}");
}

#[test]
fn rates_that_are_too_low_are_refused() {
    for words in [&["get", "h:/a"][..], &["push", "a", "h:/"], &["follow", "h:/a", "b"], &["serve", "a"]] {
        let outcome = run(tow(words).args(["--bwlimit", "1000"])).expect_code(2);
        assert!(outcome.stderr.contains("at least 4K"), "{}", outcome.stderr);
    }
}
