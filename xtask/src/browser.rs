//! The tests of the page for browsers: types of its scripts, then Chromium against the real `tow`.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::steps::{Outcome, apt_install, build, check};
use crate::{target, workspace};

const SOURCES: &str = "testing/browser";

/// Where Debian's package has it; `CHROMIUM` names another.
const CHROMIUM: &str = "/usr/bin/chromium";

/// Runs the tests in a folder below target, where npm's packages are installed. What can't be installed is skipped, with the
/// reason.
pub fn run() -> Result<Outcome, String> {
    let (folder, chromium) = places();
    if let Err(why) = ready(&folder, &chromium) {
        return Ok(Outcome::Skipped(why));
    }
    check(Command::new(folder.join("node_modules/.bin/tsc")).args(["--project", SOURCES]).current_dir(workspace()))?;
    build()?;
    let mut tests: Vec<String> = files(&folder, ".test.mjs")?;
    tests.sort();
    check(
        Command::new("node")
            .args(["--test", "--test-concurrency=2", "--test-timeout=120000", "--test-reporter=spec"])
            .args(tests)
            .current_dir(&folder)
            .env("TOW", target().join("debug/tow"))
            .env("CHROMIUM", chromium)
            .env("PICTURES", target().join("page")),
    )?;
    println!("pictures of all views are in {}", target().join("page").display());
    Ok(Outcome::Passed)
}

/// Searches the site of the documentation, which is in this folder. `Some`: why it is skipped.
pub fn site(book: &Path) -> Result<Option<String>, String> {
    let (folder, chromium) = places();
    if let Err(why) = ready(&folder, &chromium) {
        return Ok(Some(why));
    }
    let mut node = Command::new("node");
    node.args(["--test", "--test-timeout=120000", "--test-reporter=spec", "site.mjs"]).current_dir(&folder);
    check(node.env("SITE", book).env("CHROMIUM", chromium)).map(|()| None)
}

/// The folder of the tests, not below CARGO_TARGET_DIR: tsconfig.json has this path; and the browser.
fn places() -> (PathBuf, PathBuf) {
    let chromium = std::env::var_os("CHROMIUM").map_or_else(|| PathBuf::from(CHROMIUM), PathBuf::from);
    (workspace().join("target/browser"), chromium)
}

/// Puts the sources and npm's packages into the folder, and looks for the browser.
fn ready(folder: &Path, chromium: &Path) -> Result<(), String> {
    if !chromium.exists() {
        apt_install(&["chromium"])?;
    }
    if !chromium.exists() {
        return Err(format!("there is no {} (apt install chromium, or set CHROMIUM)", chromium.display()));
    }
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    std::fs::create_dir_all(folder).map_err(failed)?;
    let sources = workspace().join(SOURCES);
    for old in files(folder, ".mjs")? {
        std::fs::remove_file(folder.join(old)).map_err(failed)?;
    }
    for name in files(&sources, ".mjs")?.iter().map(String::as_str).chain(["package.json", "package-lock.json"]) {
        std::fs::copy(sources.join(name), folder.join(name)).map_err(failed)?;
    }
    let wanted = std::fs::read(sources.join("package-lock.json")).map_err(failed)?;
    let stamp = folder.join("installed-package-lock.json");
    if std::fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    // The packages carry what they need; none has to run anything.
    let install = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"];
    check(Command::new("npm").args(install).current_dir(folder))?;
    std::fs::write(&stamp, wanted).map_err(failed)
}

/// Names of the files in a folder that end like this.
fn files(folder: &Path, end: &str) -> Result<Vec<String>, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
    let names = std::fs::read_dir(folder).map_err(failed)?.map(|entry| Ok(entry?.file_name()));
    let names: Vec<_> = names.collect::<Result<_, _>>().map_err(failed)?;
    Ok(names.into_iter().filter_map(|name| name.into_string().ok()).filter(|name| name.ends_with(end)).collect())
}
