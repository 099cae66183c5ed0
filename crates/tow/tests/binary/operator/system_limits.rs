//! Commands at limits of the system name the limit, and clients may retry.

use serde_json::{Value, json};
use tempfile::tempdir;

use crate::support::process::{Server, get};
use crate::support::tree::random_file;
use crate::support::wait_until;
use crate::support::wire::Wire;

/// Fetches metadata and digest of a file; returns all answers.
fn fetch(wire: &mut Wire, id: u32, path: &str) -> Vec<Value> {
    let fetch = json!({"op": "fetch", "id": id, "files": [{"path": path, "ranges": []}], "digest": "now"});
    wire.request(&fetch).expect("send");
    let mut said = Vec::new();
    while said.last().is_none_or(|last: &Value| last["re"] != "done" && last["re"] != "error") {
        said.push(wire.control());
    }
    said
}

#[test]
fn server_without_descriptors_answers_busy_and_logs_it_rarely() {
    let folder = tempdir().expect("a folder");
    random_file(&folder.path().join("large"), 3 << 20, 1);
    let server = Server::start(folder.path());
    let mut wire = Wire::dealer(server.port());
    server.limit_descriptors(Some(4));
    for id in 1..30 {
        let said = fetch(&mut wire, id, "large");
        let error = &said[0]["files"][0]["error"];
        assert_eq!(error["code"], "busy", "{said:?}");
        assert!(error["message"].as_str().is_some_and(|message| message.contains("ulimit -n")), "{error}");
    }
    let listed = wire.ask(&json!({"op": "list", "id": 30, "path": ""}));
    assert_eq!((&listed["re"], &listed["code"]), (&json!("error"), &json!("busy")), "{listed}");
    // Logged once in ten seconds, which may be more than once on a slow machine.
    let reported = || server.log().lines().filter(|line| line.contains("ulimit -n")).count();
    wait_until("the log names the limit", || reported() > 0);
    assert!(reported() < 10, "{}", server.log());
    assert!(!server.log().contains("is gone"), "the served path isn't: {}", server.log());
    server.limit_descriptors(None);
    let said = fetch(&mut wire, 31, "large");
    assert!(said[0]["files"][0]["digest"].is_string(), "{said:?}");
    get(&server.url("large"), &folder.path().join("copy")).expect_code(0);
}
