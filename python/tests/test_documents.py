"""Every block of Python in the documents runs, in order; workers go on until the end of their page."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import DEADLINE_SECONDS, WORKSPACE

# Whose first line begins so isn't run.
LEFT_OUT = "# not run by tests: "


def blocks(page):
    """Blocks of a page that use this package."""
    for block in (WORKSPACE / page).read_text().split("```python\n")[1:]:
        block = block.partition("```")[0]
        if not block.startswith(LEFT_OUT) and ("towpath" in block or "tow://" in block):
            yield block


@pytest.mark.parametrize("page", ["README.md", "python/README.md", "docs/guide/python.md"])
def test_blocks_run(page, serve, broker, work, tmp_path):
    served = tmp_path / "served"
    (served / "models").mkdir(parents=True)
    (served / "incoming").mkdir()
    (served / "models/weights.bin").write_bytes(b"weights" * 1000)
    (served / "models/config.json").write_text("{}\n")
    (tmp_path / "run7.dat").write_bytes(b"measured\n")
    files, requests = serve(served, "--watch", "--settle", "100ms", "--accept-push", "incoming"), broker()
    if page != "docs/guide/python.md":
        work("upper", [requests], "--", "tr", "a-z", "A-Z")
    workers, count = [], 0
    try:
        for block in blocks(page):
            for call, server in [("Files(", files), ("Client(", requests), ("connect=", requests)]:
                block = block.replace(f'{call}"localhost"', f'{call}"{server.endpoint}"')
            block = block.replace("tow://localhost", files.endpoint.replace("tcp:", "tow:"))
            assert "localhost" not in block
            command = [sys.executable, "-c", block]
            if ".run()\n" in block and "asyncio" not in block:
                workers.append(subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL))
            else:
                done = subprocess.run(command, cwd=tmp_path, timeout=DEADLINE_SECONDS, capture_output=True, text=True)
                assert done.returncode == 0, f"{block}\n{done.stderr}"
                assert done.stdout
            count += 1
        for worker in workers:
            assert worker.poll() is None
            worker.terminate()
            assert worker.wait(DEADLINE_SECONDS) == 0
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert count >= 1
    assert (tmp_path / "my-models/weights.bin").read_bytes() == b"weights" * 1000


def test_the_guide_names_what_exists():
    import towpath

    guide = (WORKSPACE / "docs/guide/python.md").read_text()
    errors = {name for name in dir(towpath) if isinstance(getattr(towpath, name), type) and issubclass(getattr(towpath, name), towpath.RequestError)}
    assert errors - {"RequestError", "Conflict"} <= {word.strip("`,|") for word in guide.split()}
