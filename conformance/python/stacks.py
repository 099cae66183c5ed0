"""Installing what other languages need. What can't be installed is skipped, with the reason."""

import contextlib
import fcntl
import shutil
import subprocess

import pytest

INSTALL_SECONDS = 300


def install(tool: str, *arguments, folder) -> None:
    """Runs an installer; skips the tests that need it if it fails."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not here")
    command = [tool, *map(str, arguments)]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{tool} took more than {INSTALL_SECONDS} s")
    if done.returncode != 0:
        pytest.skip(f"{tool} ended with {done.returncode}: {(done.stdout + done.stderr)[-400:]}")


def install_packages(project, folder) -> None:
    """Installs npm's packages into a folder as the project's lock file says, unless they are there."""
    wanted, installed = project / "package-lock.json", folder / "node_modules/.installed"
    if not installed.exists() or installed.read_bytes() != wanted.read_bytes():
        for name in ("package.json", "package-lock.json"):
            shutil.copy(project / name, folder)
        install("npm", "ci", "--no-audit", "--no-fund", folder=folder)
        # zeromq carries its binary; one that doesn't load here is a stack that isn't installed.
        install("node", "--input-type=module", "--eval", "import 'zeromq'", folder=folder)
        shutil.copy(wanted, installed)


def install_jars(project, folder) -> None:
    """Copies what a project's pom.xml depends on into a folder, unless it is there."""
    wanted, installed = project / "pom.xml", folder / "pom.xml"
    if not installed.exists() or installed.read_bytes() != wanted.read_bytes():
        install("mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}", folder=project)
        shutil.copy(wanted, installed)


@contextlib.contextmanager
def alone(path):
    """Holds a lock, since tests run in several processes."""
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
