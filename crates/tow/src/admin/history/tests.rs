use super::*;

const START: u32 = 1_800_000_000;

fn totals(now: f64, accepted: f64, waiting: f64) -> Sample {
    Sample { totals: vec![("requests_in", accepted), ("waiting", waiting), ("received_bytes", now)], things: None }
}

fn services(count: usize, values: impl Fn(usize) -> [f64; VALUES_MAX]) -> Sample {
    let things = (0..count).map(|number| (format!("service {number}").into_bytes(), values(number)));
    Sample { totals: Vec::new(), things: Some(things.collect()) }
}

fn event(kind: EventKind, time: u32, text: &str) -> Event {
    Event { kind, time, text: text.to_owned(), service: Some(b"resize".to_vec()), peer: None }
}

#[test]
fn sums_become_rates_and_levels_stay() {
    let mut history = History::new(Things::Services);
    for (seconds, accepted, waiting) in [(0, 100.0, 7.0), (5, 150.0, 8.0), (10, 20.0, 9.0), (100, 30.0, 1.0)] {
        let now = f64::from(START + seconds);
        history.add(now, totals(now, accepted, waiting));
    }
    let all = history.totals(0);
    assert_eq!(all["times"], json!([START, START + 5, START + 10, START + 100]));
    // Neither over a restart of the sums nor over a gap.
    assert_eq!(all["values"]["requests_in"], json!([null, 10.0, null, null]));
    assert_eq!(all["values"]["waiting"], json!([7.0, 8.0, 9.0, 1.0]));
    assert_eq!(all["values"].get("workers"), None, "what this server doesn't have");
    assert_eq!(history.totals(START + 5)["times"], json!([START + 10, START + 100]));
}

#[test]
fn an_hour_is_kept_and_a_clock_that_is_set_back_does_no_harm() {
    let mut history = History::new(Things::Services);
    for step in 0..2000 {
        let now = f64::from(START + step * INTERVAL);
        history.add(now, totals(now, 0.0, 0.0));
    }
    let times = |history: &History| history.totals(0)["times"].as_array().unwrap().clone();
    let last = START + 1999 * INTERVAL;
    assert_eq!((times(&history).len(), &times(&history)[TOTALS_MAX - 1]), (TOTALS_MAX, &json!(last)));
    let back = f64::from(last - 600);
    history.add(back, totals(back, 0.0, 0.0));
    assert_eq!(times(&history).last(), Some(&json!(last - 600)));
    assert!(times(&history).is_sorted_by_key(|time| time.as_u64()));
}

#[test]
fn it_is_bounded_whatever_there_is_and_so_is_its_file() {
    let mut history = History::new(Things::Services);
    for step in 0..400 {
        let now = START + step * LONG_INTERVAL;
        let name = |number: usize| format!("{number:0>255}").into_bytes();
        let things = (0..3000).map(|number| (name(number + step as usize), [1.0, 2.0, 3.0, number as f64]));
        history.add(f64::from(now), Sample { totals: vec![("peers", 1.0)], things: Some(things.collect()) });
        for kind in events::KINDS {
            history.note(Event {
                kind,
                time: now,
                text: "ü".repeat(10_000),
                service: Some(vec![b'x'; 255]),
                peer: Some("y".repeat(255)),
            });
        }
    }
    for step in 0..TOTALS_MAX as u32 {
        history.add(f64::from(START + 4000 + step * INTERVAL), Sample::default());
    }
    assert_eq!(history.things.len(), THINGS_MAX);
    assert!(history.memory_bytes() <= FILE_BYTES_MAX, "{}", history.memory_bytes());
    assert!(history.encode().len() <= FILE_BYTES_MAX, "{}", history.encode().len());
}

#[test]
fn the_busiest_are_remembered() {
    let mut history = History::new(Things::Services);
    let now = |step: u32| f64::from(START + step * LONG_INTERVAL);
    history.add(now(0), services(THINGS_MAX + 100, |number| [0.0, 0.0, 0.0, number as f64]));
    assert!(!history.things.contains_key(b"service 0".as_slice()), "it was the least busy one");
    assert!(history.things.contains_key(b"service 599".as_slice()));
    // One that becomes busy takes the place of one that isn't any more.
    let busy = |number: usize| if number == 0 { [0.0, 0.0, 0.0, 1e6] } else { [0.0; VALUES_MAX] };
    history.add(now(1), services(THINGS_MAX + 100, busy));
    assert!(history.things.contains_key(b"service 0".as_slice()));
    assert_eq!(history.things.len(), THINGS_MAX);
    let one = history.thing(b"service 599", 0);
    assert_eq!((&one["values"]["waiting"], &one["interval_seconds"]), (&json!([599.0, 0.0]), &json!(LONG_INTERVAL)));
    assert_eq!(history.thing(b"unknown", 0)["times"], json!([]));
}

