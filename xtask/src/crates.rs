//! The crates as other programs use them.

use crate::cargo;
use crate::steps::{check as run, locked};

/// Crates that other programs may use, and those that these depend on.
pub const PUBLISHED: &[&str] = &[
    "zmtp", "sockets", "requests", "client", "files", "rules", "spool", "journal", "buffers", "blocking", "quota",
    "outq", "lease", "tcpinfo",
];

/// Checks `towpath-zmtp` without its features, since the workspace always has all of them, and makes the packages.
///
/// The packages aren't built: that compiles everything once more, without what other steps have compiled.
pub fn check() -> Result<(), String> {
    for features in [&[][..], &["--features", "curve"]] {
        let zmtp = ["clippy", "--package", "towpath-zmtp", "--no-default-features"];
        run(cargo().args(zmtp).args(features).args(locked()).args(["--", "-D", "warnings"]))?;
    }
    let packages = PUBLISHED.iter().flat_map(|name| ["--package".to_owned(), format!("towpath-{name}")]);
    // Quiet, or it lists the tests that aren't in them.
    run(cargo().args(["package", "--no-verify", "--offline", "--allow-dirty", "--quiet"]).args(packages))
}
