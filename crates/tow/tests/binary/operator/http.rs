//! HTTP on a TCP address for the operator: who is let in, and what is written down of it.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::tempdir;

use crate::files::progress::on_terminal;
use crate::operator::status::Place;
use crate::support::DEADLINE;
use crate::support::process::{run, tow};
use crate::support::wire::Wire;
use crate::support::{broker::Broker, wait_until};

/// Connections that ask nothing. A server that waited for them, some at a time, would take longer than [`DEADLINE`] for all.
const IDLE_CONNECTIONS: usize = 400;

const JSON: &str = "Content-Type: application/json";

/// The address and the token of a server.
struct Http {
    address: String,
    token_file: PathBuf,
    token: String,
}

impl Http {
    /// Of the only server there.
    fn of(place: &Place) -> Http {
        let status = place.json(&["status"]).remove(0);
        let page = status["page"].as_str().expect("a page");
        let address = page.strip_prefix("http://").and_then(|page| page.strip_suffix('/')).expect("a URL").to_owned();
        let token_file = PathBuf::from(status["token_file"].as_str().expect("a file"));
        let token = std::fs::read_to_string(&token_file).expect("a token").trim().to_owned();
        Http { address, token_file, token }
    }

    /// The header with the token.
    fn authorization(&self) -> String {
        format!("Authorization: Bearer {}", self.token)
    }

    /// A request to this host, as it is called.
    fn ask(&self, line: &str, host: &str, headers: &[&str], body: &str) -> String {
        ask(&self.address, line, host, headers, body)
    }

    fn get(&self, path: &str) -> String {
        self.ask(&format!("GET {path}"), &self.address, &[&self.authorization()], "")
    }

    fn post(&self, path: &str, body: &str) -> String {
        self.ask(&format!("POST {path}"), &self.address, &[&self.authorization(), JSON], body)
    }
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(DEADLINE)).expect("a deadline");
    stream
}

fn ask(address: &str, line: &str, host: &str, headers: &[&str], body: &str) -> String {
    let mut request = format!("{line} HTTP/1.1\r\nHost: {host}\r\n");
    for header in headers {
        write!(request, "{header}\r\n").expect("a string");
    }
    if !body.is_empty() {
        write!(request, "Content-Length: {}\r\n", body.len()).expect("a string");
    }
    let mut stream = connect(address);
    stream.write_all(format!("{request}\r\n{body}").as_bytes()).expect("write");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("a reply");
    reply
}

#[track_caller]
fn expect_status(reply: &str, status: u16) {
    assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "not {status}: {reply}");
}

fn body_of(reply: &str) -> Value {
    let (_, body) = reply.split_once("\r\n\r\n").expect("a head and a body");
    serde_json::from_str(body).expect(body)
}

/// A broker with HTTP on a port that the system picks.
fn broker(place: &Place, arguments: &[&str]) -> Broker {
    place.broker(&[&["--admin", "127.0.0.1:0"], arguments].concat())
}

