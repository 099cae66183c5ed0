//! Symbolic links on the server: followed where one is named or that is asked for, and copied otherwise.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;
use tempfile::{TempDir, tempdir};

use crate::support::process::{Outcome, Server, get, get_command, run, tow};
use crate::support::tree::write;

/// A folder with releases, and links to them.
fn releases() -> (TempDir, Server) {
    let folder = tempdir().expect("a folder");
    let served = folder.path().join("served");
    write(&served.join("v2/app"), b"second");
    write(&served.join("v2/lib/part"), b"part");
    write(&served.join("app-2.tar"), b"archive");
    write(&folder.path().join("secret"), b"secret");
    let link = |target: &str, name: &str| symlink(target, served.join(name)).expect("link");
    link("v2", "current");
    link("app-2.tar", "latest.tar");
    link("missing", "dangling");
    link("../secret", "outside");
    link("app", "v2/own");
    let server = Server::start(&served);
    (folder, server)
}

fn kinds(listed: &Outcome) -> Vec<(String, String)> {
    let entries = listed.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let text = |entry: &Value, member: &str| entry[member].as_str().unwrap_or_default().to_owned();
    let entries = entries.map(|line| serde_json::from_slice::<Value>(line).expect("JSON"));
    entries.map(|entry| (text(&entry, "path"), text(&entry, "type"))).collect()
}

#[test]
fn a_link_that_is_named_is_followed() {
    let (folder, server) = releases();
    let here = |name: &str| folder.path().join(name);
    for path in ["current", "current/"] {
        let copy = here(&format!("tree-{}", path.len()));
        assert_eq!(get(&server.url(path), &copy).expect_code(0).number("files"), 2);
        assert!(copy.symlink_metadata().expect("a copy").is_dir());
        assert_eq!(fs::read(copy.join("lib/part")).expect("a file"), b"part");
        assert_eq!(fs::read_link(copy.join("own")).expect("a link"), Path::new("app"));
    }
    get(&server.url("latest.tar"), &here("copy.tar")).expect_code(0);
    assert!(here("copy.tar").symlink_metadata().expect("a copy").is_file());
    assert_eq!(fs::read(here("copy.tar")).expect("a file"), b"archive");
    let output = run(&mut tow(["get", &server.url("latest.tar"), "-"])).expect_code(0);
    assert_eq!(output.stdout, b"archive");
    // A file below a link was always reached.
    get(&server.url("current/app"), &here("app")).expect_code(0);
    for path in ["dangling", "outside"] {
        let outcome = get(&server.url(path), &here("nothing")).expect_code(4);
        assert!(outcome.stderr.contains("can't be followed"), "{}", outcome.stderr);
        assert!(here("nothing").symlink_metadata().is_err(), "{path}");
    }
}

#[test]
fn links_are_copied_with_links() {
    let (folder, server) = releases();
    for (path, target) in [("latest.tar", "app-2.tar"), ("current", "v2"), ("dangling", "missing")] {
        let copy = folder.path().join(path);
        run(get_command(&server.url(path), &copy).arg("--links")).expect_code(0);
        assert_eq!(fs::read_link(&copy).expect("a link"), Path::new(target));
    }
    let output = run(&mut tow(["get", &server.url("latest.tar"), "-", "--links"])).expect_code(1);
    assert!(output.stderr.contains("a link to app-2.tar"), "{}", output.stderr);
    assert!(output.stdout.is_empty());
}

#[test]
fn follow_links_copies_what_all_links_lead_to() {
    let (folder, server) = releases();
    let copy = folder.path().join("copy");
    let outcome = run(get_command(&server.url(""), &copy).arg("-L")).expect_code(1);
    for failed in ["dangling", "outside"] {
        assert!(outcome.stderr.contains(&format!("{failed}: a link to")), "{}", outcome.stderr);
    }
    assert_eq!((outcome.number("files"), outcome.number("failed")), (8, 2));
    assert_eq!(fs::read(copy.join("current/lib/part")).expect("a file"), b"part");
    for file in ["v2/own", "current/own", "latest.tar"] {
        assert!(copy.join(file).symlink_metadata().expect("a copy").is_file(), "{file}");
    }
    // A link to a directory above it would never end.
    let looping = folder.path().join("served/v2/lib/up");
    symlink("..", &looping).expect("link");
    let outcome = run(get_command(&server.url("v2"), &folder.path().join("loop")).arg("-L")).expect_code(1);
    assert!(outcome.stderr.contains("a directory above it"), "{}", outcome.stderr);
    assert_eq!(outcome.number("failed"), 1);
}

#[test]
fn ls_shows_a_link_or_what_it_leads_to() {
    let (_folder, server) = releases();
    let list = |arguments: &[&str]| kinds(&run(tow(["ls", "--json"]).args(arguments)).expect_code(0));
    let entry = |path: &str, kind: &str| (path.to_owned(), kind.to_owned());
    assert_eq!(list(&[&server.url("current")]), [entry("current", "link")]);
    let below = [entry("current/app", "file"), entry("current/lib", "dir"), entry("current/own", "link")];
    assert_eq!(list(&[&server.url("current/")]), below);
    assert_eq!(list(&["-L", &server.url("latest.tar")]), [entry("latest.tar", "file")]);
    let below = [entry("current/app", "file"), entry("current/lib", "dir"), entry("current/own", "file")];
    assert_eq!(list(&["-L", &server.url("current")]), below);
}
