//! Lists that are searched and sorted at the server, one service and one person, and the last hour.

use rustix::process::Signal;
use serde_json::Value;

use super::status::{Place, get};
use crate::support::broker::work;
use crate::support::process::{Process, tow};
use crate::support::wait_until;

fn asked(place: &Place, path: &str) -> Value {
    let reply = get(&place.socket(), path);
    let (_, body) = reply.split_once("\r\n\r\n").unwrap_or(("", &reply));
    serde_json::from_str(body).expect(&reply)
}

fn names(services: &[Value]) -> Vec<&str> {
    services.iter().filter_map(|service| service["service"].as_str()).collect()
}

#[test]
fn lists_are_searched_and_sorted() {
    let place = Place::new();
    let broker = place.broker(&[]);
    let at = ["--connect", broker.endpoint()];
    let wanted = [("resize", 1), ("Resize-large", 3), ("transcode", 2)];
    let each = wanted.iter().flat_map(|(name, count)| std::iter::repeat_n(name, *count));
    let _calls: Vec<_> =
        each.map(|name| Process::start(tow(["call", "--timeout", "600", name, "hello"]).args(at))).collect();
    let sum = || place.json(&["services"]).iter().filter_map(|service| service["waiting"].as_u64()).sum::<u64>();
    wait_until("all wait", || sum() == 6);
    let sorted = place.json(&["services", "--sort", "-waiting"]);
    assert_eq!(names(&sorted), ["Resize-large", "transcode", "resize"]);
    let found = place.json(&["services", "--search", "RESIZE", "--sort", "waiting"]);
    assert_eq!(names(&found), ["resize", "Resize-large"]);
    place.tow(&["services", "--sort", "colour"]).expect_code(2);
    let page = asked(&place, "/api/v1/services?sort=-waiting&limit=2");
    assert_eq!(names(page["services"].as_array().expect("a list")), ["Resize-large", "transcode"]);
    assert_eq!((&page["found"], &page["next"]), (&3.into(), &2.into()));
    let rest = asked(&place, "/api/v1/services?sort=-waiting&limit=2&after=2");
    assert_eq!((names(rest["services"].as_array().expect("a list")), &rest["next"]), (vec!["resize"], &Value::Null));
    let peers = place.json(&["peers", "--search", "127.0.0.1", "--sort", "-connected_seconds"]);
    assert_eq!(peers.len(), 6);
}

#[test]
fn a_service_and_a_person_are_shown_as_a_whole() {
    let place = Place::new();
    let broker = place.broker(&[]);
    let at = ["--connect", broker.endpoint()];
    assert!(asked(&place, "/api/v1/services/cmVzaXpl")["error"].is_string(), "there is none");
    let mut calls: Vec<_> =
        (0..3).map(|_| Process::start(tow(["call", "--timeout", "600", "resize", "hello"]).args(at))).collect();
    let service = || asked(&place, "/api/v1/services/cmVzaXpl");
    wait_until("three clients wait", || service()["clients"] == 3);
    wait_until("it is a problem", || service()["problems"][0]["kind"] == "no_worker");
    let worker = work(&[&broker], &["resize", "--", "cat"]);
    while let Some(call) = calls.pop() {
        call.finish().expect_code(0);
    }
    let now = service();
    assert_eq!((&now["accepted"], &now["replied"], &now["failed"]), (&3.into(), &3.into(), &0.into()));
    assert!(now["median_seconds"].is_number() && now["in_flight"] == 0, "{now}");
    // Not before two samples.
    wait_until("its rates are known", || service()["out_per_second"].is_number());

    let peer = place.json(&["workers"]).remove(0)["peer"].as_str().expect("a peer").to_owned();
    let who = asked(&place, &format!("/api/v1/who?peer={peer}"));
    assert_eq!((&who["found"]["peers"], &who["workers"][0]["service"]), (&1.into(), &"resize".into()));
    wait_until("the clients are gone", || asked(&place, "/api/v1/who?address=127.0.0.1")["found"]["gone"] == 3);
    assert_eq!(asked(&place, "/api/v1/who?user=nobody")["found"]["peers"], 0);
    assert!(asked(&place, "/api/v1/who")["error"].is_string());
    drop(worker);
}

#[test]
fn the_last_hour_is_kept_over_a_restart_in_good_order() {
    let place = Place::new();
    let journal = place.0.path().join("journal");
    let arguments = ["--journal", journal.to_str().expect("UTF-8")];
    let broker = place.broker(&arguments);
    let worker = work(&[&broker], &["resize", "--", "cat"]);
    wait_until("it has a worker", || !place.json(&["workers"]).is_empty());
    place.tow(&["pause", "resize"]).expect_code(0);
    let history = || asked(&place, "/api/v1/history");
    let count = |history: &Value| history["times"].as_array().map_or(0, Vec::len);
    let last = |history: &Value, name: &str| history["values"][name].as_array().and_then(|all| all.last()?.as_f64());
    wait_until("there are samples", || count(&history()) >= 3 && last(&history(), "workers") == Some(1.0));
    let workers = || asked(&place, "/api/v1/history?service=resize");
    wait_until("of the service, too", || count(&workers()) >= 2);
    worker.signal(Signal::KILL);
    worker.finish();
    let texts = |history: &Value, kind: &str| {
        let events = history["events"].as_array().cloned().unwrap_or_default();
        let of_kind = events.into_iter().filter(|event| event["kind"] == kind);
        of_kind.filter_map(|event| event["text"].as_str().map(str::to_owned)).collect::<Vec<_>>()
    };
    wait_until("its end is an event", || texts(&history(), "gone").iter().any(|text| text.contains("of resize: ")));
    let before = history();
    assert!(texts(&before, "action").iter().any(|text| text.ends_with(" paused resize")), "{before}");
    broker.signal(Signal::TERM);
    broker.finish().expect_code(0);

    let broker = place.broker(&arguments);
    let after = history();
    assert!(count(&after) >= count(&before), "{after}");
    assert_eq!((texts(&after, "started").len(), texts(&after, "stopped").len()), (2, 1), "{after}");
    broker.signal(Signal::TERM);
    broker.finish().expect_code(0);
    // One that is damaged isn't used, and harms nobody.
    std::fs::write(journal.join("admin.history"), "not a history").expect("write");
    let broker = place.broker(&arguments);
    assert_eq!(texts(&history(), "started").len(), 1);
    assert!(broker.log().contains("the history of the last hour is not used"), "{}", broker.log());
}
