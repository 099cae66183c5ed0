//! The Python side of the tests: a virtual environment of their own, and pytest.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::steps::{Outcome, apt_install, build, check, in_ci};
use crate::{target, workspace};

const REQUIREMENTS: &str = "conformance/python/requirements.txt";

/// Tests that need other languages.
pub const STACKS: [&str; 2] = ["conformance/python/test_examples.py", "conformance/python/test_other_stacks.py"];

/// A header that the examples in C, C++ and Go need, and the packages of Debian that have it.
const LIBZMQ: &str = "/usr/include/zmq.hpp";
const LIBZMQ_PACKAGES: &[&str] = &["libzmq3-dev", "cppzmq-dev"];

/// Folder of the package for Python.
const PACKAGE: &str = "python";

/// Tests of the package that a system without `fcntl`, `fork` hooks and `poll` must pass, too.
const BARE: [&str; 3] = ["python/tests/test_client.py", "python/tests/test_files.py", "python/tests/test_aio.py"];

/// Checks the types of the package in `python/` and runs its tests, with the `tow` binary of this workspace, which must be built.
pub fn package() -> Result<Outcome, String> {
    let python = match environment() {
        Ok(python) => python,
        Err(why) if in_ci() => return Err(why),
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    let project = workspace().join(PACKAGE);
    // As users have it, with its entry points.
    let site = target().join("python-site");
    let _ = std::fs::remove_dir_all(&site);
    let install = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-build-isolation",
        "--target",
    ];
    check(Command::new(&python).args(install).arg(&site).arg(&project))?;
    let configured = |module: &str| {
        let mut command = Command::new(&python);
        command.args(["-m", module]).env("TOW", target().join("debug/tow")).env("PYTHONPATH", &site);
        command.current_dir(workspace());
        command
    };
    check(
        configured("mypy").arg("--config-file").arg(project.join("pyproject.toml")).arg(project.join("src/towpath")),
    )?;
    let pytest = || {
        let mut command = configured("pytest");
        command.arg("-c").arg(project.join("pyproject.toml")).arg("--rootdir").arg(&project).args(["-n", "2"]);
        command
    };
    check(pytest().arg(project.join("tests")))?;
    check(pytest().args(BARE).args(["-k", "not stalled"]).env("TOWPATH_BARE", "1"))?;
    Ok(Outcome::Passed)
}

/// Runs the tests of the examples, and of other people's libraries.
pub fn stacks() -> Result<Outcome, String> {
    if !Path::new(LIBZMQ).exists() {
        apt_install(LIBZMQ_PACKAGES)?;
    }
    let [examples, others] = STACKS;
    if let skipped @ Outcome::Skipped(_) = pytest(&[examples, "-n", "2"])? {
        return Ok(skipped);
    }
    pytest(&[others])
}

/// Runs pytest with the `tow` binary of this workspace and the example of its sockets, which it builds first. `arguments` are
/// passed on: folders or files, and options. Without Python the step is skipped, but in CI that is a failure.
pub fn pytest(arguments: &[&str]) -> Result<Outcome, String> {
    build()?;
    let python = match environment() {
        Ok(python) => python,
        Err(why) if in_ci() => return Err(why),
        Err(why) => return Ok(Outcome::Skipped(why)),
    };
    check(
        Command::new(python)
            .args(["-m", "pytest", "-c", "conformance/python/pytest.ini", "--rootdir", "conformance/python"])
            .args(arguments)
            .current_dir(workspace())
            .env("TOW", target().join("debug/tow")),
    )?;
    Ok(Outcome::Passed)
}

/// `nats-server` from PyPI, in the virtual environment; `NATS_SERVER` names another.
pub fn nats_server() -> Result<PathBuf, String> {
    if let Some(server) = std::env::var_os("NATS_SERVER") {
        return Ok(server.into());
    }
    let server = environment()?.with_file_name("nats-server");
    if server.exists() { Ok(server) } else { Err(format!("there is no {}", server.display())) }
}

/// `weed` from PyPI, a server of S3, in the virtual environment; `WEED` names another.
pub fn weed() -> Result<PathBuf, String> {
    if let Some(server) = std::env::var_os("WEED") {
        return Ok(server.into());
    }
    let server = environment()?.with_file_name("weed");
    if server.exists() { Ok(server) } else { Err(format!("there is no {}", server.display())) }
}

/// The interpreter of the tests' virtual environment.
pub fn environment() -> Result<PathBuf, String> {
    environment_of("venv", REQUIREMENTS)
}

/// The interpreter of a virtual environment in the target folder, which is made, and filled, when it isn't as its requirements say.
pub fn environment_of(name: &str, requirements: &str) -> Result<PathBuf, String> {
    let folder = target().join(name);
    let python = folder.join("bin/python");
    let wanted = std::fs::read_to_string(workspace().join(requirements)).map_err(|e| format!("{requirements}: {e}"))?;
    let stamp = folder.join("installed-requirements.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    check(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    check(
        Command::new(&python)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", requirements])
            .current_dir(workspace()),
    )?;
    std::fs::write(&stamp, wanted).map_err(|e| format!("{}: {e}", stamp.display()))?;
    Ok(python)
}
