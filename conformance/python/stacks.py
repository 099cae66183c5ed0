"""Installing what other languages need. What can't be installed is skipped, with the reason."""

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


def install_packages(folder) -> None:
    """Installs npm's packages as the lock file in a folder says, unless they are there."""
    wanted, installed = folder / "package-lock.json", folder / "node_modules/.installed"
    if not installed.exists() or installed.read_bytes() != wanted.read_bytes():
        install("npm", "ci", "--no-audit", "--no-fund", folder=folder)
        # zeromq carries its binary; one that doesn't load here is a stack that isn't installed.
        install("node", "--input-type=module", "--eval", "import 'zeromq'", folder=folder)
        shutil.copy(wanted, installed)
