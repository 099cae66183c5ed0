//! Keys, and encrypted connections between our own ends.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use tempfile::{TempDir, tempdir};
use towpath_sockets::has_aes_instructions;

use crate::support::broker::Broker;
use crate::support::process::{Outcome, Process, Server, get_command, run, tow};
use crate::support::tree::{digest, random_file, write};
use crate::support::wait_until;

/// Keys of a server and of two clients, of which it admits one.
pub struct Keys {
    folder: TempDir,
}

impl Keys {
    pub fn new() -> Keys {
        let folder = tempdir().expect("a folder");
        let keys = Keys { folder };
        for name in ["server", "alice", "eve"] {
            run(&mut tow([OsStr::new("key"), "new".as_ref(), keys.path(name).as_ref()])).expect_code(0);
        }
        write(&keys.path("authorized"), format!("alice {}\n", keys.public("alice")).as_bytes());
        keys
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn public(&self, name: &str) -> String {
        let shown = run(&mut tow([OsStr::new("key"), "show".as_ref(), self.path(name).as_ref(), "--json".as_ref()]));
        shown.expect_code(0).summary()["key"].as_str().expect("a key").to_owned()
    }

    /// Options of a server that admits alice.
    pub fn server(&self) -> [String; 4] {
        let path = |name| self.path(name).display().to_string();
        ["--key".into(), path("server_secret"), "--authorized-keys".into(), path("authorized")]
    }

    /// Options of a client.
    pub fn client(&self, name: &str) -> [String; 4] {
        let secret = self.path(&format!("{name}_secret")).display().to_string();
        ["--key".into(), secret, "--server-key".into(), self.public("server")]
    }
}

fn serve(path: &Path, options: impl IntoIterator<Item = String>) -> Server {
    Server::from_command(tow([OsStr::new("serve"), path.as_ref()]).args(["--bind", "tcp://127.0.0.1:0"]).args(options))
}

/// Forwards connections to a port, and keeps every byte.
fn recorder(port: u16) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let ours = listener.local_addr().expect("an address").port();
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&recorded);
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let server = TcpStream::connect(("127.0.0.1", port)).expect("connect");
            for (mut from, mut to) in
                [(client.try_clone().expect("clone"), server.try_clone().expect("clone")), (server, client)]
            {
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || {
                    let mut buffer = vec![0; 1 << 16];
                    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
                        kept.lock().expect("no panic").extend_from_slice(&buffer[..bytes]);
                        if to.write_all(&buffer[..bytes]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    (ours, recorded)
}

fn has(wire: &[u8], text: &[u8]) -> bool {
    wire.windows(text.len()).any(|window| window == text)
}

#[test]
fn keys_are_private_and_never_overwritten() {
    let home = tempdir().expect("a folder");
    let new = || run(tow(["key", "new", "alice"]).env("HOME", home.path()).env_remove("XDG_CONFIG_HOME"));
    let made = new().expect_code(0);
    let secret = home.path().join(".config/tow/alice_secret");
    assert_eq!(std::fs::metadata(&secret).expect("it is there").permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&secret).expect("text");
    let key = text.lines().find_map(|line| line.trim().strip_prefix("secret-key = ")).expect("a key").trim_matches('"');
    let show = |path: &Path| run(&mut tow([OsStr::new("key"), "show".as_ref(), path.as_ref()])).expect_code(0);
    for outcome in [&made, &show(&secret), &show(&home.path().join(".config/tow/alice"))] {
        assert!(!has(&outcome.stdout, key.as_bytes()), "a secret is shown");
    }
    assert!(new().expect_code(1).stderr.contains("alice_secret: it exists"));
    let mut show_name = tow(["key", "show", "alice"]);
    let refused = run(show_name.env("HOME", home.path()).env_remove("XDG_CONFIG_HOME")).expect_code(1);
    assert!(refused.stderr.contains(".config/tow/alice?"), "{}", refused.stderr);
    assert_eq!(std::fs::read_to_string(&secret).expect("text"), text);
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o604)).expect("chmod");
    let options = ["--key".to_owned(), secret.display().to_string(), "--anyone".to_owned()];
    let refused = run(tow(["serve", "/usr/share"]).args(options)).expect_code(1);
    assert!(refused.stderr.contains("chmod 600"), "{}", refused.stderr);
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let keys = Keys::new();
    let secret = keys.path("server_secret").display().to_string();
    let secret = secret.as_str();
    let authorized = keys.path("authorized").display().to_string();
    for options in [
        &["serve", "/usr/share", "--key", secret][..],
        &["serve", "/usr/share", "--anyone"],
        &["broker", "--authorized-keys", &authorized],
        &["broker", "--key", secret, "--anyone", "--authorized-keys", &authorized],
        &["broker", "--key", secret, "--anyone", "--plain-passwords", &authorized],
        &["ls", "tcp://127.0.0.1:1/", "--key", secret],
        &["ls", "tcp://127.0.0.1:1/", "--server-key", "nothing"],
        &["call", "a", "b", "--user", "ann", "--server-key", secret],
    ] {
        let refused = run(&mut tow(options)).expect_code(2);
        assert!(!refused.stderr.is_empty());
    }
    let public = keys.path("server").display().to_string();
    let refused = run(&mut tow(["serve", "/usr/share", "--key", &public, "--anyone"])).expect_code(1);
    assert!(refused.stderr.contains("server_secret"), "{}", refused.stderr);
}

