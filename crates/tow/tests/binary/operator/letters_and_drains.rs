//! Dead letters and drains by an operator; the journal as an operator sees it.

use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::tempdir;

use crate::operator::problems::problems;
use crate::operator::status::{Place, get};
use crate::support::broker::{Broker, call, work};
use crate::support::process::{Process, run, tow};
use crate::support::tree::write;
use crate::support::wire::Wire;
use crate::support::{DEADLINE, wait_until};

/// Bytes of a file that is more than a client and the sockets hold.
const SIZE: usize = 64 << 20;

/// A command that finds the servers of a place, not yet started.
pub fn at(place: &Place, arguments: &[&str]) -> Command {
    let mut command = tow(arguments);
    command.env("XDG_RUNTIME_DIR", place.0.path()).env_remove("RUNTIME_DIRECTORY");
    command
}

fn letters(place: &Place) -> u64 {
    let services = place.json(&["dead-letters"]);
    services.iter().map(|service| service["letters"].as_u64().expect("a number")).sum()
}

pub fn service(place: &Place, name: &str, member: &str) -> u64 {
    place.json(&["services", name]).first().map_or(0, |service| service[member].as_u64().expect("a number"))
}

/// A broker whose journal has this many dead letters of `echo`.
pub fn with_dead_letters(place: &Place, journal: &Path, count: usize) -> Broker {
    let broker = place.broker(&["--attempts", "1", "--journal", journal.to_str().expect("UTF-8")]);
    let worker = work(&[&broker], &["echo", "--jobs", &count.to_string(), "--", "sleep", "100"]);
    let calls: Vec<_> = (0..count).map(|number| call(&[&broker], &["echo", &number.to_string()])).collect();
    let calls: Vec<_> = calls.into_iter().map(|mut call| Process::start(&mut call)).collect();
    let held = || place.json(&["workers"]).first().and_then(|worker| worker["held"].as_u64());
    wait_until("the worker has them", || held() == Some(count as u64));
    worker.signal(Signal::KILL);
    for call in calls {
        assert!(call.finish().stderr.contains("kept for dlq.echo"));
    }
    assert_eq!(letters(place), count as u64);
    broker
}

#[test]
fn dead_letters_are_sent_again_and_stay_so_after_a_crash() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let journal = folder.path().join("journal");
    let broker = with_dead_letters(&place, &journal, 3);
    let listed = place.json(&["dead-letters", "echo"]);
    let bytes: Vec<_> = listed.iter().map(|letter| letter["bytes"].as_u64()).collect();
    assert_eq!((bytes, &listed[0]["state"], &listed[0]["attempts"]), (vec![Some(1); 3], &"waiting".into(), &1.into()));
    assert_eq!(place.json(&["dead-letters", "dlq.echo"]).len(), 3);
    let status = String::from_utf8(place.tow(&["status"]).expect_code(0).stdout).expect("UTF-8");
    assert!(status.contains("\nWARNING     echo: 3 dead letters are kept, "), "{status}");

    let refused = place.tow(&["requeue", "echo", "--expect", "2"]).expect_code(5);
    assert!(refused.stderr.contains("dead letters: 3, expected: 2; nothing was done"), "{}", refused.stderr);
    place.tow(&["requeue", "echo", "--drop"]).expect_code(2);
    assert_eq!(letters(&place), 3);
    let done = place.tow(&["requeue", "echo"]).expect_code(0);
    broker.signal(Signal::KILL);
    assert_eq!(done.stdout, b"requeued 3 dead letters of echo\n");
    broker.finish();

    let broker = place.broker(&["--attempts", "1", "--journal", journal.to_str().expect("UTF-8")]);
    assert_eq!((letters(&place), service(&place, "echo", "waiting")), (0, 3));
    // What fails again comes back.
    let failing = work(&[&broker], &["echo", "--", "false"]);
    wait_until("they are dead letters again", || letters(&place) == 3);
    drop(failing);
    let out = folder.path().join("out");
    let command = format!("cat >> {}", out.display());
    let _worker = work(&[&broker], &["echo", "--", "sh", "-c", &command]);
    place.tow(&["requeue", "echo", "--expect", "3"]).expect_code(0);
    wait_until("they are done", || place.json(&["status"])[0]["requests"] == 0);
    let mut done = std::fs::read(&out).expect("what the worker got");
    done.sort_unstable();
    assert_eq!(done, b"012");
    place.tow(&["requeue", "echo"]).expect_code(4);
}