#[test]
fn only_those_with_the_token_are_answered_and_only_under_the_own_name() {
    let place = Place::new();
    let broker = broker(&place, &["--admin-host", "tow.example.org"]);
    let http = Http::of(&place);
    let (own, token) = (&*http.address, &*http.authorization());
    let port = own.rsplit_once(':').expect("a port").1;
    let localhost = &*format!("localhost:{port}");
    let kick = "POST /api/v1/peers/77.0/disconnect";
    let cross_site = "Sec-Fetch-Site: cross-site";
    for (line, host, headers, status) in [
        ("GET /api/v1/status", own, &[token][..], 200),
        ("GET /api/v1/status", localhost, &[token], 200),
        ("GET /api/v1/status", "tow.example.org", &[token], 200),
        ("GET /metrics", own, &[token], 200),
        // Without the token there is the page, which has none, and health.
        ("GET /", own, &[], 200),
        ("GET /style.css", own, &[], 200),
        ("GET /healthz", own, &[], 200),
        ("GET /readyz", own, &[], 200),
        ("GET /api/v1/status", own, &[], 401),
        ("GET /metrics", own, &[], 401),
        ("GET /nothing", own, &[], 401),
        ("GET /nothing", own, &[token], 404),
        ("GET /api/v1/status", own, &["Authorization: Bearer wrong"], 401),
        ("GET /api/v1/status", own, &[&format!("{token}x")], 401),
        ("GET /api/v1/status", own, &["Authorization: Basic dG93OnRvdw=="], 401),
        // A page of another name that has got this address.
        ("GET /", "evil.test", &[], 421),
        ("GET /healthz", &format!("evil.test:{port}"), &[], 421),
        ("GET /api/v1/status", "evil.test", &[token], 421),
        ("GET /api/v1/status", own, &[token, "Host: evil.test"], 421),
        (&format!("GET http://evil.test:{port}/api/v1/status"), own, &[token], 421),
        // Actions.
        (kick, own, &[token, JSON], 404),
        (kick, own, &[token, JSON, "Sec-Fetch-Site: same-origin"], 404),
        (kick, own, &[token, JSON, cross_site], 403),
        (kick, own, &[token, JSON, "Sec-Fetch-Site: same-site"], 403),
        (kick, own, &[JSON], 401),
        (kick, own, &[token], 415),
        (kick, own, &[token, "Content-Type: text/plain"], 415),
        ("OPTIONS /api/v1/status", own, &["Origin: http://evil.test"], 401),
    ] {
        let reply = http.ask(line, host, headers, if line.starts_with("POST") { "{}" } else { "" });
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{line} {host} {headers:?}: not {status}: {reply}");
        let lower = reply.to_lowercase();
        assert!(!lower.contains("access-control-") && !lower.contains("set-cookie"), "{reply}");
        for header in [
            "content-security-policy: default-src 'self';",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
            "cross-origin-opener-policy: same-origin",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(lower.contains(header), "{header}: {reply}");
        }
    }
    assert!(http.get("/").contains("content-type: text/html"));
    assert!(http.get("/style.css").contains("content-type: text/css"));
    assert!(!broker.log().contains(&http.token), "the log has the token");
}

