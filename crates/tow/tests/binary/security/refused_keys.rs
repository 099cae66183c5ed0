//! Errors of each command where keys don't fit; none of them waits for what can't come.

use crate::security::keys::Keys;
use crate::support::broker::Broker;
use crate::support::process::{Process, Server, run, tow};
use crate::support::tree::write;
use crate::support::wait_until;

/// A file server and a broker, and their ports.
struct Servers {
    files: Server,
    broker: Broker,
}

impl Servers {
    fn start(keys: &Keys, options: &[String]) -> Servers {
        let folder = keys.path("served");
        write(&folder.join("file"), b"content");
        let mut serve = tow(["serve".as_ref(), folder.as_os_str()]);
        let files = Server::from_command(serve.args(["--watch", "--bind", "tcp://127.0.0.1:0"]).args(options));
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        Servers { files, broker: Broker::with(&options) }
    }
}

#[test]
fn each_command_says_which_key_is_wrong_and_ends() {
    let keys = Keys::new();
    let (secured, open) = (Servers::start(&keys, &keys.server()), Servers::start(&keys, &[]));
    let mut wrong_server = keys.client("alice").to_vec();
    wrong_server[3] = keys.public("eve");
    let eve = keys.public("eve");
    for (servers, options, says) in [
        (&secured, wrong_server, [&*eve, "doesn't have the key"]),
        (&secured, keys.client("eve").to_vec(), [&*eve, "doesn't know our key"]),
        (&secured, vec![], ["CURVE", "set up for NULL"]),
        (&open, keys.client("alice").to_vec(), ["NULL", "set up for CURVE"]),
    ] {
        let url = servers.files.url("");
        let copy = keys.path("copy").display().to_string();
        let endpoint = servers.broker.endpoint();
        for command in [
            &["get", &url, &copy][..],
            &["ls", &url],
            &["follow", &url, &copy],
            &["call", "echo", "hello", "--connect", endpoint, "--timeout", "60"],
        ] {
            let refused = run(tow(command).args(&options)).expect_code(5).stderr;
            assert!(says.iter().all(|words| refused.contains(words)), "{command:?} {options:?}: {refused}");
        }
        // A worker goes on trying, and says why.
        let mut worker = tow(["work", "echo", "--echo", "--connect", endpoint]);
        let worker = Process::start(worker.args(&options));
        wait_until("the worker says why", || says.iter().all(|words| worker.log().contains(words)));
    }
}