#[test]
fn rates_of_a_service_are_those_of_the_last_minute() {
    let mut history = History::new(Things::Services);
    assert_eq!(history.rates(b"service 0", START), None);
    for step in 0..10 {
        let sums = f64::from(step);
        let now = START + step * LONG_INTERVAL;
        history.add(f64::from(now), services(1, |_| [20.0 * sums, 30.0 * sums, 0.0, 9.0]));
    }
    let now = START + 9 * LONG_INTERVAL;
    assert_eq!(history.rates(b"service 0", now), Some(Rates { accepted: 2.0, replied: 3.0, failed: 0.0 }));
    assert_eq!(history.rates(b"service 0", now + 600), None, "it is long ago");
}

#[test]
fn events_of_one_kind_leave_those_of_others() {
    let mut history = History::new(Things::Services);
    history.note(event(EventKind::Action, START, "alice purged resize (5,997)"));
    for number in 0..500 {
        history.note(event(EventKind::Began, START + number, "it flaps"));
    }
    history.note(Event { service: None, ..event(EventKind::Stopped, START + 900, "stopped") });
    let events = history.totals(0)["events"].as_array().unwrap().clone();
    assert_eq!(events.first().map(|event| &event["text"]), Some(&json!("alice purged resize (5,997)")));
    assert_eq!(events.last().map(|event| &event["kind"]), Some(&json!("stopped")));
    assert!(events.is_sorted_by_key(|event| event["id"].as_u64()) && events.len() < 100, "{}", events.len());
    assert!(history.thing(b"resize", 0)["events"].as_array().unwrap().iter().all(|event| event["service"] == "resize"));
    assert_eq!(history.totals(START + 900)["events"].as_array().unwrap().len(), 1);
    history.add(f64::from(START + KEPT + 100), Sample::default());
    let left = history.totals(0)["events"].as_array().unwrap().clone();
    assert!(left.iter().all(|event| event["time"].as_u64() >= Some(u64::from(START) + 100)), "{left:?}");
}

/// A history with a little of everything.
fn small() -> History {
    let mut history = History::new(Things::Services);
    for step in 0..5 {
        let now = f64::from(START + step * LONG_INTERVAL);
        history.add(
            now,
            Sample { things: services(3, |number| [now, now, 0.0, number as f64]).things, ..totals(now, now, 3.0) },
        );
    }
    history.note(event(EventKind::Gone, START + 61, "worker 10.0 of resize: timed out"));
    history.note(Event { service: None, peer: Some("3.0".to_owned()), ..event(EventKind::Action, START + 62, "x") });
    history
}

#[test]
fn a_file_has_all_of_it() {
    let history = small();
    let read = History::decode(&history.encode(), Things::Services, START + 100).unwrap();
    assert_eq!(read.totals(0), history.totals(0));
    assert_eq!(read.thing(b"service 2", 0), history.thing(b"service 2", 0));
    let late = History::decode(&history.encode(), Things::Services, START + KEPT + 62).unwrap();
    assert_eq!((late.totals(0)["times"].clone(), late.things.len()), (json!([]), 0));
    assert_eq!(late.totals(0)["events"].as_array().unwrap().len(), 1);
}

#[test]
fn a_file_that_is_damaged_or_foreign_is_refused() {
    let bytes = small().encode();
    let decode = |bytes: &[u8]| History::decode(bytes, Things::Services, START).map(drop);
    for length in 0..bytes.len() {
        assert!(decode(&bytes[..length]).is_err(), "cut to {length}");
    }
    for place in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[place] ^= 0x40;
        assert!(decode(&changed).is_err(), "changed at {place}");
    }
    assert_eq!(History::decode(&bytes, Things::Followers, START).map(drop), Err(FileError::Foreign));
    assert_eq!(decode(b"{}"), Err(FileError::Foreign));
    let mut newer = bytes.clone();
    newer[8] = 2;
    assert_eq!(decode(&newer), Err(FileError::OtherVersion(2)));
    // Counts that a right checksum doesn't make true.
    for place in (13..bytes.len() - 4).step_by(3) {
        let mut changed = bytes.clone();
        changed[place] = 0xff;
        let end = changed.len() - 4;
        let checksum = crc32c::crc32c(&changed[..end]);
        changed[end..].copy_from_slice(&checksum.to_le_bytes());
        drop(decode(&changed));
    }
}
