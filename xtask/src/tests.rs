//! Builds the workspace's test binaries with one cargo command, and runs several of them at a time.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::steps::{FEATURES, locked, show};
use crate::{cargo, target};

/// A binary that takes longer hangs, and is ended.
const TIMEOUT: Duration = Duration::from_secs(20 * 60);

/// Which test binaries to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// Tests within `src` alone.
    Quick,
    /// All of them but those of the real `tow` binary.
    Unit,
    /// Those of the real `tow` binary.
    Integration,
}

/// A test binary that cargo has built.
struct Binary {
    package: String,
    /// The target's kind and name, such as `lib towpath_zmtp`.
    name: String,
    folder: PathBuf,
    executable: PathBuf,
    /// The selection that it belongs to.
    selection: Selection,
}

impl Binary {
    fn title(&self) -> String {
        format!("{}: {}", self.package, self.name)
    }
}

/// Builds and runs the selected tests, `jobs` binaries at a time. Goes on after a failure, and names all that failed.
pub fn run(selection: Selection, jobs: usize, environment: &[(&str, &str)]) -> Result<(), String> {
    let mut binaries = build(selection)?;
    binaries.retain(|binary| selection == Selection::Quick || binary.selection == selection);
    let queue = Mutex::new(VecDeque::from(binaries));
    let failed = Mutex::new(Vec::new());
    let worker = || {
        loop {
            // In the condition of a loop, the lock would be held while the binary runs.
            let Some(binary) = lock(&queue).pop_front() else { break };
            if let Err(why) = run_binary(&binary, environment) {
                lock(&failed).push(why);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(worker);
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
}

/// Builds the same packages for every selection, since others would have other features and compile once more.
fn build(selection: Selection) -> Result<Vec<Binary>, String> {
    let mut command = cargo();
    let json = "--message-format=json-render-diagnostics";
    command.args(["test", "--workspace", "--no-run", "--features", FEATURES, json]).args(locked());
    if selection == Selection::Quick {
        command.args(["--lib", "--bins"]);
    }
    let shown = show(&command);
    println!("$ {shown}");
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{shown}: cannot be started: {error}"))?;
    if !output.status.success() {
        return Err(format!("{shown}: {}", output.status));
    }
    let lines = String::from_utf8_lossy(&output.stdout);
    Ok(lines.lines().filter_map(|line| binary(&serde_json::from_str(line).ok()?)).collect())
}

/// The test binary that one of cargo's messages is about.
fn binary(message: &Value) -> Option<Binary> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let kind = message["target"]["kind"][0].as_str()?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let name = message["target"]["name"].as_str()?;
    let is_integration = kind == "test" && folder.ends_with("crates/tow");
    Some(Binary {
        package: folder.file_name()?.to_string_lossy().into_owned(),
        name: format!("{kind} {name}"),
        selection: if is_integration { Selection::Integration } else { Selection::Unit },
        executable: message["executable"].as_str()?.into(),
        folder,
    })
}

/// Runs the tests of a binary. Shows its last line if it passed, else all it wrote.
fn run_binary(binary: &Binary, environment: &[(&str, &str)]) -> Result<(), String> {
    let title = binary.title();
    let log = target().join("xtask").join(title.replace([':', ' '], "_") + ".log");
    let start = Instant::now();
    let status = write_log(binary, environment, &log).map_err(|error| format!("{title}: cannot be run: {error}"))?;
    let written = String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
    let took = start.elapsed().as_secs_f64();
    if status.is_some_and(|status| status.success()) {
        let last = written.lines().rfind(|line| line.starts_with("test result:")).unwrap_or("no test result");
        println!("{title} ({took:.1} s)\n{last}");
        return Ok(());
    }
    let why = status.map_or_else(|| format!("took longer than {} s", TIMEOUT.as_secs()), |status| status.to_string());
    println!("---- {title}: {why}\n{written}\n---- end of {title}");
    Err(format!("{title}: {why}"))
}

/// Runs a binary with its output in a file; `None` if it had to be ended.
fn write_log(binary: &Binary, environment: &[(&str, &str)], log: &Path) -> std::io::Result<Option<ExitStatus>> {
    std::fs::create_dir_all(log.parent().unwrap_or(log))?;
    let file = File::create(log)?;
    let mut command = Command::new(&binary.executable);
    command.current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder).envs(environment.iter().copied());
    let mut child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn()?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > TIMEOUT {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