#[test]
fn dropped_dead_letters_do_not_come_back() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let journal = folder.path().join("journal");
    let broker = with_dead_letters(&place, &journal, 2);
    broker.signal(Signal::KILL);
    broker.finish();
    let broker = place.broker(&["--journal", journal.to_str().expect("UTF-8")]);
    let problem = problems(&place, "dead_letters").remove(0);
    assert_eq!((&problem["service"], &problem["evidence"]["letters"]), (&"echo".into(), &2.into()));
    let done = place.tow(&["requeue", "echo", "--drop", "--expect", "2"]).expect_code(0);
    broker.signal(Signal::KILL);
    assert_eq!(done.stdout, b"dropped 2 dead letters of echo\n");
    broker.finish();
    let _broker = place.broker(&["--journal", journal.to_str().expect("UTF-8")]);
    assert_eq!((letters(&place), problems(&place, "dead_letters").len()), (0, 0));
    assert_eq!(place.json(&["journal"])[0]["journal"]["state"], "ok");
}

/// The figure of the status that should be zero.
fn held(place: &Place) -> Value {
    let status = place.json(&["status"]).remove(0);
    let all = status["should_be_zero"].as_array().expect("a list").clone();
    let held = all.into_iter().find(|figure| figure["name"] == "dead_letters_held").expect("the figure");
    assert_eq!((&held["value"], &held["now"]), (&status["dead_letters"], &true.into()));
    held["value"].clone()
}

#[test]
fn dead_letters_have_their_reason_and_time_also_after_a_crash_and_their_number_is_what_is_held() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let journal = folder.path().join("journal");
    let arguments = ["--attempts", "1", "--journal", journal.to_str().expect("UTF-8")];
    let broker = with_dead_letters(&place, &journal, 3);
    let details = || {
        let listed = place.json(&["dead-letters", "echo"]);
        let members = ["id", "number", "reason", "client", "worker", "attempts", "first_b64"];
        listed.iter().map(|letter| members.map(|member| letter[member].clone())).collect::<Vec<_>>()
    };
    let before = details();
    for letter in &before {
        let texts: Vec<_> = letter[2..5].iter().map(|text| text.as_str().unwrap_or_default()).collect();
        assert_eq!(texts, ["its worker's connection ended", "127.0.0.1", "127.0.0.1"]);
        assert!(letter[5] == 1 && ["MA==", "MQ==", "Mg=="].iter().any(|body| letter[6] == *body), "{letter:?}");
    }
    let age = |place: &Place| place.json(&["dead-letters"])[0]["oldest_seconds"].as_f64().expect("a number");
    wait_until("they are two seconds old", || age(&place) > 2.0);
    broker.signal(Signal::KILL);
    broker.finish();
    let broker = place.broker(&arguments);
    assert_eq!((details(), held(&place)), (before.clone(), 3.into()));
    assert!(age(&place) > 2.0 && place.json(&["dead-letters", "echo"])[0]["kept_seconds"].as_f64() > Some(2.0));
    let table = String::from_utf8(place.tow(&["dead-letters", "echo"]).expect_code(0).stdout).expect("UTF-8");
    assert!(table.contains("REASON\n") && table.contains("  0     its worker's connection ended\n"), "{table}");

    // One fails again, with another reason, and is the youngest then.
    let _failing = work(&[&broker], &["echo", "--", "sh", "-c", "echo broken >&2; exit 3"]);
    let first = before[0][0].to_string();
    place.tow(&["requeue", "echo", "--id", &first]).expect_code(0);
    let reason = || details().iter().find(|letter| letter[0] == before[0][0]).map(|letter| letter[2].to_string());
    wait_until("it is back", || reason().is_some_and(|reason| reason.contains("a worker failed it with status 500")));
    assert!(reason().is_some_and(|reason| reason.contains("broken")), "{:?}", reason());
    broker.signal(Signal::KILL);
    broker.finish();
    let _broker = place.broker(&arguments);
    assert!(reason().is_some_and(|reason| reason.contains("broken")), "{:?}", reason());
    place.tow(&["requeue", "echo", "--id", &first, "--drop"]).expect_code(0);
    place.tow(&["requeue", "echo", "--id", &first]).expect_code(4);
    assert_eq!((letters(&place), held(&place)), (2, 2.into()));
    place.tow(&["requeue", "echo", "--drop", "--expect", "2"]).expect_code(0);
    assert_eq!(held(&place), 0);
}