#[test]
fn files_are_fetched_encrypted() {
    // Two of our ends agree on the second cipher, unless a side doesn't have it.
    for without in ["", "server", "client"] {
        fetch_encrypted(without);
    }
}

fn fetch_encrypted(without: &str) {
    let limited = |side: &str, mut command: Command| {
        if side == without {
            command.env("TOW_WITHOUT_AES", "1");
        }
        command
    };
    let keys = Keys::new();
    let source = keys.path("served");
    // Text that a search finds: small, whole in memory, and by ranges of the file.
    let text = b"The quick brown fox jumps over the lazy dog.\n";
    write(&source.join("small"), text);
    write(&source.join("large"), &text.repeat(20_000));
    random_file(&source.join("random"), 1 << 20, 1);
    let mut command = limited("server", tow([OsStr::new("serve"), source.as_ref()]));
    let server = Server::from_command(command.args(["--bind", "tcp://127.0.0.1:0"]).args(keys.server()));
    let (port, recorded) = recorder(server.port());
    let copy = keys.path("copy");
    let url = format!("tcp://127.0.0.1:{port}/");
    let mut command = limited("client", get_command(&url, &copy));
    let got = run(command.args(keys.client("alice")).env("TOW_LOG", "towpath_sockets=debug")).expect_code(0);
    let cipher = if without.is_empty() && has_aes_instructions() { "AES-256-GCM" } else { "XSalsa20-Poly1305" };
    assert!(got.stderr.contains(&format!("cipher=\"{cipher}\"")), "{}", got.stderr);
    for name in ["small", "large", "random"] {
        assert_eq!(digest(&copy.join(name)), digest(&source.join(name)), "{name}");
    }
    let listed = run(tow(["ls", &url]).args(keys.client("alice"))).expect_code(0);
    assert!(has(&listed.stdout, b"random"));
    let wire = recorded.lock().expect("no panic");
    assert!(wire.len() > 1_900_000, "{} bytes", wire.len());
    for part in text.windows(8) {
        assert!(!has(&wire, part), "{part:?} was written");
    }
    for word in [&b"random"[..], b"DEALER", b"Socket-Type", b"Cipher"] {
        assert!(!has(&wire, word), "{} was written", word.escape_ascii());
    }
    wait_until("the server logs who has come", || server.log().contains("alice"));
}