#[test]
fn a_person_at_a_terminal_gets_the_whole_address() {
    let place = Place::new();
    let folder = place.0.path().join("towpath");
    std::fs::create_dir(&folder).expect("mkdir");
    let [socket, token] = ["one.sock", "token"].map(|name| folder.join(name).display().to_string());
    let http = ["--admin", "127.0.0.1:0", "--admin-socket", &socket, "--admin-token-file", &token];
    let arguments = [&["broker", "--bind", "tcp://127.0.0.1:0"], &http[..]].concat();
    let Some(broker) = on_terminal(&arguments, place.0.path()) else { return };
    wait_until("it listens", || broker.output().contains("broker on tcp"));
    let http = Http::of(&place);
    let url = format!("http://{}/#token={}", http.address, http.token);
    // It outlives the terminal.
    let status = http.get("/api/v1/status");
    let status: Value = serde_json::from_str(status.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
    let pid = status["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    kill_process(pid.expect("a process id"), Signal::TERM).expect("kill");
    assert!(broker.output().lines().any(|line| line.trim_end() == url), "{}", broker.output());
}

#[test]
fn the_token_is_for_its_user_alone_and_stays_the_same() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let journal = folder.path().join("new/journal");
    let arguments = ["--journal", journal.to_str().expect("UTF-8")];
    let tokens = [(), ()].map(|()| {
        let broker = broker(&place, &arguments);
        let http = Http::of(&place);
        assert_eq!(http.token_file, journal.join("admin.token"));
        assert!(broker.log().contains(http.token_file.to_str().expect("UTF-8")), "{}", broker.log());
        let file = std::fs::metadata(&http.token_file).expect("a file");
        assert_eq!((file.mode() & 0o777, file.nlink()), (0o600, 1));
        broker.signal(Signal::TERM);
        broker.finish().expect_code(0);
        http.token
    });
    assert!(tokens[0] == tokens[1] && tokens[0].len() == 43, "{tokens:?}");
    // One that others can read isn't used, nor one that could be guessed.
    let file = journal.join("admin.token");
    let start =
        || place.tow(&["broker", "--bind", "tcp://127.0.0.1:0", "--admin", "127.0.0.1:0", arguments[0], arguments[1]]);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("chmod");
    let refused = start().expect_code(1);
    assert!(refused.stderr.contains("chmod 600"), "{}", refused.stderr);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("chmod");
    std::fs::write(&file, "secret\n").expect("write");
    let refused = start().expect_code(1);
    assert!(refused.stderr.contains("32 to 512 letters"), "{}", refused.stderr);
    // Without a journal it is in the user's directory; and it is never among the files that are served.
    let server = broker(&place, &[]);
    assert_eq!(Http::of(&place).token_file, place.0.path().join("towpath/admin.token"));
    drop(server);
    let serve = ["serve", "--bind", "tcp://127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let served = place.tow(&[&serve[..], &[place.0.path().to_str().expect("UTF-8")]].concat()).expect_code(2);
    assert!(served.stderr.contains("--admin-token-file"), "{}", served.stderr);
    // None is made there either.
    let served = folder.path().join("served");
    std::fs::create_dir(&served).expect("mkdir");
    let token = served.join("new/admin.token");
    let [served_path, token] = [&served, &token].map(|path| path.to_str().expect("UTF-8"));
    let refused = place.tow(&[&serve[..], &["--admin-token-file", token, served_path]].concat()).expect_code(2);
    assert!(refused.stderr.contains("which is served; name a file elsewhere by"), "{}", refused.stderr);
    assert_eq!(std::fs::read_dir(&served).expect("a directory").count(), 0);
}

#[test]
fn other_machines_need_a_proxy_in_front() {
    let place = Place::new();
    let refused = place.tow(&["broker", "--admin", "0.0.0.0:5580"]).expect_code(2).stderr;
    assert!(refused.contains("--admin-behind-proxy") && refused.contains("ssh -L 5580:127.0.0.1:5580"), "{refused}");
    let _broker = place.broker(&["--admin", "0.0.0.0:0", "--admin-behind-proxy"]);
    let http = Http::of(&place);
    expect_status(&http.get("/api/v1/status"), 200);
    expect_status(&http.ask("GET /api/v1/status", &http.address, &[], ""), 401);
    // A token isn't sent beyond this machine, nor put where everybody sees it.
    for (server, says) in [
        ("http://192.0.2.1:5580", "ssh -L"),
        ("https://localhost:5580", "ssh -L"),
        ("http://127.0.0.1:5580/#token=secret", "--admin-token-file"),
    ] {
        let refused = place.tow(&["status", "--admin", server]).expect_code(2);
        assert!(refused.stderr.contains(says), "{server}: {}", refused.stderr);
    }
}

#[test]
fn commands_ask_over_http_with_the_token() {
    let (place, elsewhere) = (Place::new(), Place::new());
    let broker = broker(&place, &[]);
    let http = Http::of(&place);
    let url = format!("http://{}", http.address);
    let token_file = http.token_file.to_str().expect("UTF-8");
    elsewhere.tow(&["status"]).expect_code(6);
    let missing = elsewhere.tow(&["status", "--admin", &url]).expect_code(2);
    assert!(missing.stderr.contains("--admin-token-file"), "{}", missing.stderr);
    let there = ["--admin", &url, "--admin-token-file", token_file];
    let status = elsewhere.json(&[&["status"], &there[..]].concat()).remove(0);
    assert_eq!(status["endpoints"][0], broker.endpoint());
    // Where it is found by itself.
    assert_eq!(place.json(&["peers", "--admin", &url]), [] as [Value; 0]);
    let _peer = Wire::dealer(broker.port());
    wait_until("the peer is listed", || elsewhere.json(&[&["peers"], &there[..]].concat()).len() == 1);
    let id = elsewhere.json(&[&["peers"], &there[..]].concat())[0]["id"].as_str().expect("an id").to_owned();
    elsewhere.tow(&[&["kick", &id], &there[..]].concat()).expect_code(0);
    std::fs::write(elsewhere.0.path().join("wrong"), "0123456789012345678901234567890123456789").expect("write");
    let wrong = elsewhere.0.path().join("wrong");
    std::fs::set_permissions(&wrong, std::fs::Permissions::from_mode(0o600)).expect("chmod");
    let environment = [("TOW_ADMIN", &*http.address), ("TOW_ADMIN_TOKEN_FILE", wrong.to_str().expect("UTF-8"))];
    let refused = run(tow(["status"]).envs(environment)).expect_code(5);
    assert!(refused.stderr.contains("the token is wrong"), "{}", refused.stderr);
}

#[test]
fn connections_that_ask_nothing_keep_nobody_out() {
    let place = Place::new();
    let _broker = broker(&place, &["--metrics", "127.0.0.1:0"]);
    let http = Http::of(&place);
    let metrics = place.json(&["status"])[0]["metrics"].as_str().expect("a URL").to_owned();
    let metrics = metrics.strip_prefix("http://").and_then(|url| url.strip_suffix("/metrics")).expect("a URL");
    for address in [&http.address, metrics] {
        let idle: Vec<_> = (0..IDLE_CONNECTIONS / 2).map(|_| connect(address)).collect();
        // Half a request is none either.
        let half = (0..IDLE_CONNECTIONS / 2).map(|_| {
            let mut stream = connect(address);
            let _ = stream.write_all(b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n");
            stream
        });
        let half: Vec<_> = half.collect();
        expect_status(&ask(address, "GET /healthz", "localhost", &[], ""), 200);
        // The oldest are closed.
        let pid = &place.json(&["status"])[0]["pid"];
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("/proc").count();
        assert!(open < IDLE_CONNECTIONS / 2, "{open} descriptors");
        drop((idle, half));
    }
    // The second address has nothing else.
    for (path, status) in
        [("/metrics", 200), ("/readyz", 200), ("/", 404), ("/api/v1/status", 404), ("/style.css", 404)]
    {
        expect_status(&ask(metrics, &format!("GET {path}"), "localhost", &[&http.authorization()], ""), status);
    }
    expect_status(&ask(metrics, "GET /metrics", "evil.test", &[], ""), 421);
}

fn lines_of(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.split_inclusive('\n').filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn an_action_is_written_down_before_it_is_done() {
    let place = Place::new();
    let audit = place.0.path().join("audit");
    let running = broker(&place, &["--audit", audit.to_str().expect("UTF-8")]);
    let http = Http::of(&place);
    // "echo"
    expect_status(&http.post("/api/v1/services/ZWNobw/pause", "{}"), 200);
    expect_status(&http.post("/api/v1/services/ZWNobw/purge", "{\"expect_waiting\": 7}"), 409);
    place.tow(&["resume", "echo"]).expect_code(0);
    let ended = |lines: &[Value]| lines.iter().filter(|line| line["event"] == "action-ended").count();
    wait_until("all is written", || ended(&lines_of(&audit)) == 3);
    let lines = lines_of(&audit);
    let actions: Vec<_> = lines.iter().filter(|line| line["event"] == "action").collect();
    assert_eq!(actions.len(), 3, "{lines:?}");
    let uid = format!("uid {}", rustix::process::geteuid().as_raw());
    for (line, action, by) in [(0, "pause", "operator"), (1, "purge", "operator"), (2, "resume", &uid)] {
        let line = actions[line];
        assert_eq!((&line["action"], &line["object"]), (&action.into(), &"echo".into()));
        assert!(line["by"].as_str().is_some_and(|name| name.contains(by)), "{line}");
    }
    assert!(actions[0]["address"].as_str().is_some_and(|address| address.starts_with("127.0.0.1:")), "{lines:?}");
    assert_eq!(actions[1]["parameters"]["expect_waiting"], 7);
    let last = body_of(&http.get("/api/v1/audit"));
    let outcomes: Vec<_> = last["audit"].as_array().expect("a list").iter().map(|action| &action["status"]).collect();
    assert_eq!(outcomes, [200, 409, 200]);
    assert_eq!((&last["audit"][0]["action"], &last["audit"][0]["outcome"]), (&"resume".into(), &"done".into()));
    // What is only asked isn't an action, and neither is what isn't allowed.
    assert_eq!(lines.iter().filter(|line| line["event"] != "login").count(), 6, "{lines:?}");
    drop(running);

    let full = broker(&place, &["--audit", "/dev/full"]);
    let http = Http::of(&place);
    let _peer = Wire::dealer(full.port());
    wait_until("the peer is listed", || place.json(&["peers"]).len() == 1);
    let id = place.json(&["peers"])[0]["id"].as_str().expect("an id").to_owned();
    let refused = http.post(&format!("/api/v1/peers/{id}/disconnect"), "{}");
    expect_status(&refused, 503);
    assert!(refused.contains("--audit"), "{refused}");
    let refused = place.tow(&["kick", &id]).expect_code(1);
    assert!(refused.stderr.contains("--audit"), "{}", refused.stderr);
    assert_eq!(place.json(&["peers"])[0]["id"], *id);
    assert_eq!(body_of(&http.get("/api/v1/audit"))["audit"][0]["status"], 503);
}

#[test]
fn an_action_does_not_wait_for_a_disk_that_hangs_and_is_not_done() {
    let place = Place::new();
    let audit = place.0.path().join("audit");
    rustix::fs::mkfifoat(rustix::fs::CWD, &audit, Mode::RUSR | Mode::WUSR).expect("a pipe");
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut pipe = File::from(rustix::fs::open(&audit, flags, Mode::empty()).expect("open"));
    while pipe.write(b" \n").is_ok() {}
    let running = broker(&place, &["--audit", audit.to_str().expect("UTF-8")]);
    let http = Http::of(&place);
    let paused = || place.json(&["status"])[0]["paused"].clone();
    let (mut first, mut second) = (String::new(), String::new());
    std::thread::scope(|scope| {
        scope.spawn(|| first = http.post("/api/v1/services/ZWNobw/pause", "{}"));
        scope.spawn(|| second = http.post("/api/v1/services/ZWNobw/pause", "{}"));
        expect_status(&http.ask("GET /healthz", &http.address, &[], ""), 200);
    });
    for reply in [first, second] {
        expect_status(&reply, 503);
        assert!(reply.contains("longer than 5s"), "{reply}");
    }
    assert_eq!(paused(), serde_json::json!([]), "{}", running.log());
}

#[test]
fn operators_have_tokens_by_name_which_a_running_server_knows_at_once() {
    let (place, folder) = (Place::new(), tempdir().expect("a folder"));
    let audit = folder.path().join("audit").display().to_string();
    let journal = folder.path().join("journal").display().to_string();
    let start = || broker(&place, &["--journal", &journal, "--audit", &audit]);
    let running = start();
    let http = Http::of(&place);
    let made = |arguments: &[&str]| {
        let outcome = place.tow(&[&["token", "new"], arguments].concat()).expect_code(0);
        assert!(outcome.stderr.contains(&http.address), "{}", outcome.stderr);
        String::from_utf8(outcome.stdout).expect("UTF-8").trim().to_owned()
    };
    let (ann, screen) = (made(&["ann"]), made(&["screen", "--read-only"]));
    let of = |token: &str| format!("Authorization: Bearer {token}");
    let get = |token: &str, path: &str| http.ask(&format!("GET {path}"), &http.address, &[&of(token)], "");
    let post = |token: &str, path: &str| http.ask(&format!("POST {path}"), &http.address, &[&of(token), JSON], "{}");
    let operator = |token: &str| body_of(&get(token, "/api/v1/status"))["operator"].clone();
    for (token, name, read_only) in [(&ann, "ann", false), (&screen, "screen", true), (&http.token, "operator", false)]
    {
        assert_eq!(operator(token), serde_json::json!({"name": name, "read_only": read_only}));
    }
    let pause = "/api/v1/services/ZWNobw/pause";
    expect_status(&post(&ann, pause), 200);
    let refused = post(&screen, pause);
    expect_status(&refused, 403);
    assert!(refused.contains("may only read"), "{refused}");
    assert_eq!(place.json(&["audit"])[0]["by"], "ann");
    // Only on the machine itself: a token that leaked could make itself last.
    for action in ["new-token", "revoke-token"] {
        let reply =
            http.ask(&format!("POST /api/v1/{action}"), &http.address, &[&of(&ann), JSON], "{\"name\": \"eve\"}");
        expect_status(&reply, 403);
    }
    place.tow(&["token", "new", "ann"]).expect_code(5);
    let names = |tokens: &[Value]| tokens.iter().map(|token| token["name"].clone()).collect::<Vec<_>>();
    assert_eq!(names(&place.json(&["token", "list"])), ["ann", "screen"]);
    let file = std::fs::metadata(folder.path().join("journal/admin.tokens")).expect("a file");
    assert_eq!(file.mode() & 0o777, 0o600);

    running.signal(Signal::TERM);
    running.finish().expect_code(0);
    let running = start();
    let http = Http::of(&place);
    let get = |token: &str| http.ask("GET /api/v1/status", &http.address, &[&of(token)], "");
    expect_status(&get(&ann), 200);
    place.tow(&["token", "revoke", "ann"]).expect_code(0);
    expect_status(&get(&ann), 401);
    expect_status(&get(&screen), 200);
    place.tow(&["token", "revoke", "ann"]).expect_code(4);
    let written = std::fs::read_to_string(&audit).expect("lines") + &running.log();
    assert!(!written.contains(&ann) && !written.contains(&screen), "{written}");

    // The actions of before are still known.
    let actions = place.json(&["audit"]);
    let shown: Vec<_> = actions.iter().map(|action| (action["action"].clone(), action["object"].clone())).collect();
    let expected = [("revoke-token", "ann"), ("revoke-token", "ann"), ("new-token", "ann"), ("pause", "echo")];
    for (shown, (action, object)) in shown.iter().zip([expected[0], expected[1]]) {
        assert_eq!(*shown, (action.into(), object.into()));
    }
    for (action, object) in expected {
        assert!(shown.contains(&(action.into(), object.into())), "{action}: {actions:?}");
    }
    let table = String::from_utf8(place.tow(&["audit"]).expect_code(0).stdout).expect("UTF-8");
    assert!(table.lines().any(|line| line.contains("pause") && line.contains("ann")), "{table}");
}

#[test]
fn a_server_without_admin_has_a_page_once_somebody_wants_one() {
    let place = Place::new();
    let broker = place.broker(&[]);
    assert_eq!(place.json(&["status"])[0]["page"], Value::Null);
    let mut command = tow(["page", "broker"]);
    command.env("XDG_RUNTIME_DIR", place.0.path()).env_remove("RUNTIME_DIRECTORY").env("DISPLAY", ":77");
    let printed = run(&mut command).expect_code(0);
    let address = String::from_utf8(printed.stdout).expect("UTF-8");
    let (url, token) = address.trim().split_once("#token=").expect(&address);
    let at = url.strip_prefix("http://").and_then(|url| url.strip_suffix('/')).expect(url);
    let port = at.strip_prefix("127.0.0.1:").expect(at);
    assert!(printed.stderr.contains(&format!("ssh -L {port}:127.0.0.1:{port} ")), "{}", printed.stderr);
    let authorization = format!("Authorization: Bearer {token}");
    expect_status(&ask(at, "GET /", at, &[], ""), 200);
    expect_status(&ask(at, "GET /api/v1/status", at, &[], ""), 401);
    let status = body_of(&ask(at, "GET /api/v1/status", at, &[&authorization], ""));
    let uid = format!("uid {}", rustix::process::geteuid().as_raw());
    assert!(status["operator"]["name"].as_str().is_some_and(|name| name.contains(&uid)), "{status}");
    assert_eq!(status["page"], url);
    expect_status(&ask(at, "POST /api/v1/services/ZWNobw/pause", at, &[&authorization, JSON], "{}"), 200);
    // Nobody gets a page for others by a token alone.
    expect_status(&ask(at, "POST /api/v1/page", at, &[&authorization, JSON], "{}"), 403);

    // The same page, and another token.
    let again = place.tow(&["page", "--read-only", "--json"]).expect_code(0).summary();
    assert_eq!(again["page"], url);
    let other = format!("Authorization: Bearer {}", again["token"].as_str().expect("a token"));
    expect_status(&ask(at, "GET /api/v1/status", at, &[&other], ""), 200);
    expect_status(&ask(at, "POST /api/v1/services/ZWNobw/pause", at, &[&other, JSON], "{}"), 403);
    assert!(!broker.log().contains(token), "the log has the token");

    // It is opened by a file, since everybody sees the arguments of a process.
    let opener = place.0.path().join("xdg-open");
    let script = r#"#!/bin/sh
cat "$1" > "$XDG_RUNTIME_DIR/opened"
echo "$1" >> "$XDG_RUNTIME_DIR/opened"
"#;
    // By another process: a child that another test starts meanwhile would inherit the file open for writing, and it couldn't be run.
    let mut written = Command::new("sh");
    written.args(["-c", "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\""]).arg(&opener).arg(script);
    assert!(written.status().expect("run sh").success());
    let path = format!("{}:{}", place.0.path().display(), std::env::var("PATH").expect("a path"));
    let mut command = tow(["page", "--open", "--json"]);
    command.env("XDG_RUNTIME_DIR", place.0.path()).env_remove("RUNTIME_DIRECTORY").env("PATH", path);
    let address = run(&mut command).expect_code(0).summary()["address"].as_str().expect("an address").to_owned();
    let opened = std::fs::read_to_string(place.0.path().join("opened")).expect("it was opened");
    assert!(opened.contains(&format!("url={address}\"")), "{opened}");
    let file = opened.lines().last().expect("a path");
    assert_eq!(std::fs::metadata(file).expect("a file").mode() & 0o777, 0o600);
}