#[test]
fn dead_letters_are_saved_to_files_and_requeued_at_a_rate() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let journal = folder.path().join("journal");
    let broker = with_dead_letters(&place, &journal, 3);
    // A body in a file of the broker's.
    let large = folder.path().join("large");
    write(&large, &(0..3_000_000_u32).map(|number| (number % 251) as u8).collect::<Vec<_>>());
    let worker = work(&[&broker], &["echo", "--", "sleep", "100"]);
    let given_up = Process::start(&mut call(&[&broker], &["echo", &format!("@{}", large.display())]));
    wait_until("the worker has it", || place.json(&["workers"])[0]["held"] == 1);
    worker.signal(Signal::KILL);
    given_up.finish();
    wait_until("it is kept", || letters(&place) == 4);

    let saved = folder.path().join("saved");
    let save = |more: &[&str]| {
        let arguments = [&["dead-letters", "echo", "--save", saved.to_str().expect("UTF-8")], more].concat();
        place.tow(&arguments)
    };
    let listed = place.json(&["dead-letters", "echo"]);
    let ids: Vec<_> = listed.iter().map(|letter| letter["id"].to_string()).collect();
    let bodies = ["0", "1", "2"].iter().zip(["MA==", "MQ==", "Mg=="]);
    let body =
        bodies.filter(|(_, b64)| listed[0]["first_b64"] == *b64).map(|(body, _)| body.as_bytes().to_vec()).next();
    save(&["--id", "99999"]).expect_code(4);
    save(&["--id", &ids[0]]).expect_code(0);
    assert_eq!(Some(std::fs::read(saved.join(&ids[0])).expect("the letter")), body);
    let known: Value =
        serde_json::from_slice(&std::fs::read(saved.join(format!("{}.json", ids[0]))).expect("a file")).expect("JSON");
    assert_eq!((&known["reason"], &known["id"].to_string()), (&"its worker's connection ended".into(), &ids[0]));
    let refused = save(&[]);
    assert!(!refused.status.success() && refused.stderr.contains("exists"), "{refused:?}");
    std::fs::remove_dir_all(&saved).expect("the saved ones");
    let said = save(&[]).expect_code(0).stdout;
    assert!(String::from_utf8_lossy(&said).starts_with("saved 4 dead letters of echo in "));
    assert_eq!(std::fs::read(saved.join(&ids[3])).expect("the letter"), std::fs::read(&large).expect("the file"));

    let refused = place.tow(&["requeue", "echo", "--rate", "2", "--expect", "3"]).expect_code(5);
    assert!(refused.stderr.contains("dead letters: 4, expected: 3; nothing was done"), "{}", refused.stderr);
    let start = std::time::Instant::now();
    let done = place.tow(&["requeue", "echo", "--rate", "4"]).expect_code(0);
    assert_eq!(done.stdout, b"requeued 4 dead letters of echo\n");
    assert!(start.elapsed() >= std::time::Duration::from_millis(750), "{:?}", start.elapsed());
    assert_eq!((letters(&place), service(&place, "echo", "waiting")), (0, 4));
}