#[test]
fn what_is_changed_on_its_way_is_noticed_and_given_up() {
    let keys = Keys::new();
    let source = keys.path("served");
    write(&source, &vec![7; 3 << 20]);
    let server = serve(&source, keys.server());
    // Behind the handshake, a byte of each connection's first kilobyte.
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let port = listener.local_addr().expect("an address").port();
    let upstream = server.port();
    std::thread::spawn(move || {
        while let Ok((client, _)) = listener.accept() {
            let server = TcpStream::connect(("127.0.0.1", upstream)).expect("connect");
            let (mut up, mut to_server) = (client.try_clone().expect("clone"), server.try_clone().expect("clone"));
            std::thread::spawn(move || std::io::copy(&mut up, &mut to_server));
            std::thread::spawn(move || {
                let (mut from, mut to) = (server, client);
                let (mut buffer, mut passed) = (vec![0; 1 << 16], 0);
                while let Ok(bytes @ 1..) = from.read(&mut buffer) {
                    if let Some(byte) = buffer[..bytes].get_mut(1000_usize.saturating_sub(passed)) {
                        *byte ^= u8::from(passed <= 1000);
                    }
                    passed += bytes;
                    if to.write_all(&buffer[..bytes]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    });
    let copy = keys.path("copy");
    let outcome = run(get_command(&format!("tcp://127.0.0.1:{port}/"), &copy).args(keys.client("alice")));
    assert!(outcome.status.code() == Some(6) && !copy.exists(), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("changed on its way"), "{}", outcome.stderr);
}

#[test]
fn peer_that_is_not_admitted_learns_why() {
    let keys = Keys::new();
    let source = keys.path("served");
    write(&source, b"content");
    let server = serve(&source, keys.server());
    let get = |options: &[String]| {
        let outcome = run(get_command(&server.url(""), &keys.path("copy")).args(options));
        assert!(outcome.status.code() == Some(5) && !keys.path("copy").exists(), "{}", outcome.stderr);
        outcome.stderr
    };
    // The server doesn't know the key.
    let text = get(&keys.client("eve"));
    assert!(text.contains("400") && text.contains(&keys.public("eve")) && text.contains("unverified"), "{text}");
    // Both learn of it at the same moment.
    wait_until("the server logs who was refused", || {
        let is_reported = |line: &str| line.contains("refused") && line.contains(&keys.public("eve"));
        server.log().lines().any(|line| is_reported(line) && line.contains("127.0.0.1"))
    });
    // Nor an ephemeral one.
    let text = get(&["--server-key".to_owned(), keys.public("server")]);
    assert!(text.contains("400") && text.contains("without --key, this side's key is a new one"), "{text}");
    // It has another key.
    let text = get(&["--server-key".to_owned(), keys.public("eve")]);
    assert!(text.contains("doesn't have the key") && text.contains(&keys.public("eve")), "{text}");
    // It wants to be asked for its key.
    let text = get(&[]);
    assert!(text.contains("CURVE") && text.contains("--server-key"), "{text}");
    // One without a key.
    let open = serve(&source, []);
    let outcome = run(get_command(&open.url(""), &keys.path("copy")).args(keys.client("alice")));
    assert!(!outcome.status.success() && outcome.stderr.contains("NULL"), "{}", outcome.stderr);
}

#[test]
fn known_servers_are_reached_with_their_key_only() {
    let keys = Keys::new();
    let source = keys.path("served");
    write(&source, b"content");
    let server = serve(&source, keys.server());
    let open = serve(&source, []);
    let config = keys.path("config");
    let with_config = |words: &[&str]| {
        let mut command = tow(words);
        command.env("XDG_CONFIG_HOME", &config);
        command
    };
    let known = format!("127.0.0.1:{}", server.port());
    run(&mut with_config(&["trust", "add", &known, &keys.public("server"), "--name", "lab"])).expect_code(0);
    let file = config.join("tow/servers");
    assert_eq!(std::fs::metadata(&file).expect("it is there").permissions().mode() & 0o777, 0o600);
    let listed = run(&mut with_config(&["trust", "list", "--json"])).expect_code(0).summary();
    assert_eq!(listed["endpoint"], format!("tcp://{known}"));
    assert_eq!((&listed["key"], &listed["name"]), (&keys.public("server").into(), &"lab".into()));
    let get = |port: u16, options: &[&str]| {
        run(with_config(&["get", &format!("tcp://127.0.0.1:{port}/"), "-"]).args(options))
    };
    let alice = keys.path("alice_secret").display().to_string();
    assert_eq!(get(server.port(), &["--key", &alice]).expect_code(0).stdout, b"content");
    // Encrypted, so the server learns the key of the client.
    let refused = get(server.port(), &[]).expect_code(5).stderr;
    assert!(refused.contains("400") && refused.contains("tow trust list"), "{refused}");
    let refused = get(server.port(), &["--user", "ann"]).expect_code(2).stderr;
    assert!(refused.contains("encrypted only"), "{refused}");

    // One that isn't known is reached as before; once it is known, never without its key.
    assert_eq!(get(open.port(), &[]).expect_code(0).stdout, b"content");
    get(open.port(), &["--key", &alice]).expect_code(2);
    let other = format!("127.0.0.1:{}", open.port());
    run(&mut with_config(&["trust", "add", &other, &keys.path("server").display().to_string()])).expect_code(0);
    let refused = get(open.port(), &[]).expect_code(5).stderr;
    assert!(refused.contains("NULL") && refused.contains("CURVE"), "{refused}");

    // A server with another key than the known one.
    let changed = with_config(&["trust", "add", &known, &keys.public("eve")]);
    let refused = run(&mut { changed }).expect_code(1).stderr;
    assert!(refused.contains("another key") && refused.contains(&keys.public("server")), "{refused}");
    run(&mut with_config(&["trust", "remove", &known])).expect_code(0);
    run(&mut with_config(&["trust", "remove", &known])).expect_code(4);
    run(&mut with_config(&["trust", "add", &known, &keys.public("eve")])).expect_code(0);
    let refused = get(server.port(), &["--key", &alice]).expect_code(5).stderr;
    assert!(refused.contains("doesn't have the key") && refused.contains("tow trust list"), "{refused}");
    run(&mut with_config(&["trust", "add", "127.0.0.1", &keys.public("eve")])).expect_code(2);

    // Brokers that stand in for each other have one key.
    let two = ["call", "echo", "hello", "--connect", &known, "--connect", &other];
    assert!(run(&mut with_config(&two)).expect_code(2).stderr.contains("the same key"));

    // Others could have put their key there.
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).expect("chmod");
    assert!(get(open.port(), &[]).expect_code(1).stderr.contains("chmod 600"));
}

#[test]
fn servers_that_are_added_at_once_are_all_known() {
    let keys = Keys::new();
    let with_config = |words: &[&str]| {
        let mut command = tow(words);
        command.env("XDG_CONFIG_HOME", keys.path("config"));
        command
    };
    let servers: Vec<_> = (1..=16).map(|n| format!("127.0.0.{n}:5571")).collect();
    let add = |server: &String| Process::start(&mut with_config(&["trust", "add", server, &keys.public("server")]));
    let running: Vec<_> = servers.iter().map(add).collect();
    for process in running {
        process.finish().expect_code(0);
    }
    let listed = run(&mut with_config(&["trust", "list"])).expect_code(0).stdout;
    assert_eq!(String::from_utf8_lossy(&listed).lines().count(), servers.len());
}

#[test]
fn other_machines_are_let_in_only_by_a_decision() {
    let folder = tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    for command in [&["serve", path][..], &["broker"]] {
        for bind in ["tcp://0.0.0.0:0", ":0", "*", "[::]:0", "host.invalid:0"] {
            let refused = run(tow(command).args(["--bind", "127.0.0.1:0", "--bind", bind])).expect_code(2).stderr;
            for way in ["--authorized-keys", "--anyone", "--plain-passwords", "--open-to-all"] {
                assert!(refused.contains(way), "{bind}: {refused}");
            }
        }
    }
    let server = Server::from_command(tow(["serve", path]).args(["--bind", ":0", "--open-to-all"]));
    run(&mut tow(["ls", &format!("tcp://127.0.0.1:{}/", server.port())])).expect_code(0);
    let keys = Keys::new();
    let options: Vec<String> = keys.server().into();
    let server = Server::from_command(tow(["serve", path]).args(["--bind", ":0"]).args(&options));
    let url = format!("tcp://127.0.0.1:{}/", server.port());
    run(tow(["ls", &url]).args(keys.client("alice"))).expect_code(0);
    assert!(server.log().contains(&format!("tow trust add HOST:PORT '{}'", keys.public("server"))), "{}", server.log());
    run(tow(["broker", "--open-to-all"]).args(options)).expect_code(2);
}

#[test]
fn anyone_gets_in_encrypted_and_old_keys_go_on() {
    let keys = Keys::new();
    let source = keys.path("served");
    write(&source, b"content");
    let secret = |name: &str| keys.path(&format!("{name}_secret")).display().to_string();
    let options = ["--key".into(), secret("server"), "--key".into(), secret("eve"), "--anyone".into()];
    let server = serve(&source, options);
    for name in ["server", "eve"] {
        let file = keys.path(name).display().to_string();
        let outcome = run(tow(["get", &server.url(""), "-", "--server-key"]).arg(file)).expect_code(0);
        assert_eq!(outcome.stdout, b"content");
    }
}

#[test]
fn requests_go_encrypted_through_the_broker() {
    let keys = Keys::new();
    let options: Vec<String> = keys.server().into();
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let broker = Broker::with(&options);
    let (port, recorded) = recorder(broker.port());
    let endpoint = format!("tcp://127.0.0.1:{port}");
    let mut worker = tow(["work", "shout", "--connect", &endpoint]);
    let worker = Process::start(worker.args(keys.client("alice")).args(["--", "tr", "a-z", "A-Z"]));
    wait_until("the worker is connected", || worker.log().contains("connected to a broker"));
    let ask = |words: &[&str], options: [String; 4]| -> Outcome {
        run(tow(["call", "shout", "--connect", &endpoint, "--timeout", "10"]).args(words).args(options))
    };
    let outcome = ask(&["attack at dawn"], keys.client("alice")).expect_code(0);
    assert_eq!(outcome.stdout, b"ATTACK AT DAWN");
    let outcome = ask(&["attack at noon"], keys.client("eve"));
    assert!(!outcome.status.success() && outcome.stderr.contains("400"), "{}", outcome.stderr);
    wait_until("the broker logs whom it refused", || broker.log().contains(&keys.public("eve")));
    // A large body: spooled, sent by ranges of the file, and written as it comes.
    let large = b"attack at midnight\n".repeat(60_000);
    write(&keys.path("large"), &large);
    let mut command = tow(["call", "shout", "--connect", &endpoint, "--timeout", "20"]);
    let input = std::fs::File::open(keys.path("large")).expect("open");
    let outcome = run(command.args(keys.client("alice")).stdin(input)).expect_code(0);
    assert_eq!(outcome.stdout.len(), large.len());
    assert_eq!(outcome.stdout, large.to_ascii_uppercase());
    let wire = recorded.lock().expect("no panic");
    for part in [&b"attack at"[..], b"ATTACK AT", b"shout"] {
        assert!(!has(&wire, part), "{} was written", part.escape_ascii());
    }
}

/// A name that `tow trust` doesn't have would be reached in the clear.
#[test]
fn servers_without_a_known_key_are_refused_where_keys_are_required() {
    let home = tempdir().expect("a folder");
    let served = tempdir().expect("a folder");
    let server = Server::start(served.path());
    let ls = |endpoint: &str| {
        let mut command = tow(["ls", endpoint]);
        command.env("HOME", home.path()).env_remove("XDG_CONFIG_HOME");
        command
    };
    run(&mut ls(&server.url(""))).expect_code(0);
    for refused in
        [run(ls(&server.url("")).arg("--require-keys")), run(ls(&server.url("")).env("TOW_REQUIRE_KEYS", "1"))]
    {
        assert!(refused.expect_code(2).stderr.contains("tow trust add"));
    }
    // All names of this machine are the known one's.
    let port = server.port();
    let key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
    let mut trust = tow(["trust", "add", &format!("localhost:{port}"), key]);
    run(trust.env("HOME", home.path()).env_remove("XDG_CONFIG_HOME")).expect_code(0);
    for host in ["127.0.0.1", "localhost", "0.0.0.0"] {
        run(ls(&format!("{host}:{port}/")).args(["--connect-timeout", "5s"])).expect_code(5);
    }
}
