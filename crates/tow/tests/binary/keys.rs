//! Keys, and encrypted connections between our own ends.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tempfile::{TempDir, tempdir};

use crate::support::broker::Broker;
use crate::support::process::{Outcome, Process, Server, get_command, run, tow};
use crate::support::tree::{digest, random_file, write};
use crate::support::wait_until;

/// Keys of a server and of two clients, of which it admits one.
struct Keys {
    folder: TempDir,
}

impl Keys {
    fn new() -> Keys {
        let folder = tempdir().expect("a folder");
        let keys = Keys { folder };
        for name in ["server", "alice", "eve"] {
            run(&mut tow([OsStr::new("key"), "new".as_ref(), keys.path(name).as_ref()])).expect_code(0);
        }
        write(&keys.path("authorized"), format!("alice {}\n", keys.public("alice")).as_bytes());
        keys
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn public(&self, name: &str) -> String {
        let shown = run(&mut tow([OsStr::new("key"), "show".as_ref(), self.path(name).as_ref(), "--json".as_ref()]));
        shown.expect_code(0).summary()["key"].as_str().expect("a key").to_owned()
    }

    /// Options of a server that admits alice.
    fn server(&self) -> [String; 4] {
        let path = |name| self.path(name).display().to_string();
        ["--key".into(), path("server_secret"), "--authorized-keys".into(), path("authorized")]
    }

    /// Options of a client.
    fn client(&self, name: &str) -> [String; 4] {
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
    assert_eq!(std::fs::read_to_string(&secret).expect("text"), text);
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o604)).expect("chmod");
    let options = ["--key".to_owned(), secret.display().to_string(), "--anyone".to_owned()];
    let refused = run(tow([OsStr::new("serve"), home.path().as_ref()]).args(options)).expect_code(1);
    assert!(refused.stderr.contains("chmod 600"), "{}", refused.stderr);
}

#[test]
fn options_that_do_not_go_together_are_refused() {
    let keys = Keys::new();
    let secret = keys.path("server_secret").display().to_string();
    let secret = secret.as_str();
    let authorized = keys.path("authorized").display().to_string();
    for options in [
        &["serve", "/tmp", "--key", secret][..],
        &["serve", "/tmp", "--anyone"],
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
    let refused = run(&mut tow(["serve", "/tmp", "--key", &public, "--anyone"])).expect_code(1);
    assert!(refused.stderr.contains("server_secret"), "{}", refused.stderr);
}

#[test]
fn files_are_fetched_encrypted() {
    let keys = Keys::new();
    let source = keys.path("served");
    // Text that a search finds: small, whole in memory, and by ranges of the file.
    let text = b"The quick brown fox jumps over the lazy dog.\n";
    write(&source.join("small"), text);
    write(&source.join("large"), &text.repeat(20_000));
    random_file(&source.join("random"), 1 << 20, 1);
    let server = serve(&source, keys.server());
    let (port, recorded) = recorder(server.port());
    let copy = keys.path("copy");
    let url = format!("tcp://127.0.0.1:{port}/");
    run(get_command(&url, &copy).args(keys.client("alice"))).expect_code(0);
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
    for word in [&b"random"[..], b"DEALER", b"Socket-Type"] {
        assert!(!has(&wire, word), "{} was written", word.escape_ascii());
    }
    wait_until("the server logs who has come", || server.log().contains("alice"));
}

#[test]
fn peer_that_is_not_admitted_is_told_why() {
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
        let is_told = |line: &str| line.contains("refused") && line.contains(&keys.public("eve"));
        server.log().lines().any(|line| is_told(line) && line.contains("127.0.0.1"))
    });
    // Nor an ephemeral one.
    let text = get(&["--server-key".to_owned(), keys.public("server")]);
    assert!(text.contains("400"), "{text}");
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
