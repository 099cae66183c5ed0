//! Modules without I/O: no sockets, files, threads or clocks.

use super::Problem;
use super::paths::paths;
use super::source::Tree;

const RULE: &str = "pure";

/// Files and folders that must stay pure, with everything below them.
const PURE: &[&str] = &[
    "crates/zmtp/src",
    "crates/rules/src",
    "crates/files/src/protocol",
    "crates/files/src/catalogue",
    "crates/files/src/server/session",
    "crates/files/src/transfer",
    "crates/files/src/client/open/reading",
    "crates/broker/src/core",
    "crates/broker/src/dispatch",
    "crates/broker/src/services",
    "crates/cell/src/block",
    "crates/cell/src/member",
    "crates/cell/src/order",
    "crates/sockets/src/relay/header",
    "crates/client/src/client/session",
    "crates/client/src/worker/session",
    "crates/tow/src/admin/history",
    "crates/tow/src/admin/problems",
];

/// Beginnings of paths that a pure module may not name.
const FORBIDDEN: &[&[&str]] = &[
    &["std", "fs"],
    &["std", "net", "TcpStream"],
    &["std", "net", "TcpListener"],
    &["std", "net", "UdpSocket"],
    &["std", "os", "unix", "net"],
    &["std", "thread"],
    &["std", "process"],
    &["tokio"],
    &["rustix"],
    &["socket2"],
    &["towpath_journal"],
];

/// Ends of paths that read a clock.
const CLOCKS: &[&[&str]] = &[&["Instant", "now"], &["SystemTime", "now"]];

pub fn check(tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    for pure in PURE {
        let mut files = 0;
        for file in tree.files.iter().filter(|file| (file.path == *pure || is_below(&file.path, pure)) && !file.test) {
            files += 1;
            for path in paths(&file.code()) {
                if FORBIDDEN.iter().any(|forbidden| path.starts_with(forbidden)) {
                    let advice =
                        format!("{pure} has no I/O; {} belongs in the code that drives it", path.segments.join("::"));
                    problems.push(Problem::new(&file.path, path.line, RULE, advice));
                }
                if CLOCKS.iter().any(|clock| path.ends_with(clock)) {
                    let advice = format!("{pure} reads no clock; take the time as an argument");
                    problems.push(Problem::new(&file.path, path.line, RULE, advice));
                }
            }
        }
        if files == 0 {
            problems.push(Problem::new(pure, 0, RULE, "is gone; correct PURE in xtask/src/tidy/purity.rs"));
        }
    }
    problems
}

/// Whether a Rust file is the module `module`, or below it.
fn is_below(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || (rest.starts_with('/') && rest.ends_with(".rs")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(text: &str) -> Vec<String> {
        let files = PURE.iter().map(|pure| (format!("{pure}/mod.rs"), String::new()));
        let tree = Tree::new(files.chain([("crates/zmtp/src/frame.rs".to_owned(), text.to_owned())]));
        check(&tree).into_iter().map(|problem| problem.advice).collect()
    }

    #[test]
    fn files_threads_and_clocks_are_reported() {
        assert_eq!(advice("use std::{fs::File, io};").len(), 1);
        assert_eq!(advice("fn f() { std::thread::spawn(g); let t = time::Instant::now(); }").len(), 2);
        assert_eq!(advice("use tokio::net::TcpStream;").len(), 1);
        assert_eq!(advice("use towpath_journal::Lsn;").len(), 1);
    }

    #[test]
    fn types_and_tests_are_fine() {
        assert!(advice("use std::time::Instant; use std::net::IpAddr; fn f(now: Instant) {}").is_empty());
        assert!(advice("#[cfg(test)] mod tests { use std::fs; }").is_empty());
    }

    #[test]
    fn folders_that_are_gone_are_reported() {
        assert_eq!(check(&Tree::new([])).len(), PURE.len());
    }
}