/// A stock client's request, and the frames of the reply.
fn ask_as_stock_client(broker: &Broker, service: &str) -> Vec<Vec<u8>> {
    use crate::support::wire::{MORE, frame, greeting, ready};
    use std::io::Write;
    let mut stream = TcpStream::connect(("127.0.0.1", broker.port())).expect("connect");
    stream.set_read_timeout(Some(DEADLINE)).expect("a deadline");
    stream.write_all(&[greeting("NULL"), ready("DEALER")].concat()).expect("write");
    let request = [&b""[..], b"MDPC01", service.as_bytes()].map(|part| frame(MORE, part)).concat();
    stream.write_all(&[request, frame(0, b"hello")].concat()).expect("write");
    stream.read_exact(&mut [0; 64]).expect("a greeting");
    let (mut frames, mut is_over) = (Vec::new(), false);
    while !is_over {
        let mut header = [0; 2];
        stream.read_exact(&mut header).expect("a frame");
        assert_eq!(header[0] & 2, 0, "a long frame");
        let mut body = vec![0; usize::from(header[1])];
        stream.read_exact(&mut body).expect("a body");
        if header[0] & 4 == 0 {
            is_over = header[0] & MORE == 0;
            frames.push(body);
        }
    }
    frames
}

#[test]
fn a_drained_broker_finishes_what_it_has_and_takes_nothing_new() {
    let (place, other) = (Place::new(), Place::new());
    let (broker, elsewhere) = (place.broker(&[]), other.broker(&[]));
    let _workers = [work(&[&broker], &["echo", "--", "cat"]), work(&[&elsewhere], &["echo", "--", "cat"])];
    place.tow(&["pause", "echo"]).expect_code(0);
    let waiting = Process::start(&mut call(&[&broker], &["echo", "hello"]));
    wait_until("the request waits", || service(&place, "echo", "waiting") == 1);
    assert_eq!(place.tow(&["drain"]).expect_code(0).stdout, b"drains: 1 left\n");
    let status = String::from_utf8(place.tow(&["status"]).expect_code(0).stdout).expect("UTF-8");
    assert!(status.contains("\nDRAINING    1 left;"), "{status}");
    let readiness = get(&place.socket(), "/readyz");
    assert!(readiness.starts_with("HTTP/1.1 503 ") && readiness.ends_with("draining\n"), "{readiness}");
    assert!(get(&place.socket(), "/metrics").contains("\ntowpath_draining 1\n"));

    let refused = run(&mut call(&[&broker], &["echo", "x", "--timeout", "3"])).expect_code(6);
    assert!(refused.stderr.contains("the broker is being drained"), "{}", refused.stderr);
    let reported = ask_as_stock_client(&broker, "echo");
    assert_eq!(reported[reported.len() - 2..], [&b"503"[..], b"the broker is being drained"]);
    run(&mut call(&[&broker], &["mmi.queue", "echo"])).expect_code(0);
    let moved = run(&mut call(&[&broker, &elsewhere], &["echo", "moved"])).expect_code(0);
    assert_eq!(moved.stdout, b"moved");

    let draining = Process::start(&mut at(&place, &["drain", "--wait"]));
    wait_until("it says how many are left", || draining.output().contains("1 left"));
    place.tow(&["resume", "echo"]).expect_code(0);
    assert_eq!(waiting.finish().expect_code(0).stdout, b"hello");
    assert_eq!(draining.finish().expect_code(0).stdout, b"drains: 1 left\ndrains: 0 left\n");

    place.tow(&["drain", "--cancel"]).expect_code(0);
    assert_eq!(run(&mut call(&[&broker], &["echo", "again"])).expect_code(0).stdout, b"again");
    assert!(get(&place.socket(), "/readyz").starts_with("HTTP/1.1 200 "));
}

#[test]
fn the_journal_and_the_busiest_are_shown_again_and_again() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let broker = place.broker(&["--journal", folder.path().to_str().expect("UTF-8")]);
    let _worker = work(&[&broker], &["echo", "--", "cat"]);
    run(&mut call(&[&broker], &["echo", "hello"])).expect_code(0);
    let journal = &place.json(&["journal"])[0]["journal"];
    assert!(journal["syncs"].as_u64().is_some_and(|syncs| syncs > 0), "{journal}");
    assert!(journal["sync_seconds_max"].as_f64().is_some_and(|seconds| seconds > 0.0), "{journal}");
    assert_eq!((&journal["state"], &journal["errors"], &journal["error"]), (&"ok".into(), &0.into(), &Value::Null));
    let text = String::from_utf8(place.tow(&["journal"]).expect_code(0).stdout).expect("UTF-8");
    assert!(text.starts_with("journal     ok; 0 failed writes\n"), "{text}");
    assert!(get(&place.socket(), "/metrics").contains("\ntowpath_journal_errors_total 0\n"));

    for command in ["top", "journal", "dead-letters"] {
        let watching = Process::start(&mut at(&place, &[command, "--watch=0.05"]));
        let first = if command == "dead-letters" { "LETTERS" } else { "journal" };
        wait_until("it prints twice", || watching.output().matches(first).count() >= 2);
        // Nothing is drawn in place where there is no terminal.
        assert!(!watching.output().contains('\u{1b}'));
    }
    let top = Process::start(&mut at(&place, &["top", "--json", "--watch=0.05"]));
    wait_until("two lines", || top.output().lines().count() >= 3);
    let line = top.output().lines().nth(1).map(|line| serde_json::from_str::<Value>(line).expect(line));
    let line = line.expect("a line");
    assert!(line["status"]["sent_bytes_per_second"].is_u64() && line["services"].is_array(), "{line}");
    assert_eq!(line["peers"][0]["role"], "worker");
}

#[test]
fn a_drained_file_server_finishes_transfers_and_takes_no_new_connections() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    write(&folder.path().join("large.bin"), &vec![7; SIZE]);
    let server = place.serve(folder.path());
    // Nobody reads what it writes, so it reads no more.
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    let client = Process::with_output(&mut tow(["get", &server.url("large.bin"), "-"]), writer.into());
    reader.read_exact(&mut [0; 1024]).expect("the transfer has begun");
    let _idle = Wire::dealer(server.port());
    wait_until("both are connected", || place.json(&["peers"]).len() == 2);
    place.tow(&["drain"]).expect_code(0);
    let readiness = get(&place.socket(), "/readyz");
    assert!(readiness.starts_with("HTTP/1.1 503 ") && readiness.ends_with("draining\n"), "{readiness}");
    let refused = run(&mut tow(["ls", &server.url(""), "--timeout", "3"])).expect_code(6);
    assert!(refused.stderr.contains("the server is being drained"), "{}", refused.stderr);
    wait_until("the idle one is gone", || place.json(&["status"])[0]["left"] == 1);

    let draining = Process::start(&mut at(&place, &["drain", "--wait"]));
    wait_until("it says how many are left", || draining.output().contains("1 left"));
    let copied = std::io::copy(&mut reader, &mut std::io::sink()).expect("the content");
    assert_eq!(copied, SIZE as u64 - 1024);
    client.finish().expect_code(0);
    draining.finish().expect_code(0);
    place.tow(&["drain", "--cancel"]).expect_code(0);
    run(&mut tow(["ls", &server.url("")])).expect_code(0);
}

#[test]
fn a_service_that_cannot_be_is_not_paused() {
    let place = Place::new();
    let _broker = place.broker(&[]);
    for (service, why) in [("", "a service has a name"), ("mmi.service", "answers for this service itself")] {
        let outcome = place.tow(&["pause", service]);
        assert!(!outcome.status.success() && outcome.stderr.contains(why), "{outcome:?}");
    }
    place.tow(&["pause", "anything"]).expect_code(0);
}
